"""Run a case: build, write the cache, call the operator, judge, and on failure say where and why."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .attention import attend
from .attribution import Attribution, attribute
from .backends import Backend
from .caches import Cache, CacheReport, make_cache
from .calling import Recorded, attention_call, sparse_indices
from .cases import FUSION, IFA, PAGED_ATB, PFA, SPARSE, Case
from .judge import Judgement, Status, judge, peer_columns
from .layouts import layout, split_heads
from .locate import Location, locate
from .sampling import sample_rows
from .scenario import Scenario, build
from .truth import baseline, low_precision_reason, open_rows, truth_of

#: Elements of the score matrix up to which the same-precision baseline of the extra columns is computed.
BASELINE_BUDGET = 2 << 20


@dataclass(slots=True)
class CaseResult:
    """Outcome of one case. ``outcome``: pass, low-precision, undefined, fail, skip or error."""

    case: Case
    outcome: str
    seconds: float
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    judgement: Judgement | None = None
    location: Location | None = None
    attribution: Attribution | None = None
    cache: CacheReport | None = None

    @property
    def failed(self) -> bool:
        return self.outcome in ("fail", "error")


def run_case(
    case: Case,
    backend: Backend,
    *,
    reference_device: torch.device | str = "cpu",
    explain: bool = True,
    columns: bool = True,
) -> CaseResult:
    """Run one case on ``backend``; never raises for what the operator does, only for a wrong selection."""
    began = time.perf_counter()
    refusal = backend.refuses(case)
    if refusal:
        return CaseResult(case, "skip", 0.0, [refusal])
    try:
        result = _run(case, backend, torch.device(reference_device), explain, columns)
    except Exception as error:  # whatever the operator raises is the finding
        where = traceback.extract_tb(error.__traceback__)[-1].name
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        result = CaseResult(case, "error", 0.0, [f"{type(error).__name__} in {where}: {text}"])
    result.seconds = time.perf_counter() - began
    return result


def run(
    cases: Iterable[Case],
    backend: Backend,
    *,
    reference_device: torch.device | str = "cpu",
    explain: bool = True,
    columns: bool = True,
    progress: Callable[[CaseResult], None] | None = None,
) -> list[CaseResult]:
    """Run ``cases`` in order; ``progress`` is called after each."""
    results = []
    for case in cases:
        result = run_case(case, backend, reference_device=reference_device, explain=explain, columns=columns)
        results.append(result)
        if progress is not None:
            progress(result)
    return results


def _run(case: Case, backend: Backend, device: torch.device, explain: bool, columns: bool) -> CaseResult:
    scenario = build(case)
    cache = make_cache(scenario, backend.ops, backend.device)
    cache.fill()
    cache.step()
    calls: list[Recorded] = []
    call = attention_call(scenario, backend, calls)
    if case.op == SPARSE:
        inner = call
        call = lambda keys: inner(keys | {"sparse_indices": sparse_indices(scenario)})  # noqa: E731
    out, lse = cache.attend(call)
    cache.finish()
    report = cache.check()
    rows = rows_of(case)
    requests = scenario.requests(rows, [cache.truth_rows(b, report.ok) for b in range(scenario.batch)])
    sink = scenario.sink
    truths = [
        truth_of(r, q, open_rows(case, q))
        for r, q in zip(attend(requests, case.scale, sink=sink, device=device), requests, strict=True)
    ]
    result = CaseResult(case, "pass", 0.0, cache=report)
    result.reasons += shape_faults(case, scenario, out, lse if backend.gives_lse else None)
    if result.reasons:
        result.outcome = "fail"
        return result
    outs, lses, outside = split_output(case, out, lse if backend.gives_lse else None)
    if outside is not None and bool((outside != 0).any()):
        result.reasons.append("rows beyond a request's query length are not zero")
    outs = [o if r is None else o[:, r] for o, r in zip(outs, rows, strict=True)]
    lses = None if lses is None else [x if r is None else x[:, r] for x, r in zip(lses, rows, strict=True)]
    reason = low_precision_reason(case)
    work = sum(case.heads * len(q.row_ids) * k for q, k in zip(requests, case.kv_lens, strict=True))
    small = work <= BASELINE_BUDGET
    baselines = None
    if small and (columns or reason):
        baselines = [baseline(q, case.scale, sink, scenario.dtype) for q in requests]
    verdict = judge(outs, truths, scenario.dtype, lses=lses, baselines=baselines, low_precision=reason)
    if columns:
        verdict.columns.update(peer_columns(outs, truths, scenario.dtype, baselines))
    result.judgement = verdict
    result.reasons += report.lines() + verdict.reasons
    result.outcome = _outcome(result, verdict)
    if result.outcome == "fail":
        past = [scenario.past(b) for b in range(scenario.batch)]
        result.location = locate(
            verdict.tables, kv_heads=case.kv_heads, past=past, block_size=case.block_size
        )
        if explain and not report.order:
            result.attribution = attribute(scenario, outs, cache=cache, rows=rows)
    return result


def _outcome(result: CaseResult, verdict: Judgement) -> str:
    if verdict.status is Status.FAIL or (result.cache is not None and not result.cache.ok):
        return "fail"
    if result.reasons and verdict.status is not Status.LOW_PRECISION:
        return "fail"
    if verdict.undefined:
        result.notes.append(f"{verdict.undefined} rows are not defined by the call and were not judged")
    return {Status.PASS: "pass", Status.LOW_PRECISION: "low-precision", Status.UNDEFINED: "undefined"}[
        verdict.status
    ]


def rows_of(case: Case) -> list[Tensor | None]:
    """Rows to check per request (None = all)."""
    if not case.sampled:
        return [None] * len(case.q_lens)
    return [
        sample_rows(n, block_size=case.block_size, window=case.window, seed=case.seed) for n in case.q_lens
    ]


def shape_faults(case: Case, scenario: Scenario, out: Tensor, lse: Tensor | None) -> list[str]:
    """Shapes and dtypes against contract 1.4."""
    want_out, want_lse = expected_shapes(case)
    faults = []
    if tuple(out.shape) != want_out:
        faults.append(f"attention_out has shape {tuple(out.shape)}, expected {want_out}")
    if out.dtype != scenario.dtype:
        faults.append(f"attention_out is {out.dtype}, expected {scenario.dtype}")
    if not case.lse or lse is None:
        return faults
    if tuple(lse.shape) != want_lse:
        faults.append(f"softmax_lse has shape {tuple(lse.shape)}, expected {want_lse}")
    if lse.dtype != torch.float32:
        faults.append(f"softmax_lse is {lse.dtype}, expected torch.float32")
    return faults


def expected_shapes(case: Case) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(attention_out, softmax_lse) shapes of the case by contract 1.4."""
    tokens = sum(case.q_lens) if case.packed else max(case.q_lens)
    sizes = {"B": len(case.q_lens), "N": case.heads, "S": tokens, "T": tokens, "D": case.value_dim}
    sizes["H"] = case.heads * case.value_dim
    lse = (tokens, case.heads, 1) if case.packed else (len(case.q_lens), case.heads, tokens, 1)
    return tuple(sizes[a] for a in layout(case.layout).output), lse


