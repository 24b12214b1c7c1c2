"""ATB attention with a mask, over packed requests or behind a paged cache (contract 2.5).

Masks are float tensors of the query's dtype that are added to the scaled scores. Some kernels first multiply
them by -3e38 (ATB-05): there 1 hides, and the -10000 of the other kernels would attract. That is reproduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.kernels import KERNELS as ATTENTION
from kvlint.oracle.kernels import KernelError
from kvlint.oracle.kernels._core import Plan, flash
from kvlint.sim.kernels.atb import _npu_flash_attention_unpad

#: What kernels that expect 0 and 1 multiply a mask by.
NORM = -3.0e38
#: Side of the compressed causal mask, and of the key tiles that it is added to.
SIDE = 128


def _pairs(name: str, seq_len: Tensor | Sequence[int]) -> list[tuple[int, int]]:
    """(query tokens, keys) per request of lengths (B,) or (2, B)."""
    if isinstance(seq_len, Tensor):
        if seq_len.dtype != torch.int32:
            raise KernelError(f"{name}: seq_len must be int32, got {seq_len.dtype} (ATB-12)")
        if seq_len.dim() == 2:
            queries, keys = (row.tolist() for row in seq_len)
            if any(q not in (1, k) for q, k in zip(queries, keys, strict=True)):
                raise KernelError(f"{name}: query lengths must be 1 or those of the keys (ATB-12)")
            return list(zip(queries, keys, strict=True))
        seq_len = seq_len.tolist()
    return [(int(n), int(n)) for n in seq_len]


def _heads(name: str, num_heads: int, num_kv_heads: int) -> tuple[int, int]:
    if num_heads <= 0:
        raise KernelError(f"{name}: num_heads must be positive, got {num_heads} (ATB-07)")
    kv_heads = num_kv_heads or num_heads
    if num_heads % kv_heads:
        raise KernelError(f"{name}: {num_heads} heads are not a multiple of {kv_heads} key heads (ATB-01)")
    return num_heads, kv_heads


def _float_mask(name: str, mask: Tensor | None, query: Tensor) -> Tensor:
    if mask is None:
        raise KernelError(f"{name}: this mask_type needs mask (ATB-11)")
    if mask.dtype != query.dtype:
        raise KernelError(f"{name}: mask is {mask.dtype} and query {query.dtype} (ATB-05)")
    if mask.dim() == 4:  # FRACTAL_NZ of [B, rows, columns]: [B, columns / 16, rows, 16]
        mask = mask.permute(0, 2, 1, 3).flatten(2)
    return mask.float()


def _compressed(name: str, mask: Tensor | None, query: Tensor, scaled: bool) -> Tensor:
    """What the compressed mask adds to a score above the diagonal; it has to be the same everywhere."""
    held = _float_mask(name, mask, query)
    if tuple(held.shape) != (SIDE, SIDE):
        raise KernelError(f"{name}: mask must be {SIDE} x {SIDE}, got {tuple(held.shape)} (ATB-09, ATB-10)")
    above = torch.ones(SIDE, SIDE, dtype=torch.bool).triu(1)
    hiding = held[above]
    if held[~above].any() or bool((hiding != hiding[0]).any()):
        raise KernelError(
            f"{name}: mask must be zero but for one value above the diagonal; what the kernel does with "
            "another one is not known (ATB-09)"
        )
    return hiding[0] * NORM if scaled else hiding[0]


def _causal_bias(value: Tensor, rows: int, keys: int, past: int) -> Tensor:
    hidden = torch.arange(keys)[None] > torch.arange(rows)[:, None] + past
    return torch.where(hidden, value, torch.zeros(()))[None]


def _to_diagonal(keys: int, past: int) -> Plan:
    """Whole key tiles right of the diagonal are skipped."""

    def visited(i0: int, i1: int) -> tuple[int, int]:
        return 0, min(keys, -(-(i1 + past) // SIDE) * SIDE)

    return Plan(visited, lambda i0, i1, j0, j1: None)


def _everything(keys: int) -> Plan:
    return Plan(lambda i0, i1: (0, keys), lambda i0, i1, j0, j1: None)


def _run(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: Plan,
    scale: float,
    kv_heads: int,
    bias: Tensor | None,
) -> Tensor:
    """query [S, N, D], keys and values [n, Nk, D] -> [S, N, Dv] in float32."""
    k, v = keys.transpose(0, 1), values.transpose(0, 1)
    found = flash(
        query.transpose(0, 1), lambda j0, j1: (k[:, j0:j1], v[:, j0:j1]), plan, scale, kv_heads=kv_heads,
        out_dim=values.shape[-1], work_dtype=query.dtype, bias=bias,
    )  # fmt: skip
    return found[0].transpose(0, 1)


def _packed(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lens: list[tuple[int, int]],
    scale: float,
    heads: tuple[int, int],
    out: Tensor,
    masking: Callable[[int, int, int], tuple[Plan, Tensor | None]],
) -> None:
    """Requests in turn, under ``masking(request, rows, keys)``. Rows past them keep what they hold."""
    if sum(q for q, _ in lens) > len(query) or sum(k for _, k in lens) > len(key):
        raise KernelError(f"{name}: the lengths add up to more tokens than there are: stray read (ATB-12)")
    q, k = query.reshape(len(query), heads[0], -1), key.reshape(len(key), heads[1], -1)
    v, into = value.reshape(len(value), heads[1], -1), out.view(len(out), heads[0], -1)
    row = column = 0
    for b, (rows, keys) in enumerate(lens):
        plan, bias = masking(b, rows, keys)
        at, of = slice(row, row + rows), slice(column, column + keys)
        into[at] = _run(q[at], k[of], v[of], plan, scale, heads[1], bias).to(out.dtype)
        row, column = row + rows, column + keys


def _norm_masking(mask: Tensor, scaled: bool) -> Callable[[int, int, int], tuple[Plan, Tensor | None]]:
    """A mask [S, S] or [B, S, S] that is read from its first row and column on."""
    whole = mask * NORM if scaled else mask

    def masking(b: int, rows: int, keys: int) -> tuple[Plan, Tensor | None]:
        one = whole if whole.dim() == 2 else whole[b if len(whole) > 1 else 0]
        if one.shape[0] < rows or one.shape[1] < keys:
            raise KernelError(f"a mask of {tuple(one.shape)} for {rows} tokens and {keys} keys (ATB-05)")
        return _everything(keys), one[None, :rows, :keys]

    return masking


def _npu_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    """Packed requests [T, N, D] under a mask [S, S] or [B, S, S]; ``out`` is filled (ATB-04)."""
    name = "_npu_flash_attention"
    held = _float_mask(name, mask, query)
    _packed(
        name, query, key, value, _pairs(name, seq_len), scale_value, _heads(name, num_heads, num_kv_heads),
        out, _norm_masking(held, query.dtype == torch.bfloat16),
    )  # fmt: skip


def _npu_flash_attention_v2_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_len: Sequence[int],
    *,
    mask: Tensor | None = None,
    slopes: Tensor | None = None,
    kernel_type: int = 0,
    mask_type: int = 2,
    scale_value: float = 1.0,
    num_heads: int = 0,
    num_kv_heads: int = 0,
    out: Tensor,
) -> Tensor:
    """As ``_npu_flash_attention``, with the lengths as a list; of the mask types 1 is simulated."""
    name = "_npu_flash_attention_v2"
    if mask_type not in (1, 2, 4, 5, 6):
        raise KernelError(f"{name}: mask_type {mask_type} forwards no tensors and fails (ATB-11)")
    if mask_type != 1:
        raise KernelError(f"{name}: mask_type {mask_type} (alibi) is not simulated")
    held = _float_mask(name, mask, query)
    scaled = query.dtype == torch.bfloat16 or kernel_type == 1
    _packed(
        name, query, key, value, _pairs(name, seq_len), scale_value, _heads(name, num_heads, num_kv_heads),
        out, _norm_masking(held, scaled),
    )  # fmt: skip
    return out


def _npu_flash_attention_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    *,
    mask_type: int | None = 3,
    out: Tensor,
) -> None:
    """Packed requests, causal by a compressed mask of 128 x 128 (A2, A3; ATB-10)."""
    name = "_npu_flash_attention_v3"
    if mask_type not in (None, 3):
        raise KernelError(f"{name}: mask_type must be 3, got {mask_type} (ATB-10)")
    lens = _pairs(name, seq_len)
    if any(rows != keys for rows, keys in lens):
        raise KernelError(f"{name}: fewer query tokens than keys are not simulated under a compressed mask")
    value_above = _compressed(name, mask, query, query.dtype == torch.bfloat16)
    _packed(
        name, query, key, value, lens, scale_value, _heads(name, num_heads, num_kv_heads), out,
        lambda b, rows, keys: (_to_diagonal(keys, 0), _causal_bias(value_above, rows, keys, 0)),
    )  # fmt: skip


def _npu_flash_attention_unpad_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    *,
    kernel_type: int | None = 0,
    out: Tensor,
) -> None:
    """``_npu_flash_attention_unpad``; kernel_type 2, approximate exponentials, is for 310P (ATB-10)."""
    name = "_npu_flash_attention_unpad_v2"
    if kernel_type not in (None, 0, 2):
        raise KernelError(f"{name}: kernel_type must be 0 or 2, got {kernel_type} (ATB-10)")
    if kernel_type == 2:
        raise KernelError(f"{name}: kernel_type 2 is for 310P, A2 and A3 refuse it (ATB-10)")
    _npu_flash_attention_unpad(query, key, value, seq_len, scale_value, num_heads, num_kv_heads, out)


def _behind_cache(
    name: str,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    lens: list[tuple[int, int]],
    kv_heads: int,
) -> Iterator[tuple[int, int, int, Tensor, Tensor]]:
    """(request, query tokens, keys, keys [n, Nk, D], values [n, Nk, D]) from pages [Bn, Bs, Nk, D]."""
    if block_table.dtype != torch.int32 or len(block_table) != len(lens):
        raise KernelError(f"{name}: block_table must be int32 with one row per request (ATB-13)")
    if sum(rows for rows, _ in lens) > len(query):
        raise KernelError(f"{name}: the lengths add up to more tokens than there are: stray read (ATB-12)")
    if key_cache.shape[2:].numel() % kv_heads or (key_cache.dim() == 4 and key_cache.shape[2] != kv_heads):
        raise KernelError(
            f"{name}: pages must be (Bn, Bs, {kv_heads}, D), got {tuple(key_cache.shape)} (ATB-02)"
        )
    size = key_cache.shape[1]
    for b, (rows, keys) in enumerate(lens):
        at = torch.arange(keys)
        blocks = block_table[b][at // size].long()
        k, v = (c[blocks, at % size].reshape(keys, kv_heads, -1) for c in (key_cache, value_cache))
        yield b, rows, keys, k, v


def _npu_paged_attention_splitfuse(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: Tensor,
) -> None:
    """New tokens [T, N, D] behind pages; ``context_lens`` count both. Row t of the mask [T, S] is token t's.

    The mask is added as it is in every dtype (ATB-05).
    """
    name = "_npu_paged_attention_splitfuse"
    for what, t in (("context_lens", context_lens), ("seq_len", seq_len)):
        if t.dtype != torch.int32:
            raise KernelError(f"{name}: {what} must be int32, got {t.dtype} (ATB-03)")
    held = _float_mask(name, mask, query)
    held = held.reshape(-1, held.shape[-1])
    lens = [(int(q), int(k)) for q, k in zip(seq_len.tolist(), context_lens.tolist(), strict=True)]
    heads, kv_heads = _heads(name, num_heads, num_kv_heads)
    row = 0
    for _, rows, keys, k, v in _behind_cache(
        name, query, key_cache, value_cache, block_table, lens, kv_heads
    ):
        at = slice(row, row + rows)
        if len(held) < row + rows or held.shape[1] < keys:
            raise KernelError(
                f"{name}: a mask of {tuple(held.shape)} ends before token {row + rows - 1}'s {keys} keys"
            )
        found = _run(
            query[at].reshape(rows, heads, -1), k, v, _everything(keys), scale_value, kv_heads,
            held[None, at, :keys],
        )  # fmt: skip
        out.view(len(out), heads, -1)[at] = found.to(out.dtype)
        row += rows


def _npu_paged_attention_splitfuse_v2(*args: Any, mask_type: int | None = 5, **kwargs: Any) -> None:
    """Refused, as on A2 and A3."""
    name = "_npu_paged_attention_splitfuse_v2"
    if mask_type not in (None, 5):
        raise KernelError(f"{name}: mask_type must be 5, got {mask_type} (ATB-10)")
    raise KernelError(f"{name}: the compressed mask is for 310P, A2 and A3 refuse it (ATB-10)")


def _prefix(
    name: str,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    lens: list[tuple[int, int]],
    scale: float,
    heads: tuple[int, int],
    above: Tensor,
    out: Tensor,
) -> None:
    if key_cache.shape[1] != SIDE:
        raise KernelError(f"{name}: the block size must be {SIDE}, got {key_cache.shape[1]} (ATB-09)")
    if any((keys - rows) % SIDE or keys < rows for rows, keys in lens):
        raise KernelError(f"{name}: cached tokens per request must be a multiple of {SIDE} (ATB-09)")
    row = 0
    for _, rows, keys, k, v in _behind_cache(
        name, query, key_cache, value_cache, block_table, lens, heads[1]
    ):
        at, past = slice(row, row + rows), keys - rows
        found = _run(
            query[at].reshape(rows, heads[0], -1), k, v, _to_diagonal(keys, past), scale, heads[1],
            _causal_bias(above, rows, keys, past),
        )  # fmt: skip
        out.view(len(out), heads[0], -1)[at] = found.to(out.dtype)
        row += rows


def _npu_flash_attention_prefix_v2_out(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    mask: Tensor,
    seq_len: Sequence[int],
    context_lens: Sequence[int],
    *,
    slopes: Tensor | None = None,
    kernel_type: int = 1,
    mask_type: int = 3,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1.0,
    out: Tensor,
) -> Tensor:
    """New tokens behind whole cached pages, causal; ``context_lens`` count both (ATB-09)."""
    name = "_npu_flash_attention_prefix_v2"
    if kernel_type != 1 or mask_type not in (3, 4, 5):
        raise KernelError(f"{name}: kernel_type must be 1 and mask_type 3, 4 or 5 (ATB-09)")
    if mask_type != 3:
        raise KernelError(f"{name}: mask_type {mask_type} (alibi) is not simulated")
    above = _compressed(name, mask, query, query.dtype == torch.bfloat16)
    lens = [(int(q), int(k)) for q, k in zip(seq_len, context_lens, strict=True)]
    heads = _heads(name, num_heads, num_kv_heads)
    _prefix(name, query, key_cache, value_cache, block_table, lens, scale_value, heads, above, out)
    return out


def npu_self_attention_prefix_encoder(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_tables: Tensor,
    seqlen: Sequence[int],
    kv_seqlen: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    *,
    mask: Tensor | None = None,
    slopes: Tensor | None = None,
    mask_type: str | None = None,
) -> Tensor:
    """New tokens behind whole cached pages; causal without a mask tensor, or by a compressed one (ATB-09)."""
    name = "npu_self_attention_prefix_encoder"
    kind = mask_type or "mask_type_causal_mask"
    known = ("mask_type_causal_mask", "mask_type_norm_compress", "mask_type_alibi_compress",
             "mask_type_alibi_compress_sort")  # fmt: skip
    if kind not in known:
        raise KernelError(f"{name}: mask_type {kind!r} is not one of {', '.join(known)} (ATB-11)")
    if "alibi" in kind:
        raise KernelError(f"{name}: {kind} is not simulated")
    if kind == "mask_type_causal_mask":
        above = torch.tensor(float("-inf"))
    else:
        above = _compressed(name, mask, query, query.dtype == torch.bfloat16)
    out = torch.empty_like(query)
    lens = [(int(q), int(k)) for q, k in zip(seqlen, kv_seqlen, strict=True)]
    heads = _heads(name, q_headnum, kv_headnum)
    _prefix(name, query, key, value, block_tables, lens, qk_scale, heads, above, out)
    return out


def _npu_paged_attention_v2_out(
    query: Tensor,
    key_cache: Tensor,
    block_table: Tensor,
    context_lens: Sequence[int],
    *,
    value_cache: Tensor | None = None,
    mask: Tensor | None = None,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1.0,
    mask_type: int = 0,
    workspace: Tensor | None = None,
    out: Tensor,
) -> Tensor:
    """One token per request behind pages; of the mask types 0, none, is simulated (ATB-07, ATB-11)."""
    name = "_npu_paged_attention_v2"
    heads, kv_heads = _heads(name, num_heads, num_kv_heads)
    if mask_type not in (0, 2):
        raise KernelError(f"{name}: mask_type {mask_type} forwards no tensors and fails (ATB-11)")
    if mask_type == 2:
        raise KernelError(f"{name}: mask_type 2 (alibi) is not simulated")
    if value_cache is None:
        raise KernelError(f"{name}: a call without value_cache is not simulated")
    lens = torch.tensor([int(n) for n in context_lens], dtype=torch.int32)
    if len(lens) != len(block_table):
        raise KernelError(f"{name}: block_table must have one row per entry of context_lens (ATB-13)")
    ATTENTION["_npu_paged_attention"](
        query, key_cache, value_cache, kv_heads, heads, scale_value, block_table, lens, out
    )
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        _npu_flash_attention, _npu_flash_attention_v3, _npu_flash_attention_unpad_v2,
        _npu_paged_attention_splitfuse, _npu_paged_attention_splitfuse_v2, npu_self_attention_prefix_encoder,
    )
} | {
    "_npu_flash_attention_v2.out": _npu_flash_attention_v2_out,
    "_npu_flash_attention_prefix_v2.out": _npu_flash_attention_prefix_v2_out,
    "_npu_paged_attention_v2.out": _npu_paged_attention_v2_out,
}  # fmt: skip
