"""Simulated norm and rotary helpers (contract 3.9)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._core import KernelError


def _pairs_to_halves(x: Tensor) -> Tensor:
    """x0 x1 x2 x3 ... -> x0 x2 ... x1 x3 ..."""
    return x.reshape(*x.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)


def _turn_halves(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((x[..., half:].neg(), x[..., :half]), dim=-1)


def _turn_pairs(x: Tensor) -> Tensor:
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return torch.stack((pairs[..., 1].neg(), pairs[..., 0]), -1).flatten(-2)


def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, N, S, 64]; the interleaved input is re-ordered into halves, then rotated."""
    if x.shape[-1] != 64:
        raise KernelError(f"npu_interleave_rope: the last dim must be 64, got {x.shape[-1]}")
    halves = _pairs_to_halves(x.float())
    return (halves * cos.float() + _turn_halves(halves) * sin.float()).to(x.dtype)


def npu_rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """input * r1 (cos) + rotated(input) * r2 (sin)."""
    if rotary_mode not in ("half", "interleave"):
        raise KernelError(f"npu_rotary_mul: rotary_mode {rotary_mode} is not supported")
    x = input.float()
    turned = _turn_halves(x) if rotary_mode == "half" else _turn_pairs(x)
    return (x * r1.float() + turned * r2.float()).to(input.dtype)


def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """Rotates query and key IN PLACE and returns them, as the wrapper does."""
    for x in (query, key):
        x.copy_(npu_rotary_mul(x, cos, sin, rotary_mode))
    return query, key


def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """(normalised, reciprocal standard deviation)."""
    x = self.float()
    rstd = (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
    return (x * rstd * gamma.float()).to(self.dtype), rstd


def npu_add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """(normalised, rstd, x1 + x2)."""
    total = (x1.float() + x2.float()).to(x1.dtype)
    normed, rstd = npu_rms_norm(total, gamma, epsilon)
    return normed, rstd, total
