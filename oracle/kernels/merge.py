"""Simulated merges of partial attention results (contract 2.6)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._core import KernelError


def npu_attention_update(
    lse: Sequence[Tensor], local_out: Sequence[Tensor], update_type: int
) -> tuple[Tensor, Tensor]:
    """lse: fp32 [R] each, local_out: [R, D] each. Infinite lse (either sign) counts as "no keys here"."""
    if len(lse) != len(local_out) or not 1 <= len(lse) <= 16:
        raise KernelError(f"npu_attention_update: {len(lse)} lse and {len(local_out)} outputs")
    stats = torch.stack([x.float().reshape(-1) for x in lse])
    absent = torch.isinf(stats) | (stats <= -3.0e38)
    stats = torch.where(absent, torch.full_like(stats, -3.0e38), stats)
    top = stats.max(0).values
    weights = torch.exp(stats - top) * (~absent)
    norm = weights.sum(0)
    dead = norm == 0
    mixed = torch.zeros(local_out[0].shape, dtype=torch.float32)
    for w, o in zip(weights, local_out, strict=True):
        mixed = mixed + w[:, None] * torch.where(w[:, None] > 0, o.float(), torch.zeros_like(mixed))
    mixed = mixed / torch.where(dead, torch.ones_like(norm), norm)[:, None]
    merged = torch.where(dead, torch.full_like(top, float("inf")), top + torch.log(norm))
    return mixed.to(local_out[0].dtype), merged if update_type == 1 else torch.zeros_like(merged)


def npu_ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    *,
    actual_seq_qlen: Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge of two (out, max, sum); out is [S, B, H] or [T, N, D], statistics repeat 8 times on the last
    axis."""
    if input_layout not in ("SBH", "TND"):
        raise KernelError(f"npu_ring_attention_update: input_layout {input_layout} is not supported")
    top = torch.maximum(prev_softmax_max, cur_softmax_max)
    a = prev_softmax_sum * torch.exp(prev_softmax_max - top)
    b = cur_softmax_sum * torch.exp(cur_softmax_max - top)
    norm = a + b
    wa, wb = (a / norm)[..., 0], (b / norm)[..., 0]
    if input_layout == "SBH":  # statistics are [B, N, S, 8]
        heads = wa.shape[1]
        shape = (*prev_attn_out.shape[:2], heads, -1)
        wa, wb = wa.permute(2, 0, 1)[..., None], wb.permute(2, 0, 1)[..., None]
        out = prev_attn_out.float().reshape(shape) * wa + cur_attn_out.float().reshape(shape) * wb
        return out.reshape(prev_attn_out.shape).to(prev_attn_out.dtype), top, norm
    out = prev_attn_out.float() * wa[..., None] + cur_attn_out.float() * wb[..., None]
    return out.to(prev_attn_out.dtype), top, norm
