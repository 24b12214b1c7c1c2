"""Simulated norm and rotary helpers (contract 3.9)."""

from __future__ import annotations

from collections.abc import Sequence

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


def npu_mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[Tensor, Tensor]:
    """Rotated copies of query and key [T, N * head_size]; the cache is [positions, cos half | sin half].

    positions [T], or [sections, T] with ``mrope_section`` columns of cos and sin taken from each section in
    turn. With cache_mode "interleave" every third column from the first (second) on is the second (third)
    section's, up to three times ``mrope_section[1]`` for both (D:npu_mrope).
    """
    if rotary_mode not in ("half", "interleave"):
        raise KernelError(
            f"npu_mrope: rotary_mode must be half or interleave, got {rotary_mode!r} (D:npu_mrope)"
        )
    if cache_mode not in ("default", "interleave"):
        raise KernelError(
            f"npu_mrope: cache_mode must be default or interleave, got {cache_mode!r} (D:npu_mrope)"
        )
    cos, sin = cos_sin_cache[positions.long()].float().chunk(2, -1)
    if positions.dim() == 2:
        sections = [int(n) for n in mrope_section or ()]
        if len(sections) != len(positions) or sum(sections) != cos.shape[-1]:
            raise KernelError(
                f"npu_mrope: mrope_section {sections} must have one entry per row of positions and add up to "
                f"{cos.shape[-1]} (D:npu_mrope)"
            )
        cos, sin = (_merge_sections(t, sections, cache_mode) for t in (cos, sin))
    c, s = cos[:, None], sin[:, None]
    turned = []
    for x in (query, key):
        heads = x.reshape(len(c), -1, head_size).float()
        part, rest = heads[..., : 2 * c.shape[-1]], heads[..., 2 * c.shape[-1] :]
        a, b = part.chunk(2, -1) if rotary_mode == "half" else (part[..., ::2], part[..., 1::2])
        pair = (a * c - b * s, b * c + a * s)
        joined = torch.cat(pair, -1) if rotary_mode == "half" else torch.stack(pair, -1).flatten(-2)
        turned.append(torch.cat([joined, rest], -1).reshape(x.shape).to(x.dtype))
    return turned[0], turned[1]


def _merge_sections(t: Tensor, sections: Sequence[int], cache_mode: str) -> Tensor:
    """[sections, T, columns] -> [T, columns]."""
    if cache_mode == "default":
        return torch.cat([part[i] for i, part in enumerate(t.split(list(sections), -1))], -1)
    if len(sections) != 3:
        raise KernelError("npu_mrope: cache_mode interleave is simulated for three sections")
    merged = t[0].clone()
    for i in (1, 2):
        at = slice(i, 3 * sections[1], 3)
        merged[:, at] = t[i][:, at]
    return merged


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
