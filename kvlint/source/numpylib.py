"""NumPy arrays: what functions and methods of NumPy give, as far as tensors are made from them.

An array is a :class:`~kvlint.contract.values.Tensor` with ``numpy`` set. What NumPy does otherwise than
torch is here: default dtypes, promotion, axes of ``transpose``, ``repeat``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvlint.contract.num import Num
from kvlint.contract.values import Const, Content, DType, LengthForm, Number, Sequence, Tensor, Unknown, Value

from . import torchlib
from .creation import Defaults, content_of_data, dtypes_of_data, shape_of_data
from .objects import Namespace
from .torchlib import Args, as_tensor, dims_of, fresh, full_shape, integer_of, is_whole, key_of

PREFIX = "numpy."
DEFAULTS = Defaults(("int64",), ("float64",))
_INTEGERS = torchlib.INTEGERS
_PYTHON = {"builtins.bool": "bool", "builtins.int": "int64", "builtins.float": "float64"}
_NAMES = {
    **{n: n for n in ("int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")},
    **{"bool_": "bool", "bool": "bool", "half": "float16", "single": "float32", "double": "float64"},
    **{"longlong": "int64", "byte": "int8", "ubyte": "uint8", "short": "int16", "intc": "int32"},
}
# Methods that write into the array.
IN_PLACE = frozenset(("fill", "sort", "put", "resize", "partition", "itemset"))
# Functions that write into their first argument.
WRITERS = frozenset(("copyto", "fill_diagonal", "put", "place", "putmask", "put_along_axis"))

Handler = Callable[[Tensor, list[Value], Mapping[str, Value], Any], Value | None]


def dtype_named(name: str) -> DType | None:
    """``numpy.<name>`` as a dtype, which no torch dtype is equal to."""
    found = _NAMES.get(name)
    return DType(PREFIX + found) if found is not None else None


def _dtypes(value: Value | None, default: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The dtype that a ``dtype`` argument names."""
    if value is None or (isinstance(value, Const) and value.value is None):
        return default
    if isinstance(value, DType) and value.name.startswith(PREFIX):
        return (value.name.removeprefix(PREFIX),)
    if isinstance(value, Namespace):
        found = _PYTHON.get(value.name)
    else:
        found = _NAMES.get(value.value) if isinstance(value, Const) and isinstance(value.value, str) else None
    return (found,) if found is not None else None


def as_array(value: Value | None) -> Tensor | None:
    """The array that NumPy makes of an argument."""
    if isinstance(value, (Tensor, Unknown)):
        tensor = as_tensor(value)
        return replace(tensor, numpy=True) if tensor is not None else None
    if isinstance(value, (Sequence, Const, Number)):
        shape = shape_of_data(value)
        key = ("array", key_of(value))
        content = content_of_data(value)
        made = _made(key, "numpy.array(...)", value.place, dtypes_of_data(value, DEFAULTS), shape, content)
        return replace(made, axes=isinstance(value, Sequence))
    return None


def _made(key: Any, label: str, site: Any, dtypes: Any, shape: Any, content: Content | None = None) -> Tensor:
    return replace(fresh(key, label, site, dtypes, shape, content, "cpu"), numpy=True)


