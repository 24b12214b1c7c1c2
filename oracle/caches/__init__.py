"""Cache modes: objects that own allocation, write (with the index formulas of user code) and read."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import CaseSelectionError
from ..scenario import Scenario
from .base import Cache, CacheReport, KeyArguments
from .contiguous import Contiguous, Fresh
from .mla import Mla, MlaPaged, MlaPagedBsnd, MlaPagedNZ
from .offloaded import CopyQueue, Offloaded, OffloadedPaged
from .paged import Paged, PagedAtb, PagedHeadsFirst, PagedNZ, PagedScatter, Sliding
from .parallel import HeadParallel, SequenceParallel
from .quantised import Quantised, QuantisedPaged

CACHES: dict[str, type[Cache]] = {
    c.name: c
    for c in (
        Fresh, Contiguous, Paged, PagedHeadsFirst, PagedNZ, PagedScatter, PagedAtb, Sliding, Mla,
        MlaPaged, MlaPagedNZ,
        MlaPagedBsnd, Quantised, QuantisedPaged, HeadParallel, SequenceParallel, Offloaded, OffloadedPaged,
    )
}  # fmt: skip


def make_cache(scenario: Scenario, ops: Any, device: torch.device | str = "cpu") -> Cache:
    """The cache mode of the scenario's case, allocated and poisoned; ``ops`` holds the writer operators."""
    try:
        kind = CACHES[scenario.case.cache]
    except KeyError:
        raise CaseSelectionError(
            f"no cache mode {scenario.case.cache!r}; modes: {', '.join(CACHES)}"
        ) from None
    return kind(scenario, ops, device)


__all__ = ["CACHES", "Cache", "CacheReport", "CopyQueue", "KeyArguments", "make_cache"]