def split_output(
    case: Case, out: Tensor, lse: Tensor | None
) -> tuple[list[Tensor], list[Tensor] | None, Tensor | None]:
    """Per request out ``[N, Sq, Dv]`` and lse ``[N, Sq]``, and whatever lies outside all requests."""
    heads = split_heads(out, layout(case.layout).output, case.heads, "attention_out")
    if case.packed:
        outs = list(torch.split(heads, list(case.q_lens), 1))
        lses = None if not case.lse or lse is None else list(torch.split(lse[..., 0].T, list(case.q_lens), 1))
        return outs, lses, None
    outs = [heads[b, :, :n] for b, n in enumerate(case.q_lens)]
    rest = torch.cat([heads[b, :, n:].flatten() for b, n in enumerate(case.q_lens)])
    lses = None if not case.lse or lse is None else [lse[b, :, :n, 0] for b, n in enumerate(case.q_lens)]
    return outs, lses, None if case.latent or case.op in (FUSION, IFA) else rest


def shard(cases: Sequence[Case], rank: int, world: int) -> list[Case]:
    """The cases of one of ``world`` workers, dealt in turn."""
    return list(cases[rank::world])


def as_dict(case: Case) -> dict[str, Any]:
    """A case as plain data."""
    return dataclasses.asdict(case)


__all__ = ["PAGED_ATB", "PFA", "Cache", "CaseResult", "run", "run_case", "shard"]
