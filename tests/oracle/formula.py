"""Attention written out from the formula: one einsum over a full score matrix, masks position by position.

Shares nothing with the oracle; slow, and only for small problems.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    scale: float,
    *,
    sink: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """q [N, S, D], k [Nk, T, D], v [Nk, T, Dv], seen bool [S, T] -> out [N, S, Dv], lse [N, S] in float64."""
    group = q.shape[0] // k.shape[0]
    k, v = k.double().repeat_interleave(group, 0), v.double().repeat_interleave(group, 0)
    scores = torch.einsum("nsd,ntd->nst", q.double(), k) * scale
    if bias is not None:
        scores = scores + bias.double()
    scores = scores.masked_fill(~seen, float("-inf"))
    alive = seen.any(-1)
    weights = torch.where(alive[:, None], scores, torch.zeros_like(scores)).exp() * seen
    denominator = weights.sum(-1)
    lse = torch.where(alive, denominator.log(), torch.full_like(denominator, float("inf")))
    if sink is not None:
        denominator = denominator + sink.double().exp()[:, None]
    out = (
        torch.einsum("nst,ntv->nsv", weights, v)
        / torch.where(alive, denominator, torch.ones_like(denominator))[..., None]
    )
    return torch.where(alive[:, None], out, torch.zeros_like(out)), lse


def seen_matrix(
    masking: str,
    rows: int,
    keys: int,
    *,
    window: int = 0,
    hidden: Tensor | None = None,
    chosen: Tensor | None = None,
) -> Tensor:
    """bool [rows, keys], position by position."""
    seen = torch.zeros(rows, keys, dtype=torch.bool)
    shift = keys - rows
    for i in range(rows):
        for j in range(keys):
            if masking == "causal":
                seen[i, j] = j <= i + shift
            elif masking == "left-up":
                seen[i, j] = j <= i
            elif masking == "window":
                seen[i, j] = i + shift - window < j <= i + shift
            elif masking in ("mask", "all"):
                assert hidden is not None
                seen[i, j] = not bool(hidden[i, j])
            elif masking == "tree":
                assert hidden is not None
                seen[i, j] = j < shift or not bool(hidden[i, j - shift])
            elif masking == "sparse":
                assert chosen is not None
                seen[i, j] = bool((chosen[i] == j).any())
            else:
                seen[i, j] = True
    return seen
