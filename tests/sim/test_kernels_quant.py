"""Quantisers: scales by the documented formulas, and what comes back is near what went in."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlint.oracle.kernels import KernelError
from kvlint.sim.kernels import KERNELS

MX = KERNELS["npu_dynamic_mx_quant"]
BLOCK = KERNELS["npu_dynamic_block_quant"]
FLOAT4 = 296
GRID = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
EMAX = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15, FLOAT4: 2}


def decoded(y: Tensor) -> Tensor:
    """float4 bytes as numbers."""
    codes = torch.stack([y & 15, y >> 4], -1).flatten(-2).long()
    return torch.tensor(GRID + [-g for g in GRID])[codes]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    target=st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2, FLOAT4]),
    width=st.sampled_from([2, 30, 32, 64, 70, 96]),
    power=st.integers(-12, 10),
)
def test_mx_blocks_have_the_shared_exponent_and_nearest_elements(
    seed: int, target: Any, width: int, power: int
) -> None:
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(seed)).bfloat16() * 2.0**power
    y, scales = MX(x, dst_type=target)
    blocks = -(-width // 32)
    assert scales.shape == (3, -(-blocks // 2), 2) and scales.dtype == torch.uint8
    flat = scales.flatten(1)
    if blocks % 2:
        assert (flat[:, -1] == 0).all()
    values = decoded(y) if target == FLOAT4 else y.float()
    largest = 6.0 if target == FLOAT4 else torch.finfo(target).max
    for row, block in itertools.product(range(3), range(blocks)):
        part = slice(32 * block, min(32 * block + 32, width))
        peak = x[row, part].abs().max().item()
        shared = math.floor(math.log2(peak)) - EMAX[target]
        assert flat[row, block] == shared + 127
        scaled = x[row, part].double() / 2.0**shared
        if target == FLOAT4:
            near = torch.tensor([min(abs(abs(s) - g) for g in GRID) for s in scaled.tolist()])
        else:
            near = (scaled - scaled.clamp(-largest, largest).float().to(target).double()).abs()
        assert torch.allclose((values[row, part].double() - scaled).abs(), near.double(), atol=1e-9)


def test_mx_ties_go_to_the_even_code_and_signs_are_kept() -> None:
    # The peak 4 has the exponent 2 = emax, so that the scale is 1.
    x = torch.tensor([[4.0, -4.0, 0.25, -0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -2.5, 5.0, 5.1]]).bfloat16()
    y, scales = MX(x)
    assert scales.flatten().tolist() == [127, 0]
    assert decoded(y)[0].tolist() == [4.0, -4.0, 0.0, -0.0, 1.0, 1.0, 2.0, 2.0, 4.0, -2.0, 4.0, 6.0]


def test_mx_edges() -> None:
    y, scales = MX(torch.zeros(1, 64).half(), dst_type=torch.float8_e4m3fn)
    assert not y.float().any() and not scales.any()
    _, scales = MX(torch.tensor([[float("inf"), 1.0]]).half(), dst_type=torch.float8_e4m3fn)
    assert scales.flatten().tolist() == [255, 0]
    across = torch.randn(64, 3).bfloat16()
    y, scales = MX(across, axis=0, dst_type=torch.float8_e5m2)
    turned, same = MX(across.T.contiguous(), dst_type=torch.float8_e5m2)
    assert y.shape == (64, 3) and scales.shape == (1, 3, 2)
    assert torch.equal(y.float().T, turned.float()) and torch.equal(scales[0], same[:, 0])


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 16},
        {"block_size": 2048},
        {"scale_alg": 1},
        {"round_mode": "floor"},
        {"dst_type": torch.int8},
    ],
)
def test_mx_refuses_what_is_not_simulated(options: dict[str, Any]) -> None:
    with pytest.raises(KernelError, match="npu_dynamic_mx_quant"):
        MX(torch.ones(2, 64).half(), **options)
    with pytest.raises(KernelError, match="even"):
        MX(torch.ones(2, 3).half())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    target=st.sampled_from([torch.int8, torch.float8_e4m3fn]),
    width=st.sampled_from([1, 100, 128, 129, 300]),
    least=st.sampled_from([0.0, 0.05]),
)
def test_block_scales_are_the_largest_of_128_columns(
    seed: int, target: torch.dtype, width: int, least: float
) -> None:
    x = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(seed)).half()
    y, scale = BLOCK(x, dst_type=target, min_scale=least)
    assert y.shape == x.shape and y.dtype == target and scale.shape == (2, 3, -(-width // 128))
    largest = 127 if target is torch.int8 else 448
    for block in range(scale.shape[-1]):
        part = x[..., 128 * block : 128 * block + 128].float()
        want = (part.abs().amax(-1) / largest).clamp_min(least)
        assert torch.allclose(scale[..., block], want)
        error = (y[..., 128 * block : 128 * block + 128].float() * want[..., None] - part).abs()
        step = want[..., None] * 0.5 if target is torch.int8 else part.abs() / 16 + want[..., None] * 2**-9
        assert (error <= step * 1.001).all()


def test_block_quant_refuses_other_blocks() -> None:
    for bad in (
        {"row_block_size": 128},
        {"col_block_size": 64},
        {"dst_type": torch.int16},
        {"round_mode": "x"},
    ):
        with pytest.raises(KernelError, match="npu_dynamic_block_quant"):
            BLOCK(torch.ones(2, 128).half(), **bad)
    with pytest.raises(KernelError, match="2 or 3 dims"):
        BLOCK(torch.ones(128).half())


def test_fused_norms_equal_their_parts(torch_npu: Any) -> None:
    x, r = torch.randn(5, 64).bfloat16(), torch.randn(5, 64).bfloat16()
    gamma, beta = torch.rand(64).bfloat16(), torch.randn(64).bfloat16()
    total = (x.float() + r.float()).bfloat16()
    exact = total.double() / (total.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * gamma.double()
    y, added, scales, rstd = torch_npu.npu_add_rms_norm_dynamic_mx_quant(
        x, r, gamma, beta=beta, dst_type=torch.float8_e4m3fn
    )
    back = y.double() * torch.exp2(scales.flatten(1).double() - 127).repeat_interleave(32, 1)
    shifted = exact + beta.double()
    assert torch.equal(added, total)
    assert torch.allclose(rstd.double()[:, 0], (total.double().square().mean(-1) + 1e-6).rsqrt(), atol=1e-5)
    assert ((back - shifted).abs() <= shifted.abs() / 12 + 0.02).all()
    alone = torch_npu.npu_rms_norm_dynamic_mx_quant(total, gamma, beta=beta, dst_type=torch.float8_e4m3fn)
    assert torch.equal(alone[0].float(), y.float()) and torch.equal(alone[1], scales)
    smooth = torch.rand(64).bfloat16() + 0.5
    a, b, added, s1, s2 = torch_npu.npu_add_rms_norm_dynamic_quant(
        x, r, gamma, smooth_scale1=smooth, smooth_scale2=None
    )
    smoothed = exact * smooth.double()
    assert torch.equal(added, total)
    assert torch.allclose(s1.double(), smoothed.abs().amax(-1) / 127, rtol=1e-4)
    assert ((a.double() * s1.double()[:, None] - smoothed).abs() <= s1.double()[:, None] * 0.51).all()
    # One smooth scale asks for one result only: the other is undefined.
    assert s2.isnan().all() and (b == -128).all()
    both = torch_npu.npu_add_rms_norm_dynamic_quant(x, r, gamma, smooth_scale1=smooth, smooth_scale2=smooth)
    assert torch.equal(both[0], both[1]) and torch.equal(both[3], both[4])


def test_static_scales_divide_or_multiply(torch_npu: Any) -> None:
    x, r, gamma = torch.randn(5, 64).half(), torch.randn(5, 64).half(), torch.rand(64).half()
    scale, zero = (torch.rand(64) * 0.05 + 0.01).half(), torch.randint(-5, 5, (64,)).half()
    total = (x.float() + r.float()).half()
    normed = total.double() / (total.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * gamma.double()
    for divide, factor in ((True, 1 / scale.double()), (False, scale.double())):
        a, b, added = torch_npu.npu_add_rms_norm_quant(x, r, gamma, scale, zero, div_mode=divide)
        want = (normed * factor + zero.double()).clamp(-128, 127)
        assert torch.equal(added, total) and (b == -128).all()
        assert ((a.double() - want).abs() <= 0.51).all()
    _, b, _ = torch_npu.npu_add_rms_norm_quant(x, r, gamma, scale, zero, scales2=scale)
    assert ((b.double() - (normed / scale.double()).clamp(-128, 127)).abs() <= 0.51).all()


def test_mx_batches_are_scaled_along_the_inner_axis(torch_npu: Any) -> None:
    a, b = torch.randn(3, 2, 128).bfloat16(), torch.randn(2, 128, 5).bfloat16()
    qa, sa = torch_npu.npu_dynamic_mx_quant(a, dst_type=torch.float8_e4m3fn)
    qb, sb = torch_npu.npu_dynamic_mx_quant(b, axis=1, dst_type=torch.float8_e4m3fn)
    options: dict[str, Any] = dict(
        x1_scale=sa.view(torch.float8_e8m0fnu), x2_scale=sb.view(torch.float8_e8m0fnu),
        group_sizes=(0, 0, 32), perm_x1=(1, 0, 2), perm_x2=(0, 1, 2), perm_y=(1, 0, 2),
    )  # fmt: skip
    got = torch_npu.npu_transpose_quant_batchmatmul(qa, qb, torch.bfloat16, **options)
    want = torch.einsum("mbk,bkn->mbn", a.double(), b.double())
    # Two elements with three bits of mantissa each, 128 products.
    assert (got.double() - want).norm() <= want.norm() * 0.06
    for bad in ({"group_sizes": None}, {"perm_x1": (0, 1, 2)}, {"x1_scale": sa}):
        with pytest.raises(KernelError, match="npu_transpose_quant_batchmatmul"):
            torch_npu.npu_transpose_quant_batchmatmul(qa, qb, torch.bfloat16, **options | bad)
