"""Path conditions: tests that choose between values, and what a set of them implies."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from .keys import intern
from .tri import Place


@dataclass(frozen=True, slots=True, eq=False)
class Cond:
    """An atomic test on a run-time value.

    Attributes:
        kind: "truth" (is truthy), "none" (is None), "eq" (equals ``const``), "lt"/"le" (less than
            ``const``), "isinstance" (of the type named ``const``), "all" (every part holds) or
            "opaque".
        key: identity of the value that is tested; for "all" the tuple of (test, value) parts.
        const: the constant it is compared with.
        label: the test as the source writes it, for messages.
        remote: True when the test was made in another method than the call (a configuration choice in a
            constructor): alone it does not show that the call runs that way.
        under: the tests passed on the way to this one.
    """

    kind: str
    key: Hashable
    const: Hashable = None
    label: str = ""
    place: Place | None = None
    remote: bool = False
    under: tuple[tuple[Cond, bool], ...] = field(default=(), repr=False)
    ident: Hashable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        key = intern(self.key)
        object.__setattr__(self, "key", key)
        # The type keeps True and 1 apart.
        object.__setattr__(self, "ident", intern((self.kind, key, type(self.const), self.const)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cond) and self.ident is other.ident

    def __hash__(self) -> int:
        return id(self.ident)

    @property
    def parts(self) -> tuple[tuple[Cond, bool], ...]:
        """The parts of an "all" test."""
        return self.key if self.kind == "all" and isinstance(self.key, tuple) else ()


Assumptions = dict[Cond, bool]


def decide(cond: Cond, assumed: Assumptions) -> bool | None:
    """The value of ``cond`` under the assumptions, or None when they leave it open."""
    direct = assumed.get(cond)
    if direct is not None:
        return direct
    if cond.kind == "opaque":
        return None
    if cond.kind == "all":
        states = [(decide(part, assumed), wanted) for part, wanted in cond.parts]
        if any(state is not None and state != wanted for state, wanted in states):
            return False
        return True if all(state is not None for state, _ in states) else None
    key = cond.key
    for other, holds in assumed.items():
        if (other.key is key or other.key == key) and other.kind != "opaque":
            implied = _implied(other, holds, cond)
            if implied is not None:
                return implied
    return None


def consistent(assumed: Assumptions, more: Iterable[tuple[Cond, bool]]) -> Assumptions | None:
    """``assumed`` extended by ``more``, or None when they contradict each other."""
    result = dict(assumed)
    pending = list(more)
    while pending:
        cond, holds = pending.pop()
        known = decide(cond, result)
        if known is None:
            result[cond] = holds
            if cond.kind == "all" and holds:
                pending.extend(cond.parts)
        elif known != holds:
            return None
    return result


def witnessed(path: Iterable[tuple[Cond, bool]], chosen: Assumptions) -> bool:
    """Whether the source spells out a path on which all of ``chosen`` and ``path`` hold.

    It does when one of the tests was made under all the others. Two tests in a row prove no such path:
    they may be two ways to ask for the same thing.
    """
    wanted = {**dict(path), **chosen}
    for cond, holds in chosen.items():
        seen = consistent({}, [*cond.under, (cond, holds)])
        if seen is not None and all(decide(other, seen) == state for other, state in wanted.items()):
            return True
    return not chosen


def _implied(other: Cond, holds: bool, cond: Cond) -> bool | None:
    """What ``other == holds`` says about ``cond`` on the same value."""
    value = _pinned(other, holds)
    if value is not _OPEN:
        return _evaluate(cond, value)
    if other.kind == "truth":
        if holds:
            # A truthy value is neither None nor a falsy constant.
            if cond.kind == "none" or (cond.kind == "eq" and not cond.const):
                return False
        elif (cond.kind == "eq" and cond.const) or cond.kind == "isinstance":
            return False if cond.kind == "eq" else None
    if other.kind == "none" and not holds:
        return None
    if other.kind in ("lt", "le") and cond.kind in ("lt", "le", "eq"):
        return _order(other, holds, cond)
    if other.kind == "eq" and holds is False:
        return None
    if other.kind == "isinstance" and holds and cond.kind == "none":
        return False
    return None


_OPEN = object()


def _pinned(cond: Cond, holds: bool) -> object:
    """The value itself when the condition fixes it."""
    if cond.kind == "eq" and holds:
        return cond.const
    if cond.kind == "none" and holds:
        return None
    return _OPEN


def _evaluate(cond: Cond, value: object) -> bool | None:
    if cond.kind == "truth":
        return bool(value)
    if cond.kind == "none":
        return value is None
    if cond.kind == "eq":
        return value == cond.const
    if cond.kind in ("lt", "le") and isinstance(value, (int, float)) and isinstance(cond.const, (int, float)):
        return value < cond.const if cond.kind == "lt" else value <= cond.const
    return None


def _order(other: Cond, holds: bool, cond: Cond) -> bool | None:
    """Interval reasoning on ``x < c`` / ``x <= c`` facts."""
    a, b = other.const, cond.const
    if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
        return None
    if holds:  # x < a or x <= a
        if cond.kind == "lt":
            return True if (a < b or (a == b and other.kind == "lt")) else None
        if cond.kind == "le":
            return True if a <= b else None
        return False if b > a or (b == a and other.kind == "lt") else None
    # x >= a or x > a
    if cond.kind == "lt":
        return False if b <= a else None
    if cond.kind == "le":
        return False if b < a or (b == a and other.kind == "le") else None
    return False if b < a or (b == a and other.kind == "le") else None
