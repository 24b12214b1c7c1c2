"""The exact attention of the reference: online softmax over key tiles, bounded memory, no repeated KV.

For one request with q ``[N, R, D]``, k ``[Nk, S, D]``, v ``[Nk, S, Dv]`` and head h reading KV head
``h // (N / Nk)``::

    s[h,i,j] = scale * <q[h,i], k[h // g, j]> + bias[h,i,j]      (visible pairs only)
    out      = sum_j exp(s - m) v / (sum_j exp(s - m) + exp(sink[h] - m))
    lse      = log sum_j exp(s)                                  (natural log; the sink is not in it)

A row that sees no key has out 0 and lse +inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import OracleError
from .kv import Rows
from .visibility import Visibility

#: Score elements held at once (heads x rows x keys). 8M float32 scores are 32 MB; two or three such
#: buffers live at a time.
SCORE_BUDGET = 8 << 20
_ROW_BLOCK = 256
_KEY_BLOCK = 1024
_JOINT_KEYS = 512


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence: its queries, where its keys and values are, and who sees what.

    ``q``: ``[N, Sq, D]``; ``rows``: ascending token indices to compute (None = all); ``bias``: ``[N or 1,
    Sq, >= S]``, added to the scaled scores."""

    q: Tensor
    k: Rows
    v: Rows
    visible: Visibility
    rows: Tensor | None = None
    bias: Tensor | None = None

    @property
    def row_ids(self) -> Tensor:
        return torch.arange(self.q.shape[1]) if self.rows is None else self.rows


@dataclass(frozen=True, slots=True)
class Result:
    """``out`` ``[N, R, Dv]`` and ``lse`` ``[N, R]`` of the rows ``rows`` of one request; ``dead`` ``[N,
    R]`` is True for rows that see no key; ``spread`` ``[N, R]`` is the 2-norm of the softmax weights, which
    says how much independent rounding of the weights can move the row (1 when one key takes all)."""

    rows: Tensor
    out: Tensor
    lse: Tensor
    dead: Tensor
    spread: Tensor


