"""Norms, activations and small element-wise operators. Statistics are float32, results in the input dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kvlint.oracle.kernels import KernelError
from kvlint.sim.kernels import quant


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


def _normed(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """(normalised in float32, rstd) of the last axis."""
    y = x.float()
    rstd = (y.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    y = y * rstd * gamma.float()
    return (y if beta is None else y + beta.float()), rstd


def npu_rms_norm_dynamic_mx_quant(
    x: Tensor,
    gamma: Tensor,
    *,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: Any = quant.FLOAT4_E2M1,
) -> tuple[Tensor, Tensor, Tensor]:
    """(quantised, scale exponents, rstd): RMSNorm, then npu_dynamic_mx_quant over the last axis."""
    y, rstd = _normed(x, gamma, beta, epsilon)
    found = quant.npu_dynamic_mx_quant(
        y.to(x.dtype), round_mode=round_mode, dst_type=dst_type, scale_alg=scale_alg
    )
    return *found, rstd


def npu_add_rms_norm_dynamic_mx_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: Any = quant.FLOAT4_E2M1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(quantised, x1 + x2, scale exponents, rstd)."""
    total = (x1.float() + x2.float()).to(x1.dtype)
    y, scales, rstd = npu_rms_norm_dynamic_mx_quant(
        total,
        gamma,
        beta=beta,
        epsilon=epsilon,
        scale_alg=scale_alg,
        round_mode=round_mode,
        dst_type=dst_type,
    )
    return y, total, scales, rstd


def npu_add_rms_norm_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    scales1: Tensor,
    zero_points1: Tensor | None,
    beta: Tensor | None = None,
    scales2: Tensor | None = None,
    zero_points2: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_type: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(int8 1, int8 2, x1 + x2): ``round(normed / scales + zero_points)``, or times with ``div_mode`` False.

    Without ``scales2`` the second result is undefined on the device; here it is -128 (CANN:
    aclnnAddRmsNormQuant).
    """
    if axis not in (-1, x1.dim() - 1) or dst_type not in (None, torch.int8):
        raise KernelError("npu_add_rms_norm_quant: the simulator has the last axis and int8 only")
    total = (x1.float() + x2.float()).to(x1.dtype)
    y, _ = _normed(total, gamma, beta, epsilon)
    outs = []
    for scales, zero in ((scales1, zero_points1), (scales2, zero_points2)):
        if scales is None:
            outs.append(torch.full(y.shape, -128, dtype=torch.int8))
            continue
        z = y / scales.float() if div_mode else y * scales.float()
        z = z if zero is None else z + zero.float()
        outs.append(z.round().clamp(-128, 127).to(torch.int8))
    return outs[0], outs[1], total


def npu_add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool] | None = None,
    y_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(int8 1, int8 2, x1 + x2, scale 1, scale 2): one or two row-wise quantisations of the normed sum.

    What was not asked for, by ``output_mask`` or by leaving out a smooth scale, is undefined on the device;
    here it is -128 and NaN (D:npu_add_rms_norm_dynamic_quant).
    """
    if y_dtype not in (None, torch.int8):
        raise KernelError(f"npu_add_rms_norm_dynamic_quant: the simulator has no {y_dtype} output")
    total = (x1.float() + x2.float()).to(x1.dtype)
    y, _ = _normed(total, gamma, beta, epsilon)
    wanted = list(output_mask or ()) or [True, smooth_scale1 is not None and smooth_scale2 is not None]
    outs, scales = [], []
    for asked, smooth in zip(wanted, (smooth_scale1, smooth_scale2), strict=True):
        z = y if smooth is None else y * smooth.float()
        scale = z.abs().amax(-1) / 127
        out = (z / torch.where(scale == 0, torch.ones_like(scale), scale).unsqueeze(-1)).round()
        outs.append((out if asked else torch.full_like(out, -128)).to(torch.int8))
        scales.append(scale if asked else torch.full_like(scale, float("nan")))
    return outs[0], outs[1], total, scales[0], scales[1]


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        npu_add_rms_norm_cast, npu_gemma_rms_norm, npu_rms_norm_quant, npu_layer_norm_eval, npu_swiglu,
        npu_clipped_swiglu, npu_silu, npu_fast_gelu, npu_gelu, npu_geglu,
        npu_rms_norm_dynamic_mx_quant, npu_add_rms_norm_dynamic_mx_quant, npu_add_rms_norm_dynamic_quant,
        npu_add_rms_norm_quant,
    )
} | {"fast_gelu": npu_fast_gelu}  # fmt: skip
