"""Simulated FIA v1/v2, PFA and IFA kernels: the operators' own keyword arguments on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ._core import (
    DECODE_EMPTY_LSE,
    INVALID_LSE,
    NO_LIMIT,
    KernelError,
    Plan,
    flash,
    plan_compressed,
    plan_full,
    plan_full_mask,
    plan_tree,
)

Lengths = Sequence[int] | Tensor | None

_INPUT_AXES = {"BSH": 3, "BSND": 4, "BNSD": 4, "TND": 3, "NTD": 3, "NSD": 3}
_OUTPUT_AXES = {
    "BSH": ("BSH", "BSND", "BNSD", "NBSD"),
    "BSND": ("BSND", "BNSD", "NBSD"),
    "BNSD": ("BNSD", "BSND", "NBSD"),
    "TND": ("TND", "NTD"),
    "NTD": ("NTD", "TND"),
    "NSD": ("NSD",),
}


def _ints(lengths: Lengths) -> list[int] | None:
    if lengths is None:
        return None
    return [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]


def _axes(name: str, layout: str) -> tuple[str, str]:
    left, _, right = layout.partition("_")
    right = right or left
    if left not in _INPUT_AXES or right not in _OUTPUT_AXES[left] or (left == "BSH" and layout == "BSH_BSND"):
        raise KernelError(f"{name}: input_layout {layout} is not supported")
    return left, right


def _to_heads(name: str, what: str, x: Tensor, axes: str, heads: int) -> Tensor:
    """Any input layout as [B, N, S, D]; packed ones as [1, N, T, D]."""
    if x.dim() != _INPUT_AXES[axes]:
        raise KernelError(
            f"{name}: {what} must have {_INPUT_AXES[axes]} dims for layout {axes}, got {x.dim()}"
        )
    if axes == "BSH":
        if x.shape[2] % heads:
            raise KernelError(f"{name}: {what} H {x.shape[2]} is not a multiple of the head number {heads}")
        return x.reshape(x.shape[0], x.shape[1], heads, -1).movedim(2, 1)
    if axes == "BSND":
        return x.movedim(2, 1)
    if axes == "BNSD":
        return x
    return x.movedim(1, 0)[None] if axes == "TND" else x[None]


def _from_heads(x: Tensor, axes: str) -> Tensor:
    if axes == "BNSD":
        return x
    if axes == "BSND":
        return x.movedim(1, 2).contiguous()
    if axes == "BSH":
        return x.movedim(1, 2).reshape(x.shape[0], x.shape[2], -1).contiguous()
    if axes == "NBSD":
        return x.movedim(1, 0).contiguous()
    return x[0].movedim(0, 1).contiguous() if axes == "TND" else x[0].contiguous()


def _unpack_nibbles(x: Tensor) -> Tensor:
    parts = [(x >> (4 * n)) & 15 for n in range(8)]
    stacked = torch.stack(parts, -1).reshape(*x.shape[:-1], -1)
    return ((stacked + 8) % 16 - 8).to(torch.int8)


class _Cache:
    """K and V rows of every request as the kernel addresses them."""

    def __init__(
        self,
        name: str,
        key: Tensor,
        value: Tensor,
        axes: str,
        kv_heads: int,
        starts: list[int],
        table: Tensor | None,
        block_size: int,
        key_rope: Tensor | None,
    ) -> None:
        self.name, self.kv_heads, self.starts, self.table = name, kv_heads, starts, table
        self.block_size = block_size
        self.packed = axes in ("TND", "NTD")
        if table is None:
            self.key = _to_heads(name, "key", key, axes, kv_heads)
            self.value = _to_heads(name, "value", value, axes, kv_heads)
            self.rope = None if key_rope is None else _to_heads(name, "key_rope", key_rope, axes, kv_heads)
            if self.key.shape[1] != kv_heads:
                raise KernelError(
                    f"{name}: key has {self.key.shape[1]} heads, num_key_value_heads is {kv_heads}"
                )
        else:
            self.key, self.value, self.rope = key, value, key_rope
            self._check_paged(axes)

    def _check_paged(self, axes: str) -> None:
        assert self.table is not None
        rank = self.key.dim()
        if self.table.dim() != 2 or self.table.dtype != torch.int32:
            raise KernelError(f"{self.name}: block_table must be a 2-D int32 tensor")
        if rank not in (3, 4, 5):
            raise KernelError(f"{self.name}: a paged key has 3, 4 or 5 dims, got {rank}")
        if rank == 4 and axes in ("BSH", "BSND"):
            raise KernelError(f"{self.name}: layout {axes} takes a paged key of 3 or 5 dims")
        held = self.key.shape[{3: 1, 4: 2, 5: 3}[rank]]
        if self.block_size != held:
            raise KernelError(
                f"{self.name}: block_size is {self.block_size}, the cache has {held} rows per block"
            )
        if rank > 3 and self.key.shape[1] != self.kv_heads:
            raise KernelError(
                f"{self.name}: cache has {self.key.shape[1]} heads, num_key_value_heads is {self.kv_heads}"
            )

    def out_dim(self) -> int:
        v = self.value
        if self.table is None:
            width = v.shape[-1]
        elif v.dim() == 3:
            width = v.shape[2] // self.kv_heads
        else:
            width = v.shape[3] if v.dim() == 4 else v.shape[2] * v.shape[4]
        return width * (8 if v.dtype == torch.int32 else 1)

    def _rows(self, source: Tensor, request: int, j0: int, j1: int) -> Tensor:
        if self.table is None:
            base = self.starts[request]
            held = source[0 if self.packed else request]
            return held[:, base + j0 : base + j1]
        positions = torch.arange(j0, j1)
        blocks = self.table[request].cpu()[positions // self.block_size].long()
        if blocks.numel() and (int(blocks.min()) < 0 or int(blocks.max()) >= source.shape[0]):
            raise KernelError(
                f"{self.name}: block id outside [0, {source.shape[0]}): the device would read stray memory"
            )
        inner = positions % self.block_size
        if source.dim() == 3:
            return source[blocks, inner].reshape(j1 - j0, self.kv_heads, -1).movedim(1, 0)
        if source.dim() == 4:
            return source[blocks, :, inner].movedim(1, 0)
        return source[blocks, :, :, inner].reshape(j1 - j0, self.kv_heads, -1).movedim(1, 0)

    def fetch(self, request: int, j0: int, j1: int) -> tuple[Tensor, Tensor, Tensor | None]:
        k, v = self._rows(self.key, request, j0, j1), self._rows(self.value, request, j0, j1)
        if k.dtype == torch.int32:
            k, v = _unpack_nibbles(k), _unpack_nibbles(v)
        return k, v, None if self.rope is None else self._rows(self.rope, request, j0, j1)


class _Antiquant:
    """(x + offset) * scale in float32, rounded to the query dtype as the vector unit stores it."""

    def __init__(
        self, scale: Tensor, offset: Tensor | None, mode: int, heads: int, table: Tensor | None
    ) -> None:
        self.scale, self.offset, self.mode, self.heads, self.table = scale, offset, mode, heads, table

    def _pick(self, t: Tensor, request: int, j0: int, j1: int, dim: int) -> Tensor:
        t = t.float()
        if self.mode == 0:
            return t.reshape(1, 1, 1) if t.numel() == 1 else t.reshape(self.heads, dim)[:, None]
        if self.mode == 1:
            return t.reshape(-1, t.shape[-1])[request, j0:j1][None, :, None]
        if self.mode == 2:
            return t.reshape(self.heads)[:, None, None]
        if self.mode == 3:
            return t.reshape(-1, self.heads, t.shape[-1])[request][:, j0:j1, None]
        if self.mode in (4, 5) and self.table is not None:
            size = t.shape[-1]
            at = torch.arange(j0, j1)
            blocks = self.table[request].cpu()[at // size].long()
            if self.mode == 4:
                return t[blocks, at % size][None, :, None]
            return t[blocks, :, at % size].movedim(1, 0)[..., None]
        raise KernelError(f"antiquant mode {self.mode} is not supported here")

    def __call__(self, x: Tensor, request: int, start: int, j0: int, j1: int, dtype: torch.dtype) -> Tensor:
        y = x.float()
        j0, j1 = start + j0, start + j1
        if self.offset is not None:
            y = y + self._pick(self.offset, request, j0, j1, x.shape[-1])
        return (y * self._pick(self.scale, request, j0, j1, x.shape[-1])).to(dtype)


def _is_decode(name: str, layout: str, tokens: int, dim: int, rope: bool, key_rank: int, mode: int) -> bool:
    if name == "npu_incre_flash_attention":
        return True
    if layout in ("TND", "TND_NTD"):
        return dim == 512
    if layout not in ("BSH", "BSND", "BNSD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD"):
        return False
    few = 1 < tokens <= 16
    return tokens == 1 or (rope and dim == 512 and (few or mode == 4)) or (key_rank == 5 and few)


def _plan(
    name: str,
    mask: Tensor | None,
    mode: int,
    pre: int,
    nxt: int,
    request: int,
    rows: int,
    keys: int,
    tree_at: int,
) -> Plan:
    shift = keys - rows
    if mask is None:
        if mode in (0, 2, 3, 4) and name.startswith("npu_fusion"):
            return plan_full(keys)
        if mode != 0:
            raise KernelError(f"{name}: sparse_mode {mode} needs atten_mask")
        return plan_full(keys)
    if mask.dtype not in (torch.bool, torch.int8, torch.uint8):
        raise KernelError(f"{name}: atten_mask must be bool, int8 or uint8, got {mask.dtype}")
    if mode == 2:
        return plan_compressed(mask, keys, rows, 0, None)
    if mode == 3:
        return plan_compressed(mask, keys, rows, shift, None)
    if mode == 4:
        upper = None if nxt >= keys else shift + nxt
        lower = None if pre >= keys + rows else shift - pre
        return plan_compressed(mask, keys, rows, upper, lower)
    if mode == 9:
        tree = mask[tree_at : tree_at + rows * rows].reshape(rows, rows) if mask.dim() == 1 else None
        return plan_tree(mask.reshape(-1, *mask.shape[-2:])[request] if tree is None else tree, keys, rows)
    if mode not in (0, 1):
        raise KernelError(f"{name}: sparse_mode {mode} is out of range")
    own = mask if mask.dim() == 2 else mask.reshape(-1, *mask.shape[-2:])
    if own.dim() == 3:
        own = own[request if own.shape[0] > 1 else 0]
    if own.shape[0] < rows or own.shape[1] < keys:
        raise KernelError(f"{name}: atten_mask {tuple(mask.shape)} is smaller than {rows} x {keys}")
    return plan_full_mask(own, keys) if mode == 1 else plan_full_mask(own, keys, pre, nxt)


def _decode_plan(name: str, mask: Tensor | None, mode: int, request: int, keys: int, skip: int) -> Plan:
    """One query token, no rope: mode and tokens are not looked at, the mask is one row per request."""
    if mask is None:
        return Plan(lambda i0, i1: (skip, keys), lambda i0, i1, j0, j1: None)
    if mode in (3, 4):
        # Batch stride 0 and column j: the kernel walks the flat compressed mask from its first byte.
        row = mask.reshape(-1)[: max(0, keys - skip)]
    else:
        flat = mask.reshape(mask.shape[0], -1)
        if flat.shape[0] != 1 and flat.shape[0] <= request:
            raise KernelError(f"{name}: atten_mask has {flat.shape[0]} rows, fewer than the batch")
        row = flat[request if flat.shape[0] > 1 else 0]
        if row.numel() < keys - skip:
            raise KernelError(f"{name}: atten_mask has {row.numel()} columns for {keys} keys")
    return Plan(lambda i0, i1: (skip, keys), lambda i0, i1, j0, j1: (row[j0 - skip : j1 - skip] != 0)[None])


def _attention(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    layout: str,
    heads: int,
    kv_heads: int,
    scale: float,
    mode: int,
    pre: int,
    nxt: int,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    q_lens: Lengths = None,
    kv_lens: Lengths = None,
    table: Tensor | None = None,
    block_size: int = 0,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sink: Tensor | None = None,
    key_antiquant: tuple[Tensor, Tensor | None, int] | None = None,
    value_antiquant: tuple[Tensor, Tensor | None, int] | None = None,
    out_scale: Tensor | None = None,
    out_offset: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    inner_precise: int = 0,
    want_lse: bool = False,
    prefix: tuple[Tensor, Tensor, int | None] | None = None,
    q_padding: int | None = None,
    kv_padding: int | None = None,
) -> tuple[Tensor, Tensor]:
    left, right = _axes(name, layout)
    kv_heads = kv_heads or heads
    if heads % kv_heads:
        raise KernelError(f"{name}: {heads} query heads, {kv_heads} key heads")
    if (query_rope is None) != (key_rope is None):
        raise KernelError(f"{name}: query_rope and key_rope must be given together")
    if not query.is_floating_point():
        raise KernelError(f"{name}: the simulator has no {query.dtype} query")
    if not key.is_floating_point() and key_antiquant is None:
        raise KernelError(f"{name}: {key.dtype} key without an antiquant scale")
    q = _to_heads(name, "query", query, left, heads)
    if q.shape[1] != heads:
        raise KernelError(f"{name}: query has {q.shape[1]} heads, the head number is {heads}")
    dim = q.shape[3]
    packed = left in ("TND", "NTD")
    tokens = q.shape[2]
    decode = _is_decode(name, layout, tokens, dim, query_rope is not None, key.dim(), mode)
    if query_rope is not None:
        q = torch.cat([q, _to_heads(name, "query_rope", query_rope, left, heads)], -1)
    qs, ks = _ints(q_lens), _ints(kv_lens)
    spans, batch = _query_spans(
        name, q, qs, packed, ignore=decode and tokens == 1 and not packed, pad=q_padding
    )
    keys, starts = _key_extents(name, key, left, kv_heads, ks, packed, batch, table, kv_padding)
    cache = _Cache(name, key, value, left, kv_heads, starts, table, block_size, key_rope)
    width = cache.out_dim()
    out = q.new_zeros(q.shape[0], heads, tokens, width, dtype=torch.float32)
    lse = q.new_full((q.shape[0], heads, tokens), INVALID_LSE, dtype=torch.float32)
    quant_k = None if key_antiquant is None else _Antiquant(*key_antiquant, kv_heads, table)
    quant_v = None if value_antiquant is None else _Antiquant(*value_antiquant, kv_heads, table)
    one_token = decode and query_rope is None and tokens == 1 and left in ("BSH", "BSND", "BNSD")
    windowed = (
        one_token
        and layout == "BSH"
        and table is not None
        and value.dim() == 3
        and value.dtype == query.dtype
        and out_scale is None
        and name.startswith("npu_fused")
    )
    tree_at = 0
    for request in range(batch):
        b, first, rows = spans[request]
        total = keys[request]
        lead: tuple[Tensor, Tensor] | None = None
        if prefix is not None:
            n = prefix[0].shape[{"BSH": 1, "BSND": 1, "BNSD": 2}[left]] if prefix[2] is None else prefix[2]
            pk = _to_heads(name, "key_shared_prefix", prefix[0], left, kv_heads)[0, :, :n]
            pv = _to_heads(name, "value_shared_prefix", prefix[1], left, kv_heads)[0, :, :n]
            lead = (pk, pv)
            total += n
        if rows == 0 or total == 0:
            if decode and total == 0:
                lse[b, :, first : first + rows] = DECODE_EMPTY_LSE
            continue
        if one_token:
            skip = max(0, total - pre) if windowed and 0 < pre < NO_LIMIT else 0
            plan = _decode_plan(name, mask, mode, request, total, skip)
        else:
            plan = _plan(name, mask, mode, pre, nxt, request, rows, total, tree_at)
        tree_at += rows * rows
        result = flash(
            q[b, :, first : first + rows],
            _fetcher(cache, request, starts[request], quant_k, quant_v, query.dtype, lead),
            plan,
            scale,
            kv_heads=kv_heads,
            out_dim=width,
            work_dtype=query.dtype,
            bias=None if bias is None else bias[request if bias.shape[0] > 1 else 0],
            sink=sink,
            low_precision_scores=bool(inner_precise & 1) and query.dtype == torch.float16 and bias is None,
            zero_invalid_rows=bool(inner_precise & 2) or mode in (2, 3, 4),
        )
        out[b, :, first : first + rows] = result[0]
        lse[b, :, first : first + rows] = result[1]
    final = _from_heads(out, right)
    final = _post_quant(final, out_scale, out_offset, heads, width, right) if out_scale is not None else final
    if final.dtype == torch.float32:
        final = final.to(out_dtype or query.dtype)
    if not want_lse:
        return final, query.new_zeros(0, dtype=torch.float32)
    return final, (lse[0].T[..., None].contiguous() if packed else lse[..., None])


def _fetcher(
    cache: _Cache,
    request: int,
    start: int,
    quant_k: _Antiquant | None,
    quant_v: _Antiquant | None,
    dtype: torch.dtype,
    lead: tuple[Tensor, Tensor] | None,
) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    shift = 0 if lead is None else lead[0].shape[1]

    def own(j0: int, j1: int) -> tuple[Tensor, Tensor]:
        k, v, rope = cache.fetch(request, j0, j1)
        if quant_k is not None:
            k = quant_k(k, request, start, j0, j1, dtype)
        if quant_v is not None:
            v = quant_v(v, request, start, j0, j1, dtype)
        return (k if rope is None else torch.cat([k, rope.to(k.dtype)], -1)), v

    def both(j0: int, j1: int) -> tuple[Tensor, Tensor]:
        assert lead is not None
        if j0 >= shift:
            return own(j0 - shift, j1 - shift)
        if j1 <= shift:
            return lead[0][:, j0:j1], lead[1][:, j0:j1]
        k, v = own(0, j1 - shift)
        return torch.cat([lead[0][:, j0:], k], 1), torch.cat([lead[1][:, j0:], v], 1)

    return own if lead is None else both


def _query_spans(
    name: str, q: Tensor, lens: list[int] | None, packed: bool, *, ignore: bool, pad: int | None
) -> tuple[list[tuple[int, int, int]], int]:
    tokens = q.shape[2]
    if packed:
        if not lens:
            raise KernelError(f"{name}: TND and NTD layouts need actual query lengths")
        if lens[-1] != tokens or any(b < a for a, b in pairwise(lens)):
            raise KernelError(f"{name}: query lengths {lens} are not cumulative up to T={tokens}")
        return [(0, a, b - a) for a, b in zip([0, *lens[:-1]], lens, strict=True)], len(lens)
    batch = q.shape[0]
    if lens is None or ignore:
        return [(b, 0, tokens) for b in range(batch)], batch
    if len(lens) < batch and len(lens) != 1:
        raise KernelError(f"{name}: {len(lens)} query lengths for batch {batch}")
    each = [lens[0 if len(lens) == 1 else b] for b in range(batch)]
    if max(each) > tokens or min(each) < 0:
        raise KernelError(f"{name}: query lengths {each} exceed S1={tokens}")
    return [(b, 0 if pad is None else tokens - pad - n, n) for b, n in enumerate(each)], batch


def _key_extents(
    name: str, key: Tensor, axes: str, kv_heads: int, lens: list[int] | None, packed: bool, batch: int,
    table: Tensor | None, pad: int | None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Key count of every request and where its first row lies on the stored axis."""
    if table is not None:
        if lens is None:
            raise KernelError(f"{name}: paged attention needs actual key lengths")
        each = [lens[0 if len(lens) == 1 else b] for b in range(batch)]
        return each, [0] * batch
    if packed:
        if lens is None or len(lens) != batch:
            raise KernelError(f"{name}: TND and NTD layouts need {batch} key lengths")
        stored = key.shape[0 if axes == "TND" else 1]
        if lens[-1] != stored:
            raise KernelError(f"{name}: key lengths {lens} are not cumulative up to T={stored}")
        starts = [0, *lens[:-1]]
        return [b - a for a, b in zip(starts, lens, strict=True)], starts
    stored = key.shape[2 if axes == "BNSD" else 1]
    if lens is None:
        return [stored] * batch, [0] * batch
    if len(lens) < batch and len(lens) != 1:
        raise KernelError(f"{name}: {len(lens)} key lengths for batch {batch}")
    each = [lens[0 if len(lens) == 1 else b] for b in range(batch)]
    if max(each) > stored or min(each) < 0:
        raise KernelError(f"{name}: key lengths {each} exceed S2={stored}")
    if pad is None:
        return each, [0] * batch
    starts = [stored - pad - n for n in each]
    return [n if s >= 0 else 0 for n, s in zip(each, starts, strict=True)], [max(0, s) for s in starts]


