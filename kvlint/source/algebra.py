"""Operations on abstract values that need no evaluation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import libcst as cst

from kvlint.contract.merging import REASON, merged, serial
from kvlint.contract.num import MAX_BASE, Atom, Num
from kvlint.contract.paths import Assumptions, Cond, decide, negated
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    Absent,
    Choice,
    Const,
    Content,
    DType,
    Join,
    LengthForm,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
    is_none,
)

from .chunk import Site
from .objects import (
    Bound,
    Deferred,
    Frozen,
    Instance,
    MapValue,
    Method,
    Namespace,
    OpRef,
    Ref,
)
from .state import (
    Frame,
)
from .syntax import (
    text_of,
)
from .torchlib import (
    key_of,
    label_of,
    number_of,
)

# Nobody asks about a value with more alternatives than this, and they are costly to carry along.
MAX_SIZE = 64
# How many options a value has that may be one of many, and how many it may be one of.
MAX_OPTIONS = 8
MAX_PARTS = 256
_NOTHING: Assumptions = {}


def choose(cond: Cond | None, yes: Value, no: Value) -> Value:
    """``yes if cond else no``, without a choice when both are the same."""
    if same(yes, no) or cond is None:
        return yes if cond is not None or same(yes, no) else joined(yes, no)
    made = Choice(cond, yes, no, place=yes.place)
    return made if made.size <= MAX_SIZE else widened([made])


def joined(a: Value, b: Value) -> Value:
    """Either of two values, for no visible reason."""
    if same(a, b):
        return a
    options: list[Value] = []
    for value in (a, b):
        for option in value.options if isinstance(value, Join) else (value,):
            if not any(same(option, seen) for seen in options):
                options.append(option)
    blurred = any(isinstance(value, Join) and value.ident is not None for value in (a, b))
    if blurred or len(options) > MAX_OPTIONS:
        return widened(options)
    return Join(tuple(options))


def widened(values: list[Value]) -> Value:
    """One of several values with few options: the tests that tell them apart are given up."""
    few = few_options(values)
    if few is None:
        first = values[0]
        return Unknown(("many", serial()), label_of(first), REASON, place=first.place)
    return few[0] if len(few) == 1 else Join(tuple(few), serial(), place=values[0].place)


def few_options(values: list[Value], most: int = MAX_OPTIONS) -> list[Value] | None:
    """The alternatives of values, or what stands for several of them; None where that is not possible."""
    options = all_options(values)
    return fewer(options, most) if options is not None else None


def all_options(values: list[Value], assumed: Assumptions = _NOTHING) -> list[Value] | None:
    """The alternatives of values, each once; None when they are too many."""
    options: list[Value] = []
    seen: set[int] = set()
    pending = list(reversed(values))
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if len(seen) > MAX_PARTS:
            return None
        if isinstance(item, Choice):
            known = decide(item.cond, assumed) if assumed else None
            pending += [arm for arm, out in ((item.no, True), (item.yes, False)) if known is not out]
        elif isinstance(item, Join):
            pending.extend(reversed(item.options))
        elif isinstance(item, Deferred) and item.memo:
            pending.append(item.memo[0])
        elif not any(same(item, option) for option in options):
            options.append(item)
    return options


def fewer(options: list[Value], most: int) -> list[Value] | None:
    """At most so many values that stand for the options; None where that is not possible."""
    if len(options) <= most:
        return options
    methods = [option for option in options if isinstance(option, Method)]
    if len(methods) == len(options) and len({method.name for method in methods}) == 1:
        receivers = few_options([method.receiver for method in methods], most)
        return [replace(methods[0], receiver=r) for r in receivers] if receivers is not None else None
    few = merged(options, most)
    return [_blurred(option, options) for option in few] if few is not None else None


def _blurred(option: Value, parts: list[Value]) -> Value:
    """A value that stands for several: a write to one of them does not show in its elements."""
    if isinstance(option, (Tensor, Sequence)) and not any(option is part for part in parts):
        return replace(option, content=Content(lengths=option.content.lengths))
    return option


def same(a: Value, b: Value) -> bool:
    """Whether two abstract values are certainly the same run-time value."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Const) and isinstance(b, Const):
        return type(a.value) is type(b.value) and a.value == b.value
    if isinstance(a, (Unknown, Number, DType, Namespace, OpRef, Ref, Absent, Instance)):
        return a == b
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (
            a.key == b.key
            and a.dtypes == b.dtypes
            and a.shape == b.shape
            and a.content == b.content
            and (a.strided is None) == (b.strided is None)
        )
    if isinstance(a, Choice) and isinstance(b, Choice):
        return a.cond == b.cond and same(a.yes, b.yes) and same(a.no, b.no)
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        if a.items is not None and b.items is not None:
            return len(a.items) == len(b.items) and all(
                same(x, y) for x, y in zip(a.items, b.items, strict=True)
            )
        return a.key is not None and a.key == b.key
    if isinstance(a, Bound) and isinstance(b, Bound):
        return a.func is b.func and same(a.receiver, b.receiver)
    return False


