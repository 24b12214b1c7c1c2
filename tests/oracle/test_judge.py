"""Verdicts: what passes is rounding, what fails is anything else."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvlint.oracle.attention import Request, attend
from kvlint.oracle.judge import Status, Truth, judge, peer_columns
from kvlint.oracle.kv import Dense
from kvlint.oracle.locate import locate
from kvlint.oracle.runner import baseline, truth_of
from kvlint.oracle.visibility import causal
from torch import Tensor


def problem(
    seed: int, dtype: torch.dtype, rows: int = 20, keys: int = 60, peak: float = 1.0
) -> tuple[Request, Truth]:
    gen = torch.Generator().manual_seed(seed)
    q = (peak * torch.randn(4, rows, 64, generator=gen)).to(dtype)
    k, v = (torch.randn(2, keys, 64, generator=gen).to(dtype) for _ in range(2))
    request = Request(q, Dense(k), Dense(v), causal(rows, keys))
    return request, truth_of(attend([request], 0.125)[0], request)


def rounded(request: Request, dtype: torch.dtype) -> Tensor:
    """What a device does: float32 scores, P in dtype, one final rounding; written out without tiles."""
    q, k, v = (
        request.q.float(),
        request.k.read(0, request.k.length, torch.float32),
        request.v.read(0, request.v.length, torch.float32),
    )
    k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    s = q @ k.transpose(1, 2) * 0.125
    s = s.masked_fill(~request.visible.tile(torch.arange(q.shape[1]), 0, request.k.length), -math.inf)
    p = (s - s.amax(-1, keepdim=True)).exp()
    return (p.to(dtype).float() @ v / p.sum(-1, keepdim=True)).to(dtype)


@given(
    st.integers(0, 2**16),
    st.sampled_from([torch.float16, torch.bfloat16]),
    st.sampled_from([1.0, 4.0]),
    st.integers(20, 900),
)
@settings(max_examples=40, deadline=None)
def test_rounding_passes_whatever_the_numbers(seed: int, dtype: torch.dtype, peak: float, keys: int) -> None:
    request, truth = problem(seed, dtype, keys=keys, peak=peak)
    verdict = judge([rounded(request, dtype)], [truth], dtype)
    assert verdict.status is Status.PASS, (verdict.reasons, verdict.worst_error, verdict.worst_peak)


@given(
    st.integers(0, 2**16),
    st.integers(0, 3),
    st.integers(0, 19),
    st.sampled_from(["scale", "swap", "nan", "zero"]),
)
@settings(max_examples=40, deadline=None)
def test_one_wrong_row_fails(seed: int, head: int, row: int, kind: str) -> None:
    request, truth = problem(seed, torch.bfloat16)
    out = rounded(request, torch.bfloat16)
    if kind == "scale":
        out[head, row] *= 1.05
    elif kind == "swap":
        out[head, row] = out[head, (row + 1) % 20]
    elif kind == "nan":
        out[head, row, 3] = math.nan
    else:
        out[head, row, :16] = 0
    verdict = judge([out], [truth], torch.bfloat16)
    assert verdict.status is Status.FAIL and verdict.failed == 1
    where = locate(verdict.tables, kv_heads=2, past=[40])
    assert where is not None and where.first == (0, head, row)


def test_whole_tensor_rules_miss_what_the_rows_show() -> None:
    request, truth = problem(1, torch.bfloat16, rows=200, keys=900)
    out = rounded(request, torch.bfloat16)
    out[1, 150] = out[1, 151]
    verdict = judge([out], [truth], torch.bfloat16)
    columns = peer_columns([out], [truth], torch.bfloat16, None)
    assert verdict.status is Status.FAIL and verdict.failed == 1
    assert float(columns["cosine"] or 0) > 0.99


def test_dead_rows_must_be_zero() -> None:
    gen = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 5, 16, generator=gen), torch.randn(2, 3, 16, generator=gen)
    request = Request(q, Dense(k), Dense(k), causal(5, 3))
    truth = truth_of(attend([request], 0.25)[0], request)
    out = truth.out.float()
    assert judge([out], [truth], torch.float32).status is Status.PASS
    out[0, 1] = 1e-3
    verdict = judge([out], [truth], torch.float32)
    assert verdict.status is Status.FAIL and "see no key" in verdict.reasons[0]


def test_undefined_rows_are_not_judged() -> None:
    request, truth = problem(0, torch.bfloat16)
    out = rounded(request, torch.bfloat16)
    out[:, 4] = 9.0
    mark = torch.zeros(20, dtype=torch.bool)
    mark[4] = True
    open_row = Truth(truth.out, truth.lse, truth.dead, truth.spread, truth.value_peak, truth.value_rms, mark)
    verdict = judge([out], [open_row], torch.bfloat16)
    assert verdict.status is Status.PASS and verdict.undefined == 4


@pytest.mark.parametrize("invalid", [math.inf, -3.4e38])
def test_lse(invalid: float) -> None:
    request, truth = problem(0, torch.bfloat16)
    out = rounded(request, torch.bfloat16)
    good = truth.lse.float()
    assert judge([out], [truth], torch.bfloat16, lses=[good]).status is Status.PASS
    for value in (float(good[0, 0]) + 0.01, invalid, math.nan):
        bad = good.clone()
        bad[0, 0] = value
        assert judge([out], [truth], torch.bfloat16, lses=[bad]).status is Status.FAIL


def test_low_precision_needs_a_reason() -> None:
    request, truth = problem(3, torch.float16, keys=900, peak=4.0)
    out = baseline(request, 0.125, None, torch.float16)
    assert judge([out], [truth], torch.float16).status is Status.FAIL
    allowed = judge([out], [truth], torch.float16, baselines=[out], low_precision="inner_precise 1")
    assert allowed.status is Status.LOW_PRECISION and "inner_precise 1" in allowed.reasons[0]


def test_tiny_outputs_are_judged_in_absolute_steps() -> None:
    """Below the smallest normal float16 the spacing is constant, so relative error says nothing."""
    _, truth = problem(0, torch.float16)
    small = Truth(
        truth.out * 1e-6, truth.lse, truth.dead, truth.spread * 1e-6, truth.value_peak, truth.value_rms
    )
    assert judge([(truth.out * 1e-6).to(torch.float16)], [small], torch.float16).status is Status.PASS


def test_int8_outputs_may_be_one_step_off() -> None:
    _, truth = problem(0, torch.bfloat16)
    want = truth.out * 40
    scaled = Truth(want, truth.lse, truth.dead, truth.spread, truth.value_peak, truth.value_rms)
    exact = want.round().clamp(-128, 127).to(torch.int8)
    assert judge([exact + 1], [scaled], torch.int8).status is Status.PASS
    assert judge([exact + 2], [scaled], torch.int8).status is Status.FAIL


@pytest.mark.parametrize(
    ("spoil", "pattern"),
    [
        (lambda o: o.mul_(1.1), "every row"),
        (lambda o: o[2:].mul_(1.1), r"KV head groups \[1\]"),
        (lambda o: o[1].mul_(1.1), r"only heads \[1\]"),
        (lambda o: o[:, -1].mul_(1.1), "only the last token"),
        (lambda o: o[:, 8:].mul_(1.1), "page boundary"),
        (lambda o: o[:, 9:].mul_(1.1), "mask, window or length"),
        (lambda o: o[:, 3:5].mul_(1.1), "no simple pattern"),
    ],
)
def test_patterns(spoil, pattern: str) -> None:  # type: ignore[no-untyped-def]
    import re

    _, truth = problem(0, torch.bfloat16)
    out = truth.out.clone()
    spoil(out)
    where = locate(
        judge([out.to(torch.bfloat16)], [truth], torch.bfloat16).tables, kv_heads=2, past=[40], block_size=16
    )
    assert where is not None and re.search(pattern, where.pattern), where and where.pattern
