"""Simulated ATB operators (contract 2.5): 4-D caches [Bn, Bs, N2, D], results written into ``out``."""

from __future__ import annotations

import torch
from torch import Tensor

from ._core import KernelError, Plan, flash


def _npu_paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
    *,
    workspace: Tensor | None = None,
) -> None:
    """One token per request, query [B, N1, D]; the result goes into ``out``, None is returned (ATB-04)."""
    name = "_npu_paged_attention"
    for what, t in (("block_table", block_table), ("context_lens", context_lens)):
        if t.dtype != torch.int32:
            raise KernelError(f"{name}: {what} must be int32, got {t.dtype}")
    if num_heads % num_kv_heads:
        raise KernelError(f"{name}: {num_heads} heads and {num_kv_heads} kv heads")
    size = key_cache.shape[1]
    for b, keys in enumerate(int(n) for n in context_lens.tolist()):

        def fetch(j0: int, j1: int, b: int = b) -> tuple[Tensor, Tensor]:
            at = torch.arange(j0, j1)
            blocks = block_table[b].cpu()[at // size].long()
            return key_cache[blocks, at % size].movedim(1, 0), value_cache[blocks, at % size].movedim(1, 0)

        plan = Plan(lambda i0, i1, n=keys: (0, n), lambda i0, i1, j0, j1: None)  # type: ignore[misc]
        found = flash(
            query[b][:, None], fetch, plan, scale_value, kv_heads=num_kv_heads, out_dim=value_cache.shape[-1],
            work_dtype=query.dtype,
        )  # fmt: skip
        out[b] = found[0][:, 0].to(out.dtype)


def _npu_paged_attention_get_workspace(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
) -> Tensor:
    """Workspace for the given lengths. Shorter contexts split into more parts, so its size is not
    monotonic."""
    longest = max((int(n) for n in context_lens.tolist()), default=0)
    parts = 24 if longest < 1024 else 8
    return torch.zeros(
        parts * query.shape[0] * num_heads * (value_cache.shape[-1] + 2) * 4, dtype=torch.uint8
    )
