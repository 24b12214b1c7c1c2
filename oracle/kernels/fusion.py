"""Simulated npu_fusion_attention v1, v2 and v3 (forward only, contract 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ._core import NO_LIMIT, KernelError, Plan, flash, plan_compressed, plan_full, plan_full_mask

Lengths = Sequence[int] | Tensor | None


def _to_bnsd(x: Tensor, layout: str, heads: int) -> Tensor:
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.movedim(2, 1)
    if layout == "BSH":
        return x.reshape(*x.shape[:2], heads, -1).movedim(2, 1)
    if layout == "SBH":
        return x.reshape(*x.shape[:2], heads, -1).permute(1, 2, 0, 3)
    return x.movedim(1, 0)[None]


def _from_bnsd(x: Tensor, layout: str) -> Tensor:
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.movedim(1, 2).contiguous()
    if layout == "BSH":
        return x.movedim(1, 2).flatten(2).contiguous()
    if layout == "SBH":
        return x.permute(2, 0, 1, 3).flatten(2).contiguous()
    return x[0].movedim(0, 1).contiguous()


def _list(x: Lengths) -> list[int] | None:
    return None if x is None else [int(n) for n in (x.tolist() if isinstance(x, Tensor) else x)]


def _plan(
    mask: Tensor | None, mode: int, pre: int, nxt: int, request: int, rows: int, keys: int, prefix: Lengths
) -> Plan:
    if mask is None:
        return plan_full(keys)
    shift = keys - rows
    if mode in (2, 3, 4):
        if mode == 4:
            upper = None if nxt >= keys else shift + nxt
            lower = None if pre >= keys + rows else shift - pre
            return plan_compressed(mask, keys, rows, upper, lower)
        return plan_compressed(mask, keys, rows, 0 if mode == 2 else shift, None)
    if mode in (5, 6):
        lengths = _list(prefix)
        if lengths is None or len(lengths) <= request:
            raise KernelError("npu_fusion_attention: sparse_mode 5 and 6 need prefix")
        kept = lengths[request]

        def hidden(i0: int, i1: int, j0: int, j1: int) -> Tensor:
            i = torch.arange(i0, i1)[:, None]
            j = torch.arange(j0, j1)[None]
            return (j > i + shift) & (j >= kept)

        return Plan(lambda i0, i1: (0, keys), hidden)
    if mode not in (0, 1):
        raise KernelError(f"npu_fusion_attention: sparse_mode {mode} is not simulated")
    own = mask if mask.dim() == 2 else mask.reshape(-1, *mask.shape[-2:])
    if own.dim() == 3:
        own = own[request if own.shape[0] > 1 else 0]
    return plan_full_mask(own, keys) if mode == 1 else plan_full_mask(own, keys, pre, nxt)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    layout: str,
    *,
    bias: Tensor | None,
    bias_before_scale: bool,
    mask: Tensor | None,
    scale: float,
    keep_prob: float,
    pre: int,
    nxt: int,
    inner_precise: int,
    prefix: Lengths,
    q_lens: Lengths,
    kv_lens: Lengths,
    mode: int,
    sink: Tensor | None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if keep_prob != 1.0:
        raise KernelError("npu_fusion_attention: dropout is not simulated, keep_prob must be 1")
    if layout not in ("BSH", "SBH", "BSND", "BNSD", "TND"):
        raise KernelError(f"npu_fusion_attention: input_layout {layout} is not supported")
    packed = layout == "TND"
    dim = query.shape[-1] // heads if layout in ("BSH", "SBH") else query.shape[-1]
    kv_heads = (
        key.shape[-1] // dim
        if layout in ("BSH", "SBH")
        else key.shape[{"BSND": 2, "BNSD": 1, "TND": 1}[layout]]
    )
    q, k, v = (
        _to_bnsd(query, layout, heads),
        _to_bnsd(key, layout, kv_heads),
        _to_bnsd(value, layout, kv_heads),
    )
    if query_rope is not None and key_rope is not None:
        q = torch.cat([q, _to_bnsd(query_rope, layout, heads)], -1)
        k = torch.cat([k, _to_bnsd(key_rope, layout, kv_heads)], -1)
    out = torch.zeros(*q.shape[:3], v.shape[-1])
    maximum = torch.zeros(*q.shape[:3])
    total = torch.zeros(*q.shape[:3])
    qs, ks = _list(q_lens), _list(kv_lens)
    if packed and (not qs or not ks):
        raise KernelError("npu_fusion_attention: TND needs actual_seq_qlen and actual_seq_kvlen")
    parts = (
        [(0, slice(*a), slice(*b)) for a, b in zip(pairwise([0, *qs]), pairwise([0, *ks]), strict=True)]
        if packed and qs and ks
        else [(b, slice(0, q.shape[2]), slice(0, k.shape[2])) for b in range(q.shape[0])]
    )
    for request, (b, rows, cols) in enumerate(parts):
        # Tail entries of a padded batch are zero and name no tokens (FUS-08).
        count, keys = rows.stop - rows.start, cols.stop - cols.start
        if count <= 0 or keys <= 0:
            continue
        kk, vv = k[b, :, cols], v[b, :, cols]
        found, _, top, norm = flash(
            q[b, :, rows],
            lambda j0, j1, kk=kk, vv=vv: (kk[:, j0:j1], vv[:, j0:j1]),  # type: ignore[misc]
            _plan(mask, mode, pre, nxt, request, count, keys, prefix),
            scale,
            kv_heads=kv_heads,
            out_dim=v.shape[-1],
            work_dtype=query.dtype,
            bias=None if bias is None else bias[request if bias.shape[0] > 1 else 0],
            scale_after_bias=bias_before_scale,
            sink=sink,
            zero_invalid_rows=inner_precise == 2 or mode in (2, 3, 4),
        )
        out[b, :, rows], maximum[b, :, rows], total[b, :, rows] = found, top, norm
    stats = [t[0].T if packed else t for t in (maximum, total)]
    eight = [s[..., None].expand(*s.shape, 8).contiguous() for s in stats]
    return _from_bnsd(out, layout).to(query.dtype), eight[0], eight[1], query.new_zeros(0)


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = NO_LIMIT,
    next_tockens: int = NO_LIMIT,
    inner_precise: int = 0,
    prefix: Lengths = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int | None = None,
    offset: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """v1: (out, softmax_max, softmax_sum, softmax_out, seed, offset, mask length). pse is added before
    scaling."""
    found = _forward(
        query, key, value, head_num, input_layout, bias=pse, bias_before_scale=True, mask=atten_mask,
        scale=scale,
        keep_prob=keep_prob, pre=pre_tockens, nxt=next_tockens, inner_precise=inner_precise, prefix=prefix,
        q_lens=actual_seq_qlen, kv_lens=actual_seq_kvlen, mode=sparse_mode, sink=sink,
    )  # fmt: skip
    return (*found, 0, 0, 0)


def npu_fusion_attention_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = NO_LIMIT,
    next_tockens: int = NO_LIMIT,
    inner_precise: int = 0,
    prefix: Lengths = None,
    actual_seq_qlen: Tensor | None = None,
    actual_seq_kvlen: Tensor | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """v1 with the lengths as CPU tensors (a list is refused), and seed and offset as tensors."""
    for name, lens in (("actual_seq_qlen", actual_seq_qlen), ("actual_seq_kvlen", actual_seq_kvlen)):
        if lens is not None and not isinstance(lens, Tensor):
            raise KernelError(
                f"npu_fusion_attention_v3: {name} must be a CPU tensor, got {type(lens).__name__}"
            )
    found = npu_fusion_attention(
        query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, scale, keep_prob,
        pre_tockens, next_tockens, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode,
        gen_mask_parallel, sync, softmax_layout, sink, **kwargs,
    )  # fmt: skip
    return (*found[:4], torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))


def npu_fusion_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = NO_LIMIT,
    inner_precise: int = 0,
    prefix: Lengths = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Lengths = None,
    kv_start_idx: Lengths = None,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int | None = None,
    offset: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """v2: pse_type 1 adds before scaling, 0 after; 2 and 3 are not simulated."""
    if pse_type not in (0, 1):
        raise KernelError(f"npu_fusion_attention_v2: pse_type {pse_type} is not simulated")
    found = _forward(
        query, key, value, head_num, input_layout, bias=pse, bias_before_scale=pse_type == 1, mask=atten_mask,
        scale=scale, keep_prob=keep_prob, pre=pre_tokens, nxt=next_tokens, inner_precise=inner_precise,
        prefix=prefix,
        q_lens=actual_seq_qlen, kv_lens=actual_seq_kvlen, mode=sparse_mode, sink=sink, query_rope=query_rope,
        key_rope=key_rope,
    )  # fmt: skip
    return (*found, 0, 0, 0)
