"""Path conditions: tests that choose between values, and what a set of them implies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, floor, isfinite

from .keys import Key, intern
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
        whole: True when the tested value is certainly an integer.
    """

    kind: str
    key: Hashable
    const: Hashable = None
    label: str = ""
    place: Place | None = None
    remote: bool = False
    under: tuple[tuple[Cond, bool], ...] = field(default=(), repr=False)
    whole: bool = False
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


def negated(label: str) -> str:
    """A test's text the other way round, without piling up negations."""
    inner = label[5:-1]
    if label.startswith("not (") and label.endswith(")") and _balanced(inner):
        return inner
    return f"not ({label})"


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


Assumptions = Mapping[Cond, bool]


class Facts(Assumptions):
    """Assumptions, each set an older one with one more test. They never change, and remember answers."""

    __slots__ = ("_all", "_answers", "_before", "_cond", "_holds", "_more", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._before: Facts = self
        self._cond: Cond
        self._holds = False
        self._all: dict[Cond, bool] | None = None
        self._answers: dict[Hashable, bool | None] | None = None
        self._more: dict[tuple[int, bool], tuple[Cond, Facts | None]] | None = None

    @classmethod
    def of(cls, assumed: Iterable[tuple[Cond, bool]]) -> Facts:
        """These tests, taken to be consistent."""
        result = cls()
        for cond, holds in dict(assumed).items():
            result = result.plus(cond, holds)
        return result

    def plus(self, cond: Cond, holds: bool) -> Facts:
        """One more test, which is neither among them yet nor decided by them."""
        result = Facts()
        result._before, result._cond, result._holds, result._size = self, cond, holds, self._size + 1
        return result

    def with_one(self, cond: Cond, holds: bool) -> Facts | None:
        """See :func:`extended`."""
        if self._more is None:
            self._more = {}
        # Tests that are equal may still differ in where they were made.
        key = (id(cond), holds)
        found = self._more.get(key)
        if found is None:
            found = self._more[key] = (cond, _extended(self, [(cond, holds)]))
        return found[1]

    def decide(self, cond: Cond) -> bool | None:
        """See :func:`decide`."""
        if cond.kind == "all":
            return self._remembered(cond, self._all_hold)
        ident, key, opaque = cond.ident, cond.key, cond.kind == "opaque"
        # Two interned keys are equal only when they are one object.
        shared = type(key) is Key
        facts = self
        while facts._size:
            other = facts._cond
            if other.ident is ident:
                return facts._holds
            same = other.key is key or (not shared and other.key == key)
            if same and not opaque and other.kind != "opaque":
                # What was assumed of other values since makes no difference.
                return facts._remembered(cond, facts._implied)
            facts = facts._before
        return None

    def _remembered(self, cond: Cond, answer: Callable[[Cond], bool | None]) -> bool | None:
        if self._answers is None:
            self._answers = {}
        question = (cond.ident, True) if cond.whole else cond.ident
        if question not in self._answers:
            self._answers[question] = answer(cond)
        return self._answers[question]

    def _all_hold(self, cond: Cond) -> bool | None:
        facts = self
        while facts._size:
            if facts._cond.ident is cond.ident:
                return facts._holds
            facts = facts._before
        complete = True
        for part, wanted in cond.parts:
            state = self.decide(part)
            if state is None:
                complete = False
            elif state != wanted:
                return False
        return True if complete else None

    def _implied(self, cond: Cond) -> bool | None:
        """What the tests of the same value say."""
        key = cond.key
        shared = type(key) is Key
        found: list[tuple[Cond, bool]] = []
        facts = self
        while facts._size:
            other = facts._cond
            if other.ident is cond.ident:
                return facts._holds
            if other.kind != "opaque" and (other.key is key or (not shared and other.key == key)):
                found.append((other, facts._holds))
            facts = facts._before
        found.reverse()
        ordered, whole = cond.kind in _ORDERED, cond.whole
        for other, holds in found:
            implied = _implied(other, holds, cond)
            if implied is not None:
                return implied
            ordered = ordered or other.kind in _ORDERED
            whole = whole or other.whole
        return _Range.of(found, whole).decide(cond) if ordered else None

    @property
    def _items(self) -> dict[Cond, bool]:
        if self._all is None:
            found: list[tuple[Cond, bool]] = []
            facts = self
            while facts._size:
                found.append((facts._cond, facts._holds))
                facts = facts._before
            self._all = dict(reversed(found))
        return self._all

    def __getitem__(self, cond: Cond) -> bool:
        return self._items[cond]

    def __iter__(self) -> Iterator[Cond]:
        return iter(self._items)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, cond: object) -> bool:
        return cond in self._items

    def __eq__(self, other: object) -> bool:
        return self is other or self._items == (other._items if isinstance(other, Facts) else other)

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> ItemsView[Cond, bool]:
        """The tests with their values, in the order they were assumed."""
        return self._items.items()


def decide(cond: Cond, assumed: Assumptions) -> bool | None:
    """The value of ``cond`` under the assumptions, or None when they leave it open."""
    return _facts(assumed).decide(cond)


def _facts(assumed: Assumptions) -> Facts:
    return assumed if type(assumed) is Facts else Facts.of(assumed.items())


def may_be_one(tests: Iterable[tuple[Cond, bool]]) -> bool:
    """Whether something is 1 by one of the tests: of one sequence, a length is a running sum."""
    return any(holds and cond.kind == "eq" and cond.const == 1 for cond, holds in tests)


