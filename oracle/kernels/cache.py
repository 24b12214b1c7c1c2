"""Simulated KV-cache writers and readers (contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ._core import KernelError
from .rope import _pairs_to_halves, _turn_halves


def scatter_update_(data: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """updates[b] goes into data[b] along ``axis`` from indices[b] on; bounds are not checked on the
    device."""
    if data.dim() != updates.dim():
        raise KernelError(f"scatter_update: data has {data.dim()} dims, updates {updates.dim()}")
    if data.dtype != updates.dtype:
        raise KernelError(f"scatter_update: data is {data.dtype}, updates {updates.dtype}")
    if indices.is_floating_point():
        raise KernelError("scatter_update: indices must be integers")
    axis = axis % data.dim()
    span = updates.shape[axis]
    flat = indices.reshape(indices.shape[0], -1)[:, 0]
    for b in range(flat.shape[0]):
        begin = int(flat[b])
        if begin < 0 or begin + span > data.shape[axis]:
            raise KernelError(
                f"scatter_update: rows {begin}..{begin + span} of batch {b} leave the cache: stray write"
            )
        where: list[int | slice] = [slice(None)] * data.dim()
        where[0], where[axis] = b, slice(begin, begin + span)
        data[tuple(where)] = updates[b]
    return data


def scatter_update(data: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """The functional form: a new tensor, ``data`` unchanged."""
    return scatter_update_(data.clone(), indices, updates, axis)


def npu_scatter_nd_update_(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """input[indices[..., :]] = updates."""
    if indices.dim() < 2:
        raise KernelError("npu_scatter_nd_update: indices need at least 2 dims")
    depth = indices.shape[-1]
    if tuple(updates.shape) != (*indices.shape[:-1], *input.shape[depth:]):
        raise KernelError(
            f"npu_scatter_nd_update: updates {tuple(updates.shape)} do not fit indices and input"
        )
    if input.dtype != updates.dtype:
        raise KernelError(f"npu_scatter_nd_update: input is {input.dtype}, updates {updates.dtype}")
    rows = indices.reshape(-1, depth).long()
    for column in range(depth):
        part = rows[:, column]
        if part.numel() and (int(part.min()) < 0 or int(part.max()) >= input.shape[column]):
            raise KernelError(
                f"npu_scatter_nd_update: an index of axis {column} is out of range: stray write"
            )
    input.index_put_(tuple(rows.T), updates.reshape(-1, *input.shape[depth:]))
    return input


def npu_scatter_nd_update(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """The functional form: a new tensor, ``input`` unchanged."""
    return npu_scatter_nd_update_(input.clone(), indices, updates)


def _lane(cache: Tensor) -> int:
    """Elements of one 32-byte NZ lane."""
    return 32 // cache.element_size()


def _put_rows(cache: Tensor, rows: Tensor, slots: Tensor, block_rows: int, nz: bool) -> None:
    """rows [T, W] to global slots; negative slots are skipped. NZ pages are stored [W / lane, Bs, lane]."""
    width = rows.shape[1]
    keep = slots >= 0
    slots, rows = slots[keep].long(), rows[keep].to(cache.dtype)
    total = cache.numel() // width
    if slots.numel() and int(slots.max()) >= total:
        raise KernelError(f"slot {int(slots.max())} is outside the cache of {total} slots: stray write")
    block, inner = slots // block_rows, slots % block_rows
    if nz:
        lane = _lane(cache)
        pages = cache.view(-1, width // lane, block_rows, lane)
        pages[block, :, inner] = rows.reshape(len(rows), width // lane, lane)
    else:
        cache.view(-1, block_rows, width)[block, inner] = rows


def npu_scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """key, value [T, N, D] to global slots. Norm caches are [Bn, Bs, N, D], NZ ones [Bn, N*D/E, Bs, E] (or
    5-D)."""
    if key.dim() != 3 or compress_lens is not None:
        raise KernelError("npu_scatter_pa_kv_cache: only the [T, N, D] form is simulated")
    if key.dtype != key_cache.dtype or value.dtype != value_cache.dtype:
        raise KernelError("npu_scatter_pa_kv_cache: key, value and caches must have one dtype")
    nz = cache_mode == "PA_NZ"
    if cache_mode not in ("PA_NZ", "Norm", None, ""):
        raise KernelError(f"npu_scatter_pa_kv_cache: cache_mode {cache_mode!r} is not supported")
    for rows, cache in ((key, key_cache), (value, value_cache)):
        block_rows = cache.shape[-2] if nz else cache.shape[1]
        _put_rows(cache, rows.flatten(1), slot_mapping.reshape(-1), block_rows, nz)


def npu_scatter_pa_cache(
    key: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    key_cache: Tensor,
) -> Tensor:
    """Key only, ND cache (PA-09)."""
    _put_rows(key_cache, key.flatten(1), slot_mapping.reshape(-1), key_cache.shape[1], False)
    return key_cache


def npu_gather_pa_kv_cache(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Copies the cached rows of every request, one after another, into key and value (ND caches)."""
    lens = [int(n) for n in seq_lens.tolist()]
    if is_seq_lens_cumsum:
        lens = [b - a for a, b in pairwise(lens)]
    at = 0
    size = key_cache.shape[1]
    for b, n in enumerate(lens):
        begin = 0 if seq_offset is None else int(seq_offset[b])
        where = torch.arange(begin, begin + n)
        blocks = block_tables[b][where // size].long()
        key[at : at + n] = key_cache[blocks, where % size].reshape(n, *key.shape[1:])
        value[at : at + n] = value_cache[blocks, where % size].reshape(n, *value.shape[1:])
        at += n


def _rms(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * gamma.float()


def _to_int8(x: Tensor, scale: Tensor | None, offset: Tensor | None) -> Tensor:
    if scale is None:
        return x
    y = x * scale.float()
    y = y if offset is None else y + offset.float()
    return torch.clamp(torch.round(y), -128, 127)


def npu_kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    k_rope_scale: Tensor | None = None,
    c_kv_scale: Tensor | None = None,
    k_rope_offset: Tensor | None = None,
    c_kv_offset: Tensor | None = None,
    v: Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """kv [B, 1, S, Dn + Dr] -> RMSNorm of the first Dn columns, rotary of the last Dr, both stored.

    k_cache holds the rope part, ckv_cache the normed part. Returns (k_cache, ckv_cache, k_rope,
    c_kv); the last two
    are filled only with is_output_kv in a PA mode (KR-09, KR-10).
    """
    name = "npu_kv_rmsnorm_rope_cache"
    modes = ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")
    if cache_mode not in modes:
        raise KernelError(f"{name}: cache_mode {cache_mode!r} is not one of {', '.join(modes)}")
    if v is not None:
        raise KernelError(f"{name}: the form with v is not simulated")
    if index.dtype != torch.int64:
        raise KernelError(f"{name}: index must be int64, got {index.dtype}")
    batch, _, tokens, width = kv.shape
    normed_dim = gamma.numel()
    rope_dim = width - normed_dim
    if k_cache.shape[-1] != rope_dim or ckv_cache.shape[-1] != normed_dim:
        raise KernelError(
            f"{name}: k_cache is the {rope_dim}-wide cache and ckv_cache the {normed_dim}-wide one"
        )
    normed = _rms(kv[..., :normed_dim], gamma, epsilon)
    halves = _pairs_to_halves(kv[..., normed_dim:].float())
    roped = halves * cos.float() + _turn_halves(halves) * sin.float()
    stored = (
        (k_cache, _to_int8(roped, k_rope_scale, k_rope_offset)),
        (ckv_cache, _to_int8(normed, c_kv_scale, c_kv_offset)),
    )
    if cache_mode == "Norm":
        if index.dim() != 2:
            raise KernelError(f"{name}: index must be [B, S] in mode Norm")
        for cache, rows in stored:
            for b in range(batch):
                keep = index[b] >= 0
                if bool((index[b] >= cache.shape[2]).any()):
                    raise KernelError(
                        f"{name}: an offset is outside the cache of {cache.shape[2]} rows: stray write"
                    )
                cache[b, 0, index[b][keep]] = rows[b, 0][keep].to(cache.dtype)
    else:
        slots = index.reshape(-1)
        if "BLK" in cache_mode:
            size = k_cache.shape[1]
            pages = -(-tokens // size)
            place = torch.arange(tokens)
            start = index.reshape(batch, pages)[:, place // size]
            slots = torch.where(start < 0, start, start + place % size).reshape(-1)
        for cache, rows in stored:
            _put_rows(
                cache, rows.reshape(batch * tokens, -1), slots, cache.shape[1], cache_mode.endswith("NZ")
            )
    k_rope, c_kv = roped.to(kv.dtype), normed.to(kv.dtype)
    if not is_output_kv or cache_mode == "Norm":
        k_rope, c_kv = torch.full_like(k_rope, float("nan")), torch.full_like(c_kv, float("nan"))
    return k_cache, ckv_cache, k_rope, c_kv


def npu_kv_rmsnorm_rope_cache_v2(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    k_rope_scale: Tensor | None = None,
    c_kv_scale: Tensor | None = None,
    k_rope_offset: Tensor | None = None,
    c_kv_offset: Tensor | None = None,
    v: Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    k_cache_dtype: int | None = None,
    ckv_cache_dtype: int | None = None,
) -> tuple[Tensor, Tensor]:
    """v2: the caches are mutated, only (k_rope, c_kv) are returned."""
    found = npu_kv_rmsnorm_rope_cache(
        kv, gamma, cos, sin, index, k_cache, ckv_cache, k_rope_scale=k_rope_scale, c_kv_scale=c_kv_scale,
        k_rope_offset=k_rope_offset, c_kv_offset=c_kv_offset, v=v, epsilon=epsilon, cache_mode=cache_mode,
        is_output_kv=is_output_kv,
    )  # fmt: skip
    return found[2], found[3]


def npu_qkv_rms_norm_rope_cache(
    qkv: Tensor,
    q_gamma: Tensor,
    k_gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    q_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    qkv_size: Sequence[int],
    head_nums: Sequence[int],
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    k_offset: Tensor | None = None,
    v_offset: Tensor | None = None,
    epsilon: float = 1e-6,
    cache_mode: str = "PA_NZ",
    is_output_qkv: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [B * S, (Nq + Nk + Nv) * D] -> q and k normed per head and rotated by halves, k and v stored.

    ``q_out`` [B * S, Nq * D] gets q, the caches [Bn, N * D / lane, Bs, lane] get k and v: int8 ones hold
    rows / scale + offset, scales being [N, D]. ``index`` [B * S] int64 are global slots, negative ones are
    skipped. Returns (q, k, v) before quantisation, filled only with ``is_output_qkv`` (KR-22).
    """
    name = "npu_qkv_rms_norm_rope_cache"
    if cache_mode != "PA_NZ":
        raise KernelError(f"{name}: cache_mode must be PA_NZ, got {cache_mode!r} (contract 3.3)")
    if index.dtype != torch.int64:
        raise KernelError(f"{name}: index must be int64, got {index.dtype} (contract 3.3)")
    tokens, dim = int(qkv_size[0]) * int(qkv_size[1]), int(qkv_size[3])
    heads = [int(n) for n in head_nums]
    if sum(heads) != int(qkv_size[2]) or tuple(qkv.shape) != (tokens, sum(heads) * dim):
        raise KernelError(f"{name}: qkv {tuple(qkv.shape)}, qkv_size and head_nums do not fit each other")
    q, k, v = (part.float() for part in qkv.view(tokens, -1, dim).split(heads, 1))
    c, s = (t.float().view(tokens, 1, dim) for t in (cos, sin))
    q, k = (
        normed * c + _turn_halves(normed) * s
        for normed in (_rms(q, q_gamma, epsilon), _rms(k, k_gamma, epsilon))
    )
    q_out.copy_(q.flatten(1))
    for rows, cache, scale, offset in ((k, k_cache, k_scale, k_offset), (v, v_cache, v_scale, v_offset)):
        if (cache.dtype == torch.int8) != (scale is not None):
            raise KernelError(f"{name}: an int8 cache and its scale go together (contract 3.3)")
        if scale is not None:
            rows = rows / scale.float()
            rows = (rows if offset is None else rows + offset.float()).round().clamp(-128, 127)
        _put_rows(cache, rows.flatten(1), index.reshape(-1), cache.shape[2], True)
    results = tuple(t.flatten(1).to(qkv.dtype) for t in (q, k, v))
    if not is_output_qkv:
        results = tuple(torch.full_like(t, float("nan")) for t in results)
    return results[0], results[1], results[2]


def npu_quant_scatter_(
    self: Tensor,
    indices: Tensor,
    updates: Tensor,
    quant_scales: Tensor,
    quant_zero_points: Tensor | None = None,
    axis: int = -2,
    quant_axis: int = -1,
    reduce: str = "update",
    dst_type: int | None = None,
    round_mode: str = "rint",
) -> Tensor:
    """int8 cache: round(updates / scale + zero point) written like scatter_update_."""
    if indices.dtype != torch.int32:
        raise KernelError(f"npu_quant_scatter: indices must be int32, got {indices.dtype}")
    shape = [1] * updates.dim()
    shape[quant_axis] = -1
    y = updates.float() / quant_scales.float().reshape(shape)
    if quant_zero_points is not None:
        y = y + quant_zero_points.float().reshape(shape)
    return scatter_update_(self, indices, y.round().clamp(-128, 127).to(self.dtype), axis)


def npu_quantize(
    self: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: torch.dtype,
    axis: int = 1,
    div_mode: bool = True,
) -> Tensor:
    """Quantises with per-tensor or per-channel scales; div_mode divides, otherwise multiplies."""
    shape = [1] * self.dim()
    if scales.numel() > 1:
        shape[axis] = -1
    s = scales.float().reshape(shape)
    y = self.float() / s if div_mode else self.float() * s
    if zero_points is not None:
        y = y + zero_points.float().reshape(shape)
    return y.round().clamp(-128, 127).to(torch.int8)


def _npu_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    """key, value [T, N, D] into ND caches [Bn, Bs, N, D]; negative slots are skipped."""
    if slot_indices.dtype != torch.int32:
        raise KernelError(f"_npu_reshape_and_cache: slot_indices must be int32, got {slot_indices.dtype}")
    if slot_indices.numel() != key.shape[0]:
        raise KernelError(f"_npu_reshape_and_cache: {slot_indices.numel()} slots for {key.shape[0]} tokens")
    for rows, cache in ((key, key_cache), (value, value_cache)):
        if rows.dtype != cache.dtype:
            raise KernelError(f"_npu_reshape_and_cache: rows are {rows.dtype}, the cache {cache.dtype}")
        _put_rows(cache, rows.flatten(1), slot_indices, cache.shape[1], False)


def empty_with_swapped_memory(
    size: Sequence[int], dtype: torch.dtype | None = None, device: object = None
) -> Tensor:
    """Host-backed memory: here an ordinary CPU tensor of undefined content."""
    return torch.empty(tuple(size), dtype=dtype)
