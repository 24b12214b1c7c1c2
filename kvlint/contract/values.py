"""Abstract values: what a reader knows of an argument.

Both readers build these. The static reader builds them from expressions, the live reader from real
tensors; rules only see the facts that :class:`kvlint.contract.call.Arg` answers about them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum

from .keys import intern
from .num import Num
from .paths import Cond
from .tri import Note, Place


class LengthForm(Enum):
    """How a list of sequence lengths counts (contract D02-D05)."""

    CUMULATIVE = "cumulative"
    PER_SEQUENCE = "per sequence"


class Polarity(Enum):
    """What a non-zero mask element means."""

    HIDE = "non-zero hides"
    KEEP = "non-zero keeps"


@dataclass(frozen=True, slots=True)
class Triangle:
    """The non-zero part of a triangular matrix.

    ``upper`` True: elements with ``column - row >= diagonal``; False: ``column - row <= diagonal``.
    """

    upper: bool
    diagonal: Num

    @property
    def covers_diagonal(self) -> bool | None:
        """Whether a row's own column is non-zero; None when the offset is not a constant."""
        offset = self.diagonal.integer
        if offset is None:
            return None
        return offset <= 0 if self.upper else offset >= 0

    def inverted(self) -> Triangle:
        """The complement."""
        one = Num.of(1)
        return Triangle(not self.upper, self.diagonal - one if self.upper else self.diagonal + one)


@dataclass(frozen=True, slots=True)
class Ramp:
    """Elements that count along the last two axes: ``row * i + column * j + offset``."""

    row: int
    column: int
    offset: Num


@dataclass(frozen=True, slots=True)
class Content:
    """What is known of a tensor's or list's elements.

    Attributes:
        fill: the constant every element has (``torch.zeros`` ...), or None.
        triangle: where the non-zero elements are, when triangular.
        band: True when the non-zero region is a union of triangles (a window mask).
        strip: True when the non-zero region lies between two diagonals (the complement of a band).
        ramp: how the elements count along the axes, when they are positions.
        polarity: meaning of non-zero elements when the construction tells it.
        additive: True for a float mask made to be added to scores.
        lengths: how a length list counts.
        counts: True when the elements count tokens.
        gathered: True when it was gathered from every rank of a group.
        cut: how the source names the upper bound it was sliced at.
        slots: "token" for one slot per token, "block" for one entry per block.
        slot_block: block size in ``table * block + pos % block``, when that formula built it.
        values: the integers, when all are known.
        repeated: identity of the counts when every row was repeated that often (``repeat_interleave``).
        rows: the same counts, also when something was added to the repeated rows since.
    """

    fill: bool | int | float | None = None
    triangle: Triangle | None = None
    band: bool = False
    strip: bool = False
    ramp: Ramp | None = None
    polarity: Polarity | None = None
    additive: bool = False
    lengths: LengthForm | None = None
    counts: bool = False
    gathered: bool = False
    cut: str | None = None
    slots: str | None = None
    slot_block: Num | None = None
    values: tuple[int, ...] | None = None
    repeated: Hashable = None
    rows: Hashable = None