_ORDERED = frozenset(("lt", "le"))


def consistent(assumed: Assumptions, more: Iterable[tuple[Cond, bool]]) -> Assumptions | None:
    """``assumed`` extended by ``more``, or None when they contradict each other."""
    return _extended(_facts(assumed), list(more))


def extended(assumed: Assumptions, cond: Cond, holds: bool) -> Facts | None:
    """``assumed`` with one more test, or None when they contradict each other."""
    return _facts(assumed).with_one(cond, holds)


def _extended(facts: Facts, pending: list[tuple[Cond, bool]]) -> Facts | None:
    while pending:
        cond, holds = pending.pop()
        known = facts.decide(cond)
        if known is None:
            facts = facts.plus(cond, holds)
            if cond.kind == "all" and holds:
                pending.extend(cond.parts)
        elif known != holds:
            return None
    return facts


def witnessed(path: Iterable[tuple[Cond, bool]], chosen: Assumptions) -> bool:
    """Whether the source spells out a path on which all of ``chosen`` and ``path`` hold.

    It does when one of the tests was made under all the others. Two tests in a row prove no such path:
    they may be two ways to ask for the same thing. Nor do a bound and its own end left out: whoever asks
    for ``x > 1`` after a return for ``x == 1`` knows that ``x`` is at least 1.
    """
    wanted = {**dict(path), **chosen}
    if any(_Range.of(facts, True).pinched for facts in _by_key(wanted)):
        return not chosen
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


def _by_key(assumed: Assumptions) -> Iterable[list[tuple[Cond, bool]]]:
    """The tests of each value that is tested more than once."""
    found: dict[Hashable, list[tuple[Cond, bool]]] = {}
    for cond, holds in assumed.items():
        if cond.kind in ("lt", "le", "eq", "truth"):
            found.setdefault(cond.key, []).append((cond, holds))
    return [facts for facts in found.values() if len(facts) > 1]


@dataclass(slots=True)
class _Range:
    """The numbers that a value may still be: what two tests together leave, neither may tell alone.

    Attributes:
        low, high: the bounds, None without one.
        low_open, high_open: whether the bound itself is left out.
        excluded: numbers it is not.
        whole: whether it is an integer.
        pinched: whether a number left out moved a bound.
    """

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False
    excluded: set[float] = field(default_factory=set)
    whole: bool = False
    pinched: bool = False

    @classmethod
    def of(cls, facts: Iterable[tuple[Cond, bool]], whole: bool) -> _Range:
        """What tests of one value leave."""
        result = cls(whole=whole)
        for cond, holds in facts:
            result.whole = result.whole or cond.whole
            result._add(cond, holds)
        result._tighten()
        return result

    def _add(self, cond: Cond, holds: bool) -> None:
        const = 0 if cond.kind == "truth" else cond.const
        if not isinstance(const, (int, float)) or const != const:
            return
        if cond.kind == "eq" and holds:
            self._above(const, False)
            self._below(const, False)
        elif (cond.kind == "eq" and not holds) or (cond.kind == "truth" and holds):
            self.excluded.add(const)
        elif cond.kind in ("lt", "le"):
            if holds:
                self._below(const, cond.kind == "lt")
            else:
                self._above(const, cond.kind == "le")

    def _above(self, bound: float, is_open: bool) -> None:
        if self.low is None or bound > self.low or (bound == self.low and is_open):
            self.low, self.low_open = bound, is_open

    def _below(self, bound: float, is_open: bool) -> None:
        if self.high is None or bound < self.high or (bound == self.high and is_open):
            self.high, self.high_open = bound, is_open

    def _tighten(self) -> None:
        if self.whole:
            if self.low is not None and isfinite(self.low):
                self.low = floor(self.low) + 1 if self.low_open else ceil(self.low)
                self.low_open = False
            if self.high is not None and isfinite(self.high):
                self.high = ceil(self.high) - 1 if self.high_open else floor(self.high)
                self.high_open = False
        while self.low is not None and self.low in self.excluded and not self.low_open:
            self.pinched = True
            self.low, self.low_open = (self.low + 1, False) if self.whole else (self.low, True)
        while self.high is not None and self.high in self.excluded and not self.high_open:
            self.pinched = True
            self.high, self.high_open = (self.high - 1, False) if self.whole else (self.high, True)

    def decide(self, cond: Cond) -> bool | None:
        """What the range says of a test."""
        const = 0 if cond.kind == "truth" else cond.const
        if cond.kind not in ("eq", "lt", "le", "truth") or not isinstance(const, (int, float)):
            return None
        if cond.kind in ("eq", "truth"):
            equal = self._equals(const)
            if cond.kind == "eq" or equal is None:
                return equal
            # What is merely not 0 may be None.
            ordered = self.low is not None or self.high is not None
            return not equal if equal or ordered else None
        strict = cond.kind == "lt"
        if self.high is not None and (
            self.high < const or (self.high == const and (self.high_open or not strict))
        ):
            return True
        if self.low is not None and (self.low > const or (self.low == const and (self.low_open or strict))):
            return False
        return None

    def _equals(self, const: float) -> bool | None:
        below = self.low is not None and (const < self.low or (const == self.low and self.low_open))
        above = self.high is not None and (const > self.high or (const == self.high and self.high_open))
        if below or above or const in self.excluded:
            return False
        if self.whole and isfinite(const) and const != floor(const):
            return False
        return True if self.low is not None and self.low == self.high == const else None