def _post_quant(x: Tensor, scale: Tensor, offset: Tensor | None, heads: int, width: int, axes: str) -> Tensor:
    def spread(t: Tensor) -> Tensor:
        t = t.float()
        if t.numel() == 1:
            return t.reshape(())
        per_head = t.reshape(heads, width)
        if axes == "BSH":
            return per_head.reshape(-1)
        return (
            per_head
            if axes in ("BSND", "TND")
            else per_head.reshape(heads, *([1] * (x.dim() - 2 - axes.index("N"))), width)
        )

    y = x * spread(scale)
    y = y if offset is None else y + spread(offset)
    return y.round().clamp(-128, 127).to(torch.int8)


def npu_fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Lengths = None,
    actual_seq_lengths_kv: Lengths = None,
    dequant_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    dequant_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    key_antiquant_scale: Tensor | None = None,
    key_antiquant_offset: Tensor | None = None,
    value_antiquant_scale: Tensor | None = None,
    value_antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None,
    query_padding_size: Tensor | None = None,
    kv_padding_size: Tensor | None = None,
    key_shared_prefix: Tensor | None = None,
    value_shared_prefix: Tensor | None = None,
    actual_shared_prefix_len: Lengths = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    key_rope_antiquant_scale: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = NO_LIMIT,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[Tensor, Tensor]:
    """FIA v1 (contract 1.1). Returns (attention_out, softmax_lse)."""
    name = "npu_fused_infer_attention_score"
    if dequant_scale1 is not None or quant_scale1 is not None or dequant_scale2 is not None:
        raise KernelError(f"{name}: full int8 attention is not simulated")
    key_q = value_q = None
    if key_antiquant_scale is not None and value_antiquant_scale is not None:
        key_q = (key_antiquant_scale, key_antiquant_offset, key_antiquant_mode)
        value_q = (value_antiquant_scale, value_antiquant_offset, value_antiquant_mode)
    elif antiquant_scale is not None:
        offsets = (None, None) if antiquant_offset is None else (antiquant_offset[0], antiquant_offset[1])
        key_q = (antiquant_scale[0], offsets[0], antiquant_mode)
        value_q = (antiquant_scale[1], offsets[1], antiquant_mode)
    q_padding = None if query_padding_size is None else int(query_padding_size.reshape(-1)[0])
    kv_padding = None if kv_padding_size is None else int(kv_padding_size.reshape(-1)[0])
    prefix = None
    if key_shared_prefix is not None and value_shared_prefix is not None:
        lens = _ints(actual_shared_prefix_len)
        prefix = (key_shared_prefix, value_shared_prefix, lens[0] if lens else None)
    return _attention(
        name, query, key, value, layout=input_layout, heads=num_heads, kv_heads=num_key_value_heads,
        scale=scale,
        mode=sparse_mode, pre=pre_tokens, nxt=next_tokens, mask=atten_mask, bias=pse_shift,
        q_lens=actual_seq_lengths, kv_lens=actual_seq_lengths_kv, table=block_table, block_size=block_size,
        query_rope=query_rope, key_rope=key_rope, key_antiquant=key_q, value_antiquant=value_q,
        out_scale=quant_scale2, out_offset=quant_offset2, inner_precise=inner_precise,
        want_lse=softmax_lse_flag, prefix=prefix, q_padding=q_padding, kv_padding=kv_padding,
    )  # fmt: skip


