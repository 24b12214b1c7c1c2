"""A call of an operator, as rules see it: bound arguments and three-valued facts about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from .catalogue import Operator, Param
from .keys import origin
from .merging import REASON, merged
from .num import Num
from .paths import Assumptions, Cond, Facts, decide, extended
from .tri import NO, YES, Fact, Note, Place, Tri, tri, unknown
from .values import (
    ABSENT,
    NO_CONTENT,
    Absent,
    Choice,
    Const,
    Content,
    DType,
    Join,
    LengthForm,
    Number,
    Polarity,
    Sequence,
    Tensor,
    Triangle,
    Unknown,
    Value,
    is_none,
)

T = TypeVar("T")

# An argument that is a name or an attribute, with or without a keyword.
_NAMED = re.compile(r"(?:\w+ ?= ?)?(?:\w+\.)*(\w+)")

# Values with more alternatives than this count as unknown: the question costs too much.
MAX_ALTERNATIVES = 32
# What is put together to fewer alternatives is at most this many.
MAX_PARTS = 512


@dataclass(frozen=True, slots=True)
class Target:
    """The stack the code is meant for; None means any.

    Attributes:
        torch_npu: a torch_npu release such as "2.7.1.post2".
        cann: a CANN version such as "8.2.RC1".
        soc: "A2", "A3", "310P" or "950".
    """

    torch_npu: str | None = None
    cann: str | None = None
    soc: str | None = None

    def cann_at_least(self, version: str) -> Tri:
        """Whether the target's CANN is ``version`` or newer; unknown without a target."""
        if self.cann is None:
            return unknown("no CANN version is configured")
        return tri(_cann_key(self.cann) >= _cann_key(version))

    def soc_in(self, *socs: str) -> Tri:
        """Whether the target product is one of ``socs``; unknown without a target."""
        return unknown("no product is configured") if self.soc is None else tri(self.soc in socs)


def _cann_key(version: str) -> tuple[int, ...]:
    """Sort key of "8.2.RC1", "8.5.0", "8.1.RC1.alpha002": what leads to a release precedes it."""
    parts: list[int] = []
    for piece in version.upper().split("."):
        if piece.startswith("RC"):
            parts += [-1, int(piece[2:] or 0)]
        elif piece.startswith(("ALPHA", "BETA")):
            parts += [-2, 0]
        elif piece.isdigit():
            parts.append(int(piece))
    return (*parts, *[0] * (6 - len(parts)))


def leaves(value: Value, assumed: Assumptions) -> list[tuple[Assumptions, Value]]:
    """The alternatives of a value with the assumptions each one needs, in source order."""
    if not isinstance(value, Choice):
        return [(assumed, value)]
    result: list[tuple[Assumptions, Value]] = []
    stack: list[tuple[Assumptions, Value]] = [(assumed, value)]
    while stack:
        if len(result) + len(stack) > MAX_ALTERNATIVES:
            return [
                (
                    assumed,
                    Unknown(("many", id(value)), "value", REASON, place=value.place),
                )
            ]
        now, item = stack.pop()
        if isinstance(item, Choice):
            known = decide(item.cond, now)
            if known is not False:
                yes = now if known else extended(now, item.cond, True)
            if known is not True:
                no = now if known is False else extended(now, item.cond, False)
                if no is not None:
                    stack.append((no, item.no))
            if known is not False and yes is not None:
                stack.append((yes, item.yes))
        else:
            result.append((now, item))
    return result


def is_overflow(value: Value) -> bool:
    """Whether a value stands for more alternatives than are told apart."""
    return isinstance(value, Unknown) and isinstance(value.key, tuple) and value.key[:1] == ("many",)


def _all_parts(value: Value, assumed: Assumptions) -> tuple[Value, ...]:
    """Everything that a value can be, without telling which alternatives go together.

    Where that is too much, alternatives stand for several (:func:`~.merging.merged`).
    """
    overflow = (Unknown(("many", id(value)), "value", REASON, place=value.place),)
    found: list[Value] = []
    seen: set[int] = set()
    pending = [value]
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Choice):
            known = decide(item.cond, assumed)
            pending += [part for part, out in ((item.no, True), (item.yes, False)) if known is not out]
        elif isinstance(item, Join):
            pending.extend(item.options)
        elif item not in found or isinstance(item, (Tensor, Sequence)):
            found.append(item)
            if len(found) > MAX_PARTS:
                return overflow
    few = merged(found, MAX_ALTERNATIVES)
    return tuple(few) if few is not None else overflow


def local_part(world: Assumptions, base: Assumptions) -> Assumptions:
    """The assumptions without the tests of other methods, and their parts, that are not in ``base``."""
    if not any(cond.remote for cond in world):
        return world
    away = {part for cond in world if cond.remote for part, _ in ((cond, True), *cond.parts)}
    return Facts.of((cond, holds) for cond, holds in world.items() if cond not in away or cond in base)


