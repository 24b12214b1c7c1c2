"""MLA prolog: from hidden states to absorbed queries, writing the latent cache on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.kernels import KernelError

_MODES = ("PA_BSND", "PA_NZ", "BSND", "TND")


def _norm(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * gamma.float()


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved input; the result is stored as halves."""
    even, odd = x[..., ::2], x[..., 1::2]
    half = cos.shape[-1] // 2
    return torch.cat(
        [even * cos[..., :half] - odd * sin[..., :half], odd * cos[..., half:] + even * sin[..., half:]], -1
    )


def _store(cache: Tensor, rows: Tensor, slots: Tensor | None, mode: str) -> None:
    """rows [T, W] to global slots; a cache without pages is filled from its start."""
    rows = rows.to(cache.dtype)
    if not mode.startswith("PA"):
        cache.view(-1, cache.shape[-1])[: len(rows)] = rows
        return
    if slots is None:
        raise KernelError(f"npu_mla_prolog: cache_mode {mode} needs cache_index")
    kept = slots >= 0
    slots, rows = slots[kept].long(), rows[kept]
    size, width = cache.shape[1], cache.shape[-1]
    if slots.numel() and int(slots.max()) >= cache.shape[0] * size:
        raise KernelError(f"npu_mla_prolog: slot {int(slots.max())} is outside the cache: stray write")
    if mode == "PA_NZ":
        lane = 32 // cache.element_size()
        pages = cache.view(cache.shape[0], width // lane, size, lane)
        pages[slots // size, :, slots % size] = rows.reshape(len(rows), width // lane, lane)
    else:
        cache.view(-1, width)[slots] = rows


def npu_mla_prolog_v3(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    *,
    cache_index: Tensor | None = None,
    actual_seq_len: Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-5,
    rmsnorm_epsilon_ckv: float = 1e-5,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    tile_size: int = 128,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """token_x [T, He] or [B, S, He]; weight_uk [N, D, Hckv]; caches [Bn, Bs, 1, W]. The unquantised form.

    Returns (query [..., N, Hckv], query_rope [..., N, Dr], a placeholder, query_norm [..., Hcq] if asked for,
    a placeholder). The rope input is interleaved and the result is in halves (contract 3.6).
    """
    if cache_mode not in _MODES:
        raise KernelError(f"npu_mla_prolog_v3: cache_mode {cache_mode!r} is not one of {', '.join(_MODES)}")
    if not weight_dq.is_floating_point() or not weight_uq_qr.is_floating_point():
        raise KernelError("npu_mla_prolog_v3: quantised weights are not simulated")
    lead, dtype = token_x.shape[:-1], token_x.dtype
    x = token_x.reshape(-1, token_x.shape[-1]).float()
    sin = rope_sin.reshape(len(x), 1, -1).float()
    cos = rope_cos.reshape(len(x), 1, -1).float()
    heads, dim, latent = weight_uk.shape
    rope_dim = cos.shape[-1]
    # Intermediate results pass through memory in the input dtype.
    cq = _norm((x @ weight_dq.float()).to(dtype).float(), rmsnorm_gamma_cq, rmsnorm_epsilon_cq)
    cq = (cq * qc_qr_scale).to(dtype)
    q = (cq.float() @ weight_uq_qr.float()).to(dtype).reshape(-1, heads, dim + rope_dim).float()
    query = torch.einsum("tnd,ndc->tnc", q[..., :dim], weight_uk.float())
    query_rope = _rope(q[..., dim:], cos, sin)
    kv = (x @ weight_dkv_kr.float()).to(dtype).float()
    ckv = _norm(kv[:, :latent], rmsnorm_gamma_ckv, rmsnorm_epsilon_ckv) * kc_scale
    kr = _rope(kv[:, None, latent:], cos, sin)[:, 0]
    slots = None if cache_index is None else cache_index.reshape(-1)
    _store(kv_cache, ckv, slots, cache_mode)
    _store(kr_cache, kr, slots, cache_mode)
    spare = torch.zeros(1)
    normed = cq.reshape(*lead, -1) if query_norm_flag else torch.zeros(1, dtype=dtype)
    return (
        query.to(dtype).reshape(*lead, heads, latent),
        query_rope.to(dtype).reshape(*lead, heads, rope_dim),
        spare, normed, spare.clone(),
    )  # fmt: skip


def npu_mla_prolog_v2(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    cache_index: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    *,
    rmsnorm_epsilon_cq: float = 1e-5,
    rmsnorm_epsilon_ckv: float = 1e-5,
    cache_mode: str = "PA_BSND",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """v2: ``cache_index`` is positional; returns (query, query_rope, kv_cache, kr_cache, a placeholder)."""
    found = npu_mla_prolog_v3(
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv,
        rope_sin, rope_cos, kv_cache, kr_cache, cache_index=cache_index,
        rmsnorm_epsilon_cq=rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv=rmsnorm_epsilon_ckv, cache_mode=cache_mode,
    )  # fmt: skip
    return found[0], found[1], kv_cache, kr_cache, found[2]


def npu_mla_prolog(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """v1: (query, query_rope, kv_cache, kr_cache)."""
    return npu_mla_prolog_v2(*args, **kwargs)[:4]


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (npu_mla_prolog, npu_mla_prolog_v2, npu_mla_prolog_v3)
}