def npu_fused_infer_attention_score_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    block_table: Tensor | None = None,
    dequant_scale_query: Tensor | None = None,
    dequant_scale_key: Tensor | None = None,
    dequant_offset_key: Tensor | None = None,
    dequant_scale_value: Tensor | None = None,
    dequant_offset_value: Tensor | None = None,
    dequant_scale_key_rope: Tensor | None = None,
    quant_scale_out: Tensor | None = None,
    quant_offset_out: Tensor | None = None,
    quant_scale_p: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = NO_LIMIT,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
    query_rope_dtype: int | None = None,
    key_rope_dtype: int | None = None,
    key_shared_prefix_dtype: int | None = None,
    value_shared_prefix_dtype: int | None = None,
    dequant_scale_query_dtype: int | None = None,
    dequant_scale_key_dtype: int | None = None,
    dequant_scale_value_dtype: int | None = None,
    dequant_scale_key_rope_dtype: int | None = None,
    out_dtype: Any = None,
) -> tuple[Tensor, Tensor]:
    """FIA v2 (contract 1.1). The ``*_dtype`` arguments are reserved on A2/A3 and ignored, as is
    quant_scale_p."""
    name = "npu_fused_infer_attention_score_v2"
    key_q = value_q = None
    if dequant_scale_key is not None and dequant_scale_value is not None:
        key_q = (dequant_scale_key, dequant_offset_key, key_quant_mode)
        value_q = (dequant_scale_value, dequant_offset_value, value_quant_mode)
    return _attention(
        name, query, key, value, layout=input_layout, heads=num_query_heads, kv_heads=num_key_value_heads,
        scale=softmax_scale, mode=sparse_mode, pre=pre_tokens, nxt=next_tokens, mask=atten_mask,
        bias=pse_shift,
        q_lens=actual_seq_qlen, kv_lens=actual_seq_kvlen, table=block_table, block_size=block_size,
        query_rope=query_rope, key_rope=key_rope, sink=learnable_sink, key_antiquant=key_q,
        value_antiquant=value_q,
        out_scale=quant_scale_out, out_offset=quant_offset_out, inner_precise=inner_precise,
        out_dtype=out_dtype if isinstance(out_dtype, torch.dtype) else None, want_lse=return_softmax_lse,
    )  # fmt: skip