def one_of(options: list[Value], fallback: Value) -> Value:
    if not options:
        return fallback
    result = options[0]
    for option in options[1:]:
        result = joined(result, option)
    return result


def substituted(value: Value, key: Hashable, own: Value) -> Value:
    """The value with another one where it is unknown by ``key``."""
    if isinstance(value, Unknown) and value.key is key:
        return own
    if isinstance(value, Choice):
        return replace(value, yes=substituted(value.yes, key, own), no=substituted(value.no, key, own))
    if isinstance(value, Join):
        return one_of([substituted(option, key, own) for option in value.options], own)
    return value


def is_counter(options: list[Value], key: Hashable) -> bool:
    """Whether an attribute starts as an integer and is counted up or down, by what every method sets."""
    steps = [option.num - Num.atom(key, "") for option in options if isinstance(option, Number)]
    starts = [option for option in options if isinstance(option, Const) and type(option.value) is int]
    if not steps or not starts or len(steps) + len(starts) < len(options):
        return False
    return all(step.integer is not None or all(map(_is_size, step.atoms())) for step in steps)


def _is_size(atom: Atom) -> bool:
    """Whether a number is the size of an axis or the length of a list."""
    return isinstance(atom.key, tuple) and atom.key[:1] in (("dim",), ("len",))


def without_none(value: Value) -> Value:
    """The alternatives that have attributes or items; the value itself when none has."""
    if isinstance(value, Choice):
        yes, no = without_none(value.yes), without_none(value.no)
        if is_none(yes):
            return no
        if is_none(no):
            return yes
        return value if yes is value.yes and no is value.no else replace(value, yes=yes, no=no)
    if isinstance(value, Join):
        rest = tuple(o for o in value.options if not is_none(o))
        if 0 < len(rest) < len(value.options):
            return rest[0] if len(rest) == 1 else replace(value, options=rest)
    return value


def unbound(name: str) -> Unknown:
    """What a variable is on a path that does not set it."""
    return Unknown(("unbound", name), name, "it is not set on every path")


def bound(value: Value) -> Value:
    """The alternatives that a variable can have where it is read: without one the read itself raises."""
    if isinstance(value, Choice):
        yes, no = bound(value.yes), bound(value.no)
        if _is_unbound(yes):
            return no
        if _is_unbound(no):
            return yes
        return value if yes is value.yes and no is value.no else replace(value, yes=yes, no=no)
    if isinstance(value, Join):
        read = [bound(option) for option in value.options]
        rest = tuple(option for option in read if not _is_unbound(option))
        changed = any(a is not b for a, b in zip(read, value.options, strict=True))
        if rest and (changed or len(rest) < len(read)):
            return rest[0] if len(rest) == 1 else replace(value, options=rest)
    return value


