"""Feature caches: approximation is measured, wrong entries are faults."""

from __future__ import annotations

import pytest
import torch
from kvlint.oracle.caches.feature import (
    FEATURE_CACHES,
    Block,
    FeatureCache,
    FirstBlockCache,
    TaylorSeer,
    TeaCache,
    Trace,
    compare_trajectories,
    small_transformer,
)
from torch import Tensor

BLOCKS, UPDATE, EMBED = small_transformer()
STARTS = [torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(s)) for s in (1, 2)]


def run(cache: FeatureCache, **kwargs: bool):  # type: ignore[no-untyped-def]
    return compare_trajectories(BLOCKS, UPDATE, STARTS, 12, cache, embed=EMBED, **kwargs)


def test_no_cache_has_no_error() -> None:
    report = run(FeatureCache())
    assert report.ok and report.final == 0 and report.reuse_ratio == 0


@pytest.mark.parametrize("name", [n for n in FEATURE_CACHES if n != "none"])
def test_caches_save_work_and_have_an_error(name: str) -> None:
    report = run(FEATURE_CACHES[name]())
    assert report.ok, report.faults
    assert 0.2 < report.reuse_ratio < 1 and 0 < report.final < 0.2
    assert len(report.errors) == 12 and all(len(e) == len(BLOCKS) for e in report.errors)
    assert report.errors[0] == [0.0] * len(BLOCKS), "nothing can be reused at the first step"


def test_looser_thresholds_reuse_more_and_err_more() -> None:
    tight, loose = run(TeaCache(0.02)), run(TeaCache(0.3))
    assert loose.reuse_ratio > tight.reuse_ratio and loose.final > tight.final
    tight, loose = run(FirstBlockCache(0.02)), run(FirstBlockCache(0.3))
    assert loose.reuse_ratio > tight.reuse_ratio


def test_higher_order_extrapolates_better() -> None:
    assert run(TaylorSeer(3, 1)).final < run(TaylorSeer(3, 0)).final


def test_extrapolation_is_exact_for_a_polynomial() -> None:
    """Residuals linear in the step are predicted without error by order 1."""
    slope = torch.randn(3, generator=torch.Generator().manual_seed(0))
    blocks: list[Block] = [lambda h, step: h + slope * step + 1]
    report = compare_trajectories(blocks, lambda x, out, step: x, [torch.zeros(3)], 12, TaylorSeer(3, 1))
    assert max(e[0] for e in report.errors[6:]) < 1e-5 and report.reuse_ratio > 0.5


def test_a_missing_reset_is_a_fault() -> None:
    report = run(TeaCache(10.0), reset=False)
    assert not report.ok and "another request" in report.faults[0]


class _Stale(TeaCache):
    """Keeps the residuals of the first step for ever."""

    def replay(self, h: Tensor, step: int, trace: Trace) -> list[Tensor]:
        self.first = getattr(self, "first", None) or list(self.residuals)
        self.residuals = self.first
        return super().replay(h, step, trace)

    def reset(self) -> None:
        super().reset()
        self.first: list[Tensor] | None = None


class _Crossed(TeaCache):
    def replay(self, h: Tensor, step: int, trace: Trace) -> list[Tensor]:
        self.residuals = self.residuals[1:] + self.residuals[:1]
        return super().replay(h, step, trace)


class _Invented(TeaCache):
    def replay(self, h: Tensor, step: int, trace: Trace) -> list[Tensor]:
        self.residuals = [r * 1.001 for r in self.residuals]
        return super().replay(h, step, trace)


@pytest.mark.parametrize(
    ("cache", "text"),
    [
        (_Stale(0.08), "was computed later"),
        (_Crossed(0.3), "feature of layer"),
        (_Invented(0.3), "no block of this run"),
    ],
)
def test_wrong_entries_are_faults(cache: FeatureCache, text: str) -> None:
    assert any(text in fault for fault in run(cache).faults)
