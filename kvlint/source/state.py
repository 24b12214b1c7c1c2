"""The state of an evaluation: what a path knows, the function being run, the calls met."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from kvlint.contract.num import Num
from kvlint.contract.paths import Assumptions, Cond, Facts, decide, extended
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    Value,
)

from .chunk import Chunk, Site
from .module import ModuleIndex
from .objects import ClassRef

MAX_DEPTH = 10


MAX_STEPS = 20_000


MAX_LEAVES = 16


# How many values stand for one that has more alternatives than that.
MAX_WIDENED = 4


# What one side question may cost: a method run for what it leaves in an attribute, a helper's result.
SIDE_STEPS = 4_000


MAX_WRITERS = 4


class OutOfBudget(Exception):
    """The question costs too much; what was asked stays unknown."""


@dataclass
class State:
    """What a path knows: variables, container contents, attribute overrides, tests that hold."""

    vars: dict[str, Value] = field(default_factory=dict)
    heap: dict[Hashable, Value] = field(default_factory=dict)
    attrs: dict[tuple[Hashable, str], Value] = field(default_factory=dict)
    assumed: Assumptions = field(default_factory=Facts)
    path: tuple[tuple[Cond, bool], ...] = ()
    """Tests passed since the function was entered."""
    outer: tuple[tuple[Cond, bool], ...] = ()
    """Tests that the callers had passed when the function was entered."""

    def copy(self) -> State:
        return State(dict(self.vars), dict(self.heap), dict(self.attrs), self.assumed, self.path, self.outer)

    @property
    def under(self) -> tuple[tuple[Cond, bool], ...]:
        """Every test passed on the way here."""
        return self.outer + self.path

    def assume(self, cond: Cond, holds: bool) -> State | None:
        """The state after a test, or None when that arm cannot run."""
        known = decide(cond, self.assumed)
        if known is not None:
            return self.copy() if known == holds else None
        assumed = extended(self.assumed, cond, holds)
        if assumed is None:
            return None
        result = self.copy()
        result.assumed = assumed
        result.path = (*self.path, (cond, holds))
        return result


@dataclass(frozen=True, slots=True)
class Touch:
    """A use of a result.

    Attributes:
        index: which result.
        how: "method" (of the result), "operand", "index", "argument" (of a library function or operator), or
            "passed" (to code that is not visible).
        name: of the method or function.
        sure: whether the use is reached whenever the call is.
        sizes: the numbers that a method is called with.
        cast: whether the result was converted or copied before.
    """

    index: int
    how: str
    name: str
    site: Site
    sure: bool
    sizes: tuple[Num | None, ...] | None = None
    cast: bool = False


@dataclass
class Record:
    """An operator call that evaluation came across."""

    operator: str
    overload: str
    positional: list[tuple[Value, Site | None]]
    keywords: dict[str, tuple[Value, Site | None]]
    opaque: Note | None
    site: Site
    assumed: Assumptions
    path: tuple[tuple[Cond, bool], ...]
    trail: tuple[Note, ...]
    frame: Frame
    partial: bool = False
    touches: list[Touch] = field(default_factory=list)
    """What happens to the results, in the order of evaluation."""
    run: int = 0
    """The evaluation of an outermost function that came across it: its calls are in the order they run."""
    mutated: tuple[tuple[Hashable, int], ...] = ()
    """What may have been changed in place before, and after how many calls."""
    number: int = 0
    """How many calls had been met before."""


@dataclass
class Frame:
    """One function being evaluated."""

    module: ModuleIndex
    chunk: Chunk
    name: str
    state: State
    depth: int
    owner: ClassRef | None = None
    me: str = ""
    closure: State | None = None
    returns: list[tuple[State, Value]] = field(default_factory=list)
    trail: tuple[Note, ...] = ()
    node: cst.FunctionDef | cst.Lambda | None = None
    globals_: frozenset[str] = frozenset()
    calls: dict[cst.Call, list[Any]] = field(default_factory=dict)
    generator: bool = False
    yielded: list[Value] = field(default_factory=list)
    """What it yields, one entry for each time a yield is evaluated."""
    jumps: tuple[list[State], list[State]] = field(default_factory=lambda: ([], []))
    """States at the breaks and at the continues of the loop around."""
    rounds: int = 0
    """How many loops are in their first pass."""
