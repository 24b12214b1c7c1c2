"""Quantisers and quantised products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kvlint.oracle.kernels import KernelError

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def npu_dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: torch.dtype | None = None,
    quant_mode: str = "pertoken",
) -> tuple[Tensor, Tensor]:
    """(quantised rows, float32 scale per row); ``input ~ quantised * scale``."""
    x = input.float()
    if smooth_scales is not None:
        if group_index is not None:
            counts = torch.diff(group_index.long(), prepend=group_index.new_zeros(1).long())
            x = x * smooth_scales.float()[torch.repeat_interleave(torch.arange(len(counts)), counts)]
        else:
            x = x * smooth_scales.float()
    target = dst_type or torch.int8
    if target is torch.int8:
        largest = 127.0
    elif target in _FLOAT8:
        largest = torch.finfo(target).max
    else:
        raise KernelError(f"npu_dynamic_quant: the simulator has no {target} output")
    peak = x.abs().amax(-1, keepdim=True) if quant_mode == "pertoken" else x.abs().max().reshape(1)
    scale = peak / largest
    y = x / torch.where(scale == 0, torch.ones_like(scale), scale)
    y = y.round().clamp(-128, 127) if target is torch.int8 else y
    return y.to(target), scale.squeeze(-1) if quant_mode == "pertoken" else scale


def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """int8 product, int32 sums, dequantised per channel and per token."""
    if scale.dtype in (torch.int64, torch.uint64):
        raise KernelError("npu_quant_matmul: scales of npu_trans_quant_param are not simulated")
    y = x1.double() @ x2.double()
    if bias is not None and bias.dtype == torch.int32:
        y = y + bias.double()
    z = y.float() * scale.float()
    if pertoken_scale is not None:
        z = z * pertoken_scale.float().reshape(-1, 1)
    if bias is not None and bias.dtype != torch.int32:
        z = z + bias.float()
    target = output_dtype or torch.int8
    if target is torch.int8:
        z = z if offset is None else z + offset.float()
        return z.round().clamp(-128, 127).to(torch.int8)
    return z.to(target)


def npu_transpose_quant_batchmatmul(
    x1: Tensor,
    x2: Tensor,
    dtype: torch.dtype,
    *,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    group_sizes: Sequence[int] | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
) -> Tensor:
    """MX product per batch, of Ascend 950: float8 x1 [M, B, K] and x2 [B, K, N] -> [M, B, N] in ``dtype``.

    Scales float8_e8m0fnu per 32 values along K: x1_scale [M, B, K / 64, 2], x2_scale [B, K / 64, N, 2]. Only
    the form with ``group_sizes`` (0, 0, 32) is simulated.
    """
    name = "npu_transpose_quant_batchmatmul"
    if tuple(group_sizes or ()) != (0, 0, 32) or x1_scale is None or x2_scale is None:
        raise KernelError(f"{name}: only the form with group_sizes (0, 0, 32) and both scales is simulated")
    permutations = (tuple(perm_x1 or ()), tuple(perm_x2 or ()), tuple(perm_y or ()))
    if permutations != ((1, 0, 2), (0, 1, 2), (1, 0, 2)):
        raise KernelError(f"{name}: perm_x1, perm_x2 and perm_y must be (1, 0, 2), (0, 1, 2), (1, 0, 2)")
    if x1.dtype not in _FLOAT8 or x2.dtype not in _FLOAT8:
        raise KernelError(f"{name}: x1 and x2 must be float8, got {x1.dtype}, {x2.dtype}")
    for what, t in (("x1_scale", x1_scale), ("x2_scale", x2_scale)):
        if t.dtype != torch.float8_e8m0fnu:
            raise KernelError(f"{name}: {what} must be float8_e8m0fnu, got {t.dtype}")
    left = x1_scale.float().flatten(-2).repeat_interleave(32, -1)
    right = x2_scale.float().transpose(-1, -2).flatten(1, 2).repeat_interleave(32, 1)
    a, b = (x1.float() * left).transpose(0, 1), x2.float() * right
    return torch.bmm(a, b).transpose(0, 1).contiguous().to(dtype)


def npu_dtype_cast(input: Tensor, dtype: torch.dtype, input_dtype: torch.dtype | None = None) -> Tensor:
    """Conversion."""
    return input.to(dtype)


#: float4_e2m1fn_x2 as ACL numbers it: two to a byte, the first in the low half.
FLOAT4_E2M1 = 296
_FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: Exponent of the largest number of a target type.
_EMAX = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15, FLOAT4_E2M1: 2}


def npu_dynamic_mx_quant(
    input: Tensor,
    *,
    axis: int = -1,
    round_mode: str = "rint",
    dst_type: Any = FLOAT4_E2M1,
    block_size: int = 32,
    scale_alg: int | None = 0,
) -> tuple[Tensor, Tensor]:
    """MX quantisation, of Ascend 950: (quantised, scale exponents uint8 [..., blocks / 2, 2]).

    ``input`` float16 or bfloat16. A block of ``block_size`` along ``axis`` has the scale
    2^(floor(log2(largest)) - emax), stored as exponent + 127; an odd number of blocks gets one more of
    exponent 0 byte. Values saturate (CANN: aclnnDynamicMxQuant, scale_alg 0).
    """
    name = "npu_dynamic_mx_quant"
    if dst_type not in _EMAX:
        raise KernelError(
            f"{name}: the simulator has no dst_type {dst_type}; it has float8 and float4_e2m1fn_x2"
        )
    if round_mode != "rint" or scale_alg not in (0, None):
        raise KernelError(f"{name}: the simulator has round_mode rint and scale_alg 0 only")
    if block_size <= 0 or block_size % 32 or block_size > 1024:
        raise KernelError(f"{name}: block_size must be a multiple of 32 up to 1024, got {block_size}")
    if dst_type == FLOAT4_E2M1 and input.shape[-1] % 2:
        raise KernelError(f"{name}: the last dim must be even for float4, got {input.shape[-1]}")
    x = input.float().movedim(axis, -1)
    length, blocks = x.shape[-1], -(-x.shape[-1] // block_size)
    x = functional.pad(x, (0, blocks * block_size - length)).unflatten(-1, (blocks, block_size))
    peak = x.abs().amax(-1)
    # frexp gives a mantissa from 0.5 on.
    exponent = (torch.frexp(peak).exponent - 1 - _EMAX[dst_type]).clamp(-127, 127)
    exponent = torch.where(peak == 0, -127, exponent)
    scaled = (x * torch.exp2(-exponent.double()).unsqueeze(-1)).float().flatten(-2)[..., :length]
    scales = torch.where(peak.isfinite(), exponent + 127, 255).to(torch.uint8)
    scales = functional.pad(scales, (0, blocks % 2)).unflatten(-1, (-1, 2))
    values = scaled.nan_to_num(nan=0.0).movedim(-1, axis)
    scales = scales.movedim(-2, axis - 1 if axis < 0 else axis)
    if dst_type == FLOAT4_E2M1:
        return _pack_float4(values), scales.contiguous()
    most = torch.finfo(dst_type).max
    return values.clamp(-most, most).to(dst_type).contiguous(), scales.contiguous()


def _pack_float4(values: Tensor) -> Tensor:
    """Nearest float4_e2m1 numbers, ties to the even code, two to a byte."""
    grid = torch.tensor(_FLOAT4_VALUES)
    size = values.abs().clamp(max=grid[-1].item())
    above = torch.searchsorted(grid, size).clamp(1, len(grid) - 1)
    low, high = size - grid[above - 1], grid[above] - size
    up = (high < low) | ((high == low) & (above % 2 == 0))
    codes = torch.where(up, above, above - 1) + 8 * torch.signbit(values)
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)


def npu_dynamic_block_quant(
    x: Tensor,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: torch.dtype = torch.int8,
    row_block_size: int = 1,
    col_block_size: int = 128,
) -> tuple[Tensor, Tensor]:
    """(quantised, float32 scale per block of one row and 128 columns); ``x ~ quantised * scale``.

    x float16 or bfloat16 [M, N] or [B, M, N], scale [..., M, ceil(N / 128)]. int8 on A2 and A3, float8_e4m3fn
    on 950 (D:npu_dynamic_block_quant).
    """
    name = "npu_dynamic_block_quant"
    largest = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}.get(dst_type)
    if largest is None:
        raise KernelError(f"{name}: the simulator has no {dst_type} output; it has int8 and float8_e4m3fn")
    if (round_mode, row_block_size, col_block_size) != ("rint", 1, 128):
        raise KernelError(
            f"{name}: round_mode must be rint and a block 1 x 128, got {round_mode}, {row_block_size} x "
            f"{col_block_size} (D:npu_dynamic_block_quant)"
        )
    if x.dim() not in (2, 3) or x.dtype not in (torch.float16, torch.bfloat16):
        raise KernelError(
            f"{name}: x must be float16 or bfloat16 with 2 or 3 dims, got {x.dtype} {tuple(x.shape)}"
        )
    width, blocks = x.shape[-1], -(-x.shape[-1] // col_block_size)
    y = functional.pad(x.float(), (0, blocks * col_block_size - width)).unflatten(
        -1, (blocks, col_block_size)
    )
    scale = (y.abs().amax(-1) / largest).clamp_min(min_scale)
    y = y / torch.where(scale == 0, torch.ones_like(scale), scale).unsqueeze(-1)
    y = y.flatten(-2)[..., :width]
    y = y.round().clamp(-128, 127) if dst_type is torch.int8 else y.clamp(-largest, largest)
    return y.to(dst_type), scale


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        npu_dynamic_quant, npu_quant_matmul, npu_dtype_cast, npu_transpose_quant_batchmatmul,
        npu_dynamic_mx_quant, npu_dynamic_block_quant,
    )
}  # fmt: skip
