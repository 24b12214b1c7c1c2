"""Simulated sparse flash attention and lightning indexer (contract 4)."""

from __future__ import annotations

from collections.abc import Iterator

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


def _requests(
    name: str, query: Tensor, layout: str, lens: Tensor | None
) -> Iterator[tuple[int, slice | tuple[int, slice]]]:
    """Requests with the index of their rows in the query."""
    if layout not in ("BSND", "TND"):
        raise KernelError(f"{name}: layout_query must be BSND or TND, got {layout!r} (contract 4)")
    packed = layout == "TND"
    if packed and lens is None:
        raise KernelError(f"{name}: TND needs actual_seq_lengths_query (SP-12)")
    for request in range(len(lens) if packed and lens is not None else query.shape[0]):
        first, last = _extent(lens, request, packed, query.shape[1])
        rows = slice(first, last)
        yield request, rows if packed else (request, rows)


def _attend_selected(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    scale: float,
    block: int,
    causal: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """q [S, N, D], k [keys, D], v [keys, Dv], chosen [S, 1, blocks] -> (out [S, N, Dv], row max, row sum).

    Everything in float32; ``dtype`` is what the weights are rounded to before the second product.
    """
    count, keys = len(q), len(k)
    out, top, norm = (
        q.new_zeros(*q.shape[:2], v.shape[-1]),
        q.new_zeros(q.shape[:2]),
        q.new_zeros(q.shape[:2]),
    )
    for i in range(count):
        blocks = chosen[i].reshape(-1)
        blocks = blocks[blocks >= 0].long()
        tokens = (blocks[:, None] * block + torch.arange(block)).reshape(-1)
        tokens = tokens[tokens <= (min(keys - count + i, keys - 1) if causal else keys - 1)]
        if tokens.numel() == 0:
            continue
        scores = q[i] @ k[tokens].float().T * scale
        peak = scores.max(-1, keepdim=True).values
        weights = torch.exp(scores - peak)
        out[i] = weights.to(dtype).float() @ v[tokens].float() / weights.sum(-1, keepdim=True)
        top[i], norm[i] = peak[:, 0], weights.sum(-1)
    return out, top, norm


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
    out, top, norm = torch.zeros(*query.shape[:-1], value.shape[-1]), *torch.zeros(2, *query.shape[:-1])
    heads = query.shape[-2]
    for request, rows in _requests(name, query, layout_query, actual_seq_lengths_query):
        q = query[rows].float()
        k, _ = _key_rows(key, layout_kv, block_table, actual_seq_lengths_kv, request)
        v, _ = _key_rows(value, layout_kv, block_table, actual_seq_lengths_kv, request)
        if query_rope is not None and key_rope is not None:
            q = torch.cat([q, query_rope[rows].float()], -1)
            rope, _ = _key_rows(key_rope, layout_kv, block_table, actual_seq_lengths_kv, request)
            k = torch.cat([k, rope], -1)
        out[rows], top[rows], norm[rows] = _attend_selected(
            q, k[:, 0], v[:, 0], sparse_indices[rows], scale_value, sparse_block_size, sparse_mode == 3,
            query.dtype,
        )  # fmt: skip
    stats = [
        t.reshape(*t.shape[:-1], 1, heads).movedim(-2, 0 if layout_query == "TND" else 1).contiguous()
        for t in (top, norm)
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
    name = "npu_lightning_indexer"
    indices = torch.full((*query.shape[:-2], 1, sparse_count), -1, dtype=torch.int32)
    values = torch.full((*query.shape[:-2], 1, sparse_count), float("-inf"))
    for request, rows in _requests(name, query, layout_query, actual_seq_lengths_query):
        k, _ = _key_rows(key, layout_key, block_table, actual_seq_lengths_key, request)
        dots = torch.relu(torch.einsum("shd,jd->shj", query[rows].float(), k[:, 0].float()))
        scores = torch.einsum("sh,shj->sj", weights[rows].float(), dots)
        kept, best = _best(scores, sparse_count, sparse_mode == 3)
        width = kept.shape[-1]
        indices[rows][:, 0, :width], values[rows][:, 0, :width] = kept, best
    return indices, values if return_value else torch.zeros(0)


def _best(scores: Tensor, count: int, causal: bool) -> tuple[Tensor, Tensor]:
    """(indices, scores) of the best keys per row of [S, keys], best first, -1 for what a row does not see."""
    rows, keys = scores.shape
    if causal:
        hidden = torch.arange(keys)[None] > torch.arange(rows)[:, None] + keys - rows
        scores = scores.masked_fill(hidden, float("-inf"))
    best = scores.topk(min(count, keys), dim=-1)
    return torch.where(torch.isinf(best.values), -1, best.indices).int(), best.values


def npu_quant_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
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
) -> Tensor:
    """The indexer on int8 rows with one scale per token and head: indices int32 [..., 1, sparse_count].

    query [..., N1, 128], key [..., 1, 128] or pages of it, weights and query scales [..., N1], key scales
    [..., 1] in the layout of the key. What reaches the selection is rounded to float16 twice: the products,
    after 1 / 1024, and weight times query scale (D:npu_quant_lightning_indexer).
    """
    name = "npu_quant_lightning_indexer"
    if (query_quant_mode, key_quant_mode) != (0, 0):
        raise KernelError(
            f"{name}: quant modes must be 0, got {query_quant_mode}, {key_quant_mode} (contract 4)"
        )
    if sparse_mode not in (0, 3) or (pre_tokens, next_tokens) != (FAR, FAR):
        raise KernelError(f"{name}: sparse_mode must be 0 or 3 and tokens unlimited (contract 4)")
    if not 1 <= sparse_count <= 2048:
        raise KernelError(f"{name}: sparse_count must be 1..2048, got {sparse_count} (contract 4)")
    if query.dtype != torch.int8 or key.dtype != torch.int8:
        raise KernelError(f"{name}: query and key must be int8, got {query.dtype}, {key.dtype} (contract 4)")
    for what, t in (("weights", weights), ("query_dequant_scale", query_dequant_scale),
                    ("key_dequant_scale", key_dequant_scale)):  # fmt: skip
        if t.dtype != torch.float16:
            raise KernelError(f"{name}: {what} must be float16 beside int8 rows, got {t.dtype} (contract 4)")
    indices = torch.full((*query.shape[:-2], 1, sparse_count), -1, dtype=torch.int32)
    for request, rows in _requests(name, query, layout_query, actual_seq_lengths_query):
        k, _ = _key_rows(key, layout_key, block_table, actual_seq_lengths_key, request)
        k_scale, _ = _key_rows(key_dequant_scale, layout_key, block_table, actual_seq_lengths_key, request)
        # Exact in float32: 128 products of two int8 numbers stay below 2^24.
        dots = torch.relu(torch.einsum("shd,jd->shj", query[rows].float(), k[:, 0].float()))
        dots = (dots / 1024).half().float()
        factors = (weights[rows] * query_dequant_scale[rows]).float()
        scores = torch.einsum("sh,shj->sj", factors, dots) * k_scale[:, 0].float()
        kept, _ = _best(scores, sparse_count, sparse_mode == 3)
        indices[rows][:, 0, : kept.shape[-1]] = kept
    return indices


#: Columns of a row of the packed int8 cache: values, rope part as bytes, scales as bytes.
NOPE, ROPE, TILE = 512, 64, 128
PACKED = NOPE + ROPE * 2 + NOPE // TILE * 4


def npu_kv_quant_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    key_dequant_scale: Tensor | None = None,
    value_dequant_scale: Tensor | None = None,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = FAR,
    next_tokens: int = FAR,
    attention_mode: int = 0,
    quant_scale_repo_mode: int = 1,
    tile_size: int = TILE,
    rope_head_dim: int = ROPE,
) -> Tensor:
    """Sparse attention over rows of 656 bytes: 512 int8, 64 of the query dtype, 4 float32 tile scales.

    query [..., N1, 576], nope then rope; key pages or rows [..., 1, 656] int8; ``value`` is not read, the
    dequantised nope part of the key is the value (D:npu_kv_quant_sparse_flash_attention). Dequantised rows
    are rounded to the query dtype. Returns [..., N1, 512].
    """
    name = "npu_kv_quant_sparse_flash_attention"
    wanted = {
        "attention_mode": (attention_mode, 2), "key_quant_mode": (key_quant_mode, 2),
        "value_quant_mode": (value_quant_mode, 2), "quant_scale_repo_mode": (quant_scale_repo_mode, 1),
        "tile_size": (tile_size, TILE), "rope_head_dim": (rope_head_dim, ROPE),
        "pre_tokens": (pre_tokens, FAR), "next_tokens": (next_tokens, FAR),
    }  # fmt: skip
    for what, (given, only) in wanted.items():
        if given != only:
            raise KernelError(f"{name}: {what} must be {only}, got {given} (SP-01, contract 4)")
    if sparse_mode not in (0, 3):
        raise KernelError(f"{name}: sparse_mode must be 0 or 3, got {sparse_mode} (contract 4)")
    if key_dequant_scale is not None or value_dequant_scale is not None:
        raise KernelError(f"{name}: the scales are part of the rows, their arguments are reserved (SP-14)")
    if key.dtype != torch.int8 or value.dtype != torch.int8:
        raise KernelError(f"{name}: key and value must be int8, got {key.dtype}, {value.dtype} (contract 4)")
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise KernelError(f"{name}: query must be float16 or bfloat16, got {query.dtype} (contract 4)")
    if query.shape[-1] != NOPE + ROPE or key.shape[-1] != PACKED:
        raise KernelError(
            f"{name}: query must be {NOPE + ROPE} wide and key {PACKED}, got {query.shape[-1]} and "
            f"{key.shape[-1]} (contract 4)"
        )
    if sparse_indices.dtype != torch.int32:
        raise KernelError(f"{name}: sparse_indices must be int32, got {sparse_indices.dtype} (SP-05)")
    if sparse_block_size not in (1, 2, 4, 8, 16):
        raise KernelError(
            f"{name}: sparse_block_size must be 1, 2, 4, 8 or 16, got {sparse_block_size} (contract 4)"
        )
    out = torch.zeros(*query.shape[:-1], NOPE)
    for request, rows in _requests(name, query, layout_query, actual_seq_lengths_query):
        packed, _ = _key_rows(key, layout_kv, block_table, actual_seq_lengths_kv, request)
        packed = packed[:, 0].contiguous()
        rope = packed[:, NOPE : NOPE + 2 * ROPE].contiguous().view(query.dtype)
        scales = packed[:, NOPE + 2 * ROPE :].contiguous().view(torch.float32)
        nope = (packed[:, :NOPE].float() * scales.repeat_interleave(TILE, -1)).to(query.dtype)
        out[rows], _, _ = _attend_selected(
            query[rows].float(), torch.cat([nope, rope], -1), nope, sparse_indices[rows], scale_value,
            sparse_block_size, sparse_mode == 3, query.dtype,
        )  # fmt: skip
    return out.to(query.dtype)