def npu_prompt_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    pse_shift: Tensor | None = None,
    actual_seq_lengths: Lengths = None,
    deq_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    deq_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    actual_seq_lengths_kv: Lengths = None,
    sparse_mode: int = 0,
) -> Tensor:
    """PFA (contract 2.2). next_tokens defaults to 0 and counts only when a mask is given."""
    if atten_mask is None:
        pre_tokens = next_tokens = NO_LIMIT
    return _attention(
        "npu_prompt_flash_attention", query, key, value, layout=input_layout, heads=num_heads,
        kv_heads=num_key_value_heads, scale=scale_value, mode=sparse_mode, pre=pre_tokens, nxt=next_tokens,
        mask=atten_mask, bias=pse_shift, q_lens=actual_seq_lengths, kv_lens=actual_seq_lengths_kv,
        out_scale=quant_scale2, out_offset=quant_offset2,
    )[0]  # fmt: skip


def npu_incre_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    pse_shift: Tensor | None = None,
    actual_seq_lengths: Lengths = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None,
    dequant_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    dequant_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    kv_padding_size: Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    block_size: int = 0,
    inner_precise: int = 1,
) -> Tensor:
    """IFA (contract 2.3): one query token; ``actual_seq_lengths`` are the KEY lengths."""
    name = "npu_incre_flash_attention"
    tokens = query.shape[2] if input_layout == "BNSD" else query.shape[1]
    if tokens != 1:
        raise KernelError(f"{name}: query must hold one token, got {tokens}")
    key_q = value_q = None
    if antiquant_scale is not None:
        offsets = (None, None) if antiquant_offset is None else (antiquant_offset[0], antiquant_offset[1])
        key_q, value_q = (antiquant_scale[0], offsets[0], 0), (antiquant_scale[1], offsets[1], 0)
    return _attention(
        name, query, key, value, layout=input_layout, heads=num_heads, kv_heads=num_key_value_heads,
        scale=scale_value, mode=0, pre=NO_LIMIT, nxt=NO_LIMIT, mask=atten_mask, bias=pse_shift,
        kv_lens=actual_seq_lengths, table=block_table, block_size=block_size, key_antiquant=key_q,
        value_antiquant=value_q, out_scale=quant_scale2, out_offset=quant_offset2,
        inner_precise=inner_precise,
        kv_padding=None if kv_padding_size is None else int(kv_padding_size.reshape(-1)[0]),
    )[0]  # fmt: skip


