"""What torch functions and tensor methods do to dtype, shape, content, memory order and storage."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from kvlint.contract.keys import intern
from kvlint.contract.num import Num
from kvlint.contract.paths import Cond
from kvlint.contract.tri import Note
from kvlint.contract.values import (
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
)

from . import masks
from .objects import Namespace

# What the types of Python name as a dtype.
PYTHON_DTYPES = {"builtins.bool": "bool", "builtins.int": "int64", "builtins.float": "float64"}
Shape = tuple[Num | None, ...]
# What torch.set_default_dtype can make of a tensor created without a dtype.
DEFAULT_FLOAT = ("float32", "bfloat16", "float16")
FLOATING = ("float16", "bfloat16", "float32", "float64")
_DTYPE_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "uint8": "uint8",
    "bool": "bool",
}
_DTYPES = (*FLOATING, "int8", "int16", "int32", "int64", "uint8", "bool", "complex64")
INTEGERS = {name: i for i, name in enumerate(("bool", "uint8", "int8", "int16", "int32", "int64"))}


def dtype_named(name: str) -> str | None:
    """The short dtype name of ``torch.<name>``, or None when it is no dtype."""
    if name in _DTYPES or name.startswith("float8"):
        return name
    return _DTYPE_ALIASES.get(name) if name in ("half", "float", "double", "short", "int", "long") else None


def key_of(value: Value) -> Hashable:
    """Identity of any value, for structural keys."""
    if isinstance(value, (Unknown, Tensor)):
        return value.key
    if isinstance(value, Test):
        return value.tensor.key
    if isinstance(value, Const):
        return intern(("const", type(value.value).__name__, value.value))
    if isinstance(value, Number):
        return value.num
    if isinstance(value, Sequence):
        if value.items is not None:
            return intern(("seq", *(key_of(item) for item in value.items)))
        return ("seq", value.key, id(value)) if value.key is None else value.key
    if isinstance(value, DType):
        return ("dtype", value.name)
    key: Hashable = getattr(value, "key", None)
    if key is not None:
        return key
    try:
        hash(value)
    except TypeError:
        return ("id", id(value))
    return value


def makes_object(name: str) -> bool:
    """Whether a function is a class by its name: two calls with the same arguments make two objects."""
    return name.rsplit(".", 1)[-1][:1].isupper()


def label_of(value: Value) -> str:
    """How to name a value in a message."""
    if isinstance(value, Const):
        return repr(value.value)
    if isinstance(value, Number):
        return value.num.label
    label = getattr(value, "label", "")
    return label or "value"


def number_of(value: Value) -> Num | None:
    """The symbolic number of a scalar value."""
    if isinstance(value, Number):
        return value.num
    if isinstance(value, Const) and isinstance(value.value, (int, float)):
        try:
            return Num.of(value.value)
        except ValueError:
            return None
    if isinstance(value, Unknown) and value.is_tensor is not True:
        return Num.atom(value.key, value.label, value.declared)
    return None


def scalar(num: Num, place: Any = None, whole: bool = False) -> Value:
    """A value for a number: a constant when it is one; ``whole`` when it is certainly an integer."""
    const = num.const
    return Const(const, place=place) if const is not None else Number(num, whole, place=place)


def is_whole(value: Value) -> bool:
    """Whether a value is certainly an integer."""
    if isinstance(value, Const):
        return type(value.value) is int
    if isinstance(value, Unknown):
        return value.hint is not None and value.hint.name == "int" and not value.hint.optional
    return isinstance(value, Number) and value.whole


def whole_entries(a: Value, b: Value) -> Value | None:
    """What stands for every entry of two lists in a row, when the entries of one are visibly integers.

    Those of the other are numbers too then, as in a row that is padded with zeros.
    """
    entries: list[Value] = []
    for value in (a, b):
        if isinstance(value, Sequence) and value.kind == "list":
            entries.extend(value.items or ([value.element] if value.element is not None else []))
        elif not isinstance(value, Unknown) or value.is_tensor or (value.hint and value.hint.name != "list"):
            return None
    if not entries or not all(isinstance(e, (Const, Number)) and is_whole(e) for e in entries):
        return None
    return Number(Num.atom(("each", "entry", key_of(a), key_of(b)), "an entry"), True)


def integer_of(value: Value | None) -> int | None:
    return value.value if isinstance(value, Const) and type(value.value) is int else None


class Args:
    """Positional and keyword arguments of a torch call, by name."""

    def __init__(self, names: str, args: list[Value], kwargs: Mapping[str, Value]) -> None:
        self.values: dict[str, Value] = dict(kwargs)
        for name, value in zip(names.split(), args, strict=False):
            self.values.setdefault(name, value)

    def get(self, *names: str) -> Value | None:
        for name in names:
            if name in self.values:
                return self.values[name]
        return None

    def integer(self, *names: str) -> int | None:
        return integer_of(self.get(*names))


@dataclass(frozen=True, slots=True, eq=False)
class Test(Value):
    """``left <op> right`` of something that may be a tensor: a test or a bool tensor."""

    cond: Cond
    holds: bool
    tensor: Tensor


def settled(value: Value, tensor: bool) -> Value:
    """A value with every :class:`Test` read as what the parameter takes."""
    if isinstance(value, Test):
        if tensor:
            return value.tensor
        return Choice(value.cond, Const(value.holds), Const(not value.holds), place=value.place)
    if isinstance(value, Choice):
        return Choice(value.cond, settled(value.yes, tensor), settled(value.no, tensor), place=value.place)
    if isinstance(value, Join):
        return replace(value, options=tuple(settled(option, tensor) for option in value.options))
    if isinstance(value, Number) and tensor and _slot_form(value.num) is not None:
        return number_tensor(value)
    return value


def number_tensor(value: Number) -> Tensor:
    """The tensor for arithmetic on unknown values that was read as a number."""
    key = ("number", value.num)
    return Tensor(
        key,
        value.num.label,
        storage=("fresh", key),
        content=Content(slots="token", slot_block=block) if (block := _slot_form(value.num)) else Content(),
        reason="it is computed from unknown values",
        place=value.place,
    )


def _slot_form(num: Num) -> Num | None:
    """The block size in ``table[...] * block + position % block``."""
    if len(num.terms) != 2:
        return None
    for monomial, coefficient in num.terms.items():
        rest = Num({monomial: coefficient})
        block = remainder_of(rest)
        if block is not None and is_multiple(num - rest, block):
            return block
    return None


def remainder_of(num: Num) -> Num | None:
    """The divisor when the number is what a division leaves."""
    atom = num.single
    if atom is not None and isinstance(atom.key, tuple) and atom.key[:1] == ("mod",):
        divisor = atom.key[2]
        return divisor if isinstance(divisor, Num) else None
    return None


def is_multiple(product: Num, factor: Num) -> bool:
    """Whether a product visibly contains a factor (and something else)."""
    quotient = product.divide(factor)
    if quotient is None or len(quotient.terms) != 1 or quotient.const is not None:
        return False
    ((monomial, coefficient),) = quotient.terms.items()
    return coefficient == 1 and all(exponent > 0 for _, exponent in monomial)


def as_tensor(value: Value) -> Tensor | None:
    """A tensor for a value that is or may be one."""
    if isinstance(value, Test):
        return value.tensor
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Unknown) and value.is_tensor is not False:
        return Tensor(
            value.key,
            value.label,
            storage=value.key,
            content=_named_content(value),
            reason=value.reason,
            place=value.place,
        )
    return None


def _named_content(value: Unknown) -> Content:
    """Length convention by the field's naming: ``cu_seqlens`` holds running sums with a leading 0."""
    last = value.label.rsplit(".", 1)[-1].lower()
    if last.startswith(("cu_seqlen", "cu_seq_len", "cu_q", "cu_k")) or last in ("cu_lens", "cu_lengths"):
        return Content(lengths=LengthForm.CUMULATIVE)
    return Content()


def shape_value(tensor: Tensor, site: Any) -> Value:
    """The value of ``tensor.shape``."""
    if tensor.shape is not None:
        items = tuple(dim_value(tensor, axis, site) for axis in range(len(tensor.shape)))
        return Sequence(items, "tuple", Num.of(len(items)), place=site)
    return Sequence(None, "tuple", None, key=("shape", tensor.key), label=f"{tensor.label}.shape", place=site)


