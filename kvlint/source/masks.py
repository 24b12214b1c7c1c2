"""Masks made by comparing positions: ``i[None, :] <= i[:, None]`` and what leads there.

A :class:`~kvlint.contract.values.Ramp` says how the elements of a tensor count along its last two axes;
the comparison of two of them is a triangle.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvlint.contract.num import Num
from kvlint.contract.values import Const, Content, Number, Polarity, Ramp, Tensor, Triangle, Value

NONE = Num.of(0)
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def counting(start: Num | None, step: int | None) -> Ramp | None:
    """The ramp of ``arange``."""
    return Ramp(0, 1, start) if start is not None and step == 1 else None


def ramp_of(value: Value) -> Ramp | None:
    """How a value counts; an integer is a ramp that does not."""
    if isinstance(value, Tensor):
        return value.content.ramp
    if isinstance(value, Const) and type(value.value) is int:
        return Ramp(0, 0, Num.of(value.value))
    return Ramp(0, 0, value.num) if isinstance(value, Number) and value.whole else None


def combined(left: Value, operator: str, right: Value) -> Ramp | None:
    """The ramp of ``left + right`` or ``left - right``."""
    a, b = ramp_of(left), ramp_of(right)
    if a is None or b is None or operator not in ("+", "-"):
        return None
    if operator == "-":
        return Ramp(a.row - b.row, a.column - b.column, a.offset - b.offset)
    return Ramp(a.row + b.row, a.column + b.column, a.offset + b.offset)


def triangle_of(left: Value, operator: str, right: Value) -> Triangle | None:
    """Where ``left <op> right`` holds, when that is a triangle."""
    difference = combined(left, "-", right)
    if difference is None or operator not in _FLIPPED:
        return None
    if (difference.row, difference.column) == (1, -1):
        difference = Ramp(-1, 1, -difference.offset)
        operator = _FLIPPED[operator]
    if (difference.row, difference.column) != (-1, 1):
        return None
    # column - row + offset <op> 0
    start = -difference.offset
    if operator in (">", ">="):
        return Triangle(True, start + Num.of(1) if operator == ">" else start)
    return Triangle(False, start - Num.of(1) if operator == "<" else start)


def indexed_ramp(ramp: Ramp | None, rank: int | None, indices: list[Any]) -> Ramp | None:
    """The ramp of ``tensor[indices]``; an index is None's constant, or a slice as a triple."""
    if ramp is None or rank is None:
        return None
    axes: list[int | None] = []
    offset = ramp.offset
    taken = 0
    for index in indices:
        if isinstance(index, Const) and index.value is None:
            axes.append(None)
            continue
        if not isinstance(index, tuple) or index[2] is not None or taken >= rank:
            return None
        coefficient = _coefficient(ramp, taken - rank)
        lower = index[0]
        if lower is not None and coefficient:
            if not (isinstance(lower, Const) and type(lower.value) is int and lower.value >= 0):
                return None
            offset = offset + Num.of(coefficient * lower.value)
        axes.append(taken)
        taken += 1
    axes.extend(range(taken, rank))
    return _placed(ramp, rank, axes, offset)


def viewed_ramp(ramp: Ramp | None, rank: int | None, sizes: tuple[Num | None, ...] | None) -> Ramp | None:
    """The ramp of a one-dimensional tensor that is viewed with more axes of one element."""
    if ramp is None or rank != 1 or sizes is None:
        return None
    wide = [axis for axis, size in enumerate(sizes) if size is None or size.integer != 1]
    if len(wide) != 1:
        return None
    axes: list[int | None] = [0 if axis == wide[0] else None for axis in range(len(sizes))]
    return _placed(ramp, 1, axes, ramp.offset)


def transposed_content(content: Content) -> Content:
    """The content when the last two axes change places."""
    ramp, triangle = content.ramp, content.triangle
    return Content(
        fill=content.fill,
        additive=content.additive,
        polarity=content.polarity,
        band=content.band,
        strip=content.strip,
        ramp=Ramp(ramp.column, ramp.row, ramp.offset) if ramp is not None else None,
        triangle=Triangle(not triangle.upper, -triangle.diagonal) if triangle is not None else None,
    )


def _coefficient(ramp: Ramp, axis: int) -> int:
    return ramp.column if axis == -1 else ramp.row if axis == -2 else 0


def _placed(ramp: Ramp, rank: int, axes: list[int | None], offset: Num) -> Ramp | None:
    """The ramp when result axis ``i`` is the tensor's axis ``axes[i]``."""
    row = column = 0
    for position, axis in enumerate(axes):
        coefficient = _coefficient(ramp, axis - rank) if axis is not None else 0
        behind = position - len(axes)
        if coefficient and behind < -2:
            return None
        if behind == -1:
            column = coefficient
        elif behind == -2:
            row = coefficient
    return Ramp(row, column, offset)


def both(left: Content, right: Content) -> Content | None:
    """The elements where two triangles are: ``lower & upper`` is the strip between two diagonals."""
    a, b = left.triangle, right.triangle
    if a is None or b is None:
        return None
    if a.upper == b.upper:
        inner = _inner(a, b)
        return Content(triangle=inner) if inner is not None else Content()
    lower, upper = (b, a) if a.upper else (a, b)
    return Content(strip=True, polarity=Polarity.KEEP if _is_window(lower, upper) else None)


def either(left: Content, right: Content) -> Content | None:
    """The elements where one of two triangles is: ``lower | upper`` is what lies around a strip."""
    a, b = left.triangle, right.triangle
    if a is None or b is None:
        return None
    if a.upper != b.upper:
        return Content(band=True)
    inner = _inner(a, b)
    return Content(triangle=b if inner is a else a) if inner is not None else Content()


REGIONS = {"&": both, "*": both, "|": either, "+": either}


def _inner(a: Triangle, b: Triangle) -> Triangle | None:
    gap = (a.diagonal - b.diagonal).const
    if gap is None:
        return None
    # Of two upper triangles the one that starts further right, of two lower ones further left.
    return a if (gap >= 0) == a.upper else b


def _is_window(lower: Triangle, upper: Triangle) -> bool:
    """Whether a strip holds each row's own column and the ones before it, but not all after it.

    What is hidden never is a token itself while all that follows is shown.
    """
    last, first = lower.diagonal.integer, upper.diagonal.integer
    if last is None or last < 0:
        return False
    if first is not None:
        return first <= 0
    return sum(c for monomial, c in upper.diagonal.terms.items() if monomial) < 0


def inverted_region(content: Content) -> Content:
    """The complement's region: a strip between two diagonals and the two triangles around it."""
    triangle = content.triangle.inverted() if content.triangle is not None else None
    return Content(triangle=triangle, band=content.strip, strip=content.band)


def without_ramp(content: Content) -> Content:
    """The content of a tensor whose elements moved along its axes."""
    return replace(content, ramp=None) if content.ramp is not None else content