NO_CONTENT = Content()


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Base of all abstract values."""

    place: Place | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Const(Value):
    """A Python constant: None, bool, int, float, str, bytes, Ellipsis."""

    value: object


def is_none(value: Value) -> bool:
    """Whether a value is certainly None."""
    return isinstance(value, Const) and value.value is None


@dataclass(frozen=True, slots=True)
class DType(Value):
    """A torch dtype by its short name, for example ``float16``."""

    name: str


@dataclass(frozen=True, slots=True)
class Number(Value):
    """A symbolic number that is not a constant; ``whole`` when it is certainly an integer."""

    num: Num
    whole: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Hint:
    """The type that an annotation or a construction gives a value.

    Attributes:
        name: "Tensor", "int", "float", "bool", "str", "list", "tuple", "dict", "dtype" or another class.
        optional: True when it may be None instead.
        items: for a list the type of its items, for a tuple that of each, for a dict that of its values.
    """

    name: str
    optional: bool = False
    items: tuple[Hint, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown(Value):
    """Nothing is known but an identity.

    Attributes:
        key: equal keys mean the same run-time value.
        label: how the source names it.
        reason: why nothing more is known.
        declared: True for a parameter, attribute or config entry (see :class:`~.num.Atom`).
        is_tensor: whether it is a tensor, None when that is not known.
        hint: its declared type; it proves what holds for the type, an odd one proves no fault.
    """

    key: Hashable
    label: str = field(compare=False)
    reason: str = field(compare=False)
    declared: bool = field(default=False, compare=False)
    is_tensor: bool | None = field(default=None, compare=False)
    hint: Hint | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", intern(self.key))


@dataclass(frozen=True, slots=True)
class Tensor(Value):
    """A tensor.

    Attributes:
        key: identity of the value; equal keys mean equal run-time tensors.
        dtypes: the possible dtype short names; None when unknown.
        shape: one symbolic dimension per axis (None for an unknown one); None when even the rank is
            unknown.
        axes: True when it certainly has an axis, although the shape is not known.
        regrouped: why its rows mix what lay apart in the source (a view that moved an axis across another).
        misindexed: why it is the wrong entry of a list it was taken from.
        content: what is known of the elements.
        strided: why it is visibly not contiguous; None when that is not visible.
        order: for a permuted view, the memory rank of each axis (0 the slowest); None for memory order,
            or when it is not tracked. ``strided`` then only counts while axes wider than one are out
            of order.
        gaps: True when a slice left gaps, whatever the order.
        contiguous: True when certainly contiguous (a fresh result).
        storage: identity of the memory it lives in; None when unknown.
        copied: when the data is a copy of a caller's tensor: what made it. A write to it is lost.
        device: "cpu", "npu", or None.
        fault: why building it raises, when it does.
        padding: how many elements its last axis was padded by (``F.pad``); None when that is not visible.
        numpy: True for a NumPy array, which promotes and views in its own way.
        joined: axis and number of parts when it is a concatenation; dropped when the axes are rearranged.
    """

    key: Hashable = field(compare=True)
    label: str = field(default="tensor", compare=False)
    dtypes: tuple[str, ...] | None = field(default=None, compare=False)
    shape: tuple[Num | None, ...] | None = field(default=None, compare=False)
    axes: bool = field(default=False, compare=False)
    regrouped: Note | None = field(default=None, compare=False)
    misindexed: Note | None = field(default=None, compare=False)
    content: Content = field(default=NO_CONTENT, compare=False)
    strided: Note | None = field(default=None, compare=False)
    order: tuple[int, ...] | None = field(default=None, compare=False)
    gaps: bool = field(default=False, compare=False)
    contiguous: bool | None = field(default=None, compare=False)
    storage: Hashable = field(default=None, compare=False)
    copied: Note | None = field(default=None, compare=False)
    device: str | None = field(default=None, compare=False)
    fault: Note | None = field(default=None, compare=False)
    padding: Num | None = field(default=None, compare=False)
    joined: tuple[int, int] | None = field(default=None, compare=False)
    numpy: bool = field(default=False, compare=False)
    reason: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", intern(self.key))

    def out_of_order(self, is_one: Callable[[Num], bool]) -> Note | None:
        """Why the tensor is not contiguous, when ``is_one`` tells which axes have one element."""
        if self.gaps or self.order is None:
            return self.strided
        wide = [
            rank
            for axis, rank in enumerate(self.order)
            if not (self.shape is not None and self.shape[axis] is not None and is_one(self.shape[axis]))  # type: ignore[arg-type]
        ]
        return self.strided if wide != sorted(wide) else None


@dataclass(frozen=True, slots=True)
class Sequence(Value):
    """A list or tuple.

    Attributes:
        items: the elements when all are known.
        kind: "list" or "tuple".
        length: number of elements.
        element: a value that stands for every element, when the items are not known one by one.
        names: how the items of a named tuple are called.
        uneven: why a loop does not add one entry a round, when it visibly does not.
    """

    items: tuple[Value, ...] | None
    kind: str = "list"
    length: Num | None = None
    element: Value | None = None
    content: Content = NO_CONTENT
    key: Hashable = None
    label: str = field(default="list", compare=False)
    names: tuple[str, ...] = field(default=(), compare=False)
    uneven: Note | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", intern(self.key))


@dataclass(frozen=True, slots=True)
class Choice(Value):
    """One of two values, by a condition: ``yes if cond else no``; ``size`` counts the alternatives."""

    cond: Cond
    yes: Value
    no: Value
    size: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        yes, no = self.yes, self.no
        size = (yes.size if isinstance(yes, Choice) else 1) + (no.size if isinstance(no, Choice) else 1)
        object.__setattr__(self, "size", size)


@dataclass(frozen=True, slots=True)
class Join(Value):
    """One of several values, by something that is no test the source spells out: which method ran
    last, whether a loop ran. Facts hold when every option agrees; an option alone proves nothing.

    ``ident``: its own identity where tests that tell the options apart were given up, as there are too many.
    """

    options: tuple[Value, ...]
    ident: int | None = None


@dataclass(frozen=True, slots=True)
class Absent(Value):
    """The argument is not passed."""


ABSENT = Absent()
