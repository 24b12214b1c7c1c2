"""Linear attention by the gated delta rule: a state instead of a KV cache. States are held in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.kernels import KernelError


def _step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of all heads: state [N, Dv, Dk], q and k [N, Dk], v [N, Dv], decay [N, 1 | Dk], beta [N]."""
    state = state * decay[:, None]
    missing = (v - torch.einsum("nvk,nk->nv", state, k)) * beta[:, None]
    state = state + missing[..., None] * k[:, None]
    return state, torch.einsum("nvk,nk->nv", state, q)


def _per_value_head(name: str, x: Tensor, value: Tensor) -> Tensor:
    """Key heads repeated to the value heads that share them, in float32."""
    if value.shape[1] % x.shape[1]:
        raise KernelError(
            f"{name}: {value.shape[1]} value heads are not a multiple of {x.shape[1]} key heads"
        )
    return x.float().repeat_interleave(value.shape[1] // x.shape[1], 1)


def _check(name: str, *tensors: Tensor) -> None:
    for t in tensors:
        if t.dtype != torch.bfloat16:
            raise KernelError(
                f"{name}: query, key, value and beta must be bfloat16, got {t.dtype} (D:{name})"
            )


def npu_recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> Tensor:
    """query, key [T, Nk, Dk], value [T, Nv, Dv] -> [T, Nv, Dv]; ``state`` [slots, Nv, Dv, Dk] is updated.

    ``actual_seq_lengths`` int32 (B,), 1 to 8 tokens each. Token t leaves its state in slot
    ``ssm_state_indices[t]``; a request starts from the slot of its last accepted token, of its first one
    without ``num_accepted_tokens``. Scale 1 / sqrt(Dk) by default (D:npu_recurrent_gated_delta_rule).
    """
    name = "npu_recurrent_gated_delta_rule"
    _check(name, query, key, value, *(() if beta is None else (beta,)))
    if actual_seq_lengths is None or ssm_state_indices is None:
        raise KernelError(f"{name}: calls without actual_seq_lengths and ssm_state_indices are not simulated")
    lens, slots = [int(n) for n in actual_seq_lengths.tolist()], ssm_state_indices.reshape(-1).long()
    if any(not 1 <= n <= 8 for n in lens):
        raise KernelError(f"{name}: every request has 1 to 8 tokens, got {lens} (D:{name})")
    if slots.numel() and not 0 <= int(slots.min()) <= int(slots.max()) < len(state):
        raise KernelError(f"{name}: a state index is outside the {len(state)} slots: stray access")
    q = _per_value_head(name, query, value) * (key.shape[-1] ** -0.5 if scale is None else scale)
    k, v = _per_value_head(name, key, value), value.float()
    decay = torch.ones(*value.shape[:2], 1) if g is None else g.float().exp()[..., None]
    decay = decay if gk is None else decay * gk.float().exp()
    strength = torch.ones(value.shape[:2]) if beta is None else beta.float()
    out = torch.zeros_like(value)
    first = 0
    for b, n in enumerate(lens):
        accepted = 1 if num_accepted_tokens is None else int(num_accepted_tokens[b])
        if not 1 <= accepted <= n:
            raise KernelError(f"{name}: {accepted} accepted tokens of {n} (D:{name})")
        held = state[slots[first + accepted - 1]].float()
        for t in range(first, first + n):
            held, found = _step(held, q[t], k[t], v[t], decay[t], strength[t])
            state[slots[t]], out[t] = held.to(state.dtype), found.to(out.dtype)
        first += n
    return out


def npu_chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    actual_seq_lengths: Tensor | None = None,
    scale: float | None = None,
    g: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same over whole prompts: (out [T, Nv, Dv], final states [B, Nv, Dv, Dk]); scale 1 by default.

    Token by token, where the device works in chunks: equal up to rounding (D:npu_chunk_gated_delta_rule).
    """
    name = "npu_chunk_gated_delta_rule"
    if beta is None or initial_state is None or actual_seq_lengths is None:
        raise KernelError(f"{name}: beta, initial_state and actual_seq_lengths are required (D:{name})")
    _check(name, query, key, value, beta)
    lens = [int(n) for n in actual_seq_lengths.tolist()]
    if sum(lens) != len(query) or len(lens) != len(initial_state):
        raise KernelError(f"{name}: lengths {lens} for {len(query)} tokens and {len(initial_state)} states")
    q = _per_value_head(name, query, value) * (1.0 if scale is None else scale)
    k, v = _per_value_head(name, key, value), value.float()
    decay = torch.ones(*value.shape[:2], 1) if g is None else g.float().exp()[..., None]
    out, final = torch.zeros_like(value), torch.zeros_like(initial_state)
    first = 0
    for b, n in enumerate(lens):
        held = initial_state[b].float()
        for t in range(first, first + n):
            held, found = _step(held, q[t], k[t], v[t], decay[t], beta[t].float())
            out[t] = found.to(out.dtype)
        final[b] = held.to(final.dtype)
        first += n
    return out, final


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (npu_recurrent_gated_delta_rule, npu_chunk_gated_delta_rule)
}
