"""Three-valued truth: yes, no, or unknown with the reason why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, final

T = TypeVar("T")
U = TypeVar("U")


class Place(Protocol):
    """A position in a source file; implementations may compute it lazily."""

    @property
    def path(self) -> str: ...

    @property
    def line(self) -> int: ...

    @property
    def column(self) -> int: ...

    @property
    def end_line(self) -> int: ...

    @property
    def end_column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Note:
    """One step of reasoning: what is known (or not) and the place that decided it."""

    text: str
    place: Place | None = None


@final
class Tri:
    """Kleene truth value.

    ``notes`` say, for a known value, what decided it and, for an unknown one, where knowledge
    ended. Combine with ``&``, ``|`` and ``~``; ask with ``.yes``, ``.no`` or ``.unknown``. Using one
    in ``if`` directly is an error, because it would hide the unknown case.
    """

    __slots__ = ("notes", "state")

    def __init__(self, state: bool | None, notes: tuple[Note, ...] = ()) -> None:
        self.state = state
        self.notes = notes

    @property
    def yes(self) -> bool:
        """True when certainly true."""
        return self.state is True

    @property
    def no(self) -> bool:
        """True when certainly false."""
        return self.state is False

    @property
    def unknown(self) -> bool:
        """True when neither is certain."""
        return self.state is None

    def __and__(self, other: Tri) -> Tri:
        if self.state is False:
            return self
        if other.state is False:
            return other
        if self.state is None or other.state is None:
            # Only what is unknown explains an unknown result.
            return Tri(None, _unknown_notes(self, other))
        return Tri(True, self.notes + other.notes)

    def __or__(self, other: Tri) -> Tri:
        return ~(~self & ~other)

    def __invert__(self) -> Tri:
        return Tri(None if self.state is None else not self.state, self.notes)

    def __bool__(self) -> bool:
        raise TypeError("a Tri has no truth value of its own: use .yes, .no or .unknown")

    def __repr__(self) -> str:
        word = {True: "yes", False: "no", None: "unknown"}[self.state]
        return f"Tri({word}{''.join(f'; {note.text}' for note in self.notes)})"


def _unknown_notes(*parts: Tri) -> tuple[Note, ...]:
    return tuple(note for part in parts if part.state is None for note in part.notes)


YES = Tri(True)
NO = Tri(False)


def tri(value: bool, *notes: Note) -> Tri:
    """A known truth value."""
    return Tri(value, notes)


def unknown(text: str, place: Place | None = None) -> Tri:
    """An unknown truth value with its reason."""
    return Tri(None, (Note(text, place),))


def all_of(parts: Iterable[Tri]) -> Tri:
    """Kleene conjunction; true for no parts."""
    result = YES
    for part in parts:
        result = result & part
    return result


def any_of(parts: Iterable[Tri]) -> Tri:
    """Kleene disjunction; false for no parts."""
    result = NO
    for part in parts:
        result = result | part
    return result


@final
class Fact(Generic[T]):
    """What is known of a value: one value, a finite set of possible values, or nothing.

    Every question answers with a :class:`Tri`, so that rules need no special case for the unknown.
    """

    __slots__ = ("notes", "values")

    def __init__(self, values: tuple[T, ...] | None, notes: tuple[Note, ...] = ()) -> None:
        self.values = values
        self.notes = notes

    @classmethod
    def of(cls, value: T, *notes: Note) -> Fact[T]:
        """The fact that the value is exactly ``value``."""
        return cls((value,), notes)

    @classmethod
    def unknown(cls, text: str, place: Place | None = None) -> Fact[T]:
        """Nothing is known, for the reason ``text``."""
        return cls(None, (Note(text, place),))

    @property
    def known(self) -> bool:
        """True when exactly one value is possible."""
        return self.values is not None and len(self.values) == 1

    @property
    def value(self) -> T:
        """The only possible value. Raises ``ValueError`` when there is none or several."""
        if self.values is None or len(self.values) != 1:
            raise ValueError("the value is not known")
        return self.values[0]

    def get(self, default: U) -> T | U:
        """The only possible value, or ``default``."""
        return self.values[0] if self.values is not None and len(self.values) == 1 else default

    def holds(self, predicate: Callable[[T], bool]) -> Tri:
        """Whether ``predicate`` is true of the value (of every possible value)."""
        if self.values is None:
            return Tri(None, self.notes)
        results = {predicate(value) for value in self.values}
        if len(results) == 1:
            return Tri(results.pop(), self.notes)
        return Tri(None, self.notes)

    def equals(self, value: object) -> Tri:
        """Whether the value equals ``value``."""
        return self.holds(lambda mine: mine == value)

    def among(self, values: Iterable[object]) -> Tri:
        """Whether the value is one of ``values``."""
        options = tuple(values)
        return self.holds(lambda mine: mine in options)

    def map(self, function: Callable[[T], U]) -> Fact[U]:
        """The fact about ``function(value)``."""
        if self.values is None:
            return Fact(None, self.notes)
        results: list[U] = []
        for value in self.values:
            result = function(value)
            if result not in results:
                results.append(result)
        return Fact(tuple(results), self.notes)

    def __repr__(self) -> str:
        shown = "?" if self.values is None else "|".join(map(repr, self.values))
        return f"Fact({shown})"
