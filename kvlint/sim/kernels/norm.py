"""Norms, activations and small element-wise operators. Statistics are float32, results in the input dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kvlint.oracle.kernels import KernelError


def npu_add_rms_norm_cast(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(normalised in float32, normalised, rstd, x1 + x2)."""
    total = (x1.float() + x2.float()).to(x1.dtype)
    x = total.float()
    rstd = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    normed = x * rstd * gamma.float()
    return normed, normed.to(x1.dtype), rstd, total


def npu_gemma_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """RMSNorm that scales by ``1 + gamma``."""
    x = input.float()
    rstd = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (x * rstd * (1.0 + gamma.float())).to(input.dtype), rstd


def npu_rms_norm_quant(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    scale: Tensor,
    offset: Tensor,
    epsilon: float = 1e-6,
    *,
    dst_dtype: torch.dtype | None = None,
) -> Tensor:
    """int8 of ``rmsnorm(x) / scale + offset``."""
    if dst_dtype not in (None, torch.int8):
        raise KernelError(f"npu_rms_norm_quant: the simulator has no {dst_dtype} output")
    y = x.float()
    y = y * (y.square().mean(-1, keepdim=True) + epsilon).rsqrt() * gamma.float() + beta.float()
    return (y / scale.float() + offset.float()).round().clamp(-128, 127).to(torch.int8)


def npu_layer_norm_eval(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """LayerNorm."""
    return functional.layer_norm(input, list(normalized_shape), weight, bias, eps)


def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """``silu(a) * b`` of the two halves along ``dim``."""
    a, b = input.float().chunk(2, dim)
    return (functional.silu(a) * b).to(input.dtype)


def npu_clipped_swiglu(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> Tensor:
    """GPT-OSS activation; ``interleaved`` takes gate and linear part from alternating columns."""
    if dim not in (-1, x.dim() - 1):
        raise KernelError(f"npu_clipped_swiglu: only the last dim is simulated, got {dim}")
    y = x.float()
    a, b = (y[..., ::2], y[..., 1::2]) if interleaved else y.chunk(2, -1)
    a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    out = a * torch.sigmoid(alpha * a) * (b + bias)
    if group_index is not None:
        # Rows past the last group are not computed.
        out[int(group_index.sum()) :] = 0
    return out.to(x.dtype)


def npu_silu(input: Tensor) -> Tensor:
    """``x * sigmoid(x)``."""
    return functional.silu(input.float()).to(input.dtype)


def npu_fast_gelu(input: Tensor) -> Tensor:
    """The sigmoid-like approximation of GELU."""
    x = input.float()
    return (x * torch.exp(0.851 * (x - x.abs())) / (1 + torch.exp(-1.702 * x.abs()))).to(input.dtype)


def npu_gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU."""
    return functional.gelu(input, approximate=approximate)


def npu_geglu(
    input: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[Tensor, Tensor]:
    """(gated result, the activated half)."""
    a, b = input.chunk(2, dim)
    left, right = (a, b) if activate_left else (b, a)
    gelu = functional.gelu(left.float(), approximate="tanh" if approximate == 1 else "none")
    return (gelu * right.float()).to(input.dtype), gelu.to(input.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        npu_add_rms_norm_cast, npu_gemma_rms_norm, npu_rms_norm_quant, npu_layer_norm_eval, npu_swiglu,
        npu_clipped_swiglu, npu_silu, npu_fast_gelu, npu_gelu, npu_geglu,
    )
} | {"fast_gelu": npu_fast_gelu}  # fmt: skip