def npu_fused_infer_attention_score_out(
    *args: Tensor, workspace: Tensor | None = None, out: Sequence[Tensor], **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """FIA v1 ``.out``: fills ``out`` = (attention_out, softmax_lse)."""
    return _into(npu_fused_infer_attention_score(args[0], args[1], args[2], **kwargs), out)


def npu_fused_infer_attention_score_v2_out(
    *args: Tensor, workspace: Tensor | None = None, out: Sequence[Tensor], **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """FIA v2 ``.out``: fills ``out`` = (attention_out, softmax_lse)."""
    return _into(npu_fused_infer_attention_score_v2(args[0], args[1], args[2], **kwargs), out)


def _into(found: tuple[Tensor, Tensor], out: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    for what, result, buffer in zip(("attention_out", "softmax_lse"), found, out, strict=True):
        # An LSE that was not asked for leaves its buffer alone, whatever its shape.
        if result.numel() == 0 and what == "softmax_lse":
            continue
        if result.shape != buffer.shape or result.dtype != buffer.dtype:
            raise KernelError(
                f"{what} buffer is {tuple(buffer.shape)} {buffer.dtype}, "
                f"needed {tuple(result.shape)} {result.dtype}"
            )
        buffer.copy_(result)
    return out[0], out[1]


def _npu_fused_infer_attention_score_get_max_workspace(*args: Tensor, **kwargs: Any) -> Tensor:
    """Workspace of FIA v1; the simulator needs none."""
    return torch.zeros(0, dtype=torch.uint8)


def _npu_fused_infer_attention_score_v2_get_max_workspace(*args: Tensor, **kwargs: Any) -> Tensor:
    """Workspace of FIA v2; the simulator needs none."""
    return torch.zeros(0, dtype=torch.uint8)