def _is_unbound(value: Value) -> bool:
    return isinstance(value, Unknown) and isinstance(value.key, tuple) and value.key[:1] == ("unbound",)


def plain_leaves(value: Value) -> list[Value]:
    result: list[Value] = []
    pending = [value]
    while pending and len(result) < 64:
        item = pending.pop()
        if isinstance(item, Choice):
            pending.extend((item.no, item.yes))
        elif isinstance(item, Join):
            pending.extend(item.options)
        elif isinstance(item, Deferred) and item.memo:
            pending.append(item.memo[0])
        else:
            result.append(item)
    return result


def kept(value: Value) -> Value:
    """A value that an object holds: its memory is not fresh, a write to a copy of it is lost."""
    if isinstance(value, Tensor) and isinstance(value.storage, tuple) and value.storage[:1] == ("fresh",):
        return replace(value, storage=("kept", value.storage), copied=None)
    if isinstance(value, Sequence):
        items = tuple(kept(item) for item in value.items) if value.items is not None else None
        return replace(value, items=items, element=kept(value.element) if value.element is not None else None)
    return value


def weakened(value: Value) -> Value:
    """A value whose object other code changes in place: what it holds is not known."""
    if isinstance(value, Tensor):
        return replace(value, content=Content(), key=("changed", value.key))
    if isinstance(value, Choice):
        return Choice(value.cond, weakened(value.yes), weakened(value.no), place=value.place)
    if isinstance(value, Join):
        return replace(value, options=tuple(weakened(option) for option in value.options))
    if isinstance(value, Frozen):
        return Frozen(weakened(value.content), value.heap, place=value.place)
    if isinstance(value, MapValue):
        note = "other code changes the dict"
        entries: dict[Hashable, Value] = {
            key: Unknown(("changed", key_of(entry)), str(key), note) for key, entry in value.entries.items()
        }
        return MapValue(entries, value.open or Note(note))
    if isinstance(value, Sequence):
        return Sequence(
            None, value.kind, key=("changed", key_of(value)), label=value.label, place=value.place
        )
    return value


def is_open(value: Value) -> bool:
    """Whether a value without alternatives could be known better."""
    if isinstance(value, Tensor):
        return value.dtypes is None
    return isinstance(value, Unknown) or (isinstance(value, Number) and value.num.const is None)


def is_numeric(value: Value) -> bool:
    """Whether a value is a number, which differs between configurations."""
    return isinstance(value, Number) or (isinstance(value, Const) and type(value.value) in (int, float))


def is_kept(value: Tensor) -> bool:
    """Whether the memory belongs to a buffer that some object keeps."""
    return isinstance(value.storage, tuple) and value.storage[:1] == ("kept",)


def is_hidden(value: Value) -> bool:
    """Whether an argument stands for an unpacking of unknown length."""
    return isinstance(value, Sequence) and isinstance(value.key, tuple) and value.key[:1] == ("star",)


def conjunction(path: tuple[tuple[Cond, bool], ...]) -> Cond | None:
    if not path:
        return None
    label = " and ".join(c.label if holds else negated(c.label) for c, holds in path if c.label)
    return Cond("all", path, label=label, place=path[-1][0].place)


def conjoined(parts: tuple[tuple[Cond, bool], ...], node: cst.CSTNode, frame: Frame) -> tuple[Cond, bool]:
    return Cond("all", parts, label=text_of(node), place=Site(frame.chunk, node)), True


def positive(text: str, negative: bool) -> str:
    return negated(text) if negative else text


def labelled(value: Value, name: str) -> Value:
    if isinstance(value, Tensor) and ("(" in value.label or value.label in ("tensor",)):
        return replace(value, label=name)
    if isinstance(value, Sequence) and value.label == "list":
        return replace(value, label=name)
    return value


