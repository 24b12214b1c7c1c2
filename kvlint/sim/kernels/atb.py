"""ATB operators that the attention kernels of the oracle do not have (contract 2.5)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.kernels import KERNELS as ATTENTION
from kvlint.oracle.kernels import KernelError


def _npu_reshape_and_cache_siso(key: Tensor, key_cache: Tensor, slot_indices: Tensor) -> None:
    """key [T, N, D] into [Bn, Bs, N, D]; negative slots are skipped."""
    if slot_indices.dtype != torch.int32:
        raise KernelError(
            f"_npu_reshape_and_cache_siso: slot_indices must be int32, got {slot_indices.dtype}"
        )
    kept = slot_indices >= 0
    slots = slot_indices[kept].long()
    if slots.numel() and int(slots.max()) >= key_cache.shape[0] * key_cache.shape[1]:
        raise KernelError("_npu_reshape_and_cache_siso: a slot is outside the cache: stray write")
    size = key_cache.shape[1]
    key_cache[slots // size, slots % size] = key[kept].reshape(-1, *key_cache.shape[2:])


def _npu_rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox_style: bool
) -> None:
    """Rotates query and key [T, N * D] in place; the cache holds cos in its first half, sin in its second."""
    cos, sin = cos_sin_cache[positions.reshape(-1).long()].float().chunk(2, -1)
    width = cos.shape[-1] * 2
    for x in (query, key):
        heads = x.view(len(cos), -1, head_size)
        part = heads[..., :width].float()
        a, b = part.chunk(2, -1) if is_neox_style else (part[..., ::2], part[..., 1::2])
        c, s = cos[:, None], sin[:, None]
        turned = (a * c - b * s, b * c + a * s)
        joined = torch.cat(turned, -1) if is_neox_style else torch.stack(turned, -1).flatten(-2)
        heads[..., :width] = joined.to(x.dtype)


def npu_paged_cache_load(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    seq_starts: Tensor | None = None,
    cumsum: bool = False,
) -> tuple[Tensor, Tensor]:
    """The cached rows of all requests, one after another, from ``seq_starts`` on."""
    lens = context_lens.tolist()
    if cumsum:
        lens = [b - a for a, b in pairwise(lens)]
    size = key_cache.shape[1]
    keys, values = [], []
    for b, n in enumerate(lens):
        at = torch.arange(n) + (0 if seq_starts is None else int(seq_starts[b]))
        blocks = block_table[b][at // size].long()
        keys.append(key_cache[blocks, at % size])
        values.append(value_cache[blocks, at % size])
    return torch.cat(keys), torch.cat(values)


def _npu_paged_attention_mla(
    query: Tensor,
    key_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    mla_vheadsize: int,
    out: Tensor,
) -> None:
    """One cache [Bn, Bs, 1, D] for both: the first ``mla_vheadsize`` columns are the values."""
    ATTENTION["_npu_paged_attention"](
        query, key_cache, key_cache[..., :mla_vheadsize], num_kv_heads, num_heads, scale_value, block_table,
        context_lens, out,
    )  # fmt: skip


def _npu_paged_attention_get_workspace(*args: Any, **kwargs: Any) -> Tensor:
    result: Tensor = ATTENTION["_npu_paged_attention_get_workspace"](*args, **kwargs)
    return result


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        _npu_reshape_and_cache_siso, _npu_rotary_embedding, npu_paged_cache_load, _npu_paged_attention_mla,
        _npu_paged_attention_get_workspace,
    )
}  # fmt: skip
