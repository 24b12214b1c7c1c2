"""ATB operators that the attention kernels of the oracle do not have (contract 2.5)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.kernels import KERNELS as ATTENTION
from kvlint.oracle.kernels import KernelError
from kvlint.oracle.kernels._core import Plan, flash, plan_full


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


def _host_lengths(name: str, lens: Tensor) -> list[int]:
    if lens.dtype != torch.int32:
        raise KernelError(f"{name}: seq_len must be int32, got {lens.dtype} (ATB-12)")
    return [int(n) for n in (lens if lens.dim() == 1 else lens[0]).tolist()]


def _npu_flash_attention_unpad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    """Packed requests [T, N, D], nothing hidden: every token sees its whole request (contract 2.5).

    Lengths are per request. Rows of ``out`` past their sum keep what they held (ATB-12).
    """
    name = "_npu_flash_attention_unpad"
    lens = _host_lengths(name, seq_len)
    if sum(lens) > len(query):
        raise KernelError(
            f"{name}: lengths add up to {sum(lens)}, the query has {len(query)} tokens (ATB-12)"
        )
    q, k = query.reshape(len(query), num_heads, -1), key.reshape(len(key), num_kv_heads, -1)
    v, into = value.reshape(len(value), num_kv_heads, -1), out.view(len(out), num_heads, -1)
    begin = 0
    for n in lens:
        rows = slice(begin, begin + n)
        keys, values = k[rows].transpose(0, 1), v[rows].transpose(0, 1)

        def fetch(j0: int, j1: int, keys: Tensor = keys, values: Tensor = values) -> tuple[Tensor, Tensor]:
            return keys[:, j0:j1], values[:, j0:j1]

        found = flash(
            q[rows].transpose(0, 1), fetch, plan_full(n), scale_value, kv_heads=num_kv_heads,
            out_dim=v.shape[-1], work_dtype=query.dtype,
        )  # fmt: skip
        into[rows] = found[0].transpose(0, 1).to(out.dtype)
        begin += n


def _npu_flash_attention_qlens(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    context_lens: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: Tensor,
) -> None:
    """New tokens [T, N, D] behind cached ones, causal; ``context_lens`` count both (ATB-09)."""
    name = "_npu_flash_attention_qlens"
    if tuple(mask.shape[-2:]) != (128, 128) or not torch.equal(
        mask.reshape(128, 128) != 0, _above_diagonal()
    ):
        raise KernelError(
            f"{name}: mask must be 128 x 128 with only what is above the diagonal hidden (ATB-09)"
        )
    if mask.dtype != query.dtype:
        raise KernelError(f"{name}: mask is {mask.dtype} and query {query.dtype} (ATB-05)")
    counts, totals = _host_lengths(name, seq_len), _host_lengths(name, context_lens)
    if len(block_table) != len(counts) or block_table.dtype != torch.int32:
        raise KernelError(f"{name}: block_table must be int32 with one row per request (ATB-09)")
    size = key_cache.shape[1]
    if size != 128:
        raise KernelError(f"{name}: the block size must be 128, got {size} (ATB-09)")
    if any((total - n) % 128 for n, total in zip(counts, totals, strict=True)):
        raise KernelError(f"{name}: cached tokens per request must be a multiple of 128 (ATB-09)")
    begin = 0
    for b, (n, total) in enumerate(zip(counts, totals, strict=True)):
        rows = slice(begin, begin + n)

        def fetch(j0: int, j1: int, b: int = b) -> tuple[Tensor, Tensor]:
            at = torch.arange(j0, j1)
            blocks = block_table[b][at // size].long()
            shape = (j1 - j0, num_kv_heads, -1)
            keys, values = key_cache[blocks, at % size], value_cache[blocks, at % size]
            return keys.reshape(shape).transpose(0, 1), values.reshape(shape).transpose(0, 1)

        def hidden(i0: int, i1: int, j0: int, j1: int, past: int = total - n) -> Tensor:
            return torch.arange(j0, j1)[None] > torch.arange(i0, i1)[:, None] + past

        def visited(i0: int, i1: int, total: int = total) -> tuple[int, int]:
            return 0, total

        width = value_cache.shape[-1] if value_cache.dim() == 4 else value_cache.shape[-1] // num_kv_heads
        found = flash(
            query[rows].reshape(n, num_heads, -1).transpose(0, 1), fetch, Plan(visited, hidden), scale_value,
            kv_heads=num_kv_heads, out_dim=width, work_dtype=query.dtype,
        )  # fmt: skip
        out.view(len(out), num_heads, -1)[rows] = found[0].transpose(0, 1).to(out.dtype)
        begin += n


def _above_diagonal() -> Tensor:
    return torch.ones(128, 128, dtype=torch.bool).triu(1)


def _npu_paged_attention_get_workspace(*args: Any, **kwargs: Any) -> Tensor:
    result: Tensor = ATTENTION["_npu_paged_attention_get_workspace"](*args, **kwargs)
    return result


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        _npu_reshape_and_cache_siso, _npu_rotary_embedding, npu_paged_cache_load, _npu_paged_attention_mla,
        _npu_paged_attention_get_workspace, _npu_flash_attention_unpad, _npu_flash_attention_qlens,
    )
}  # fmt: skip
