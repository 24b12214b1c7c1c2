"""Which rows of a long prefill to check: where index arithmetic changes, and some at random."""

from __future__ import annotations

import torch
from torch import Tensor

TILE_EDGES = (16, 64, 128, 512, 2048)


def sample_rows(
    count: int, *, block_size: int = 0, window: int = 0, random: int = 64, seed: int = 0
) -> Tensor | None:
    """Ascending token indices out of ``count``, or None when that would be nearly all of them.

    First and last rows, both sides of page, tile and window edges, and ``random`` others.
    """
    if count <= 4 * random:
        return None
    picked = {0, 1, count // 2, count - 2, count - 1}
    for edge in {*TILE_EDGES, block_size, window}:
        for near in (edge - 1, edge, edge + 1, count - edge - 1, count - edge):
            if edge and 0 <= near < count:
                picked.add(near)
    gen = torch.Generator().manual_seed(seed)
    picked.update(torch.randint(0, count, (random,), generator=gen).tolist())
    return torch.tensor(sorted(picked))
