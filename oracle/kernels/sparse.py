"""Simulated sparse flash attention and lightning indexer (contract 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._core import KernelError

FAR = (1 << 63) - 1


def _extent(lens: Tensor | None, request: int, cumulative: bool, whole: int) -> tuple[int, int]:
    if lens is None:
        return 0, whole
    if not isinstance(lens, Tensor):
        raise KernelError("lengths of the sparse operators are int32 tensors, not lists")
    values = [int(n) for n in lens.tolist()]
    if not cumulative:
        return 0, values[request]
    return (values[request - 1] if request else 0), values[request]


def _gather_pages(cache: Tensor, table: Tensor, request: int, tokens: Tensor) -> Tensor:
    size = cache.shape[1]
    blocks = table[request].cpu()[tokens // size].long()
    return cache[blocks, tokens % size]


def _key_rows(
    cache: Tensor, layout: str, table: Tensor | None, lens: Tensor | None, request: int
) -> tuple[Tensor, int]:
    """All key rows [S, N2, D] of a request and their number."""
    if layout == "PA_BSND":
        if table is None or lens is None:
            raise KernelError("PA_BSND needs block_table and key lengths")
        _, count = _extent(lens, request, False, 0)
        return _gather_pages(cache, table, request, torch.arange(count)), count
    if layout == "TND":
        first, last = _extent(lens, request, True, cache.shape[0])
        return cache[first:last], last - first
    _, count = _extent(lens, request, False, cache.shape[1])
    return cache[request, :count], count


def npu_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sinks: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = FAR,
    next_tokens: int = FAR,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Each query token attends the ``sparse_block_size``-token blocks its indices name.

    Token by token: gather the selected rows, softmax in float32, P in the input dtype. Returns
    (out in query layout, softmax_max, softmax_sum).
    """
    name = "npu_sparse_flash_attention"
    if attention_mode != 2:
        raise KernelError(f"{name}: attention_mode must be 2, got {attention_mode}")
    if sparse_mode not in (0, 3):
        raise KernelError(f"{name}: sparse_mode must be 0 or 3, got {sparse_mode}")
    if sinks is not None:
        raise KernelError(f"{name}: sinks are not simulated")
    packed = layout_query == "TND"
    batch = (
        len(actual_seq_lengths_query) if packed and actual_seq_lengths_query is not None else query.shape[0]
    )
    if packed and actual_seq_lengths_query is None:
        raise KernelError(f"{name}: TND needs actual_seq_lengths_query")
    out = torch.zeros(*query.shape[:-1], value.shape[-1])
    heads = query.shape[-2]
    top = torch.zeros(query.shape[:-1])
    norm = torch.zeros(query.shape[:-1])
    for request in range(batch):
        first, last = _extent(actual_seq_lengths_query, request, packed, query.shape[1])
        rows = slice(first, last) if packed else (request, slice(first, last))
        q = query[rows].float()
        k, keys = _key_rows(key, layout_kv, block_table, actual_seq_lengths_kv, request)
        v, _ = _key_rows(value, layout_kv, block_table, actual_seq_lengths_kv, request)
        if query_rope is not None and key_rope is not None:
            q = torch.cat([q, query_rope[rows].float()], -1)
            rope, _ = _key_rows(key_rope, layout_kv, block_table, actual_seq_lengths_kv, request)
            k = torch.cat([k, rope], -1)
        chosen = sparse_indices[rows]
        count = last - first
        for i in range(count):
            blocks = chosen[i].reshape(-1)
            blocks = blocks[blocks >= 0].long()
            tokens = (blocks[:, None] * sparse_block_size + torch.arange(sparse_block_size)).reshape(-1)
            limit = keys - count + i if sparse_mode == 3 else keys - 1
            tokens = tokens[tokens <= min(limit, keys - 1)]
            if tokens.numel() == 0:
                continue
            scores = q[i] @ k[tokens, 0].float().T * scale_value
            peak = scores.max(-1, keepdim=True).values
            weights = torch.exp(scores - peak)
            at = (first + i,) if packed else (request, first + i)
            mixed = weights.to(query.dtype).float() @ v[tokens, 0].float()
            out[at] = mixed / weights.sum(-1, keepdim=True)
            top[at], norm[at] = peak[:, 0], weights.sum(-1)
    stats = [
        t.reshape(*t.shape[:-1], 1, heads).movedim(-2, 0 if packed else 1).contiguous() for t in (top, norm)
    ]
    if not return_softmax_lse:
        stats = [torch.zeros(0), torch.zeros(0)]
    return out.to(query.dtype), stats[0], stats[1]


def npu_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = FAR,
    next_tokens: int = FAR,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    """Top ``sparse_count`` keys per query by ``sum_h w[h] * relu(<q[h], k>)``; -1 pads the unused places."""
    packed = layout_query == "TND"
    if packed and actual_seq_lengths_query is None:
        raise KernelError("npu_lightning_indexer: TND needs actual_seq_lengths_query")
    batch = (
        len(actual_seq_lengths_query) if packed and actual_seq_lengths_query is not None else query.shape[0]
    )
    lead = query.shape[:1] if packed else query.shape[:2]
    indices = torch.full((*lead, 1, sparse_count), -1, dtype=torch.int32)
    values = torch.full((*lead, 1, sparse_count), float("-inf"))
    for request in range(batch):
        first, last = _extent(actual_seq_lengths_query, request, packed, query.shape[1])
        rows = slice(first, last) if packed else (request, slice(first, last))
        k, keys = _key_rows(key, layout_key, block_table, actual_seq_lengths_key, request)
        dots = torch.relu(torch.einsum("shd,jd->shj", query[rows].float(), k[:, 0].float()))
        scores = torch.einsum("sh,shj->sj", weights[rows].float(), dots)
        if sparse_mode == 3:
            count = last - first
            i = torch.arange(count)[:, None] + keys - count
            scores = scores.masked_fill(torch.arange(keys)[None] > i, float("-inf"))
        best = scores.topk(min(sparse_count, keys), dim=-1)
        kept = torch.where(torch.isinf(best.values), -1, best.indices).int()
        width = kept.shape[-1]
        if packed:
            indices[first:last, 0, :width], values[first:last, 0, :width] = kept, best.values
        else:
            indices[request, first:last, 0, :width] = kept
            values[request, first:last, 0, :width] = best.values
    return indices, values if return_value else torch.zeros(0)