def placed(value: Value, site: Site) -> Value:
    return replace(value, place=site) if value.place is None else value


def indexed(value: Value, index: Hashable) -> Value:
    """An entry of a list, by the element that stands for all: another index may be another value."""
    if isinstance(value, Tensor) or (isinstance(value, Unknown) and varies(value.key)):
        return replace(value, key=("at", index, value.key))
    if isinstance(value, Number) and any(varies(atom.key) for atom in value.num.atoms()):
        entry = Num.atom(("at", index, value.num), f"{value.num.label} of an entry")
        return Number(entry, value.whole, place=value.place)
    return value


def varies(key: Hashable) -> bool:
    """Whether an identity stands for another value in each round of a loop."""
    pending, seen = [key], set()
    while pending:
        part = pending.pop()
        if isinstance(part, Num):
            pending.extend(atom.key for atom in part.atoms())
        elif isinstance(part, tuple) and id(part) not in seen:
            seen.add(id(part))
            if part and part[0] in ("each", "range", "index", "loop", "running-sum"):
                return True
            pending.extend(part)
    return False


def is_running(value: Value) -> bool:
    if isinstance(value, Number):
        return any(
            isinstance(atom.key, tuple) and atom.key[:1] == ("running-sum",) for atom in value.num.atoms()
        )
    return False


def form_of(element: Value) -> LengthForm | None:
    """How a list of lengths counts, by the element that stands for all."""
    if is_running(element):
        return LengthForm.CUMULATIVE
    if isinstance(element, Tensor):
        key = element.key
        steps = isinstance(key, tuple) and len(key) == 3 and key[0] == "-" and follows(key[1], key[2])
        return LengthForm.PER_SEQUENCE if steps else None
    if not isinstance(element, Number):
        return None
    atom = element.num.single
    if atom is not None:
        key = atom.key
        # The number of rows of each item, or its length.
        sized = isinstance(key, tuple) and (key[:1] == ("len",) or (key[:1] == ("dim",) and key[2:] == (0,)))
        return LengthForm.PER_SEQUENCE if sized and each_of(key[1]) is not None else None  # type: ignore[index]
    if len(element.num.terms) == 2 and set(element.num.terms.values()) == {1, -1}:
        parts = {c: Num({m: Fraction(1)}).single for m, c in element.num.terms.items()}
        above, below = parts[Fraction(1)], parts[Fraction(-1)]
        if above is not None and below is not None and follows(above.key, below.key):
            return LengthForm.PER_SEQUENCE
    return None


def each_of(key: Hashable) -> tuple[Hashable, Hashable] | None:
    """What a loop takes an item of, and which loop."""
    if isinstance(key, tuple) and key[:1] == ("each",) and len(key) == 3:
        return key[1], key[2]
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], tuple) and key[0][:2] == ("select", 0):
        index = key[0][2]
        if isinstance(index, tuple) and index[:1] == ("each",):
            return key[1], index[1]
    return None


def follows(above: Hashable, below: Hashable) -> bool:
    """``x[i + 1]`` and ``x[i]``, or what one loop takes from ``x[1:]`` and from ``x`` or ``x[:-1]``."""
    high, low = each_of(above), each_of(below)
    if high is not None and low is not None:
        return are_neighbours(high[0], low[0]) or high[0] == ("item", low[0], BUT_FIRST)
    if not (isinstance(above, tuple) and isinstance(below, tuple) and len(above) == len(below) == 3):
        return False
    if not (above[0] == below[0] == "item" and above[1] == below[1]):
        return False
    after, before = above[2], below[2]
    return isinstance(after, Num) and isinstance(before, Num) and (after - before).const == 1


BUT_FIRST = ("slice", ("const", "int", 1), None, None)
BUT_LAST = ("slice", None, ("const", "int", -1), None)


