"""What a request must give, and how precisely it can be asked for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .attention import Request, Result
from .cases import FUSION, Case
from .judge import Truth
from .reference import value_scale


def truth_of(result: Result, request: Request, undefined: Tensor | None = None) -> Truth:
    """The judge's view of a reference result."""
    peak, rms = value_scale(request.v)
    return Truth(
        result.out.cpu(),
        result.lse.cpu(),
        result.dead.cpu(),
        result.spread.cpu(),
        peak,
        rms,
        undefined,
        result.rows,
    )


def open_rows(case: Case, request: Request) -> Tensor | None:
    """Rows a user mask hides entirely, when the call does not define what they give (H03)."""
    if not case.dead_rows or case.inner_precise & 2 or case.masking not in ("mask", "all"):
        return None
    seen = request.visible.tile(request.row_ids, 0, request.visible.keys)
    return ~seen.any(1)


def low_precision_reason(case: Case) -> str:
    """Why the operator may round scores to its dtype; empty if it may not (H01, H05)."""
    if case.inner_precise & 1 and case.dtype == "fp16" and case.op != FUSION:
        return "inner_precise 1 with float16"
    if case.quant:
        return "the operator dequantises the cache into the query's dtype"
    return ""


def baseline(request: Request, scale: float, sink: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The same rows with every step rounded to ``dtype``: what a plain low-precision implementation errs."""
    heads = request.q.shape[0]
    group = heads // request.k.heads
    ids = request.row_ids
    q = request.q[:, ids].to(dtype)
    if not request.k.length or not len(ids):
        return torch.zeros(heads, len(ids), request.v.dim, dtype=dtype)
    k = request.k.read(0, request.k.length, torch.float32).to(dtype).repeat_interleave(group, 0)
    v = request.v.read(0, request.v.length, torch.float32).to(dtype).repeat_interleave(group, 0)
    s = (q @ k.transpose(1, 2)) * scale
    if request.bias is not None:
        s = s + request.bias[:, ids, : request.k.length].to(dtype)
    seen = request.visible.tile(ids, 0, request.k.length)
    s = s.masked_fill(~seen, -math.inf)
    if sink is not None:
        s = torch.cat([s, sink.to(dtype).view(-1, 1, 1).expand(-1, len(ids), 1)], -1)
        v = torch.nn.functional.pad(v, (0, 0, 0, 1))
    return torch.nan_to_num(s.softmax(-1) @ v)