def attend(
    requests: Sequence[Request],
    scale: float,
    *,
    sink: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    spread: bool = True,
) -> list[Result]:
    """Attention of every request, in order. Requests of equal shape are computed together.

    ``scale``: factor of the scores; ``sink``: ``[N]`` extra logit per head; ``dtype``: float64 or
    float32, the
    precision of every step; ``spread``: also compute :attr:`Result.spread` (one more pass over the weights).
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, request in enumerate(requests):
        _check(request, sink)
        groups.setdefault(_shape_key(request), []).append(index)
    results: dict[int, Result] = {}
    with torch.no_grad():
        for members in groups.values():
            # A joint tile holds every member's keys, so long contexts are taken in smaller groups.
            n_heads = requests[members[0]].q.shape[0]
            rows = max(1, len(requests[members[0]].row_ids))
            together = max(1, SCORE_BUDGET // (n_heads * min(rows, _ROW_BLOCK) * _KEY_BLOCK))
            for first in range(0, len(members), together):
                part = members[first : first + together]
                found = _attend_group(
                    [requests[i] for i in part], scale, sink, dtype, torch.device(device), spread
                )
                results.update(zip(part, found, strict=True))
    return [results[i] for i in range(len(requests))]


def _check(request: Request, sink: Tensor | None) -> None:
    heads, _, dim = request.q.shape
    if request.k.heads == 0 or heads % request.k.heads:
        raise OracleError(f"{heads} query heads are not a multiple of {request.k.heads} KV heads")
    if request.k.dim != dim:
        raise OracleError(f"query head dimension {dim} differs from key head dimension {request.k.dim}")
    if sink is not None and sink.numel() != heads:
        raise OracleError(f"sink has {sink.numel()} entries for {heads} heads")


def _shape_key(request: Request) -> tuple[object, ...]:
    rows = request.row_ids
    # Joint tiles save calls where requests are small; elsewhere they only copy keys and pad the shorter ones.
    alone: object = id(request) if len(rows) > 16 or request.k.length > _JOINT_KEYS else None
    return (
        request.q.shape[0], len(rows), request.q.shape[2], request.k.heads, request.v.dim,
        request.bias is None, alone,
    )  # fmt: skip


def _attend_group(
    group: list[Request],
    scale: float,
    sink: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
    with_spread: bool,
) -> list[Result]:
    heads, _, dim = group[0].q.shape
    kv_heads, out_dim = group[0].k.heads, group[0].v.dim
    per_kv = heads // kv_heads
    row_ids = [r.row_ids for r in group]
    count, batch = len(row_ids[0]), len(group)
    out = torch.zeros(batch, heads, count, out_dim, dtype=dtype, device=device)
    lse = torch.full((batch, heads, count), math.inf, dtype=dtype, device=device)
    dead = torch.ones(batch, heads, count, dtype=torch.bool, device=device)
    spread = torch.zeros(batch, heads, count, dtype=dtype, device=device)
    row_block = max(1, min(_ROW_BLOCK, SCORE_BUDGET // (batch * heads * _KEY_BLOCK)))
    for start in range(0, count, row_block):
        stop = min(count, start + row_block)
        n = stop - start
        blocks = [ids[start:stop] for ids in row_ids]
        q = _stack(
            [
                r.q[:, ids] if r.rows is not None else r.q[:, start:stop]
                for r, ids in zip(group, blocks, strict=True)
            ]
        )
        q = q.to(device=device, dtype=dtype).mul(scale).reshape(batch * kv_heads, per_kv * n, dim)
        peak = torch.full((batch * kv_heads, per_kv * n, 1), -math.inf, dtype=dtype, device=device)
        total = torch.zeros_like(peak)
        squares = torch.zeros_like(peak)
        acc = torch.zeros(batch * kv_heads, per_kv * n, out_dim, dtype=dtype, device=device)
        for lo, hi, masked in _tiles(group, blocks, max(1, SCORE_BUDGET // (batch * heads * n))):
            k = _stack([_read(r.k, lo, hi, dtype, device) for r in group]).flatten(0, 1)
            v = _stack([_read(r.v, lo, hi, dtype, device) for r in group]).flatten(0, 1)
            s = torch.bmm(q, k.transpose(1, 2))
            tile = s.view(batch, kv_heads, per_kv, n, hi - lo)
            for b, (request, ids) in enumerate(zip(group, blocks, strict=True)):
                if request.bias is not None:
                    tile[b] += _bias(request, ids, lo, hi, heads).to(tile).view(kv_heads, per_kv, n, hi - lo)
            if masked:
                seen = torch.stack([_seen(r, ids, lo, hi) for r, ids in zip(group, blocks, strict=True)])
                tile.masked_fill_(~seen.to(device)[:, None, None], -math.inf)
            new = torch.maximum(peak, s.amax(-1, keepdim=True))
            safe = torch.where(new == -math.inf, 0.0, new)
            s.sub_(safe).exp_()
            decay = (peak - safe).exp_()
            total = total.mul_(decay).add_(s.sum(-1, keepdim=True))
            if with_spread:
                squares = squares.mul_(decay.square()).add_(
                    torch.linalg.vector_norm(s, dim=-1, keepdim=True).square_()
                )
            acc = acc.mul_(decay).baddbmm_(s, v)
            peak = new
        none = total == 0
        denominator = total
        if sink is not None:
            logit = sink.to(device=device, dtype=dtype).view(1, kv_heads, per_kv, 1)
            logit = logit.expand(batch, kv_heads, per_kv, n).reshape(batch * kv_heads, per_kv * n, 1)
            top = torch.maximum(peak, logit)
            decay = (peak - top).exp_()
            acc = acc.mul_(decay)
            squares = squares.mul_(decay.square())
            denominator = total * decay + (logit - top).exp_()
        shape = (batch, heads, n)
        value = torch.where(none, 0.0, acc / torch.where(none, 1.0, denominator))
        out[:, :, start:stop] = value.view(*shape, out_dim)
        lse[:, :, start:stop] = torch.where(none, math.inf, peak + total.log()).view(shape)
        dead[:, :, start:stop] = none.view(shape)
        spread[:, :, start:stop] = (squares.sqrt() / torch.where(none, 1.0, denominator)).view(shape)
    return [Result(ids, out[b], lse[b], dead[b], spread[b]) for b, ids in enumerate(row_ids)]


def _tiles(group: list[Request], blocks: list[Tensor], budget: int) -> list[tuple[int, int, bool]]:
    """Key tiles (start, stop, needs a mask), cut where the fully visible region begins and ends."""
    ends = [(int(ids[0]), int(ids[-1])) for ids in blocks]
    spans = [r.visible.span(*e) for r, e in zip(group, ends, strict=True)]
    spans = [s for s in spans if s[1] > s[0]]
    if not spans:
        return []
    lo, hi = min(s[0] for s in spans), max(s[1] for s in spans)
    cores = [r.visible.core(*e) for r, e in zip(group, ends, strict=True)]
    start, stop = max(c[0] for c in cores), min(c[1] for c in cores)
    start, stop = (max(lo, start), min(hi, stop)) if stop > start else (lo, lo)
    step = max(16, min(budget, _KEY_BLOCK))
    return [
        (first, min(last, first + step), masked)
        for begin, last, masked in ((lo, start, True), (start, stop, False), (stop, hi, True))
        for first in range(begin, last, step)
    ]


def _stack(parts: list[Tensor]) -> Tensor:
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)


def _read(rows: Rows, lo: int, hi: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    part = rows.read(min(lo, rows.length), min(hi, rows.length), dtype).to(device)
    missing = hi - lo - part.shape[1]
    return torch.nn.functional.pad(part, (0, 0, 0, missing)) if missing else part


def _seen(request: Request, ids: Tensor, lo: int, hi: int) -> Tensor:
    own = min(hi, request.visible.keys)
    if own <= lo:
        return torch.zeros(len(ids), hi - lo, dtype=torch.bool)
    seen = request.visible.tile(ids, lo, own)
    return torch.nn.functional.pad(seen, (0, hi - own)) if own < hi else seen


def _bias(request: Request, ids: Tensor, lo: int, hi: int, heads: int) -> Tensor:
    assert request.bias is not None
    part = request.bias[:, ids, lo : min(hi, request.bias.shape[2])]
    part = torch.nn.functional.pad(part, (0, hi - lo - part.shape[2]))
    return part.expand(heads, -1, -1)
