"""The logical problem a program solves, right or wrong, and its exact solution.

A misuse is a change of a :class:`World`: of what was fed, stored, read, masked, scaled or handed out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import Request, attend
from .caches import Cache
from .cases import Case
from .judge import Truth
from .kv import Dense
from .scenario import Scenario
from .truth import open_rows, truth_of
from .visibility import Band, Hidden, Listed, Tail, Visibility, causal, everything

See = Callable[[int, int], Visibility]
#: (scale, offset) of key and of value rows of an integer cache, broadcastable to ``[length, Nk, D]``
Coefficients = tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Lane:
    """One request, positions counted from the first readable one (``gone`` are behind it): ``q`` ``[Sq, N,
    D]`` as fed; ``k``, ``v`` ``[capacity, Nk, D]`` as the cache holds them, unwritten positions included;
    ``poison``: the initial content of the same positions; ``length`` keys are read; ``see(rows, keys)``
    says who sees what."""

    q: Tensor
    k: Tensor
    v: Tensor
    length: int
    past: int
    see: See
    bias: Tensor | None
    poison: tuple[Tensor, Tensor] | None
    coefficients: Coefficients | None = None
    gone: int = 0


@dataclass(frozen=True)
class World:
    """The problem a (possibly wrong) program solves."""

    scenario: Scenario
    lanes: tuple[Lane, ...]
    scale: float
    sink: Tensor | None
    head_map: Tensor | None = None
    finish: Callable[[list[Tensor]], list[Tensor]] | None = None
    split: str = ""
    cache: Cache | None = None
    undefined: tuple[Tensor | None, ...] = ()

    @property
    def case(self) -> Case:
        return self.scenario.case

    def each(self, change: Callable[[Lane, int], Lane]) -> World:
        return dataclasses.replace(self, lanes=tuple(change(lane, b) for b, lane in enumerate(self.lanes)))


def world_of(scenario: Scenario, cache: Cache | None = None) -> World:
    """The intended world; ``cache`` supplies quantised rows and the content of unwritten slots."""
    lanes = []
    for b in range(scenario.batch):
        k, v = scenario.stored[b] if cache is None else cache.truth_rows(b, False)
        gone = 0 if cache is None else cache.first_position(b)
        k, v = k[gone:], v[gone:]
        spare = None if cache is None else cache.unwritten_rows(b)
        if spare is not None and len(spare[0]) > len(k):
            k, v = torch.cat([k, spare[0][len(k) :]]), torch.cat([v, spare[1][len(v) :]])
        bias = None if scenario.bias is None else scenario.bias[b]
        lanes.append(
            Lane(
                scenario.fed[b],
                k,
                v,
                scenario.case.kv_lens[b] - gone,
                scenario.past(b) - gone,
                seeing(scenario, b),
                bias,
                spare,
                None if cache is None else cache.coefficients(b),
                gone,
            )
        )
    undefined = tuple(open_rows(scenario.case, q) for q in scenario.requests())
    return World(scenario, tuple(lanes), scenario.scale, scenario.sink, cache=cache, undefined=undefined)


def seeing(scenario: Scenario, b: int) -> See:
    """Who sees what in request b, for any key count the operator is told."""
    case = scenario.case

    def see(rows: int, keys: int) -> Visibility:
        if case.masking == "causal":
            return causal(rows, keys)
        if case.masking == "left-up":
            return causal(rows, keys, "top-left")
        if case.masking == "window":
            return Band(keys, keys - rows - (case.window - 1), keys - rows)
        if case.masking in ("mask", "all"):
            assert scenario.mask is not None
            mask = torch.nn.functional.pad(
                scenario.mask[b], (0, max(0, keys - scenario.mask.shape[2])), value=True
            )
            return Hidden(keys, mask)
        if case.masking == "tree":
            assert scenario.mask is not None
            return Tail(keys, max(0, keys - rows), scenario.mask[b][:rows, :rows])
        if case.masking == "sparse":
            assert scenario.chosen is not None
            return Listed(keys, scenario.chosen[b])
        return everything(keys)

    return see


def solve(world: World, rows: Sequence[Tensor | None] | None = None) -> list[Truth]:
    """What a faultless operator gives in this world, in float32 (float64 for a float32 operator)."""
    if world.split:
        return _solve_split(world, rows)
    return _solve(world, rows)


def requests_of(world: World, rows: Sequence[Tensor | None] | None = None) -> list[Request]:
    """The attention problems of this world."""
    requests = []
    for b, lane in enumerate(world.lanes):
        q = lane.q.transpose(0, 1)
        k, v = lane.k[: lane.length].transpose(0, 1), lane.v[: lane.length].transpose(0, 1)
        if world.head_map is not None:  # one KV head per query head: the mapping is the fault
            k, v = k[world.head_map], v[world.head_map]
        bias = None if lane.bias is None else lane.bias[:, : q.shape[1]]
        visible = lane.see(q.shape[1], k.shape[1])
        requests.append(Request(q, Dense(k), Dense(v), visible, None if rows is None else rows[b], bias))
    return requests


def _solve(world: World, rows: Sequence[Tensor | None] | None) -> list[Truth]:
    requests = requests_of(world, rows)
    dtype = torch.float64 if world.scenario.dtype == torch.float32 else torch.float32
    results = attend(requests, world.scale, sink=world.sink, dtype=dtype)
    truths = [truth_of(r, q) for r, q in zip(results, requests, strict=True)]
    if world.finish is not None:
        outs = world.finish([t.out for t in truths])
        peak, rms = max(t.value_peak for t in truths), max(t.value_rms for t in truths)
        truths = [
            dataclasses.replace(t, out=o, dead=torch.zeros_like(t.dead), value_peak=peak, value_rms=rms)
            for t, o in zip(truths, outs, strict=True)
        ]
    return truths


def _solve_split(world: World, rows: Sequence[Tensor | None] | None) -> list[Truth]:
    """KV-parallel partial results put together wrongly."""
    case = world.case
    parts: list[list[Truth]] = []
    for rank in range(case.ranks):

        def local(lane: Lane, b: int, rank: int = rank) -> Lane:
            mine = torch.arange(lane.length)
            mine = mine[(mine // case.block_size) % case.ranks == rank]
            return dataclasses.replace(
                lane, k=lane.k[mine], v=lane.v[mine], length=len(mine), see=lambda r, n: everything(n)
            )

        parts.append(_solve(dataclasses.replace(world, split="").each(local), rows))
    found = []
    for b, whole in enumerate(_solve(dataclasses.replace(world, split=""), rows)):
        outs = torch.stack([p[b].out for p in parts])
        if world.split == "first":
            out = outs[0]
        elif world.split == "sum":
            out = outs.sum(0)
        else:
            out = outs.mean(0)
        found.append(dataclasses.replace(whole, out=out))
    return found
