"""The case matrix: three independent answers, well-formedness, shapes."""

from __future__ import annotations

import os
from itertools import combinations, product

import pytest
import torch
from formula import attention, seen_matrix
from kvlint.oracle import cases as matrix_module
from kvlint.oracle.attention import attend
from kvlint.oracle.backends import Simulator, TorchSdpa
from kvlint.oracle.cases import Case, matrix, select
from kvlint.oracle.errors import CaseSelectionError
from kvlint.oracle.runner import run_case
from kvlint.oracle.scenario import build

QUICK = matrix()
#: The full matrix takes minutes; a fixed share of it runs always, all of it with this variable set.
STEP = 1 if os.environ.get("KVLINT_ORACLE_FULL") else 12
MORE = [c for c in matrix(True) if not c.quick][::STEP]
#: Scores per head up to which the formula is evaluated, position by position in Python.
WORK = 60_000


def answers(case: Case) -> None:
    """Formula, reference in float64, simulator and SDPA agree on the case."""
    scenario = build(case)
    work = sum(q * k for q, k in zip(case.q_lens, case.kv_lens, strict=True))
    if work <= WORK:
        found = attend(scenario.requests(), case.scale, sink=scenario.sink)
        for b, result in enumerate(found):
            rows, keys = case.q_lens[b], case.kv_lens[b]
            seen = seen_matrix(
                case.masking, rows, keys, window=case.window,
                hidden=None if scenario.mask is None else scenario.mask[b],
                chosen=None if scenario.chosen is None else scenario.chosen[b],
            )  # fmt: skip
            k, v = scenario.stored[b]
            bias = None if scenario.bias is None else scenario.bias[b][:, :rows, :keys]
            want, want_lse = attention(
                scenario.fed[b].transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), seen, case.scale,
                sink=scenario.sink, bias=bias,
            )  # fmt: skip
            torch.testing.assert_close(result.out, want, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(result.lse, want_lse, rtol=1e-9, atol=1e-12)
    for backend in (Simulator(), TorchSdpa()):
        outcome = run_case(case, backend, columns=False)
        if backend.refuses(case):
            assert outcome.outcome == "skip"
            continue
        assert not outcome.failed, f"{backend.name}: {outcome.reasons}"


@pytest.mark.parametrize("case", QUICK, ids=lambda c: c.name)
def test_three_answers_agree(case: Case) -> None:
    answers(case)


@pytest.mark.parametrize("case", MORE, ids=lambda c: c.name)
def test_three_answers_agree_on_more_cases(case: Case) -> None:
    answers(case)


def test_names_are_unique_and_seeds_reproducible() -> None:
    every = matrix(True)
    assert len({c.name for c in every}) == len(every)
    case = every[0]
    again = build(case)
    for x, y in zip(build(case).q, again.q, strict=True):
        assert torch.equal(x, y)


def test_pairwise_selection_covers_every_pair_of_the_candidates() -> None:
    wanted = set()
    for values in matrix_module._candidates():
        wanted |= matrix_module._pairs(values)
    for values in matrix_module._pairwise():
        wanted -= matrix_module._pairs(values)
    assert not wanted


def test_candidates_hold_every_valid_pair() -> None:
    """No pair of values that some valid combination shows is missing from the sample of combinations."""
    every = matrix_module._PARAMETERS
    bound = ("cache", "phase", "layout", "masking", "extra", "op")  # all that validity looks at
    free = [n for n in every if n not in bound]
    valid: set[tuple[object, ...]] = set()
    for core in product(*(every[n] for n in bound)):
        values = dict(zip(bound, core, strict=True))
        if matrix_module._valid(values):
            valid |= matrix_module._pairs(values)
            for name, other in product(free, bound):
                for value in every[name]:
                    valid |= matrix_module._pairs({name: value, other: values[other]})
    for a, b in combinations(free, 2):
        for x, y in product(every[a], every[b]):
            valid |= matrix_module._pairs({a: x, b: y})
    held = set().union(*(matrix_module._pairs(c) for c in matrix_module._candidates()))
    assert len(valid) > 500
    assert valid <= held


def test_matrix_reaches_what_it_promises() -> None:
    quick = matrix()
    assert {c.phase for c in quick} == set(matrix_module.PHASES)
    assert {c.masking for c in quick} == {
        "full",
        "causal",
        "left-up",
        "window",
        "mask",
        "all",
        "tree",
        "sparse",
    }
    assert {c.dtype for c in quick} >= {"bf16", "fp16", "fp32"}
    lengths = {n for c in quick for n in c.kv_lens}
    assert {0, 1, 15, 16, 17} <= lengths and max(lengths) > 2048
    mimicked = " ".join(c.mimics for c in quick)
    for model in ("Qwen3-MoE", "GPT-OSS", "DeepSeek-R1", "DeepSeek-V3.2", "Kimi-K2", "LongCat", "DiT"):
        assert model in mimicked
    from kvlint.oracle.caches import CACHES

    assert {c.cache for c in quick} == set(CACHES)


@pytest.mark.parametrize("bug", ["015", "024", "026", "066", "079", "088"])
def test_public_bugs_are_cases(bug: str) -> None:
    assert any(bug in c.covers for c in matrix())


def test_selection() -> None:
    assert [c.name for c in select(names=["dit-full-bnsd"])] == ["dit-full-bnsd"]
    assert all("mla" in c.cache for c in select(modes=["mla"]))
    chosen = select(keyword="decode not paged")
    assert chosen and all("decode" in c.name for c in chosen)
    assert not any("paged" in f"{c.name} {c.cache}" for c in chosen)
    assert len(select(full=True)) > 4 * len(select())
    for wrong in ({"names": ["nope"]}, {"modes": ["nope"]}, {"keyword": "zzz"}):
        with pytest.raises(CaseSelectionError):
            select(**wrong)
