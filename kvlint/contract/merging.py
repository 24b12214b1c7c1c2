"""Few values for many: alternatives that agree become one, the others what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from itertools import count
from typing import TypeVar

from .num import Num
from .values import NO_CONTENT, Const, Hint, Number, Sequence, Tensor, Unknown, Value

T = TypeVar("T")
_SERIAL = count()
REASON = "it has too many alternatives"
# A set of possible dtypes larger than this decides nothing.
_MAX_DTYPES = 8


def serial() -> int:
    """A number for an identity that no other value has."""
    return next(_SERIAL)


def merged(options: list[Value], most: int) -> list[Value] | None:
    """At most ``most`` values such that a fact holds of each option if it holds of all of them.

    None when there is no such list.
    """
    for level in range(4):
        groups: dict[Hashable, list[Value]] = {}
        for index, option in enumerate(options):
            groups.setdefault(_group(option, index, level), []).append(option)
        if len(groups) <= most:
            return [_joint(group) for group in groups.values()]
    return None


def _group(value: Value, index: int, level: int) -> Hashable:
    """What the values that are put together have in common: the less, the higher the level."""
    if isinstance(value, Tensor):
        # For these fields "not set" is an answer, not a gap.
        faults = (value.regrouped is None, value.misindexed is None, value.fault is None, value.numpy)
        if level:
            return ("tensor", *faults)
        looks = (value.dtypes, value.shape, value.content, value.strided is None, value.order, value.gaps)
        memory = (value.contiguous, value.storage, value.copied is None, value.device)
        return ("tensor", *faults, *looks, *memory, value.padding, value.joined)
    if isinstance(value, Sequence) and level > 1:
        return ("sequence", value.kind)
    if _is_number(value) and level > 1:
        return ("unknown",) if level > 2 else ("number",)
    if isinstance(value, Unknown):
        return ("unknown",) if level > 1 else ("unknown", value.key)
    return ("other", index)


def _is_number(value: Value) -> bool:
    return isinstance(value, Number) or (isinstance(value, Const) and type(value.value) in (int, float))


def _joint(group: list[Value]) -> Value:
    first = group[0]
    if len(group) == 1:
        return first
    if isinstance(first, Tensor):
        return _joint_tensor([item for item in group if isinstance(item, Tensor)])
    if isinstance(first, Sequence):
        return _joint_sequence([item for item in group if isinstance(item, Sequence)])
    return _joint_unknown(group)


def _agreed(values: Iterable[T], otherwise: T) -> T:
    """The value when all are the same."""
    first, *rest = values
    return first if all(item == first for item in rest) else otherwise


def _each(group: list[Tensor], field: Callable[[Tensor], T | None]) -> T | None:
    """The first tensor's field, when every tensor has one."""
    found = [field(item) for item in group]
    return found[0] if all(item is not None for item in found) else None


def _joint_tensor(group: list[Tensor]) -> Tensor:
    first = group[0]
    same = _agreed((item.key for item in group), None)
    visible = all(item.strided is not None and (item.gaps or item.order is None) for item in group)
    order = _agreed((item.order for item in group), None)
    # Whether a permuted view is contiguous depends on its shape, too.
    alike = order is not None and len({item.shape for item in group}) == 1
    ordered = alike and all(item.strided is not None and not item.gaps for item in group)
    return replace(
        first,
        key=first.key if same is not None else ("many", serial()),
        dtypes=_joint_dtypes(group),
        shape=_joint_shape(group),
        axes=all(item.axes or item.shape for item in group),
        content=_agreed((item.content for item in group), NO_CONTENT),
        strided=first.strided if visible or ordered else None,
        order=order if ordered else None,
        gaps=visible,
        contiguous=True if all(item.contiguous and item.strided is None for item in group) else None,
        storage=_agreed((item.storage for item in group), None),
        copied=_each(group, lambda item: item.copied),
        device=_agreed((item.device for item in group), None),
        padding=_agreed((item.padding for item in group), None),
        joined=_agreed((item.joined for item in group), None),
        reason=_agreed((item.reason for item in group), REASON),
    )


def _joint_dtypes(group: list[Tensor]) -> tuple[str, ...] | None:
    found: dict[str, None] = {}
    for item in group:
        if item.dtypes is None:
            return None
        found.update(dict.fromkeys(item.dtypes))
    return tuple(found) if len(found) <= _MAX_DTYPES else None


def _joint_shape(group: list[Tensor]) -> tuple[Num | None, ...] | None:
    shapes = [item.shape for item in group if item.shape is not None]
    if len(shapes) < len(group) or len({len(shape) for shape in shapes}) != 1:
        return None
    return tuple(_agreed(sizes, None) for sizes in zip(*shapes, strict=True))


def _joint_sequence(group: list[Sequence]) -> Sequence:
    first = group[0]
    rows = [item.items for item in group if item.items is not None]
    if len(rows) == len(group) and len({len(row) for row in rows}) == 1:
        items = tuple(_joint_item(list(column)) for column in zip(*rows, strict=True))
        names = _agreed((item.names for item in group), ())
        return Sequence(items, first.kind, first.length, label=first.label, names=names, place=first.place)
    lengths = [Num.of(len(item.items)) if item.items is not None else item.length for item in group]
    return Sequence(
        None,
        group[0].kind,
        _agreed(lengths, None),
        content=_agreed((item.content for item in group), NO_CONTENT),
        key=("many", serial()),
        label=group[0].label,
        place=group[0].place,
    )


def _joint_item(values: list[Value]) -> Value:
    """What the items at one position have in common."""
    few = merged(values, 1)
    return few[0] if few is not None else Unknown(("many", serial()), "value", REASON, place=values[0].place)


def _joint_unknown(group: list[Value]) -> Unknown:
    first = group[0]
    hint = _agreed((_hint(item) for item in group), None)
    tensor = _agreed((_tensor(item) for item in group), None)
    label = first.label if isinstance(first, Unknown) else "value"
    return Unknown(("many", serial()), label, REASON, is_tensor=tensor, hint=hint, place=first.place)


def _hint(value: Value) -> Hint | None:
    """The type of a number or unknown value."""
    if isinstance(value, Unknown):
        return value.hint
    if isinstance(value, Const):
        return Hint(type(value.value).__name__)
    return Hint("int") if isinstance(value, Number) and value.whole else None


def _tensor(value: Value) -> bool | None:
    """Whether a number or unknown value is a tensor; what looks like a number may be one."""
    if isinstance(value, Unknown):
        return value.is_tensor
    return False if _hint(value) is not None else None