class Arg:
    """One bound argument. Every question answers with a :class:`Tri` or a :class:`Fact`."""

    def __init__(self, call: Call, param: Param, value: Value, place: Place | None) -> None:
        self.call = call
        self.param = param
        self.value = value
        self.place = place

    @property
    def name(self) -> str:
        """Parameter name in the operator's schema."""
        return self.param.name

    @cached_property
    def written(self) -> str:
        """The variable or attribute that the call itself names; empty for any other expression."""
        text = getattr(self.place, "text", None)
        # The comma and a comment belong to the argument, too.
        plain = text().partition("#")[0].rstrip(" ,") if text is not None else ""
        found = _NAMED.fullmatch(plain)
        return found.group(1) if found else ""

    @cached_property
    def options(self) -> tuple[Value, ...]:
        """Every value the argument can have here, without choices."""
        found: list[Value] = []
        pending = [item for _, item in leaves(self.value, self.call.assumed)]
        while pending:
            item = pending.pop(0)
            if isinstance(item, Join):
                for option in item.options:
                    pending.extend(leaf for _, leaf in leaves(option, self.call.assumed))
                if len(pending) > MAX_ALTERNATIVES:
                    return _all_parts(self.value, self.call.assumed)
            elif is_overflow(item):
                return _all_parts(self.value, self.call.assumed)
            elif item not in found or isinstance(item, (Tensor, Sequence)):
                found.append(item)
        return tuple(found)

    @cached_property
    def alternatives(self) -> list[tuple[Assumptions, Value]]:
        """Every value the argument can have here, with the tests of this function that lead to it."""
        base = self.call.assumed
        found: list[tuple[Assumptions, Value]] = []
        pending = leaves(self.value, base)
        while pending:
            world, item = pending.pop(0)
            if isinstance(item, Join):
                pending.extend(leaf for option in item.options for leaf in leaves(option, world))
            if is_overflow(item) or len(pending) > MAX_ALTERNATIVES:
                # They are too many to tell which tests lead to each.
                return [(base, option) for option in self.options]
            if not isinstance(item, Join):
                found.append((local_part(world, base), item))
        return found

    def ask(self, question: Callable[[Value], Fact[T]]) -> Fact[T]:
        """Joins the answers about every alternative."""
        values: list[T] = []
        notes: list[Note] = []
        for option in self.options:
            fact = question(option)
            if fact.values is None:
                return Fact(None, fact.notes or (Note(f"{self.name} is not known", self.place),))
            for value in fact.values:
                if value not in values:
                    values.append(value)
            notes.extend(note for note in fact.notes if note not in notes)
        return Fact(tuple(values), tuple(notes))

    def test(self, question: Callable[[Value], Tri]) -> Tri:
        """Joins three-valued answers: known only when every alternative agrees."""
        states: set[bool] = set()
        notes: list[Note] = []
        for option in self.options:
            answer = question(option)
            if answer.state is None:
                return Tri(None, answer.notes or (Note(f"{self.name} is not known", self.place),))
            states.add(answer.state)
            notes.extend(note for note in answer.notes if note not in notes)
        if len(states) == 1:
            return Tri(states.pop(), tuple(notes))
        return Tri(None, (Note(f"{self.name} differs between paths", self.place),))

    @cached_property
    def given(self) -> Tri:
        """Whether the argument is passed at all (an explicit None counts as passed)."""
        if isinstance(self.value, Absent) and self.call.opaque is not None:
            return Tri(None, (self.call.opaque,))
        return self.test(lambda value: NO if isinstance(value, Absent) else YES)

    @cached_property
    def is_none(self) -> Tri:
        """Whether the operator sees None: passed as None, or left to a default of None."""

        def question(value: Value) -> Tri:
            if isinstance(value, Absent):
                if self.call.opaque is not None:
                    return Tri(None, (self.call.opaque,))
                return tri(self.param.default is None, Note(f"{self.name} is not passed", self.place))
            if isinstance(value, Const):
                return tri(value.value is None, Note(f"{self.name} is {value.value!r}", value.place))
            if isinstance(value, Unknown):
                if value.is_tensor:
                    return NO
                tested = decide(Cond("none", value.key), self.call.assumed)
                if tested is not None:
                    says = "is" if tested else "is not"
                    return tri(tested, Note(f"{value.label} {says} None on this path", value.place))
                return unknown(_why(value), value.place)
            return NO

        return self.test(question)

    @property
    def present(self) -> Tri:
        """Whether the operator gets something other than None."""
        return ~self.is_none

    @cached_property
    def meant(self) -> Tri:
        """Whether a value is passed, as the author means it: one that is passed on and not None here.

        Weaker than ``present``: a parameter that is None for other callers counts. Use it where the other
        arguments make no sense without the value.
        """

        def question(value: Value) -> Tri:
            if isinstance(value, Unknown):
                none = decide(Cond("none", value.key), self.call.assumed)
                falsy = decide(Cond("truth", value.key), self.call.assumed) is False
                return tri(not (none or falsy), Note(f"{self.name} is {value.label}", value.place))
            return tri(not (isinstance(value, Absent) or (isinstance(value, Const) and value.value is None)))

        return self.test(question) if self.call.opaque is None or self.given.yes else self.given

    @cached_property
    def constant(self) -> Fact[object]:
        """The Python constant the operator sees, the schema default when it is not passed."""

        def question(value: Value) -> Fact[object]:
            if isinstance(value, Absent):
                if self.call.opaque is not None:
                    return Fact(None, (self.call.opaque,))
                if self.param.required:
                    return Fact.unknown(f"{self.name} is not passed", self.place)
                return Fact.of(
                    self.param.default, Note(f"{self.name} defaults to {self.param.default!r}", self.place)
                )
            if isinstance(value, Const):
                return Fact.of(value.value, Note(f"{self.name} is {value.value!r}", value.place))
            if isinstance(value, Number) and value.num.const is not None:
                return Fact.of(value.num.const, Note(f"{self.name} is {value.num.label}", value.place))
            if isinstance(value, Unknown):
                for cond, holds in self.call.assumed.items():
                    if holds and cond.key == value.key and cond.kind in ("eq", "none"):
                        note = Note(f"{value.label} is {cond.const!r} on this path", value.place)
                        return Fact.of(cond.const, note)
            return Fact.unknown(_why(value), value.place)

        return self.ask(question)

    @cached_property
    def number(self) -> Fact[Num]:
        """The symbolic number the operator sees (default included)."""

        def question(value: Value) -> Fact[Num]:
            if isinstance(value, Number):
                return Fact.of(value.num, Note(f"{self.name} is {value.num.label}", value.place))
            if isinstance(value, Unknown):
                return Fact.of(
                    Num.atom(value.key, value.label, value.declared), Note(_why(value), value.place)
                )
            constant: object
            if isinstance(value, Absent) and not self.param.required and self.call.opaque is None:
                constant = self.param.default
            elif isinstance(value, Const):
                constant = value.value
            else:
                return Fact.unknown(_why(value), value.place)
            if isinstance(constant, (int, float)):
                try:
                    return Fact.of(
                        Num.of(constant), Note(f"{self.name} is {constant!r}", value.place or self.place)
                    )
                except ValueError:
                    pass
            return Fact.unknown(f"{self.name} is not a number", value.place)

        return self.ask(question)

    @cached_property
    def is_tensor(self) -> Tri:
        """Whether the argument is a tensor."""

        def question(value: Value) -> Tri:
            if isinstance(value, Tensor):
                return YES
            if isinstance(value, (Const, Number, Sequence, DType, Absent)):
                return NO
            if isinstance(value, Unknown) and value.is_tensor is not None:
                return tri(value.is_tensor)
            return unknown(_why(value), value.place)

        return self.test(question)

    @cached_property
    def is_sequence(self) -> Tri:
        """Whether the argument is a Python list or tuple."""

        def question(value: Value) -> Tri:
            if isinstance(value, Sequence):
                return tri(True, Note(f"{self.name} is a Python {value.kind}", value.place))
            if isinstance(value, Unknown):
                return NO if value.is_tensor else unknown(_why(value), value.place)
            return NO

        return self.test(question)

    @cached_property
    def dtype(self) -> Fact[str]:
        """The tensor's dtype by short name ("float16", "int32" ...)."""

        def question(value: Value) -> Fact[str]:
            if isinstance(value, Tensor) and value.dtypes is not None:
                shown = " or ".join(value.dtypes)
                return Fact(value.dtypes, (Note(f"{self.name} is {shown}", value.place),))
            return Fact.unknown(f"the dtype of {self.name} is not known: {_why(value)}", value.place)

        return self.ask(question)

    @cached_property
    def shape(self) -> Fact[tuple[Num | None, ...]]:
        """The tensor's symbolic shape."""

        def question(value: Value) -> Fact[tuple[Num | None, ...]]:
            if isinstance(value, Tensor) and value.shape is not None:
                shown = ", ".join("?" if dim is None else dim.label for dim in value.shape)
                return Fact.of(value.shape, Note(f"{self.name} has shape ({shown})", value.place))
            return Fact.unknown(f"the shape of {self.name} is not known: {_why(value)}", value.place)

        return self.ask(question)

    @property
    def rank(self) -> Fact[int]:
        """The tensor's number of axes."""
        return self.shape.map(len)

    def dim(self, axis: int) -> Fact[Num]:
        """The symbolic size of one axis (negative counts from the end)."""
        shapes = self.shape
        if shapes.values is None:
            return Fact(None, shapes.notes)
        sizes: list[Num] = []
        for shape in shapes.values:
            size = shape[axis] if -len(shape) <= axis < len(shape) else None
            if size is None:
                return Fact.unknown(f"axis {axis} of {self.name} is not known", self.place)
            if size not in sizes:
                sizes.append(size)
        return Fact(tuple(sizes), shapes.notes)

    @cached_property
    def content(self) -> Fact[Content]:
        """What is known of the elements. Fields that are None are unknown."""

        def question(value: Value) -> Fact[Content]:
            if isinstance(value, (Tensor, Sequence)) and value.content != NO_CONTENT:
                return Fact.of(value.content, Note(f"{self.name} is built here", value.place))
            return Fact.unknown(f"the content of {self.name} is not known: {_why(value)}", value.place)

        return self.ask(question)

    def _content(self, pick: Callable[[Content], T | None], what: str) -> Fact[T]:
        def question(value: Value) -> Fact[T]:
            if isinstance(value, (Tensor, Sequence)):
                found = pick(value.content)
                if found is not None:
                    return Fact.of(found, Note(f"{self.name}: {_shown(found)}", value.place))
            return Fact.unknown(f"{what} of {self.name} is not known: {_why(value)}", value.place)

        return self.ask(question)

    @property
    def triangle(self) -> Fact[Triangle]:
        """Where a triangular mask is non-zero."""
        return self._content(lambda content: content.triangle, "the form")

    @property
    def fill(self) -> Fact[bool | int | float]:
        """The one constant every element has."""
        return self._content(lambda content: content.fill, "the fill value")

    @property
    def polarity(self) -> Fact[Polarity]:
        """What a non-zero mask element means, where the construction tells it."""
        return self._content(lambda content: content.polarity, "the polarity")

    @property
    def length_form(self) -> Fact[LengthForm]:
        """Whether a length list is cumulative or per sequence."""
        found = self._content(lambda content: content.lengths, "the length convention")
        if found.values is None and len(self.options) == 1 and self.call.summed:
            value = self.options[0]
            if isinstance(value, (Unknown, Tensor, Sequence)) and origin(value.key) in self.call.summed:
                note = Note(
                    f"the running sum of {value.label} is worked out, so it holds lengths", value.place
                )
                return Fact.of(LengthForm.PER_SEQUENCE, note)
        return found

    @cached_property
    def integers(self) -> Fact[tuple[int, ...]]:
        """The elements of a literal integer list or tensor."""

        def question(value: Value) -> Fact[tuple[int, ...]]:
            if isinstance(value, Sequence) and value.items is not None:
                numbers = [item.value for item in value.items if isinstance(item, Const)]
                if len(numbers) == len(value.items) and all(type(n) is int for n in numbers):
                    return Fact.of(
                        tuple(n for n in numbers if isinstance(n, int)),
                        Note(f"{self.name} is {numbers}", value.place),
                    )
            if isinstance(value, Tensor) and value.content.values is not None:
                return Fact.of(
                    value.content.values, Note(f"{self.name} is {list(value.content.values)}", value.place)
                )
            return Fact.unknown(f"the elements of {self.name} are not known: {_why(value)}", value.place)

        return self.ask(question)

    @cached_property
    def length(self) -> Fact[Num]:
        """Number of elements of a list, or the size of a tensor's first axis."""

        def question(value: Value) -> Fact[Num]:
            if isinstance(value, Sequence):
                if value.items is not None:
                    return Fact.of(
                        Num.of(len(value.items)),
                        Note(f"{self.name} has {len(value.items)} entries", value.place),
                    )
                if value.length is not None:
                    return Fact.of(
                        value.length, Note(f"{self.name} has {value.length.label} entries", value.place)
                    )
            if isinstance(value, Tensor) and value.shape and value.shape[0] is not None:
                return Fact.of(
                    value.shape[0], Note(f"{self.name} has {value.shape[0].label} entries", value.place)
                )
            return Fact.unknown(
                f"the number of entries of {self.name} is not known: {_why(value)}", value.place
            )

        return self.ask(question)

    @cached_property
    def strided(self) -> Tri:
        """Whether the tensor is visibly not contiguous (a transposed or last-axis-sliced view)."""

        def question(value: Value) -> Tri:
            if isinstance(value, Tensor):
                why = value.out_of_order(self._is_one)
                if why is not None:
                    return tri(True, why)
                if value.contiguous:
                    return NO
            return unknown(f"the memory order of {self.name} is not known", value.place)

        return self.test(question)

    @cached_property
    def padding(self) -> Fact[Num]:
        """How many elements the last axis was padded by before the tensor got here."""

        def question(value: Value) -> Fact[Num]:
            if isinstance(value, Tensor) and value.padding is not None:
                return Fact.of(
                    value.padding,
                    Note(f"the last axis of {self.name} is padded by {value.padding.label}", value.place),
                )
            return Fact.unknown(f"whether {self.name} is padded is not known", value.place)

        return self.ask(question)

    @property
    def repeated(self) -> Fact[Hashable]:
        """By which counts the rows were repeated (``repeat_interleave``)."""
        return self._content(lambda content: content.repeated, "how often each row is repeated")

    @property
    def rows(self) -> Fact[Hashable]:
        """By which counts there are more rows than requests, whatever each row holds."""
        return self._content(lambda content: content.rows, "how many rows a request has")

    @cached_property
    def joined(self) -> Fact[tuple[int, int]]:
        """Axis and number of parts of a tensor that is a concatenation."""

        def question(value: Value) -> Fact[tuple[int, int]]:
            if isinstance(value, Tensor) and value.joined is not None:
                axis, parts = value.joined
                return Fact.of(
                    value.joined,
                    Note(f"{self.name} joins {parts} tensors along axis {axis}", value.place),
                )
            return Fact.unknown(f"whether {self.name} is a concatenation is not known", self.place)

        return self.ask(question)

    def _is_one(self, size: Num) -> bool:
        """Whether a size is 1 here, as a constant or by a test on this path."""
        if size.integer is not None:
            return size.integer == 1
        keys: list[Hashable] = [size] if size.single is None else [size, size.single.key]
        return any(decide(Cond("eq", key, 1), self.call.assumed) for key in keys)

    @cached_property
    def copied(self) -> Tri:
        """Whether the tensor is a copy of the caller's cache, so that an in-place write is lost."""

        def question(value: Value) -> Tri:
            if isinstance(value, Tensor):
                if value.copied is not None:
                    return tri(True, value.copied)
                if value.storage is not None:
                    return NO
            return unknown(f"where {self.name} lives is not known", value.place)

        return self.test(question)

    @cached_property
    def regrouped(self) -> Tri:
        """Whether a view moved an axis across another, so that rows mix what lay apart."""

        def question(value: Value) -> Tri:
            if isinstance(value, Tensor):
                return tri(True, value.regrouped) if value.regrouped is not None else NO
            return unknown(f"how {self.name} was viewed is not known", value.place)

        return self.test(question)

    @cached_property
    def misindexed(self) -> Tri:
        """Whether the value is taken from a list whose entries do not match the index."""

        def question(value: Value) -> Tri:
            if isinstance(value, Tensor):
                return tri(True, value.misindexed) if value.misindexed is not None else NO
            return unknown(f"where {self.name} comes from is not known", value.place)

        return self.test(question)

    @cached_property
    def storage(self) -> Fact[Hashable]:
        """Identity of the memory the tensor lives in; views share it."""

        def question(value: Value) -> Fact[Hashable]:
            if isinstance(value, Tensor) and value.storage is not None:
                return Fact.of(value.storage, Note(f"{self.name} lives in {value.label}", value.place))
            if isinstance(value, Unknown):
                return Fact.of(value.key, Note(f"{self.name} is {value.label}", value.place))
            if is_none(value) and len(self.options) > 1:
                # What starts as None lives where it is put later.
                return Fact((), ())
            return Fact.unknown(f"where {self.name} lives is not known", value.place)

        return self.ask(question)

    @cached_property
    def device(self) -> Fact[str]:
        """ "cpu" or "npu"."""

        def question(value: Value) -> Fact[str]:
            if isinstance(value, Tensor) and value.device is not None:
                return Fact.of(value.device, Note(f"{self.name} is on {value.device}", value.place))
            return Fact.unknown(f"the device of {self.name} is not known: {_why(value)}", value.place)

        return self.ask(question)

    @cached_property
    def fault(self) -> Tri:
        """Whether building the value raises before the operator runs."""

        def question(value: Value) -> Tri:
            if isinstance(value, Tensor):
                return tri(True, value.fault) if value.fault is not None else NO
            return NO

        return self.test(question)

    @cached_property
    def identity(self) -> Fact[Hashable]:
        """Equal identities mean equal run-time values."""

        def question(value: Value) -> Fact[Hashable]:
            if isinstance(value, (Unknown, Tensor)) or (
                isinstance(value, Sequence) and value.key is not None
            ):
                return Fact.of(value.key, Note(f"{self.name} is {value.label}", value.place))
            if isinstance(value, Const):
                return Fact.of(("const", value.value))
            return Fact.unknown(f"the identity of {self.name} is not known", value.place)

        return self.ask(question)

    def same_as(self, other: Arg) -> Tri:
        """Yes when both arguments certainly are the same value; unknown otherwise."""
        mine, theirs = self.identity, other.identity
        if mine.known and theirs.known and mine.value == theirs.value:
            return tri(True, *mine.notes)
        return unknown(f"whether {self.name} and {other.name} are the same value is not known")