def dim_value(tensor: Tensor, axis: int, site: Any) -> Value:
    """The value of ``tensor.shape[axis]``."""
    if tensor.shape is not None and -len(tensor.shape) <= axis < len(tensor.shape):
        dim = tensor.shape[axis]
        if dim is not None:
            return scalar(dim, site, True)
        axis %= len(tensor.shape)
    size = Num.atom(("dim", tensor.key, axis), f"{tensor.label}.shape[{axis}]", count=True)
    return Number(size, True, place=site)


def full_shape(tensor: Tensor) -> tuple[Num, ...] | None:
    """The shape with an atom for every unknown axis; None when the rank is unknown."""
    if tensor.shape is None:
        return None
    return tuple(
        dim if dim is not None else Num.atom(("dim", tensor.key, i), f"{tensor.label}.shape[{i}]")
        for i, dim in enumerate(tensor.shape)
    )


def fresh(
    key: Hashable,
    label: str,
    site: Any,
    dtypes: tuple[str, ...] | None,
    shape: tuple[Num | None, ...] | None,
    content: Content | None = None,
    device: str | None = None,
) -> Tensor:
    return Tensor(
        key,
        label,
        dtypes=dtypes,
        shape=shape,
        content=content or Content(),
        contiguous=True,
        storage=("fresh", key),
        device=device,
        place=site,
    )


def derived(tensor: Tensor, key: Hashable, site: Any, **changes: Any) -> Tensor:
    base: dict[str, Any] = {
        "key": (key, tensor.key),
        "place": site,
        "contiguous": True,
        "storage": ("fresh", key, tensor.key),
        "strided": None,
        "order": None,
        "gaps": False,
        "copied": None,
    }
    if "shape" in changes:
        base["padding"] = None
    base.update(changes)
    return replace(tensor, **base)


def copy_note(tensor: Tensor, text: str, site: Any) -> Note | None:
    """Why the result is a copy of memory that somebody else holds; None for a fresh tensor's."""
    if isinstance(tensor.storage, tuple) and tensor.storage[:1] == ("fresh",) and tensor.copied is None:
        return None
    return Note(text, site)


def view_of(tensor: Tensor, key: Hashable, site: Any, **changes: Any) -> Tensor:
    # The axes of a view are other axes.
    base: dict[str, Any] = {"key": (key, tensor.key), "place": site, "joined": None, "padding": None}
    base.update(changes)
    return replace(tensor, **base)


def dims_of(args: list[Value]) -> tuple[Num | None, ...] | None:
    """Sizes given one by one or as one sequence."""
    if len(args) == 1 and isinstance(args[0], Sequence):
        items = args[0].items
        return None if items is None else tuple(number_of(item) for item in items)
    if any(isinstance(arg, Sequence) for arg in args):
        return None
    if len(args) == 1 and isinstance(args[0], Unknown) and "shape" in args[0].label.lower():
        # By its name it holds all sizes.
        return None
    sizes = tuple(number_of(arg) for arg in args)
    return sizes if sizes else None


def dtypes_of(value: Value | None) -> tuple[str, ...] | None:
    if isinstance(value, DType):
        return (value.name,)
    if isinstance(value, Namespace):
        name = PYTHON_DTYPES.get(value.name)
        return (name,) if name is not None else None
    return None


def device_of(value: Value | None) -> str | None:
    if isinstance(value, Const) and isinstance(value.value, str):
        text = value.value.split(":")[0]
        return text if text in ("cpu", "npu") else None
    return None


def _created(args: list[Value], kwargs: Mapping[str, Value], site: Any, name: str, fill: object) -> Value:
    if name == "full":
        bound = Args("size fill_value", args, kwargs)
        sizes = dims_of([bound.values["size"]]) if "size" in bound.values else None
        filler = bound.get("fill_value")
        fill = filler.value if isinstance(filler, Const) else None
        numeric = isinstance(filler, Const) and isinstance(filler.value, (bool, int, float))
        if not numeric:
            fill = None
    else:
        sizes = dims_of([kwargs["size"]]) if "size" in kwargs else dims_of(args)
    stray = sorted(
        set(kwargs)
        - {
            "size",
            "fill_value",
            "dtype",
            "device",
            "out",
            "layout",
            "requires_grad",
            "pin_memory",
            "memory_format",
            "names",
            "generator",
        }
    )
    dtypes = dtypes_of(kwargs.get("dtype"))
    if "dtype" not in kwargs or (isinstance(kwargs["dtype"], Const) and kwargs["dtype"].value is None):
        dtypes = default_dtypes(fill) if name == "full" else DEFAULT_FLOAT
    key = (name, site)
    result = fresh(
        key,
        f"torch.{name}(...)",
        site,
        dtypes,
        sizes,
        Content(fill=fill) if isinstance(fill, (bool, int, float)) else Content(),
        device_of(kwargs.get("device")),
    )
    if stray:
        result = replace(result, fault=Note(f"torch.{name}() takes no argument {stray[0]!r}", site))
    return result


def default_dtypes(fill: object) -> tuple[str, ...] | None:
    if isinstance(fill, bool):
        return ("bool",)
    if isinstance(fill, int):
        return ("int64",)
    return DEFAULT_FLOAT if isinstance(fill, float) else None


