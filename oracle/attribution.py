"""Why an output is wrong: which known misuse, computed exactly, gives the numbers that were observed.

Every hypothesis rewrites the logical problem (:class:`World`) the way a particular mistake would, the
reference solves the rewritten problem, and the judge compares. A hypothesis explains an output only if
every row agrees to rounding; if none does, the answer is "unknown". Hypotheses that cannot be told apart on
this input are reported together, as a tie.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .caches import Cache
from .hypotheses import HYPOTHESES, Hypothesis
from .judge import Judgement, Status, judge
from .scenario import Scenario
from .truth import baseline, low_precision_reason
from .world import World, requests_of, solve, world_of

INTENDED = "as intended"
#: Rounding noise scores 0.4-0.7 in units of u R over a whole output. An explanation that is 1.5 times worse
#: than the best one differs systematically and is not a tie.
TIE_FACTOR = 1.5
#: A whole output that is further off than this from its explanation is off systematically, though each row
#: may pass: legitimate outputs score at most 0.9 (integer caches), usually 0.5.
SYSTEMATIC = 1.2


@dataclass(frozen=True, slots=True)
class Attribution:
    """``outcome``: exact, tie, unknown or correct; ``names``: the hypotheses that explain the output, best
    first; ``score``: rms error of the best in units of u R; ``margin``: score of the best hypothesis not
    named, over ``score``; ``runner_up``: that hypothesis; ``scores`` of all."""

    outcome: str
    names: list[str]
    titles: list[str]
    rules: list[str]
    score: float
    margin: float
    runner_up: str
    scores: dict[str, float] = field(default_factory=dict)

    def sentence(self) -> str:
        if self.outcome == "unknown":
            return (
                f"no known misuse explains the numbers (closest: {self.runner_up}, off by {self.score:.1f} u)"
            )
        if self.outcome == "correct":
            return "the numbers are the intended ones"
        joined = " or ".join(self.titles)
        note = (
            "cannot be told apart on this input"
            if self.outcome == "tie"
            else f"next best {self.margin:.0f}x worse"
        )
        return f"the numbers are those of: {joined} ({note})"


def attribute(
    scenario: Scenario,
    outs: Sequence[Tensor],
    *,
    cache: Cache | None = None,
    rows: Sequence[Tensor | None] | None = None,
    pairs: bool = False,
) -> Attribution:
    """Which misuse explains ``outs[b]`` ``[N, R, Dv]``.

    ``cache``: the case's cache mode, for the content of unwritten slots; ``rows``: the rows that were
    checked; ``pairs``: if no single misuse explains the output, try two at once (some hundred times
    slower).
    """
    return attribute_world(world_of(scenario, cache), outs, rows=rows, pairs=pairs)


def attribute_world(
    base: World, outs: Sequence[Tensor], *, rows: Sequence[Tensor | None] | None = None, pairs: bool = False
) -> Attribution:
    """:func:`attribute` for a problem that is stated already."""
    scores: dict[str, float] = {}
    explaining: dict[str, float] = {}
    worlds: list[tuple[Hypothesis, World]] = []

    def weigh(name: str, world: World) -> None:
        fits, score = fit(outs, world, rows)
        scores[name] = score
        if fits:
            explaining[name] = score

    weigh(INTENDED, base)
    if INTENDED in explaining:
        return Attribution("correct", [INTENDED], [], [], scores[INTENDED], math.inf, "", scores)
    for hypothesis in HYPOTHESES:
        world = hypothesis.apply(base)
        if world is not None:
            worlds.append((hypothesis, world))
            weigh(hypothesis.name, world)
    if not explaining and pairs:
        for first, second in itertools.combinations(sorted(worlds, key=lambda w: w[0].stage), 2):
            both = second[0].apply(first[1])
            if both is not None and first[0].stage != second[0].stage:
                weigh(f"{first[0].name} + {second[0].name}", both)
    return _conclude(scores, explaining)


def _conclude(scores: dict[str, float], explaining: dict[str, float]) -> Attribution:
    ranked = sorted(scores, key=lambda n: scores[n])
    if not explaining:
        closest = ranked[0]
        return Attribution("unknown", [], [], [], scores[closest], 1.0, closest, scores)
    best = min(explaining.values())
    names = sorted((n for n, s in explaining.items() if s <= TIE_FACTOR * best), key=lambda n: explaining[n])
    others = [n for n in ranked if n not in names]
    known = {h.name: h for h in HYPOTHESES}
    members = [known[p] for n in names for p in n.split(" + ")]
    return Attribution(
        "exact" if len(names) == 1 else "tie",
        names,
        [" and ".join(known[p].title for p in n.split(" + ")) for n in names],
        [m.rule for m in members],
        best,
        scores[others[0]] / max(best, 1e-9) if others else math.inf,
        others[0] if others else "",
        scores,
    )


def fit(
    outs: Sequence[Tensor], world: World, rows: Sequence[Tensor | None] | None = None
) -> tuple[bool, float]:
    """(``outs`` are this world's answer up to rounding, rms of the row errors in units of u R)."""
    scenario = world.scenario
    truths = solve(world, rows)
    for out, truth in zip(outs, truths, strict=True):
        if out.shape != truth.out.shape:
            return False, math.inf
    if any(r is not None for r in world.undefined):
        truths = [
            dataclasses.replace(t, undefined=r if r is None or t.rows is None else r[t.rows])
            for t, r in zip(truths, world.undefined, strict=True)
        ]
    verdict = judge(outs, truths, scenario.dtype)
    score = _score(verdict)
    if not math.isfinite(score):
        return False, math.inf
    if verdict.status is not Status.FAIL:
        return score <= SYSTEMATIC, score
    reason = low_precision_reason(scenario.case)
    if not reason:
        return False, score
    low_scores = not scenario.case.quant
    plain = [
        baseline(q, world.scale, world.sink, scenario.dtype, low_scores=low_scores)
        for q in requests_of(world, rows)
    ]
    if world.finish is not None:
        plain = world.finish(plain)
    limit = max(SYSTEMATIC, TIE_FACTOR * _score(judge(plain, truths, scenario.dtype)))
    loose = judge(outs, truths, scenario.dtype, baselines=plain, low_precision=reason)
    return loose.status is not Status.FAIL and score <= limit, score


def _score(verdict: Judgement) -> float:
    errors = torch.cat([t.error.flatten() for t in verdict.tables])
    errors = errors[torch.cat([t.status.flatten() for t in verdict.tables]) != Status.UNDEFINED]
    return float(errors.double().square().mean().sqrt()) if len(errors) else math.inf


def separable(scenario: Scenario, cache: Cache | None = None) -> dict[str, float]:
    """hypothesis -> how far its output lies from the intended one, rms in units of u R. Below about 3 the
    misuse cannot be seen with these inputs."""
    base = world_of(scenario, cache)
    want = [t.out for t in solve(base)]
    found = {}
    for hypothesis in HYPOTHESES:
        world = hypothesis.apply(base)
        if world is not None:
            found[hypothesis.name] = fit(want, world)[1]
    return found