def is_running_sum(old: Value, new: Value) -> bool:
    """``total += n`` in a loop: the new value is the old one plus something that varies."""
    if not isinstance(new, (Const, Number)):
        return False
    a, b = number_of(old), number_of(new)
    if a is None or b is None:
        return False
    step = b - a
    return step.const is None and bool(step.atoms())


def are_neighbours(a: Hashable, b: Hashable) -> bool:
    """``x[1:]`` and ``x[:-1]``: their difference is the length of each piece."""
    if not (
        isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) == 3 and a[0] == b[0] == "item"
    ):
        return False
    return bool(a[1] == b[1] and a[2] == BUT_FIRST and b[2] == BUT_LAST)


def list_content(items: list[Value] | None) -> Content:
    if items and all(isinstance(i, Const) and type(i.value) is int for i in items):
        return Content(
            values=tuple(i.value for i in items if isinstance(i, Const) and isinstance(i.value, int))
        )
    if items and all(is_running(i) for i in items):
        return Content(lengths=LengthForm.CUMULATIVE)
    return Content()


def slice_size(size: Num | None, lower: Value | None, upper: Value | None, step: Value | None) -> Num | None:
    if step is not None:
        return None
    low = Num.of(0) if lower is None else number_of(lower)
    if upper is None:
        if size is None or low is None:
            return None
        const = low.integer
        if const is not None and const < 0:
            return Num.of(-const)
        return size - low
    high = number_of(upper)
    if high is None or low is None:
        return None
    if high.integer is not None and high.integer < 0:
        return size + high - low if size is not None else None
    return high - low


def calculate(x: Num, operator: str, y: Num) -> Num | None:
    if operator == "+":
        return x + y
    if operator == "-":
        return x - y
    if operator == "*":
        return x * y
    if operator in ("/", "//"):
        a, b = x.integer, y.integer
        if a is not None and b:
            return Num.of(a // b if operator == "//" else a / b)
        return x.divide(y)
    if operator == "**":
        exponent = y.const
        return x.power(exponent) if exponent is not None else None
    if operator == "%":
        a, b = x.integer, y.integer
        if a is not None and b:
            return Num.of(a % b)
        return Num.atom(("mod", x, y), f"({x.label} % {y.label})")
    return None


def fold(a: Any, operator: str, b: Any) -> Any:
    if any(isinstance(x, int) and abs(x) > MAX_BASE for x in (a, b)):
        return None
    if operator in ("*", "%") and any(isinstance(x, (str, bytes)) for x in (a, b)):
        # Repeating or formatting text can take any amount of memory.
        return None
    try:
        if operator == "+":
            return a + b
        if operator == "-":
            return a - b
        if operator == "*":
            result = a * b
            return None if isinstance(result, (str, bytes)) and len(result) > 10_000 else result
        if operator == "/":
            return a / b
        if operator == "//":
            return a // b
        if operator == "%":
            return a % b
        if operator == "**":
            if isinstance(a, int) and isinstance(b, int) and abs(b) > 256:
                return None
            result = a**b
            return None if isinstance(result, complex) else result
        if operator == "|":
            return a | b
        if operator == "&":
            return a & b
        if operator == "<<":
            return a << b if 0 <= b < 256 else None
        if operator == ">>":
            return a >> b
        if operator == "<":
            return bool(a < b)
        if operator == "<=":
            return bool(a <= b)
        if operator == ">":
            return bool(a > b)
        if operator == ">=":
            return bool(a >= b)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return None


def with_entries(entries: Mapping[Hashable, Value], more: Mapping[str, Value]) -> dict[Hashable, Value]:
    """The entries of a dict with keyword arguments added."""
    result: dict[Hashable, Value] = dict(entries)
    result.update(more)
    return result


def is_hashable(value: object) -> bool:
    return isinstance(value, (str, int, float, bool, bytes, tuple, type(None)))


def may_be_absent(value: Value) -> bool:
    return any(isinstance(leaf, Absent) for leaf in plain_leaves(value))
