"""Operators under autograd: the forward pass runs, a backward pass is refused by name."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch

from kvlint.sim import MissingKernelError
from kvlint.sim.session import wheel_installed

needs_wheel = pytest.mark.skipif(not wheel_installed(), reason="torch_npu is not installed")
GIVEN = """\
import sys, torch
from kvlint.sim import simulate

with simulate(sys.argv[1]):
    import torch_npu
    torch.library.register_autograd(
        "npu::npu_fusion_attention", lambda ctx, *grads: (grads[0], None, None, None, None, *[None] * 19))
    q = torch.randn(2, 16, 512, device="npu").half().requires_grad_()
    x = q.detach()
    torch_npu.npu_fusion_attention(q, x, x, 8, "BSH", scale=0.125)[0].float().sum().backward()
    assert q.grad.eq(1).all()
"""


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="npu").half().requires_grad_()


def test_a_backward_pass_names_the_operator(torch_npu: Any) -> None:
    q = leaf(2, 16, 512)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = torch_npu.npu_fusion_attention(q, q, q, 8, "BSH", scale=0.125)
        with pytest.raises(MissingKernelError, match=r"npu::npu_fusion_attention .*register_autograd"):
            out[0].float().sum().backward()
    assert q.grad is None


@pytest.mark.parametrize("name", ["npu_swiglu", "npu_rms_norm", "npu_rotary_mul"])
def test_so_do_the_operators_around_attention(torch_npu: Any, name: str) -> None:
    x = leaf(2, 4, 3, 64)
    more = {"npu_rms_norm": (torch.ones(64).half(),), "npu_rotary_mul": (x.detach(), x.detach())}
    found = getattr(torch_npu, name)(x, *more.get(name, ()))
    with pytest.raises(MissingKernelError, match=f"npu::{name} has no simulated gradient"):
        (found[0] if isinstance(found, tuple) else found).float().sum().backward()


def test_the_forward_pass_is_the_same(torch_npu: Any) -> None:
    q = leaf(2, 16, 512)

    def attend(x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_fused_infer_attention_score(x, x, x, num_heads=8, scale=0.125)[0]

    want = attend(q.detach())
    found = attend(q)
    assert found.requires_grad and torch.equal(found.detach(), want)
    found.mul_(2)  # results are tensors of their own
    assert torch.equal(found.detach(), want * 2)
    for guard in (torch.no_grad, torch.inference_mode):
        with guard():
            found = attend(q)
            assert torch.equal(found, want) and not found.requires_grad


def test_gradients_elsewhere_are_computed(torch_npu: Any) -> None:
    q, w = leaf(2, 16, 512), leaf(512)
    out = torch_npu.npu_fusion_attention(q.detach(), q.detach(), q.detach(), 8, "BSH")[0]
    (out * w).float().sum().backward()
    assert w.grad is not None and w.grad.any()


def test_writers_fill_caches_that_take_no_part_in_the_graph(torch_npu: Any) -> None:
    cache, rows = torch.zeros(2, 64, 128, device="npu").half(), leaf(2, 1, 128)
    for step in range(3):
        found = torch_npu.scatter_update_(cache, torch.tensor([step] * 2), rows * 2, 1)
    assert found.data_ptr() == cache.data_ptr() and not cache.requires_grad
    assert torch.equal(cache[:, :3], (rows * 2).detach().expand(2, 3, 128))
    keys, values = (torch.zeros(4, 16, 2, 64, device="npu").half() for _ in range(2))
    new, slots = leaf(3, 2, 64), torch.tensor([1, 17, 40], dtype=torch.int32)
    torch_npu._npu_reshape_and_cache(new, new, keys, values, slots)
    assert torch.equal(keys.view(-1, 2, 64)[slots], new.detach()) and not keys.requires_grad


@pytest.mark.parametrize("route", ["catalogue", pytest.param("wheel", marks=needs_wheel)])
def test_a_program_can_give_a_gradient(route: str) -> None:
    done = subprocess.run([sys.executable, "-c", GIVEN, route], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
