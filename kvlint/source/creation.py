"""Tensors and arrays made from Python data: ``torch.tensor``, ``torch.as_tensor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvlint.contract.num import Num
from kvlint.contract.values import Const, Content, Number, Sequence, Tensor, Unknown, Value

from .torchlib import (
    DEFAULT_FLOAT,
    Args,
    Shape,
    as_tensor,
    converted,
    copy_note,
    device_of,
    dtypes_of,
    fresh,
    full_shape,
    key_of,
    number_of,
)


@dataclass(frozen=True)
class Defaults:
    """The dtypes a library gives to Python numbers."""

    integer: tuple[str, ...]
    floating: tuple[str, ...]


TORCH = Defaults(("int64",), DEFAULT_FLOAT)


def shape_of_data(value: Value) -> Shape | None:
    """The shape of the tensor that Python data becomes; None when its rank is not certain."""
    if isinstance(value, Const):
        return () if isinstance(value.value, (bool, int, float)) else None
    if isinstance(value, Number):
        return () if value.whole or value.num.const is not None else None
    if isinstance(value, Tensor):
        return full_shape(value)
    if not isinstance(value, Sequence):
        return None
    if value.items is None:
        return _shape_of_uniform(value)
    shapes = [shape_of_data(item) for item in value.items]
    inner = shapes[0] if shapes else ()
    if inner is None or any(shape is None or len(shape) != len(inner) for shape in shapes):
        return None
    common = tuple(
        size if all(shape is not None and shape[axis] == size for shape in shapes) else None
        for axis, size in enumerate(inner)
    )
    return (Num.of(len(shapes)), *common)


def _shape_of_uniform(value: Sequence) -> Shape | None:
    """The shape of a list that is known by what stands for each of its items."""
    tag = value.key[0] if isinstance(value.key, tuple) and value.key else None
    if value.content.lengths is not None and tag not in ("tolist", "slice"):
        # Counted one by one, so its items are numbers.
        return (value.length,)
    if tag == "range":
        return (value.length,)
    inner = shape_of_data(value.element) if value.element is not None else None
    if inner is None:
        return None
    # A list of lists that stands for many may be of another width in each round.
    return (value.length, *inner)


def numbers_in(value: Value) -> Iterator[Value]:
    """Every entry of nested lists."""
    if isinstance(value, Sequence):
        if value.items is not None:
            for item in value.items:
                yield from numbers_in(item)
        elif isinstance(value.key, tuple) and value.key[:1] == ("range",):
            yield Const(0)
        else:
            yield from numbers_in(value.element or Unknown("entries", "entries", "not visible"))
    else:
        yield value


def dtypes_of_data(value: Value, defaults: Defaults) -> tuple[str, ...] | None:
    """The dtype that Python numbers become; None when not all are known."""
    kinds = {_kind(item) for item in numbers_in(value)}
    if not kinds or None in kinds:
        return None
    if kinds == {"bool"}:
        return ("bool",)
    return defaults.floating if "float" in kinds else defaults.integer


def _kind(value: Value) -> str | None:
    if isinstance(value, Const) and isinstance(value.value, (bool, int, float)):
        return type(value.value).__name__
    return "int" if isinstance(value, Number) and value.whole else None


def content_of_data(value: Value) -> Content:
    """What is known of the entries."""
    if not isinstance(value, Sequence):
        return Content()
    items = value.items
    if items and all(isinstance(i, Const) and type(i.value) is int for i in items):
        values = tuple(i.value for i in items if isinstance(i, Const) and isinstance(i.value, int))
        return replace(value.content, values=values)
    return value.content


def from_data(function: str, defaults: Defaults, shares: bool) -> Callable[..., Value | None]:
    """``torch.tensor(data)`` and the like; ``shares`` when a tensor is taken as it is."""

    def handler(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        bound = Args("data dtype device", args, kwargs)
        data = bound.get("data")
        given = bound.get("dtype")
        if isinstance(given, Const) and given.value is None:
            given = None
        if isinstance(data, Tensor):
            return _of_tensor(function, data, given, bound.get("device"), shares, site)
        shape = shape_of_data(data) if data is not None else None
        dtypes = dtypes_of(given) if given is not None else None
        if given is None and data is not None:
            dtypes = dtypes_of_data(data, defaults)
        device = bound.get("device")
        # Without a device a new tensor is on the host.
        where = device_of(device) if device is not None else "cpu"
        key = ("tensor", key_of(data), site) if data is not None else ("tensor", site)
        content = content_of_data(data) if data is not None else Content()
        made = fresh(key, f"torch.{function}(...)", site, dtypes, shape, content, where)
        return replace(made, axes=isinstance(data, Sequence))

    return handler


def _of_tensor(
    function: str, data: Tensor, dtype: Value | None, device: Value | None, shares: bool, site: Any
) -> Value | None:
    """A copy of a tensor; the tensor itself where ``shares`` and nothing has to change."""
    wanted = {"dtype": dtype, "device": device}
    array = data.numpy
    data = replace(data, numpy=False)
    moved = converted(data, [], {name: value for name, value in wanted.items() if value is not None}, site)
    if shares or not isinstance(moved, Tensor):
        return moved
    return replace(
        moved,
        key=(function, moved.key),
        storage=("fresh", function, data.key, site),
        device=moved.device or ("cpu" if array and device is None else None),
        copied=copy_note(data, f"torch.{function}({data.label}) is a copy", site),
        contiguous=None if data.strided else data.contiguous,
    )


def _from_numpy(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    """A tensor in the memory of an array."""
    array = as_tensor(args[0]) if args else None
    return replace(array, numpy=False, device="cpu") if array is not None else None


def _typed(name: str, dtypes: tuple[str, ...]) -> Callable[..., Value | None]:
    """``torch.FloatTensor`` and its like, which take sizes one by one or the data."""

    def handler(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        if kwargs or (args and isinstance(args[0], Tensor)):
            return None
        shape: Shape | None = (Num.of(0),)
        content = Content()
        if len(args) == 1 and isinstance(args[0], Sequence):
            shape, content = shape_of_data(args[0]), content_of_data(args[0])
        elif args:
            # One unknown value may be a size or the data.
            certain = len(args) > 1 or isinstance(args[0], (Const, Number))
            shape = tuple(number_of(arg) for arg in args) if certain else None
        return fresh((name, site), f"torch.{name}(...)", site, dtypes, shape, content, "cpu")

    return handler


_TYPED = {
    "Tensor": DEFAULT_FLOAT,
    "FloatTensor": ("float32",),
    "DoubleTensor": ("float64",),
    "HalfTensor": ("float16",),
    "BFloat16Tensor": ("bfloat16",),
    "ByteTensor": ("uint8",),
    "CharTensor": ("int8",),
    "ShortTensor": ("int16",),
    "IntTensor": ("int32",),
    "LongTensor": ("int64",),
    "BoolTensor": ("bool",),
}

FUNCTIONS: dict[str, Callable[..., Value | None]] = {
    **{name: _typed(name, dtypes) for name, dtypes in _TYPED.items()},
    "tensor": from_data("tensor", TORCH, shares=False),
    "as_tensor": from_data("as_tensor", TORCH, shares=True),
    "from_numpy": _from_numpy,
    "asarray": from_data("asarray", TORCH, shares=True),
}