def _like(name: str, fill: object) -> Callable[..., Value | None]:
    def handler(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        tensor = as_tensor(args[0]) if args else None
        if tensor is None:
            return None
        filler = Args("input fill_value", args, kwargs).get("fill_value") if name == "full_like" else None
        value = filler.value if isinstance(filler, Const) else fill
        dtypes = dtypes_of(kwargs["dtype"]) if "dtype" in kwargs else tensor.dtypes
        shape = full_shape(tensor)
        content = Content(fill=value) if isinstance(value, (bool, int, float)) else Content()
        result = fresh(
            (name, tensor.key, site),
            f"torch.{name}({tensor.label})",
            site,
            dtypes,
            shape,
            content,
            tensor.device,
        )
        return replace(result, reason=f"shaped like {tensor.label}")

    return handler


def arange(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    numbers = [number_of(arg) for arg in args]
    size: Num | None = None
    if len(numbers) == 1 and numbers[0] is not None:
        size = numbers[0]
    elif len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None:
        size = numbers[1] - numbers[0]
    step = integer_of(args[2]) if len(args) > 2 else 1
    ramp = masks.counting(Num.of(0) if len(args) == 1 else numbers[0] if args else None, step)
    if step == 1 and len(numbers) == 3 and numbers[0] is not None and numbers[1] is not None:
        size = numbers[1] - numbers[0]
    floats = any(isinstance(a, Const) and isinstance(a.value, float) for a in args)
    dtypes = dtypes_of(kwargs["dtype"]) if "dtype" in kwargs else (DEFAULT_FLOAT if floats else ("int64",))
    key = ("arange", *(key_of(a) for a in args))
    content = Content(ramp=ramp if not kwargs.keys() & {"start", "end", "step"} and not floats else None)
    return fresh(key, "torch.arange(...)", site, dtypes, (size,), content, device_of(kwargs.get("device")))


def _diagonal(args: list[Value], kwargs: Mapping[str, Value]) -> Num | None:
    given = Args("diagonal", args, kwargs).get("diagonal")
    return Num.of(0) if given is None else number_of(given)


def _tri(upper: bool) -> Callable[..., Value | None]:
    name = "triu" if upper else "tril"

    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
        diagonal = _diagonal(args, kwargs)
        content = Content()
        filled = tensor.content.fill
        negative = isinstance(filled, (int, float)) and not isinstance(filled, bool) and filled < 0
        if filled and diagonal is not None:
            content = Content(triangle=Triangle(upper, diagonal), additive=negative)
        return derived(tensor, (name, diagonal), site, content=content, label=f"{name}({tensor.label})")

    return handler


def _as_function(handler: Callable[..., Value | None]) -> Callable[..., Value | None]:
    def function(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        rest = dict(kwargs)
        first = args[0] if args else rest.pop("input", None)
        tensor = as_tensor(first) if first is not None else None
        return handler(tensor, args[1:], rest, site) if tensor is not None else None

    return function


def cast_content(tensor: Tensor, dtype: str) -> Content:
    content = tensor.content
    if dtype not in ("int32", "int64", "float32", "float64"):
        content = masks.without_ramp(content)
    if content.additive:
        # Cast to bool, every negative entry becomes True: those are the hidden positions.
        polarity = Polarity.HIDE if dtype == "bool" else content.polarity
        return replace(content, additive=dtype in FLOATING, polarity=polarity)
    return content


def converted(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = list(args)
    dtype: Value | None = kwargs.get("dtype")
    device: Value | None = kwargs.get("device")
    opaque = False
    for value in bound:
        if isinstance(value, DType):
            dtype = value
        elif isinstance(value, Namespace):
            dtype = DType(PYTHON_DTYPES[value.name]) if value.name in PYTHON_DTYPES else None
            opaque = opaque or dtype is None
        elif isinstance(value, Const) and isinstance(value.value, str):
            device = value
        elif isinstance(value, Tensor):
            dtype = DType(value.dtypes[0]) if value.dtypes and len(value.dtypes) == 1 else None
            opaque = dtype is None
        elif isinstance(value, Unknown):
            # An unknown argument may be a dtype or a device.
            if value.label.endswith("device") or (
                isinstance(value.key, tuple) and value.key[:1] == ("device",)
            ):
                device = value
            else:
                opaque = True
    if (
        dtype is not None
        and not isinstance(dtype, DType)
        and not (isinstance(dtype, Const) and dtype.value is None)
    ):
        opaque = True
    dtypes = tensor.dtypes
    content = tensor.content
    copied = tensor.copied
    storage = tensor.storage
    if isinstance(dtype, DType):
        content = cast_content(tensor, dtype.name)
        if tensor.dtypes is None:
            storage = None
        elif tensor.dtypes != (dtype.name,):
            copied = copy_note(tensor, f"{tensor.label}.to({dtype.name}) is a copy", site)
            storage = ("fresh", "to", tensor.key, site)
        dtypes = (dtype.name,)
    elif opaque:
        dtypes = None
        storage = None
    place_device = tensor.device
    if device is not None:
        place_device = device_of(device)
        if place_device != tensor.device:
            storage = None
    extra = (
        dtype.name
        if isinstance(dtype, DType)
        else (key_of(dtype) if dtype is not None else tuple(map(key_of, bound)))
    )
    key = ("to", extra, place_device) if dtypes != tensor.dtypes or device is not None or opaque else None
    return replace(
        tensor,
        key=(key, tensor.key) if key else tensor.key,
        dtypes=dtypes,
        content=content,
        copied=copied,
        storage=storage,
        device=place_device,
        place=site if dtypes != tensor.dtypes else tensor.place,
        reason="cast to a dtype that is not visible" if dtypes is None and opaque else tensor.reason,
    )


def _cast(dtype: str) -> Callable[..., Value | None]:
    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        return converted(tensor, [DType(dtype)], {}, site)

    return handler


def _move(device: str) -> Callable[..., Value]:
    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
        return replace(tensor, device=device, storage=tensor.storage if tensor.device == device else None)

    return handler


def _same(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    return tensor


def _clone(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    if tensor.gaps:
        # Only a tensor without gaps keeps the order of its axes.
        tensor = replace(tensor, gaps=False, strided=tensor.strided if tensor.order is not None else None)
    return replace(
        tensor,
        key=("clone", tensor.key),
        storage=("fresh", "clone", site),
        copied=copy_note(tensor, f"{tensor.label}.clone() is a copy", site),
        contiguous=None if tensor.strided else tensor.contiguous,
    )


def _contiguous(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    if tensor.strided is not None:
        return replace(
            tensor,
            strided=None,
            order=None,
            gaps=False,
            contiguous=True,
            storage=("fresh", "contiguous", tensor.key),
            copied=copy_note(tensor, f"{tensor.label}.contiguous() is a copy", site),
            place=site,
        )
    return replace(tensor, contiguous=True, storage=tensor.storage if tensor.contiguous else None)


def _reshaped(sizes: tuple[Num | None, ...] | None, tensor: Tensor) -> tuple[Num | None, ...] | None:
    """Target sizes with -1 solved from the known element count."""
    if sizes is None:
        return None
    holes = [i for i, size in enumerate(sizes) if size is not None and size.integer == -1]
    if len(holes) != 1:
        return sizes
    hole: Num | None = None
    source = full_shape(tensor)
    if source is not None and all(size is not None for size in sizes):
        hole = Num.of(1)
        for dim in source:
            hole = hole * dim
        for i, size in enumerate(sizes):
            if i != holes[0] and size is not None and hole is not None:
                hole = hole.divide(size)
    return tuple(hole if i == holes[0] else size for i, size in enumerate(sizes))


def _regrouping(tensor: Tensor, sizes: tuple[Num | None, ...] | None, site: Any) -> Note | None:
    """Why a view mixes planes: an axis of a few planes is kept, but what lies inside a plane is not."""
    own = full_shape(tensor)
    if own is None or sizes is None or any(size is None for size in sizes[1:]):
        return None
    for count in (2, 3, 4):
        before = [i for i, dim in enumerate(own) if dim.integer == count]
        after = [i for i, dim in enumerate(sizes) if dim is not None and dim.integer == count]
        if len(before) != 1 or len(after) != 1 or before[0] in (0, len(own) - 1) or after[0] == 0:
            continue
        inside, regrouped = Num.of(1), Num.of(1)
        for dim in own[before[0] + 1 :]:
            inside = inside * dim
        for size in sizes[after[0] + 1 :]:
            regrouped = regrouped * (size or Num.of(1))
        ratio = inside.divide(regrouped)
        if ratio is not None and ratio.const is None and ratio.declared:
            return Note(
                f"each of the {count} planes of {tensor.label} holds {inside.label} elements, the view "
                f"takes {regrouped.label} for one",
                site,
            )
    return None


def _view_as(copying: bool) -> Callable[..., Value | None]:
    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        if len(args) == 1 and isinstance(args[0], DType):
            return replace(
                tensor,
                key=("bits", args[0].name, tensor.key),
                dtypes=(args[0].name,),
                shape=None,
                content=Content(),
            )
        sizes = _reshaped(
            dims_of(args) if args else dims_of([kwargs["shape"]]) if "shape" in kwargs else None, tensor
        )
        flat = ("view", *(key_of(a) for a in args))
        changes: dict[str, Any] = {
            "shape": sizes,
            "axes": True,
            "regrouped": tensor.regrouped or _regrouping(tensor, sizes, site),
        }
        ramp = masks.viewed_ramp(tensor.content.ramp, _dims(tensor), sizes)
        content = replace(tensor.content, ramp=ramp)
        if content.triangle is not None or content.band or content.strip:
            kept = sizes is not None and tensor.shape is not None and sizes[-2:] == tensor.shape[-2:]
            content = content if kept else replace(content, triangle=None, band=False, strip=False)
        changes["content"] = content
        if tensor.strided is not None:
            merged = sizes is not None and (tensor.shape is None or len(sizes) < len(tensor.shape))
            if copying:
                changes["strided"] = None
                changes["storage"] = None
                if merged:
                    changes["storage"] = ("fresh", "reshape", tensor.key)
                    changes["copied"] = copy_note(
                        tensor,
                        f"{tensor.label}.reshape(...) has to copy, because {tensor.strided.text}",
                        site,
                    )
            # A view that is accepted keeps gaps; which ones is not tracked.
            changes["contiguous"] = None
            changes["order"] = None
            changes["strided"] = None if copying or merged else tensor.strided
        elif copying and not tensor.contiguous:
            changes["storage"] = tensor.storage if tensor.contiguous else None
        return view_of(tensor, flat, site, **changes)

    return handler


def _axis(value: Value | None, rank: int) -> int | None:
    axis = integer_of(value)
    if axis is None or not -rank <= axis < rank:
        return None
    return axis % rank


def _ordered(tensor: Tensor, axes: list[int], name: str, site: Any) -> dict[str, Any]:
    """Memory facts of a view whose axis ``i`` is the tensor's axis ``axes[i]``."""
    if tensor.strided is not None and tensor.order is None and not tensor.gaps:
        # A view whose order was lost track of.
        return {"strided": None, "contiguous": None, "order": None}
    base = tensor.order if tensor.order is not None else tuple(range(len(axes)))
    order = tuple(base[axis] for axis in axes)
    shape = tensor.shape
    wide = [base[a] for a in axes if not (shape is not None and _one_wide(shape[a]))]
    if wide == sorted(wide):
        kept = tensor.strided if tensor.gaps else None
        return {
            "strided": kept,
            "contiguous": None if kept is None and tensor.order else tensor.contiguous,
            "order": None if order == tuple(range(len(axes))) else order,
        }
    note = tensor.strided if tensor.gaps else Note(f"{tensor.label}.{name}(...) is a strided view", site)
    return {"strided": note, "contiguous": False, "order": order}


def _one_wide(size: Num | None) -> bool:
    return size is not None and size.integer == 1


def transposed(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    bound = Args("dim0 dim1", args, kwargs)
    first, second = bound.integer("dim0"), bound.integer("dim1")
    shape = full_shape(tensor)
    key: Hashable = ("transpose", first, second)
    if shape is None or first is None or second is None:
        # Swapping twice restores the order.
        if (
            isinstance(tensor.key, tuple)
            and len(tensor.key) == 2
            and tensor.key[0] in (key, ("transpose", second, first))
        ):
            return replace(tensor, key=tensor.key[1], strided=None, contiguous=None, shape=None, order=None)
        if tensor.strided is not None:
            return view_of(
                tensor, key, site, strided=None, contiguous=None, order=None, shape=None, content=Content()
            )
        note = Note(f"{tensor.label}.transpose(...) is a strided view", site)
        return view_of(tensor, key, site, strided=note, contiguous=False, shape=None, content=Content())
    rank = len(shape)
    if not (-rank <= first < rank and -rank <= second < rank):
        return view_of(
            tensor, key, site, shape=None, strided=None, contiguous=None, order=None, content=Content()
        )
    axes = list(range(rank))
    axes[first % rank], axes[second % rank] = axes[second % rank], axes[first % rank]
    moved = tuple(shape[axis] for axis in axes)
    content = tensor.content
    if {first % rank, second % rank} == {rank - 1, rank - 2}:
        content = masks.transposed_content(content)
    elif first % rank != second % rank:
        content = Content(additive=content.additive, polarity=content.polarity)
    return view_of(
        tensor, key, site, shape=moved, content=content, **_ordered(tensor, axes, "transpose", site)
    )


def _permute(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    items = args[0].items if len(args) == 1 and isinstance(args[0], Sequence) else tuple(args)
    wanted = [integer_of(item) for item in items] if items else []
    shape = full_shape(tensor)
    key = ("permute", *wanted)
    axes = [axis for axis in wanted if axis is not None]
    rank = len(axes)
    if not wanted or len(axes) != len(wanted) or sorted(a % rank for a in axes) != list(range(rank)):
        return view_of(
            tensor, key, site, shape=None, strided=None, contiguous=None, order=None, content=Content()
        )
    axes = [axis % rank for axis in axes]
    if shape is not None and len(shape) != rank:
        return view_of(
            tensor, key, site, shape=None, strided=None, contiguous=None, order=None, content=Content()
        )
    moved = tuple(shape[axis] for axis in axes) if shape is not None else None
    content = tensor.content if axes == list(range(rank)) else Content()
    return view_of(tensor, key, site, shape=moved, content=content, **_ordered(tensor, axes, "permute", site))


def _unsqueeze(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    axis = Args("dim", args, kwargs).integer("dim")
    shape: tuple[Num | None, ...] | None = None
    if tensor.shape is not None and axis is not None and -len(tensor.shape) - 1 <= axis <= len(tensor.shape):
        sizes: list[Num | None] = list(full_shape(tensor) or ())
        sizes.insert(axis if axis >= 0 else axis + len(sizes) + 1, Num.of(1))
        shape = tuple(sizes)
    order = tensor.order
    if order is not None:
        at = None if axis is None else axis if axis >= 0 else axis + len(order) + 1
        order = (
            (*order[:at], len(order), *order[at:])
            if at is not None and 0 <= at <= len(order) and shape is not None
            else None
        )
    content = tensor.content
    if content.ramp is not None:
        rank = _dims(tensor)
        at = None if axis is None or rank is None else axis if axis >= 0 else axis + rank + 1
        indices: list[Any] = [(None, None, None)] * (at or 0) + [Const(None)]
        ramp = masks.indexed_ramp(content.ramp, rank, indices) if at is not None else None
        content = replace(content, ramp=ramp)
    return view_of(tensor, ("unsqueeze", axis), site, shape=shape, order=order, content=content)


def _squeeze(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    axis = Args("dim", args, kwargs).integer("dim")
    shape: tuple[Num | None, ...] | None = None
    if tensor.shape is not None and axis is not None:
        real = _axis(Const(axis), len(tensor.shape))
        if real is not None:
            size = tensor.shape[real]
            if size is not None and size.integer == 1:
                shape = tuple(d for i, d in enumerate(full_shape(tensor) or ()) if i != real)
            elif size is not None and size.integer is not None:
                shape = tensor.shape
    order = tensor.order
    if (
        order is not None
        and axis is not None
        and shape is not None
        and tensor.shape is not None
        and len(shape) < len(tensor.shape)
    ):
        order = _ranked([rank for i, rank in enumerate(order) if i != axis % len(tensor.shape)])
    elif shape is None:
        order = None
    content = tensor.content if axis == 0 and (_dims(tensor) or 0) > 2 else masks.without_ramp(tensor.content)
    return view_of(tensor, ("squeeze", axis), site, shape=shape, order=order, content=content)


def _ranked(order: list[int]) -> tuple[int, ...]:
    """The same order with ranks 0, 1, 2 ..."""
    return tuple(sorted(order).index(rank) for rank in order)


def _expand(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    sizes = dims_of(args)
    shape: tuple[Num | None, ...] | None = None
    if sizes is not None:
        own = full_shape(tensor)
        pad = len(sizes) - len(own) if own is not None else 0
        out: list[Num | None] = []
        for i, size in enumerate(sizes):
            if size is not None and size.integer == -1:
                out.append(own[i - pad] if own is not None and i >= pad else None)
            else:
                out.append(size)
        shape = tuple(out)
    return view_of(tensor, ("expand", *(key_of(a) for a in args)), site, shape=shape, contiguous=None)


def _repeat(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    counts = dims_of(args)
    own = full_shape(tensor)
    shape: tuple[Num | None, ...] | None = None
    if counts is not None and own is not None and len(counts) >= len(own):
        padded = (Num.of(1),) * (len(counts) - len(own)) + own
        shape = tuple(c * d if c is not None else None for c, d in zip(counts, padded, strict=True))
    return derived(
        tensor,
        ("repeat", *(key_of(a) for a in args)),
        site,
        shape=shape,
        content=replace(tensor.content, triangle=None, values=None, ramp=None, strip=False),
    )


def _flatten(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    bound = Args("start_dim end_dim", args, kwargs)
    own = full_shape(tensor)
    start = integer_of(bound.get("start_dim")) if bound.get("start_dim") is not None else 0
    end = integer_of(bound.get("end_dim")) if bound.get("end_dim") is not None else -1
    shape: tuple[Num | None, ...] | None = None
    if own is not None and start is not None and end is not None and own:
        first, last = start % len(own), end % len(own)
        product = Num.of(1)
        for dim in own[first : last + 1]:
            product = product * dim
        shape = (*own[:first], product, *own[last + 1 :])
    elif own is None and start == 0 and end == -1:
        shape = (None,)
    changes: dict[str, Any] = {"shape": shape, "content": replace(tensor.content, triangle=None, ramp=None)}
    if tensor.strided is not None:
        if (
            tensor.order is not None
            and not tensor.gaps
            and own is not None
            and start is not None
            and end is not None
        ):
            first, last = start % len(own), end % len(own)
            merged = [
                rank
                for rank, dim in list(zip(tensor.order, own, strict=True))[first : last + 1]
                if dim.integer != 1
            ]
            if all(y == x + 1 for x, y in itertools.pairwise(merged)):
                # The merged axes lie next to each other in memory: still a view.
                kept = merged[0] if merged else tensor.order[first]
                order = _ranked([*tensor.order[:first], kept, *tensor.order[last + 1 :]])
                return view_of(tensor, ("flatten", start, end), site, order=order, **changes)
        changes.update(
            strided=None,
            order=None,
            gaps=False,
            contiguous=True,
            storage=("fresh", "flatten", tensor.key),
            copied=copy_note(
                tensor, f"{tensor.label}.flatten() has to copy, because {tensor.strided.text}", site
            ),
        )
    elif not tensor.contiguous:
        changes["storage"] = None
    return view_of(tensor, ("flatten", start, end), site, **changes)


def _unflatten(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    bound = Args("dim sizes", args, kwargs)
    axis = bound.integer("dim")
    sizes_value = bound.get("sizes")
    sizes = dims_of([sizes_value]) if sizes_value is not None else None
    own = full_shape(tensor)
    shape: tuple[Num | None, ...] | None = None
    if own is not None and axis is not None and sizes is not None and -len(own) <= axis < len(own):
        real = axis % len(own)
        solved = [s if s is None or s.integer != -1 else None for s in sizes]
        shape = (*own[:real], *solved, *own[real + 1 :])
    key = ("unflatten", axis, key_of(sizes_value) if sizes_value else None)
    return view_of(tensor, key, site, shape=shape, content=masks.without_ramp(tensor.content))


def _pieces(
    tensor: Tensor,
    axis: int | None,
    sizes: list[Num | None] | None,
    name: str,
    site: Any,
    count: Num | None = None,
) -> Value:
    own = full_shape(tensor)
    rank = len(own) if own is not None else None
    inner = axis is not None and (axis == -1 or (rank is not None and axis % rank != 0))
    leading = axis == 0
    note = Note(f"a piece of {tensor.label}.{name}(...) is a strided view", site) if inner else None

    def piece(index: int | None, size: Num | None) -> Tensor:
        shape: tuple[Num | None, ...] | None = None
        if own is not None and axis is not None and -len(own) <= axis < len(own):
            changed: list[Num | None] = list(own)
            changed[axis] = size
            shape = tuple(changed)
        return view_of(
            tensor,
            (name, index, axis, size),
            site,
            shape=shape,
            strided=note or tensor.strided,
            gaps=tensor.gaps or note is not None,
            contiguous=False if note else (tensor.contiguous if leading else None),
            content=Content(),
            label=f"{tensor.label} piece",
        )

    if sizes is not None:
        return Sequence(
            tuple(piece(i, s) for i, s in enumerate(sizes)), "tuple", Num.of(len(sizes)), place=site
        )
    size: Num | None = None
    if own is not None and axis is not None and count is not None and -len(own) <= axis < len(own):
        size = own[axis].divide(count)
    return Sequence(None, "tuple", count, piece(None, size), key=(name, tensor.key, axis, count), place=site)


def _split(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("split_size dim", args, kwargs)
    sizes = bound.get("split_size", "split_size_or_sections", "split_sizes")
    axis_value = bound.get("dim")
    axis = 0 if axis_value is None else integer_of(axis_value)
    if isinstance(sizes, Const) and isinstance(sizes.value, str):
        return None
    if isinstance(sizes, Sequence) and sizes.items is not None:
        return _pieces(tensor, axis, [number_of(item) for item in sizes.items], "split", site)
    own = full_shape(tensor)
    piece = number_of(sizes) if sizes is not None and not isinstance(sizes, Sequence) else None
    result = _pieces(tensor, axis, None, "split", site)
    if (
        isinstance(result, Sequence)
        and isinstance(result.element, Tensor)
        and own is not None
        and axis is not None
        and result.element.shape
    ):
        changed = list(result.element.shape)
        changed[axis] = piece
        result = replace(result, element=replace(result.element, shape=tuple(changed)))
    return result


def _chunk(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    bound = Args("chunks dim", args, kwargs)
    axis_value = bound.get("dim")
    axis = 0 if axis_value is None else integer_of(axis_value)
    chunks = bound.get("chunks")
    count = number_of(chunks) if chunks is not None else None
    own = full_shape(tensor)
    if count is not None and count.integer is not None and 0 < count.integer <= 8:
        size = (
            own[axis].divide(count)
            if own is not None and axis is not None and -len(own) <= axis < len(own)
            else None
        )
        return _pieces(tensor, axis, [size] * count.integer, "chunk", site)
    return _pieces(tensor, axis, None, "chunk", site, count)


def _unbind(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    axis_value = Args("dim", args, kwargs).get("dim")
    axis = 0 if axis_value is None else integer_of(axis_value)
    element = select(tensor, axis, site) if axis is not None else None
    own = full_shape(tensor)
    count = own[axis] if own is not None and axis is not None and -len(own) <= axis < len(own) else None
    if element is not None and count is not None and count.integer is not None and 0 < count.integer <= 8:
        return Sequence(
            tuple(replace(element, key=("unbind", i, axis, tensor.key)) for i in range(count.integer)),
            "tuple",
            count,
            place=site,
        )
    return Sequence(None, "tuple", count, element, key=("unbind", tensor.key, axis), place=site)


def select(tensor: Tensor, axis: int, site: Any, index: Hashable = None) -> Tensor:
    """``tensor.select(axis, i)``: drops one axis."""
    own = full_shape(tensor)
    shape: tuple[Num | None, ...] | None = None
    if own is not None and -len(own) <= axis < len(own):
        axis %= len(own)
        shape = own[:axis] + own[axis + 1 :]
    note = Note(f"{tensor.label}[:, i] leaves gaps between its rows", site) if axis != 0 else tensor.strided
    content = (
        replace(tensor.content, triangle=None, values=None)
        if axis == 0 and tensor.content.fill is not None
        else Content()
    )
    return view_of(
        tensor,
        ("select", axis, index),
        site,
        shape=shape,
        strided=note,
        order=_ranked([rank for i, rank in enumerate(tensor.order) if i != axis % len(tensor.order)])
        if tensor.order is not None and own is not None
        else None,
        gaps=tensor.gaps or axis != 0,
        contiguous=tensor.contiguous if axis == 0 else False,
        content=content,
        label=f"{tensor.label}[...]",
    )


def _cumsum(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    dtypes = dtypes_of(kwargs.get("dtype")) or (
        ("int64",) if tensor.dtypes and tensor.dtypes[0] in INTEGERS else tensor.dtypes
    )
    if tensor.content.fill == 1 and tensor.shape is not None and len(tensor.shape) == 1:
        # 1, 2, 3 ...: the running sum of one token per request.
        pass
    return derived(
        tensor,
        ("cumsum",),
        site,
        dtypes=dtypes,
        content=Content(lengths=LengthForm.CUMULATIVE),
        label=f"cumsum({tensor.label})",
    )


def _diff(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    return derived(
        tensor,
        ("diff", *(key_of(v) for v in kwargs.values())),
        site,
        shape=None if tensor.shape is None or len(tensor.shape) != 1 else (None,),
        content=Content(lengths=LengthForm.PER_SEQUENCE),
        label=f"diff({tensor.label})",
    )


def _tolist(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    length = tensor.shape[0] if tensor.shape else None
    return Sequence(
        None,
        "list",
        length,
        content=tensor.content,
        key=("tolist", tensor.key),
        label=f"{tensor.label}.tolist()",
        place=site,
    )


def _rank(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    return Const(len(tensor.shape), place=site) if tensor.shape is not None else None


def _is_floating_point(
    tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any
) -> Value | None:
    if tensor.dtypes is None:
        # What is made to be added to scores is a float tensor of whatever width.
        return Const(True, place=site) if tensor.content.additive else None
    floating = {name in FLOATING for name in tensor.dtypes}
    return Const(floating.pop(), place=site) if len(floating) == 1 else None


def _item(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    counted = tensor.content.counts or tensor.content.lengths is not None
    whole = tensor.dtypes is not None and all(name in INTEGERS and name != "bool" for name in tensor.dtypes)
    number = Num.atom(("item", tensor.key), f"{tensor.label}.item()", count=counted)
    return Number(number, whole or counted, place=site)


def _reduce(name: str) -> Callable[..., Value | None]:
    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        if args or kwargs:
            return Unknown(
                (name, tensor.key, *(key_of(a) for a in args)),
                f"{tensor.label}.{name}(...)",
                "reduction",
                place=site,
            )
        content = Content(counts=tensor.content.counts or tensor.content.lengths is not None)
        result = derived(tensor, (name,), site, shape=(), content=content, label=f"{tensor.label}.{name}()")
        if name == "sum" and tensor.dtypes and all(dtype in INTEGERS for dtype in tensor.dtypes):
            return replace(result, dtypes=("int64",))
        return result

    return handler


def _repeat_interleave(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    bound = Args("repeats dim", args, kwargs)
    repeats = bound.get("repeats")
    axis_value = bound.get("dim")
    axis = integer_of(axis_value) if axis_value is not None else None
    total: Num | None = None
    if repeats is not None:
        total = Num.atom(("interleaved", key_of(repeats)), f"sum({label_of(repeats)})")
    own = full_shape(tensor)
    shape: tuple[Num | None, ...] | None = None
    if own is not None and axis is not None and -len(own) <= axis < len(own):
        changed: list[Num | None] = list(own)
        factor = number_of(repeats) if isinstance(repeats, (Const, Number)) else None
        changed[axis] = own[axis] * factor if factor is not None else total
        shape = tuple(changed)
    elif own is None and axis == 0:
        shape = None
    counts = key_of(repeats) if repeats is not None and axis in (None, 0) else None
    content = Content(
        lengths=tensor.content.lengths if tensor.content.lengths is LengthForm.PER_SEQUENCE else None,
        repeated=counts,
        rows=counts,
    )
    key = ("repeat_interleave", key_of(repeats) if repeats is not None else None, axis)
    return derived(
        tensor, key, site, shape=shape, content=content, label=f"{tensor.label}.repeat_interleave(...)"
    )


def _masked_fill(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    bound = Args("mask value", args, kwargs)
    mask, filler = bound.get("mask"), bound.get("value")
    content, dtypes = Content(), tensor.dtypes
    mask_tensor = as_tensor(mask) if mask is not None else None
    if tensor.content.fill == 0 and mask_tensor is not None:
        source = mask_tensor.content
        value = filler.value if isinstance(filler, Const) else None
        negative = isinstance(value, (int, float)) and not isinstance(value, bool) and value < -1
        content = Content(
            triangle=source.triangle,
            band=source.band,
            strip=source.strip,
            additive=negative,
            polarity=source.polarity,
        )
        if dtypes is None and negative and value != -inf:
            # Only floats have the lowest number of torch.finfo; infinity would be True in a bool tensor.
            dtypes = FLOATING
    key = ("masked_fill", key_of(mask) if mask else None)
    return derived(tensor, key, site, content=content, dtypes=dtypes)


def _not(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    return invert(tensor, site)


def _logical_not(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    return replace(invert(tensor, site), dtypes=("bool",))


def invert(tensor: Tensor, site: Any) -> Tensor:
    """Logical negation of a mask."""
    content = tensor.content
    polarity = None
    if content.polarity is not None:
        polarity = Polarity.KEEP if content.polarity is Polarity.HIDE else Polarity.HIDE
    fill = (not content.fill) if content.fill is not None else None
    return derived(
        tensor,
        ("not",),
        site,
        content=replace(masks.inverted_region(content), fill=fill, polarity=polarity),
        label=f"~{tensor.label}",
    )


def compare(tensor: Tensor, operator: str, other: Value, site: Any) -> Tensor:
    """``tensor <op> other``: a bool tensor."""
    content = Content()
    constant = other.value if isinstance(other, Const) else None
    zero = isinstance(constant, (int, float)) and constant == 0
    source = tensor.content
    triangle = masks.triangle_of(tensor, operator, other)
    if triangle is not None:
        content = Content(triangle=triangle)
    elif zero and source.fill is not None and operator in ("==", "!="):
        content = Content(fill=(source.fill == 0) == (operator == "=="))
    elif (
        (zero and operator == "!=")
        or (zero and operator == "<" and source.additive)
        or (zero and operator == ">" and not source.additive and source.triangle)
    ):
        content = Content(
            triangle=source.triangle,
            band=source.band,
            strip=source.strip,
            polarity=Polarity.HIDE if source.additive else source.polarity,
        )
    elif zero and operator == "==":
        content = invert(
            replace(
                tensor,
                content=replace(source, polarity=Polarity.HIDE if source.additive else source.polarity),
            ),
            site,
        ).content
    return derived(
        tensor,
        (operator, key_of(other)),
        site,
        dtypes=("bool",),
        content=content,
        label=f"{tensor.label} {operator} {label_of(other)}",
        shape=broadcast(tensor, tensor, as_tensor(other), other),
    )


def promote(left: Value, right: Value) -> tuple[str, ...] | None:
    """Result dtype of arithmetic between tensors and Python scalars."""
    tensors = [v for v in (left, right) if isinstance(v, Tensor)]
    if len(tensors) == 2:
        a, b = tensors
        ranks_a, ranks_b = _dims(a), _dims(b)
        if a.dtypes is None or b.dtypes is None or len(a.dtypes) != 1 or len(b.dtypes) != 1:
            return _half_known(a, b)
        x, y = a.dtypes[0], b.dtypes[0]
        if x == y:
            return (x,)
        # A 0-d tensor does not promote a tensor with axes within its kind.
        if ranks_a == 0 and ranks_b is not None and ranks_b > 0 and kind_of(x) <= kind_of(y):
            return (y,)
        if ranks_b == 0 and ranks_a is not None and ranks_a > 0 and kind_of(y) <= kind_of(x):
            return (x,)
        return join_dtypes(x, y)
    tensor = tensors[0]
    other = right if tensor is left else left
    if tensor.dtypes == DEFAULT_FLOAT and isinstance(other, (Const, Number)):
        return tensor.dtypes
    if tensor.dtypes is None or len(tensor.dtypes) != 1:
        return None
    if isinstance(other, Const):
        if isinstance(other.value, float) and tensor.dtypes[0] in INTEGERS:
            return ("float32",)
        if isinstance(other.value, int) and not isinstance(other.value, bool) and tensor.dtypes[0] == "bool":
            return ("int64",)
        return tensor.dtypes
    if isinstance(other, Number) or (isinstance(other, Unknown) and other.is_tensor is False):
        return tensor.dtypes
    if (
        isinstance(other, Unknown)
        and other.is_tensor is None
        and tensor.dtypes == ("int64",)
        and (tensor.axes or tensor.shape)
    ):
        return tensor.dtypes
    return None


def _half_known(a: Tensor, b: Tensor) -> tuple[str, ...] | None:
    """int64 wins over every integer: slot arithmetic with an int64 index stays int64 (or becomes float,
    which no slot or length is)."""
    for known, other in ((a, b), (b, a)):
        if known.dtypes == ("int64",) and other.dtypes is None and (known.axes or bool(known.shape)):
            return ("int64",)
    return None


def _dims(tensor: Tensor) -> int | None:
    return len(tensor.shape) if tensor.shape is not None else None


def kind_of(name: str) -> int:
    return 0 if name == "bool" else 1 if name in INTEGERS else 2


def join_dtypes(x: str, y: str) -> tuple[str, ...] | None:
    if kind_of(x) == 2 or kind_of(y) == 2:
        floats = [n for n in (x, y) if kind_of(n) == 2]
        if len(floats) == 1:
            return (floats[0],)
        order = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2}
        if x not in order or y not in order:
            return None
        return ("float32",) if order[x] == order[y] else (max(floats, key=lambda n: order[n]),)
    if "uint8" in (x, y) and "int8" in (x, y):
        return ("int16",)
    return (max((x, y), key=lambda n: INTEGERS[n]),)


def arithmetic(left: Value, operator: str, right: Value, site: Any) -> Value | None:
    """Result of tensor arithmetic and bitwise operators."""
    a = as_tensor(left) if isinstance(left, (Tensor, Unknown)) else None
    b = as_tensor(right) if isinstance(right, (Tensor, Unknown)) else None
    tensor = a if isinstance(left, Tensor) else b if isinstance(right, Tensor) else None
    if tensor is None:
        return None
    dtypes = promote(left, right) if operator != "/" else None
    if operator == "/":
        dtypes = tensor.dtypes if tensor.dtypes and tensor.dtypes[0] in FLOATING else None
    content = _combined_content(left, operator, right)
    shape = broadcast(a, left, b, right)
    both = (key_of(left), key_of(right))
    device = tensor.device
    label = f"{label_of(left)} {operator} {label_of(right)}"
    result = fresh((operator, *both), label, site, dtypes, shape, content, device)
    if tensor.fault is not None:
        result = replace(result, fault=tensor.fault)
    axes = any(t is not None and (t.axes or bool(t.shape)) for t in (a, b))
    return replace(result, reason=f"the result of {label}", axes=axes)


def broadcast(a: Tensor | None, left: Value, b: Tensor | None, right: Value) -> tuple[Num | None, ...] | None:
    if isinstance(left, (Const, Number)):
        return full_shape(b) if b is not None else None
    if isinstance(right, (Const, Number)):
        return full_shape(a) if a is not None else None
    first = full_shape(a) if a is not None else None
    second = full_shape(b) if b is not None else None
    if first is None or second is None:
        return None
    rank = max(len(first), len(second))
    padded = [(Num.of(1),) * (rank - len(s)) + s for s in (first, second)]
    out: list[Num | None] = []
    for x, y in zip(*padded, strict=True):
        if x == y or y.integer == 1:
            out.append(x)
        elif x.integer == 1:
            out.append(y)
        else:
            out.append(None)
    return tuple(out)


def _combined_content(left: Value, operator: str, right: Value) -> Content:
    ramp = masks.combined(left, operator, right)
    if ramp is not None:
        return Content(ramp=ramp)
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        region = masks.REGIONS.get(operator)
        found = region(left.content, right.content) if region is not None else None
        if found is not None:
            return found
    for value, other in ((left, right), (right, left)):
        if not isinstance(value, Tensor):
            continue
        content = value.content
        constant = other.value if isinstance(other, Const) else None
        if operator == "*" and isinstance(constant, (int, float)) and not isinstance(constant, bool):
            if constant < -1:
                # Anything times a large negative number is made to be added to scores.
                kept = Content(triangle=content.triangle, band=content.band, strip=content.strip)
                return replace(kept, additive=True)
            return Content(triangle=content.triangle if constant else None)
        if operator == "+" and isinstance(constant, int) and content.lengths is LengthForm.PER_SEQUENCE:
            return Content(lengths=LengthForm.PER_SEQUENCE, rows=content.rows)
        if operator in ("+", "-") and content.rows is not None:
            return Content(rows=content.rows)
        if operator == "-" and value is right and constant == 1 and content.triangle is not None:
            return Content(triangle=content.triangle.inverted())
    return Content()


def _started_at_zero(parts: list[Tensor], axis: int | None) -> Content:
    """Running sums behind a single 0: they start where the first sequence does."""
    if len(parts) != 2 or axis not in (0, -1) or parts[1].content.lengths is not LengthForm.CUMULATIVE:
        return Content()
    first = parts[0]
    single = first.shape is not None and len(first.shape) == 1 and _one_wide(first.shape[0])
    zero = first.content.values == (0,) or (first.content.fill == 0 and first.content.fill is not False)
    return Content(lengths=LengthForm.CUMULATIVE) if single and zero else Content()


def _cat(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("tensors dim", args, kwargs)
    items = bound.get("tensors")
    axis_value = bound.get("dim")
    axis = 0 if axis_value is None else integer_of(axis_value)
    if not isinstance(items, Sequence):
        return None
    parts = [as_tensor(i) for i in items.items] if items.items is not None else []
    if items.items is None and items.element is not None:
        element = as_tensor(items.element)
        if element is None:
            return None
        own = full_shape(element)
        shape: tuple[Num | None, ...] | None = None
        if own is not None and axis is not None and -len(own) <= axis < len(own):
            changed: list[Num | None] = list(own)
            changed[axis] = own[axis] * items.length if items.length is not None else None
            shape = tuple(changed)
        content = Content(gathered=element.content.gathered)
        return derived(element, ("cat", axis), site, shape=shape, content=content, label="torch.cat(...)")
    if not parts or any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    shape = _joined_shape([full_shape(p) for p in known], axis)
    dtypes = known[0].dtypes if all(p.dtypes == known[0].dtypes for p in known) else None
    result = fresh(
        ("cat", axis, *(p.key for p in known)),
        "torch.cat(...)",
        site,
        dtypes,
        shape,
        _started_at_zero(known, axis),
        known[0].device,
    )
    return replace(result, joined=(axis, len(known)) if axis is not None and len(known) > 1 else None)


def _joined_shape(shapes: list[tuple[Num, ...] | None], axis: int | None) -> Shape | None:
    """The shape of a concatenation, whose parts differ along one axis alone."""
    known = [shape for shape in shapes if shape is not None]
    ranks = {len(shape) for shape in known}
    # An empty tensor with one axis goes with every other.
    if len(ranks) != 1 or axis is None or (len(known) < len(shapes) and ranks == {1}):
        return None
    first = known[0]
    if not -len(first) <= axis < len(first):
        return None
    total = Num.of(0)
    for shape in known:
        total = total + shape[axis]
    changed: list[Num | None] = list(first)
    changed[axis] = total if len(known) == len(shapes) else None
    return tuple(changed)


def _stack(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("tensors dim", args, kwargs)
    items = bound.get("tensors")
    axis_value = bound.get("dim")
    axis = 0 if axis_value is None else integer_of(axis_value)
    if not isinstance(items, Sequence) or items.items is None or not items.items:
        return None
    parts = [as_tensor(i) for i in items.items]
    if any(p is None for p in parts):
        return None
    first = parts[0]
    assert first is not None
    own = full_shape(first)
    shape: tuple[Num | None, ...] | None = None
    if own is not None and axis is not None and -len(own) - 1 <= axis <= len(own):
        changed: list[Num | None] = list(own)
        changed.insert(axis if axis >= 0 else axis + len(own) + 1, Num.of(len(parts)))
        shape = tuple(changed)
    key = ("stack", axis, *(p.key for p in parts if p is not None))
    content = Content(slots="pairs") if len(parts) == 2 and axis in (1, -1) else Content()
    return replace(fresh(key, "torch.stack(...)", site, first.dtypes, shape, content, first.device))


def _where(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    if len(args) != 3:
        return None
    cond = as_tensor(args[0])
    yes, no = args[1], args[2]
    content = Content()
    hidden = cond.content if cond is not None else Content()
    first, second = (v.value if isinstance(v, Const) else None for v in (yes, no))
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        if second == 0 and first != 0:
            region = Content(triangle=hidden.triangle, band=hidden.band, strip=hidden.strip)
            content = replace(region, additive=first < -1)
        elif first == 0 and second != 0:
            content = replace(masks.inverted_region(hidden), additive=second < -1)
    dtypes = next((v.dtypes for v in (yes, no) if isinstance(v, Tensor)), None)
    if isinstance(yes, Const) and isinstance(no, Const) and float in (type(first), type(second)):
        dtypes = DEFAULT_FLOAT
    key = ("where", *(key_of(a) for a in args))
    return fresh(
        key, "torch.where(...)", site, dtypes, full_shape(cond) if cond is not None else None, content
    )


def _new(name: str, fill: object) -> Callable[..., Value | None]:
    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        full = "full" if name == "new_full" else "zeros"
        result = _created(args, {**kwargs, "dtype": kwargs.get("dtype", DType("float32"))}, site, full, fill)
        if isinstance(result, Tensor):
            dtypes = dtypes_of(kwargs["dtype"]) if "dtype" in kwargs else tensor.dtypes
            return replace(result, dtypes=dtypes, device=tensor.device, key=(name, tensor.key, site))
        return result

    return handler


def _size(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    axis = Args("dim", args, kwargs).get("dim")
    if axis is None:
        return shape_value(tensor, site)
    index = integer_of(axis)
    return dim_value(tensor, index, site) if index is not None else None


def _narrow(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    bound = Args("dim start length", args, kwargs)
    axis, length = bound.integer("dim"), bound.get("length")
    own = full_shape(tensor)
    shape: tuple[Num | None, ...] | None = None
    if own is not None and axis is not None and -len(own) <= axis < len(own):
        changed: list[Num | None] = list(own)
        changed[axis] = number_of(length) if length is not None else None
        shape = tuple(changed)
    strided = tensor.strided if axis == 0 else Note(f"{tensor.label}.narrow(...) is a strided view", site)
    return view_of(
        tensor,
        ("narrow", *(key_of(a) for a in args)),
        site,
        shape=shape,
        strided=strided,
        gaps=tensor.gaps or axis != 0,
        content=Content(lengths=tensor.content.lengths) if axis == 0 else Content(),
    )


def _select(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("dim index", args, kwargs)
    axis = bound.integer("dim")
    index = bound.get("index")
    return (
        select(tensor, axis, site, key_of(index) if index is not None else None) if axis is not None else None
    )


def _gather(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    copied = copy_note(tensor, f"{tensor.label} at an index tensor is a copy", site)
    key = ("gather", *(key_of(a) for a in args))
    return derived(tensor, key, site, shape=None, content=Content(), copied=copied)


def _copy(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    source = as_tensor(args[0]) if args else None
    return replace(
        tensor,
        content=source.content if source is not None else Content(),
        key=("copy", tensor.key, key_of(args[0]) if args else None),
    )


def _fill(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    value = args[0].value if args and isinstance(args[0], Const) else None
    content = Content(fill=value) if isinstance(value, (bool, int, float)) else Content()
    return replace(tensor, content=content, key=("fill", tensor.key, key_of(args[0]) if args else None))


def _zero(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
    return _fill(tensor, [Const(0)], {}, site)


def _elementwise(name: str) -> Callable[..., Value | None]:
    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value:
        lengths = tensor.content.lengths if name in ("clamp", "clamp_min", "clamp_max") else None
        return derived(
            tensor,
            (name, *(key_of(a) for a in args)),
            site,
            content=Content(lengths=lengths),
            shape=full_shape(tensor),
        )

    return handler


def _operator(symbol: str) -> Callable[..., Value | None]:
    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        return arithmetic(tensor, symbol, args[0], site) if args else None

    return handler


def _comparison(symbol: str) -> Callable[..., Value | None]:
    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        return compare(tensor, symbol, args[0], site) if args else None

    return handler


def _pad(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    bound = Args("input pad mode value", args, kwargs)
    tensor = as_tensor(bound.values["input"]) if "input" in bound.values else None
    amounts = bound.get("pad")
    if tensor is None:
        return None
    own = full_shape(tensor)
    shape: tuple[Num | None, ...] | None = None
    padding: Num | None = None
    content = Content()
    if isinstance(amounts, Sequence) and amounts.items is not None and len(amounts.items) >= 2:
        before, after = number_of(amounts.items[0]), number_of(amounts.items[1])
        padding = before + after if before is not None and after is not None else None
        leading_zero = before == Num.of(1) and after == Num.of(0) and bound.get("value") is None
        if leading_zero and tensor.content.lengths is LengthForm.CUMULATIVE:
            # The running sums start where the first sequence does.
            content = Content(lengths=LengthForm.CUMULATIVE)
    if (
        own is not None
        and isinstance(amounts, Sequence)
        and amounts.items is not None
        and len(amounts.items) <= 2 * len(own)
    ):
        changed: list[Num | None] = list(own)
        for i in range(0, len(amounts.items) - 1, 2):
            low, high = number_of(amounts.items[i]), number_of(amounts.items[i + 1])
            axis = len(own) - 1 - i // 2
            changed[axis] = own[axis] + low + high if low is not None and high is not None else None
        shape = tuple(changed)
    return derived(
        tensor,
        ("pad", key_of(amounts) if amounts else None),
        site,
        shape=shape,
        content=content,
        label=f"pad({tensor.label})",
        padding=padding,
    )


METHODS: dict[str, Callable[..., Value | None]] = {
    "triu": _tri(True),
    "tril": _tri(False),
    "to": converted,
    "type": converted,
    "type_as": converted,
    "bool": _cast("bool"),
    "int": _cast("int32"),
    "long": _cast("int64"),
    "short": _cast("int16"),
    "char": _cast("int8"),
    "byte": _cast("uint8"),
    "float": _cast("float32"),
    "half": _cast("float16"),
    "bfloat16": _cast("bfloat16"),
    "double": _cast("float64"),
    "npu": _move("npu"),
    "cpu": _move("cpu"),
    "detach": _same,
    "requires_grad_": _same,
    "pin_memory": _same,
    "numpy": lambda tensor, args, kwargs, site: replace(tensor, numpy=True),
    "clone": _clone,
    "contiguous": _contiguous,
    "view": _view_as(copying=False),
    "reshape": _view_as(copying=True),
    "transpose": transposed,
    "swapaxes": transposed,
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "repeat": _repeat,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "split": _split,
    "chunk": _chunk,
    "unbind": _unbind,
    "cumsum": _cumsum,
    "diff": _diff,
    "tolist": _tolist,
    "dim": _rank,
    "ndimension": _rank,
    "is_floating_point": _is_floating_point,
    "item": _item,
    "max": _reduce("max"),
    "min": _reduce("min"),
    "sum": _reduce("sum"),
    "repeat_interleave": _repeat_interleave,
    "masked_fill": _masked_fill,
    "logical_not": _logical_not,
    "bitwise_not": _not,
    "new_zeros": _new("new_zeros", 0),
    "new_ones": _new("new_ones", 1),
    "new_empty": _new("new_empty", None),
    "new_full": _new("new_full", None),
    "size": _size,
    "narrow": _narrow,
    "select": _select,
    "gather": _gather,
    "index_select": _gather,
    "copy_": _copy,
    "fill_": _fill,
    "zero_": _zero,
    "clamp": _elementwise("clamp"),
    "clamp_min": _elementwise("clamp_min"),
    "abs": _elementwise("abs"),
    "add": _operator("+"),
    "sub": _operator("-"),
    "mul": _operator("*"),
    "logical_or": _operator("|"),
    "logical_and": _operator("&"),
    "eq": _comparison("=="),
    "ne": _comparison("!="),
    "lt": _comparison("<"),
    "gt": _comparison(">"),
    "le": _comparison("<="),
    "ge": _comparison(">="),
}

# Functions of torch that take the tensor first and otherwise work like the method.
AS_METHOD = frozenset(
    [
        "triu",
        "tril",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "flatten",
        "unflatten",
        "reshape",
        "split",
        "chunk",
        "unbind",
        "cumsum",
        "diff",
        "masked_fill",
        "logical_not",
        "bitwise_not",
        "repeat_interleave",
        "clone",
        "logical_or",
        "logical_and",
        "eq",
        "ne",
        "lt",
        "gt",
        "le",
        "ge",
        "clamp",
        "narrow",
        "select",
        "gather",
        "index_select",
        "swapaxes",
        "add",
        "sub",
        "mul",
        "abs",
    ]
)

FUNCTIONS: dict[str, Callable[..., Value | None]] = {
    "zeros": lambda a, k, s: _created(a, k, s, "zeros", 0),
    "ones": lambda a, k, s: _created(a, k, s, "ones", 1),
    "empty": lambda a, k, s: _created(a, k, s, "empty", None),
    "full": lambda a, k, s: _created(a, k, s, "full", None),
    "rand": lambda a, k, s: _created(a, k, s, "rand", None),
    "randn": lambda a, k, s: _created(a, k, s, "randn", None),
    "zeros_like": _like("zeros_like", 0),
    "ones_like": _like("ones_like", 1),
    "empty_like": _like("empty_like", None),
    "full_like": _like("full_like", None),
    "rand_like": _like("rand_like", None),
    "randn_like": _like("randn_like", None),
    "arange": arange,
    "cat": _cat,
    "concat": _cat,
    "concatenate": _cat,
    "stack": _stack,
    "where": _where,
    "nn.functional.pad": _pad,
}
