"""The gated delta rule: against the closed form of its recurrence, and one form against the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvlint.oracle.kernels import KernelError
from kvlint.sim.kernels import KERNELS

RECURRENT = KERNELS["npu_recurrent_gated_delta_rule"]
CHUNK = KERNELS["npu_chunk_gated_delta_rule"]


def inputs(tokens: int, key_heads: int = 2, heads: int = 4, dk: int = 8, dv: int = 16) -> dict[str, Tensor]:
    def unit(*shape: int) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(*shape), dim=-1).bfloat16()

    return dict(
        query=unit(tokens, key_heads, dk), key=unit(tokens, key_heads, dk),
        value=torch.randn(tokens, heads, dv).bfloat16(), beta=torch.rand(tokens, heads).bfloat16(),
        g=-torch.rand(tokens, heads),
    )  # fmt: skip


def by_matrices(x: dict[str, Tensor], start: Tensor, scale: float) -> tuple[Tensor, list[Tensor]]:
    """S_t = S_(t-1) a (I - b k k^T) + b v k^T as matrix products in float64; start [N, Dv, Dk]."""
    out, states, state = [], [], start.double()
    group = x["value"].shape[1] // x["key"].shape[1]
    for t in range(len(x["value"])):
        k, q = (x[n][t].double().repeat_interleave(group, 0) for n in ("key", "query"))
        a, b = x["g"][t].double().exp(), x["beta"][t].double()
        forget = torch.eye(k.shape[-1]).double() - b[:, None, None] * k[:, :, None] * k[:, None]
        state = (
            a[:, None, None] * state @ forget
            + b[:, None, None] * x["value"][t].double()[..., None] * k[:, None]
        )
        out.append((state @ (q * scale)[..., None])[..., 0])
        states.append(state)
    return torch.stack(out), states


@pytest.mark.parametrize("scale", [None, 0.5])
def test_prompts_follow_the_recurrence(torch_npu: Any, scale: float | None) -> None:
    x, start = inputs(9), torch.randn(2, 4, 16, 8).bfloat16()
    out, final = torch_npu.npu_chunk_gated_delta_rule(
        **x, initial_state=start, actual_seq_lengths=torch.tensor([6, 3], dtype=torch.int32), scale=scale
    )
    for b, rows in enumerate((slice(0, 6), slice(6, 9))):
        want, states = by_matrices(
            {n: t[rows] for n, t in x.items()}, start[b], 1.0 if scale is None else scale
        )
        assert torch.allclose(out[rows].double(), want, atol=3e-2)
        assert torch.allclose(final[b].double(), states[-1], atol=3e-2)


def test_decoding_starts_from_the_accepted_token_and_keeps_every_state(torch_npu: Any) -> None:
    x, state = inputs(5), torch.randn(7, 4, 16, 8).bfloat16()
    slots, before = torch.tensor([6, 2, 0, 4, 3], dtype=torch.int32), state.clone()
    out = torch_npu.npu_recurrent_gated_delta_rule(
        **x, state=state, actual_seq_lengths=torch.tensor([3, 2], dtype=torch.int32), ssm_state_indices=slots,
        num_accepted_tokens=torch.tensor([2, 1], dtype=torch.int32),
    )  # fmt: skip
    for rows, start in ((slice(0, 3), before[2]), (slice(3, 5), before[4])):
        want, states = by_matrices({n: t[rows] for n, t in x.items()}, start, 8**-0.5)
        assert torch.allclose(out[rows].double(), want, atol=3e-2)
        for slot, wanted in zip(slots[rows].tolist(), states, strict=True):
            assert torch.allclose(state[slot].double(), wanted, atol=3e-2)
    assert torch.equal(state[[1, 5]], before[[1, 5]])


def test_a_gate_per_key_column_multiplies_the_other() -> None:
    x, state = inputs(1), torch.randn(1, 4, 16, 8).bfloat16()
    gk = -torch.rand(1, 4, 8)
    at = dict(
        actual_seq_lengths=torch.ones(1, dtype=torch.int32),
        ssm_state_indices=torch.zeros(1, dtype=torch.int32),
    )
    faded = (state.double() * gk[:, :, None].double().exp())[0]
    want, _ = by_matrices(x, faded, 8**-0.5)
    assert torch.allclose(RECURRENT(**x, state=state.clone(), gk=gk, **at).double(), want, atol=3e-2)


def test_bad_calls_are_refused() -> None:
    x, state = inputs(2), torch.zeros(2, 4, 16, 8).bfloat16()
    slots, one = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    call: dict[str, Any] = dict(x, state=state, actual_seq_lengths=one, ssm_state_indices=slots)
    for bad, message in (
        ({"query": x["query"].float()}, "bfloat16"),
        ({"ssm_state_indices": slots + 1}, "stray"),
        ({"actual_seq_lengths": torch.tensor([9], dtype=torch.int32)}, "1 to 8"),
        ({"num_accepted_tokens": torch.tensor([3], dtype=torch.int32)}, "accepted"),
        ({"actual_seq_lengths": None}, "not simulated"),
        ({"value": x["value"][:, :3]}, "multiple"),
    ):
        with pytest.raises(KernelError, match=message):
            RECURRENT(**call | bad)
    for bad in ({"beta": None}, {"initial_state": torch.zeros(2, 4, 16, 8)}):
        with pytest.raises(KernelError, match="npu_chunk_gated_delta_rule"):
            CHUNK(**dict(x, initial_state=state[:1], actual_seq_lengths=one) | bad)
