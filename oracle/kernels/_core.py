"""Tile loop shared by the simulated attention kernels.

It imitates what the device does, not what is right: query blocks and key tiles, float32 scores, a finite
minimum instead of -inf, P rounded to the input dtype before the second product, masks read per tile. It
shares no code with the reference on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SOFTMAX_MIN = -2.0e38
INVALID_LSE = float("inf")
DECODE_EMPTY_LSE = -3.4e38
QUERY_BLOCK = 128
KEY_TILE = 256
#: Side of the compressed causal mask of sparse_mode 2, 3 and 4.
MASK_SIDE = 2048
NO_LIMIT = 2147483647

#: (first row, last row + 1, first key, last key + 1) -> hidden positions, or None for none.
TileMask = Callable[[int, int, int, int], "Tensor | None"]
#: (first row, last row + 1) -> key range the kernel visits for this query block.
KeyRange = Callable[[int, int], "tuple[int, int]"]


class KernelError(RuntimeError):
    """What tiling or the wrapper of the operator would reject."""


@dataclass(frozen=True)
class Plan:
    """How one request is masked."""

    key_range: KeyRange
    hidden: TileMask
    dead_rows: Callable[[int, int], Tensor | None] = lambda i0, i1: None


def flash(
    query: Tensor,
    fetch: Callable[[int, int], tuple[Tensor, Tensor]],
    plan: Plan,
    scale: float,
    *,
    kv_heads: int,
    out_dim: int,
    work_dtype: torch.dtype,
    bias: Tensor | None = None,
    scale_after_bias: bool = False,
    sink: Tensor | None = None,
    low_precision_scores: bool = False,
    zero_invalid_rows: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One request. query [N, S, D]; ``fetch(j0, j1)`` gives K [Nk, n, D] and V [Nk, n, Dv] in ``work_dtype``.

    Returns (out [N, S, Dv] in float32, lse, row maximum, row sum; the last three [N, S]).
    """
    heads, rows, dim = query.shape
    group = heads // kv_heads
    q = query.float().reshape(kv_heads, group, rows, dim)
    out = query.new_zeros(kv_heads, group, rows, out_dim, dtype=torch.float32)
    peaks = query.new_full((kv_heads, group, rows), SOFTMAX_MIN, dtype=torch.float32)
    sums = torch.zeros_like(peaks)
    if bias is not None:
        bias = bias.float().expand(heads, *bias.shape[1:]).reshape(kv_heads, group, *bias.shape[1:])
    for i0 in range(0, rows, QUERY_BLOCK):
        i1 = min(rows, i0 + QUERY_BLOCK)
        peak, total, acc = peaks[:, :, i0:i1], sums[:, :, i0:i1], out[:, :, i0:i1]
        begin, end = plan.key_range(i0, i1)
        for j0 in range(begin, end, KEY_TILE):
            j1 = min(end, j0 + KEY_TILE)
            k, v = fetch(j0, j1)
            scores = torch.einsum("hgid,hjd->hgij", q[:, :, i0:i1], k.float())
            if low_precision_scores:
                scores = scores.half().float()
            if scale_after_bias and bias is not None:
                scores = (scores + bias[:, :, i0:i1, j0:j1]) * scale
            else:
                scores = scores * scale
                if bias is not None:
                    scores = scores + bias[:, :, i0:i1, j0:j1]
            hidden = plan.hidden(i0, i1, j0, j1)
            if hidden is not None:
                scores = torch.where(hidden, SOFTMAX_MIN, scores)
            new_peak = torch.maximum(peak, scores.max(-1).values)
            if low_precision_scores:
                new_peak = new_peak.half().float().clamp_min(SOFTMAX_MIN)
            weights = torch.exp(scores - new_peak.unsqueeze(-1))
            rescale = torch.exp(peak - new_peak)
            total = total * rescale + weights.sum(-1)
            product = torch.einsum("hgij,hjv->hgiv", weights.to(work_dtype).float(), v.float())
            acc = acc * rescale.unsqueeze(-1) + product
            peak = new_peak
        gone = total == 0
        if zero_invalid_rows:
            gone = gone | (peak <= SOFTMAX_MIN)
        by_geometry = plan.dead_rows(i0, i1)
        if by_geometry is not None:
            gone = gone | by_geometry
        divisor = total
        if sink is not None:
            logits = sink.float().reshape(kv_heads, group, 1)
            divisor = total + torch.exp(logits - peak)
        finished = acc / torch.where(gone, torch.ones_like(divisor), divisor).unsqueeze(-1)
        out[:, :, i0:i1] = torch.where(gone.unsqueeze(-1), torch.zeros_like(finished), finished)
        peaks[:, :, i0:i1] = torch.where(gone, torch.full_like(peak, SOFTMAX_MIN), peak)
        sums[:, :, i0:i1] = torch.where(gone, torch.zeros_like(total), total)
    lse = torch.where(sums == 0, torch.full_like(sums, INVALID_LSE), peaks + torch.log(sums))
    flat = (heads, rows)
    return out.reshape(heads, rows, out_dim), lse.reshape(flat), peaks.reshape(flat), sums.reshape(flat)