def function(name: str, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    """Result of ``numpy.<name>(...)``; None when nothing is known."""
    if "out" in kwargs or "where" in kwargs:
        return None
    handler = _FUNCTIONS.get(name)
    if handler is not None:
        return handler(args, kwargs, site)
    if name in _AS_METHOD and args:
        array = as_array(args[0])
        return METHODS[name](array, args[1:], kwargs, site) if array is not None else None
    if name in _OPERATORS and len(args) == 2 and not kwargs:
        return _operated(_OPERATORS[name], args, site)
    return None


def method(
    array: Tensor, name: str, args: list[Value], kwargs: Mapping[str, Value], site: Any
) -> Value | None:
    """Result of ``array.<name>(...)``; None when nothing is known."""
    handler = METHODS.get(name)
    if handler is None or "out" in kwargs or "order" in kwargs:
        return None
    return handler(array, args, kwargs, site)


def attribute(array: Tensor, name: str, site: Any) -> Value | None:
    """``array.<name>`` where it is not what a tensor has."""
    if name == "dtype" and array.dtypes is not None and len(array.dtypes) == 1:
        return DType(PREFIX + array.dtypes[0], place=site)
    if name == "size":
        shape = full_shape(array)
        total = Num.of(1)
        for size in shape or ():
            total = total * size
        counted = total if shape is not None else Num.atom(("size", array.key), f"{array.label}.size")
        return torchlib.scalar(counted, site, True)
    if name == "T":
        return _transpose(array, [], {}, site)
    return None


def promoted(left: Value, operator: str, right: Value) -> tuple[str, ...] | None:
    """The dtype of arithmetic with an array."""
    arrays = [v for v in (left, right) if isinstance(v, Tensor)]
    known = [a.dtypes[0] if a.dtypes is not None and len(a.dtypes) == 1 else None for a in arrays]
    if None in known or any(a.shape is None or not a.shape for a in arrays):
        return None
    names = [name for name in known if name is not None]
    if len(names) == 1:
        result = _with_scalar(names[0], right if arrays[0] is left else left)
    else:
        result = _joined(names[0], names[1])
    if operator == "/" and result in _INTEGERS:
        return ("float64",)
    return (result,) if result is not None and operator != "**" else None


def _with_scalar(name: str, other: Value) -> str | None:
    if isinstance(other, Const) and isinstance(other.value, bool):
        return name
    if isinstance(other, Const) and isinstance(other.value, int):
        return "int64" if name == "bool" else name
    if isinstance(other, Const) and isinstance(other.value, float):
        return "float64" if name in _INTEGERS else name
    # A NumPy scalar counts with its own width.
    return name if is_whole(other) and name in ("int64", "float64") else None


def _joined(x: str, y: str) -> str | None:
    if x == y:
        return x
    integers = [name for name in (x, y) if name in _INTEGERS]
    if len(integers) == 2:
        found = torchlib.join_dtypes(x, y)
        return found[0] if found is not None else None
    order = ("float16", "float32", "float64")
    if x in order and y in order:
        return max(x, y, key=order.index)
    wide = bool(integers) and integers[0] in ("int32", "int64")
    return "float64" if wide and (x in order or y in order) else None


def _created(fill: int | None) -> Callable[..., Value | None]:
    name = {0: "zeros", 1: "ones", None: "empty"}[fill]

    def handler(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        bound = Args("shape dtype", args, kwargs)
        sizes = bound.get("shape")
        shape = dims_of([sizes]) if sizes is not None else None
        content = Content(fill=fill) if fill is not None else Content()
        dtypes = _dtypes(bound.get("dtype"), DEFAULTS.floating)
        return _made((name, site), f"numpy.{name}(...)", site, dtypes, shape, content)

    return handler


def _full(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("shape fill_value dtype", args, kwargs)
    sizes, filler = bound.get("shape"), bound.get("fill_value")
    fill = filler.value if isinstance(filler, Const) else None
    content = Content(fill=fill) if isinstance(fill, (bool, int, float)) else Content()
    own = dtypes_of_data(filler, DEFAULTS) if filler is not None else None
    shape = dims_of([sizes]) if sizes is not None else None
    return _made(("full", site), "numpy.full(...)", site, _dtypes(bound.get("dtype"), own), shape, content)


def _like(fill: int | None) -> Callable[..., Value | None]:
    def handler(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        array = as_array(args[0]) if args else None
        if array is None or len(args) > 1:
            return None
        content = Content(fill=fill) if fill is not None else Content()
        dtypes = _dtypes(kwargs.get("dtype"), array.dtypes)
        return _made(("like", array.key, site), "numpy array", site, dtypes, full_shape(array), content)

    return handler


def _arange(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    found = torchlib.arange(args, {}, site)
    if not isinstance(found, Tensor) or kwargs.keys() - {"dtype"}:
        return None
    own = dtypes_of_data(Sequence(tuple(args)), DEFAULTS)
    dtypes = _dtypes(kwargs.get("dtype"), own)
    return replace(found, dtypes=dtypes, numpy=True, device="cpu", label="numpy.arange(...)")


def _array(shares: bool) -> Callable[..., Value | None]:
    def handler(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        if kwargs.keys() - {"dtype", "copy"}:
            return None
        array = as_array(args[0]) if args else None
        if array is None:
            return None
        dtypes = _dtypes(Args("object dtype", args, kwargs).get("dtype"), array.dtypes)
        changed = array if dtypes == array.dtypes else _cast(array, dtypes)
        storage = array.storage if shares and changed is array else ("fresh", "array", array.key, site)
        if shares and dtypes is None:
            storage = None
        return replace(changed, storage=storage, copied=None, place=site)

    return handler


def _cast(array: Tensor, dtypes: tuple[str, ...] | None) -> Tensor:
    content = torchlib.cast_content(array, dtypes[0]) if dtypes else Content()
    return replace(array, key=("astype", dtypes, array.key), dtypes=dtypes, content=content)


def _astype(array: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("dtype", args, kwargs)
    dtypes = _dtypes(bound.get("dtype"), None)
    shared = "copy" in kwargs
    storage = None if shared else ("fresh", "astype", array.key, site)
    changed = array if dtypes == array.dtypes and dtypes is not None else _cast(array, dtypes)
    return replace(changed, storage=storage, copied=None, contiguous=None, place=site)


def _copied(array: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    return replace(array, storage=("fresh", "copy", array.key, site), copied=None)


def _tri(upper: bool) -> Handler:
    name = "triu" if upper else "tril"

    def handler(array: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        offset = Args("k", args, kwargs).get("k")
        diagonal = {} if offset is None else {"diagonal": offset}
        return torchlib.METHODS[name](array, [], diagonal, site)

    return handler


def _cumsum(array: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("axis dtype", args, kwargs)
    own: tuple[str, ...] | None = None
    if array.dtypes is not None:
        own = ("int64",) if all(name in _INTEGERS for name in array.dtypes) else array.dtypes
    shape = full_shape(array)
    flat = shape is not None and len(shape) > 1 and bound.get("axis") is None
    return torchlib.derived(
        array,
        ("cumsum",),
        site,
        dtypes=_dtypes(bound.get("dtype"), own),
        shape=(None,) if flat else shape,
        content=Content(lengths=LengthForm.CUMULATIVE),
        label=f"cumsum({array.label})",
    )


def _transpose(array: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    if kwargs:
        return None
    if args:
        return torchlib.METHODS["permute"](array, args, {}, site)
    if array.shape is None:
        return torchlib.view_of(array, ("T",), site, shape=None, order=None, strided=None, content=Content())
    if len(array.shape) < 2:
        return array
    axes: list[Value] = [Const(axis) for axis in reversed(range(len(array.shape)))]
    turned = torchlib.METHODS["transpose" if len(axes) == 2 else "permute"]
    return turned(array, axes, {}, site)


def _repeat(array: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("repeats axis", args, kwargs)
    repeats, axis = bound.get("repeats"), bound.get("axis")
    if repeats is None or (axis is None and (array.shape is None or len(array.shape) != 1)):
        return None
    shown = as_array(repeats) if isinstance(repeats, Sequence) else repeats
    dim = Const(0) if axis is None else axis
    return torchlib.METHODS["repeat_interleave"](array, [shown or repeats, dim], {}, site)


def _reduced(name: str) -> Handler:
    def handler(array: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        if args or kwargs:
            return None
        counted = array.content.counts or array.content.lengths is not None
        whole = array.dtypes is not None and all(d in _INTEGERS and d != "bool" for d in array.dtypes)
        number = Num.atom((name, array.key), f"{array.label}.{name}()", count=counted)
        return Number(number, whole or counted, place=site)

    return handler


def _expand_dims(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("a axis", args, kwargs)
    array, axis = as_array(bound.get("a")), integer_of(bound.get("axis"))
    if array is None or axis is None:
        return None
    return torchlib.METHODS["unsqueeze"](array, [Const(axis)], {}, site)


def _concatenated(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("arrays axis", args, kwargs)
    items = bound.get("arrays")
    if not isinstance(items, Sequence) or not items.items or kwargs.keys() - {"axis"}:
        return None
    parts = [as_array(item) for item in items.items]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    axis = bound.get("axis") or Const(0)
    found = torchlib.FUNCTIONS["cat"]([Sequence(tuple(known)), axis], {}, site)
    if not isinstance(found, Tensor):
        return None
    dtypes = known[0].dtypes
    for part in known[1:]:
        name = _joined(dtypes[0], part.dtypes[0]) if dtypes and part.dtypes else None
        dtypes = (name,) if name is not None else None
    return replace(found, dtypes=dtypes, numpy=True, label="numpy.concatenate(...)")


def _where(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    if len(args) != 3 or kwargs:
        return None
    condition = as_array(args[0])
    if condition is None:
        return None
    found = torchlib.FUNCTIONS["where"]([condition, *args[1:]], {}, site)
    if not isinstance(found, Tensor):
        return None
    scalars = Sequence(tuple(args[1:])) if all(isinstance(a, Const) for a in args[1:]) else None
    own = dtypes_of_data(scalars, DEFAULTS) if scalars is not None else None
    return replace(found, dtypes=own, numpy=True, label="numpy.where(...)")


def _not(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    array = as_array(args[0]) if args else None
    if array is None or kwargs:
        return None
    return replace(torchlib.invert(array, site), dtypes=("bool",))


def _operated(symbol: str, args: list[Value], site: Any) -> Value | None:
    left, right = as_array(args[0]), as_array(args[1])
    first = left if left is not None and left.shape != () else None
    second: Value = right if right is not None and right.shape != () else args[1]
    if first is None:
        return None
    if symbol in ("<", "<=", ">", ">=", "==", "!="):
        return torchlib.compare(first, symbol, second, site)
    result = torchlib.arithmetic(first, symbol, second, site)
    dtypes = promoted(first, symbol, second)
    return replace(result, dtypes=dtypes, numpy=True) if isinstance(result, Tensor) else None


_OPERATORS = {
    **{"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "=="},
    **{"not_equal": "!=", "add": "+", "subtract": "-", "multiply": "*"},
    **{"logical_and": "&", "logical_or": "|", "bitwise_and": "&", "bitwise_or": "|"},
}

METHODS: dict[str, Handler] = {
    "astype": _astype,
    "copy": _copied,
    "reshape": torchlib.METHODS["reshape"],
    "flatten": lambda a, args, kwargs, site: torchlib.METHODS["flatten"](a, [], {}, site),
    "ravel": lambda a, args, kwargs, site: torchlib.METHODS["flatten"](a, [], {}, site),
    "transpose": _transpose,
    "swapaxes": torchlib.METHODS["transpose"],
    "tolist": torchlib.METHODS["tolist"],
    "item": torchlib.METHODS["item"],
    "cumsum": _cumsum,
    "repeat": _repeat,
    "tril": _tri(False),
    "triu": _tri(True),
    "sum": _reduced("sum"),
    "max": _reduced("max"),
    "min": _reduced("min"),
    "diff": torchlib.METHODS["diff"],
}

# Functions that take the array first and otherwise work like the method.
_AS_METHOD = frozenset(
    ("tril", "triu", "cumsum", "repeat", "reshape", "ravel", "transpose", "swapaxes", "copy", "diff")
)

_FUNCTIONS: dict[str, Callable[..., Value | None]] = {
    "zeros": _created(0),
    "ones": _created(1),
    "empty": _created(None),
    "full": _full,
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "empty_like": _like(None),
    "arange": _arange,
    "array": _array(shares=False),
    "asarray": _array(shares=True),
    "ascontiguousarray": _array(shares=True),
    "expand_dims": _expand_dims,
    "concatenate": _concatenated,
    "where": _where,
    "logical_not": _not,
}
