"""Quantisers and quantised products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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


def npu_dtype_cast(input: Tensor, dtype: torch.dtype, input_dtype: torch.dtype | None = None) -> Tensor:
    """Conversion."""
    return input.to(dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (npu_dynamic_quant, npu_quant_matmul, npu_dtype_cast)
}