# ------------------------------------------------------------------------------------------------- masks


def plan_full(keys: int) -> Plan:
    return Plan(lambda i0, i1: (0, keys), lambda i0, i1, j0, j1: None)


def _window_of_compressed(mask: Tensor, offset: int, i0: int, i1: int, j0: int, j1: int) -> Tensor:
    """The part of the compressed mask a kernel reads for a tile whose diagonal is ``j == i + offset``."""
    delta = i0 + offset - j0
    row, col = (delta, 0) if delta >= 0 else (0, -delta)
    return mask[row : row + i1 - i0, col : col + j1 - j0] != 0


def plan_compressed(mask: Tensor, keys: int, rows: int, upper: int | None, lower: int | None) -> Plan:
    """Modes 2, 3 and 4: keys from ``i + lower`` to ``i + upper`` stay; None means no limit on that side.

    The mask tensor is read only in tiles that the edge crosses, as the kernels do: with another content than
    ones above the diagonal the result is wrong in a tile-dependent way.
    """
    side = mask.reshape(-1, *mask.shape[-2:])[0]
    if tuple(side.shape) != (MASK_SIDE, MASK_SIDE):
        raise KernelError(
            f"atten_mask must be {MASK_SIDE}x{MASK_SIDE} for sparse_mode 2, 3, 4, got {tuple(mask.shape)}"
        )

    def key_range(i0: int, i1: int) -> tuple[int, int]:
        end = keys if upper is None else min(keys, i1 - 1 + upper + 1)
        begin = 0 if lower is None else max(0, i0 + lower)
        return begin // 16 * 16, max(begin // 16 * 16, end)

    def hidden(i0: int, i1: int, j0: int, j1: int) -> Tensor | None:
        found = None
        if upper is not None and j1 - 1 > i0 + upper:
            found = _window_of_compressed(side, upper, i0, i1, j0, j1)
        if lower is not None and j0 < i1 - 1 + lower:
            # Second, inverted read, shifted by one: hides j <= i + lower - 1.
            edge = lower - 1
            if j1 - 1 <= i0 + edge:
                low = torch.ones(i1 - i0, j1 - j0, dtype=torch.bool, device=side.device)
            else:
                low = ~_window_of_compressed(side, edge, i0, i1, j0, j1)
            found = low if found is None else found | low
        return found

    def dead_rows(i0: int, i1: int) -> Tensor | None:
        i = torch.arange(i0, i1, device=side.device)
        dead = torch.zeros(i1 - i0, dtype=torch.bool, device=side.device)
        if upper is not None:
            dead |= i + upper < 0
        if lower is not None:
            dead |= i + lower >= keys
        return dead if bool(dead.any()) else None

    return Plan(key_range, hidden, dead_rows)


def plan_full_mask(mask: Tensor, keys: int, pre: int = NO_LIMIT, nxt: int = NO_LIMIT) -> Plan:
    """Modes 0 and 1: ``mask`` [>= rows, >= keys], non-zero hides. pre/next drop whole 64-column steps."""

    def key_range(i0: int, i1: int) -> tuple[int, int]:
        begin = max(0, i0 - pre) // 64 * 64
        end = min(keys, -(-max(0, i1 - 1 + nxt + 1) // 64) * 64)
        return begin, max(begin, end)

    def dead_rows(i0: int, i1: int) -> Tensor | None:
        i = torch.arange(i0, i1, device=mask.device)
        dead = (i + nxt < 0) | (i - pre >= keys)
        return dead if bool(dead.any()) else None

    return Plan(key_range, lambda i0, i1, j0, j1: mask[i0:i1, j0:j1] != 0, dead_rows)


def plan_tree(tree: Tensor, keys: int, rows: int) -> Plan:
    """Mode 9: ``tree`` [rows, rows] rules the last ``rows`` keys, everything before is visible."""
    first = keys - rows

    def hidden(i0: int, i1: int, j0: int, j1: int) -> Tensor | None:
        if j1 <= first:
            return None
        whole = torch.zeros(i1 - i0, j1 - j0, dtype=torch.bool, device=tree.device)
        lead = max(0, first - j0)
        whole[:, lead:] = tree[i0:i1, j0 + lead - first : j1 - first] != 0
        return whole

    return Plan(lambda i0, i1: (0, keys), hidden)