def _why(value: Value) -> str:
    if isinstance(value, Unknown):
        return f"{value.label}: {value.reason}"
    if isinstance(value, Tensor):
        return f"{value.label}: {value.reason or 'its construction does not tell'}"
    if isinstance(value, (Const, DType, Number)):
        return "it is no tensor"
    return "its construction does not tell"


def _shown(value: object) -> str:
    if isinstance(value, (LengthForm, Polarity)):
        return str(value.value)
    if isinstance(value, Triangle):
        sign = ">=" if value.upper else "<="
        return f"non-zero where column - row {sign} {value.diagonal.label}"
    return repr(value)


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword the schema does not have; ``value`` tells on which paths it is passed."""

    name: str
    certain: bool
    place: Place | None
    value: Value = ABSENT


@dataclass(frozen=True, slots=True)
class View:
    """A method of a result, or what it is computed with.

    Attributes:
        index: which result.
        method: name of the method, of the function or layer that gets it, or an operator such as ``+``.
        sizes: the numbers it is called with; None for one that is not visible, or when none is.
        place: where.
    """

    index: int
    method: str
    sizes: tuple[Num | None, ...] | None
    place: Place


@dataclass(frozen=True, slots=True)
class Use:
    """What the code does with the result of a call. Fields that are None are not known.

    Attributes:
        kept: where it is stored in an attribute that is read elsewhere.
        dropped: True when the result is thrown away (the call is a statement of its own).
        unpacked: number of names the result is unpacked into, when it is unpacked right there and no
            name is starred.
        read: where each element is read first, by position, for a result that is unpacked or indexed
            and whose elements can be followed; an element that is never read is missing.
        whole: where the result itself is used as one tensor (``op(...).view(...)``, ``op(...) + x``).
        touched: where an element is first computed with (method, index, arithmetic, argument of a torch
            function or of a layer), by position, here or in a caller. One that is only returned or passed on
            is missing, and so is one that is used under a test that does not decide about the call itself.
        views: the methods of elements, where they are reached whenever the call is.
        operands: the arithmetic, library functions and ``torch.nn`` layers that get elements as they are.
    """

    dropped: bool | None = None
    kept: Place | None = None
    unpacked: int | None = None
    read: Mapping[int, Place] | None = None
    whole: Place | None = None
    touched: Mapping[int, Place] = field(default_factory=dict)
    views: tuple[View, ...] = ()
    operands: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """How the arguments met the schema.

    Attributes:
        values: schema parameter name -> value (``ABSENT`` when not passed).
        places: schema parameter name -> place of the argument.
        unexpected: keywords that are not in the schema.
        surplus: number of positional arguments past what the schema takes.
        duplicate: parameters passed twice.
        opaque: why the arguments are not all visible (``**kwargs`` of a caller), or None.
    """

    values: Mapping[str, Value]
    places: Mapping[str, Place | None]
    unexpected: tuple[Keyword, ...] = ()
    surplus: int = 0
    duplicate: tuple[str, ...] = ()
    opaque: Note | None = None


def bind(
    operator: Operator,
    positional: SequenceABC[tuple[Value, Place | None]],
    keywords: Mapping[str, tuple[Value, Place | None]],
    opaque: Note | None = None,
) -> Binding:
    """Binds arguments to the schema the way the dispatcher does, noting every misfit."""
    values: dict[str, Value] = {param.name: ABSENT for param in operator.params}
    places: dict[str, Place | None] = {}
    slots = [param for param in operator.params if param.position is not None]
    slots.sort(key=lambda param: param.position or 0)
    for param, (value, place) in zip(slots, positional, strict=False):
        values[param.name] = value
        places[param.name] = place
    filled = {param.name for param in slots[: len(positional)]}
    unexpected: list[Keyword] = []
    duplicate: list[str] = []
    for name, (value, place) in keywords.items():
        options = [item for _, item in leaves(value, {})]
        passed = [item for item in options if not isinstance(item, Absent)]
        if not passed:
            continue
        if name not in values:
            unexpected.append(Keyword(name, len(passed) == len(options), place, value))
            continue
        if name in filled:
            duplicate.append(name)
            continue
        values[name] = value
        places[name] = place
    surplus = max(0, len(positional) - len(slots))
    return Binding(values, places, tuple(unexpected), surplus, tuple(duplicate), opaque)


def _never() -> bool:
    return False


@dataclass
class Call:
    """One operator call under a set of path assumptions.

    ``arg(role)`` gives the argument that plays a role, whatever this operator calls it; for an
    operator without the role it is an argument that is absent with a default of None. ``trail`` tells
    through which calls the function was entered, when the arguments come from a known caller; ``path`` are
    the tests passed on the way to the call. ``earlier`` and ``later`` are the cache writers that run before
    and after it in the same function or in what that calls, whenever the call itself runs. ``covered`` tells
    whether every caller of the function is visible and judged, so that their contexts stand for this one.
    ``summed`` are the origins of the lists and tensors that a running sum is taken of, ``rewritten`` of those
    whose entries are replaced in place, ``grown`` is the memory of buffers that are filled row by row.
    """

    operator: Operator
    binding: Binding
    target: Target
    place: Place | None
    assumed: Assumptions = field(default_factory=Facts)
    scope: Scope | None = None
    use: Use = Use()
    trail: tuple[Note, ...] = ()
    path: tuple[tuple[Cond, bool], ...] = ()
    earlier: tuple[Call, ...] = field(default=(), repr=False)
    later: tuple[Call, ...] = field(default=(), repr=False)
    summed: frozenset[Hashable] = field(default=frozenset(), repr=False)
    rewritten: frozenset[Hashable] = field(default=frozenset(), repr=False)
    grown: frozenset[Hashable] = field(default=frozenset(), repr=False)
    covered: Callable[[], bool] = field(default=_never, repr=False)
    _args: dict[str, Arg] = field(default_factory=dict, repr=False)

    @property
    def opaque(self) -> Note | None:
        """Why not all arguments are visible, or None."""
        return self.binding.opaque

    def under(self, assumed: Assumptions) -> Call:
        """The same call under more assumptions."""
        return Call(
            self.operator,
            self.binding,
            self.target,
            self.place,
            assumed,
            self.scope,
            self.use,
            self.trail,
            earlier=self.earlier,
            later=self.later,
        )

    def with_values(self, values: Mapping[str, Value], assumed: Assumptions | None = None) -> Call:
        """The same call with other values for some parameters, under more assumptions."""
        binding = replace(self.binding, values={**self.binding.values, **values}) if values else self.binding
        return Call(
            self.operator,
            binding,
            self.target,
            self.place,
            self.assumed if assumed is None else assumed,
            self.scope,
            self.use,
            self.trail,
            self.path,
            self.earlier,
            self.later,
            summed=self.summed,
            rewritten=self.rewritten,
            grown=self.grown,
        )

    def asked(self) -> Iterator[Arg]:
        """The arguments that were asked for so far."""
        yield from {arg.name: arg for arg in self._args.values()}.values()

    def has(self, role: str) -> bool:
        """Whether this operator has a parameter with the role."""
        return self.operator.by_role(role) is not None

    def named(self, name: str) -> Arg:
        """The argument of the schema parameter ``name``."""
        return self._bound(self.operator.param(name), name)

    def arg(self, role: str) -> Arg:
        """The argument with the role."""
        return self._bound(self.operator.by_role(role), role)

    def _bound(self, param: Param | None, name: str) -> Arg:
        found = self._args.get(name)
        if found is None:
            if param is None:
                param = Param(name, "", None, False, None, None, False)
            value = self.binding.values.get(param.name, ABSENT)
            found = Arg(self, param, value, self.binding.places.get(param.name) or self.place)
            self._args[name] = found
        return found

    def args(self) -> Iterator[Arg]:
        """Every argument that is passed on some path, in schema order."""
        for param in self.operator.params:
            if not isinstance(self.binding.values[param.name], Absent):
                yield self.named(param.name)

    # Facts that many rules share.

    @cached_property
    def layout(self) -> Fact[str]:
        """The ``input_layout`` string."""
        return self.arg("layout").constant.map(str)

    @cached_property
    def query_layout(self) -> Fact[str]:
        """The part of the layout that describes query (and unpaged key and value), contract 1.4."""
        return self.layout.map(lambda text: text.split("_")[0])

    @cached_property
    def packed(self) -> Tri:
        """Whether the layout packs all tokens on one axis (the TND and NTD family)."""
        return self.query_layout.among(("TND", "NTD"))

    @cached_property
    def paged(self) -> Tri:
        """Whether a block table is given."""
        return self.arg("block_table").present

    @cached_property
    def rope(self) -> Tri:
        """Whether the rope parts are passed separately (MLA)."""
        return self.arg("query_rope").present | self.arg("key_rope").present

    @cached_property
    def heads(self) -> Fact[Num]:
        """Number of query heads the operator is told."""
        return self.arg("q_heads").number

    @cached_property
    def kv_heads(self) -> Fact[Num]:
        """Number of KV heads the operator uses: 0 means the number of query heads."""
        given = self.arg("kv_heads").number
        if given.known and given.value.integer == 0:
            return self.heads
        return given

    def _axis(self, arg: Arg, letters: Mapping[str, int]) -> Fact[Num]:
        layout = self.query_layout
        if not layout.known:
            return Fact(None, layout.notes)
        axis = letters.get(layout.value)
        if axis is None:
            return Fact.unknown(f"layout {layout.value} has no such axis", self.place)
        return arg.dim(axis)

    @cached_property
    def query_heads_axis(self) -> Fact[Num]:
        """Size of the head axis of query, for layouts that have one."""
        return self._axis(self.arg("query"), {"BNSD": 1, "BSND": 2, "TND": 1, "NTD": 0, "NSD": 0})

    @cached_property
    def key_heads_axis(self) -> Fact[Num]:
        """Size of the head axis of an unpaged key, for layouts that have one."""
        return self._axis(self.arg("key"), {"BNSD": 1, "BSND": 2, "TND": 1, "NTD": 0, "NSD": 0})

    @cached_property
    def query_length(self) -> Fact[Num]:
        """S1, the size of the sequence axis of query (T for packed layouts)."""
        return self._axis(
            self.arg("query"), {"BSH": 1, "BSND": 1, "BNSD": 2, "TND": 0, "NTD": 1, "NSD": 1, "SBH": 0}
        )

    @cached_property
    def key_length(self) -> Fact[Num]:
        """S2, the size of the sequence axis of an unpaged key."""
        return self._axis(
            self.arg("key"), {"BSH": 1, "BSND": 1, "BNSD": 2, "TND": 0, "NTD": 1, "NSD": 1, "SBH": 0}
        )

    @cached_property
    def batch(self) -> Fact[Num]:
        """Size of the batch axis of query (packed layouts have none)."""
        return self._axis(self.arg("query"), {"BSH": 0, "BSND": 0, "BNSD": 0, "SBH": 1})

    @cached_property
    def head_dim(self) -> Fact[Num]:
        """D of query: the last axis, divided by the head count for BSH and SBH."""
        query = self.arg("query").dim(-1)
        layout = self.query_layout
        if not layout.known:
            return Fact(None, layout.notes)
        if layout.value not in ("BSH", "SBH"):
            return query
        heads = self.heads
        if not (query.known and heads.known):
            return Fact(None, query.notes if not query.known else heads.notes)
        quotient = query.value.divide(heads.value)
        if quotient is None:
            return Fact.unknown("the head count is 0", self.place)
        return Fact.of(quotient, *query.notes)

    @cached_property
    def single_token(self) -> Tri:
        """Whether S1 is 1 in a layout with a batch axis (the decode form of contract 1.6)."""
        if self.packed.yes:
            return NO
        return (
            self.query_length.holds(lambda size: size.integer == 1)
            if _constant(self.query_length)
            else unknown("the query length is not known", self.place)
        )

    @cached_property
    def absorbed(self) -> Tri:
        """Whether this is absorbed MLA: rope parts and head dim 512 (contract 1.6, F04)."""
        if self.rope.no:
            return NO
        dim = self.head_dim
        if _constant(dim):
            return self.rope & dim.holds(lambda size: size.integer == 512)
        return self.rope & unknown("the head dim is not known", self.place)

    @cached_property
    def decode_engine(self) -> Tri:
        """Whether the decode engine serves the call (contract 1.6)."""
        layout = self.layout
        if layout.known:
            if layout.value in ("BNSD_BSND", "NSD", "NTD", "NTD_TND", "BSH_BNSD", "BSND_BNSD"):
                return NO
            if layout.value in ("TND", "TND_NTD"):
                return self.absorbed | self._int8_with_merged_scale
        five_axes = self.paged & self.arg("key").rank.equals(5)
        up_to_16 = (
            self.query_length.holds(lambda size: size.integer is not None and size.integer <= 16)
            if _constant(self.query_length)
            else unknown("the query length is not known", self.place)
        )
        several = (self.absorbed | five_axes) & up_to_16
        band = self.absorbed & self.arg("sparse_mode").constant.equals(4)
        return ~self.packed & (self.single_token | several | band)

    @property
    def _int8_with_merged_scale(self) -> Tri:
        """Whether a paged int8 cache comes with a float32 scale and offset for key and value together."""
        scale, offset = self.arg("merged_quant_scale"), self.arg("merged_quant_offset")
        given = self.paged & scale.present & offset.present
        if given.no:
            return NO
        return given & self.arg("key").dtype.equals("int8") & scale.dtype.equals("float32")

    @property
    def prefill_engine(self) -> Tri:
        """Whether the prefill engine serves the call (contract 1.6)."""
        return ~self.decode_engine


def _constant(fact: Fact[Num]) -> bool:
    return fact.values is not None and all(value.integer is not None for value in fact.values)


@dataclass(frozen=True, slots=True)
class Event:
    """Something the code around the calls does that a lifecycle rule judges.

    ``kind`` names what was seen; ``detail`` carries what the rule needs to explain it.
    """

    kind: str
    place: Place
    detail: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Scope:
    """A function or method that contains operator calls, with the calls in source order.

    ``peers`` are the calls of the whole class (of the function itself outside a class), in source order:
    writers and readers of one cache are usually different methods of one class.
    """

    name: str
    calls: tuple[Call, ...]
    events: tuple[Event, ...]
    place: Place | None = None
    peers: tuple[Call, ...] = ()


__all__ = ["Arg", "Binding", "Call", "Cond", "Event", "Keyword", "Scope", "Target", "Use", "bind", "leaves"]
