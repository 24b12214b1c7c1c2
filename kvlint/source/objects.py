"""Abstract values that only the static reader has: functions, classes, namespaces, containers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from kvlint.contract.keys import intern
from kvlint.contract.tri import Note
from kvlint.contract.values import Value

from .chunk import Chunk
from .module import ClassIndex, ModuleIndex

if TYPE_CHECKING:
    from .state import State


@dataclass(frozen=True, slots=True, eq=False)
class Func(Value):
    """A function, method or lambda of the code under check."""

    module: ModuleIndex
    chunk: Chunk
    node: cst.FunctionDef | cst.Lambda
    name: str
    owner: ClassRef | None = None
    closure: State | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ClassRef(Value):
    """A class of the code under check."""

    module: ModuleIndex
    index: ClassIndex

    @property
    def name(self) -> str:
        return self.index.node.name


@dataclass(frozen=True, slots=True)
class Instance(Value):
    """An object of a known class; ``args`` are its constructor's, None when unknown.

    ``optional``: it may be None instead.
    """

    key: Hashable
    cls: ClassRef = field(compare=False)
    args: tuple[Value, ...] | None = field(default=None, compare=False)
    kwargs: Mapping[str, Value] | None = field(default=None, compare=False)
    label: str = field(default="object", compare=False)
    optional: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", intern(self.key))


@dataclass(frozen=True, slots=True, eq=False)
class Bound(Value):
    """A method bound to its object."""

    func: Func
    receiver: Value


@dataclass(frozen=True, slots=True)
class Namespace(Value):
    """An importable thing outside the code under check, by its dotted name."""

    name: str


@dataclass(frozen=True, slots=True)
class OpRef(Value):
    """An operator of the catalogue."""

    name: str
    overload: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class PartialCall(Value):
    """``functools.partial`` of something."""

    func: Value
    args: tuple[tuple[Value, Any], ...]
    kwargs: Mapping[str, tuple[Value, Any]]


@dataclass(frozen=True, slots=True)
class RecordType(Value):
    """What ``collections.namedtuple`` makes: a class of tuples with named items."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ref(Value):
    """A mutable list or dict; its content is in the state."""

    ident: Hashable


@dataclass(frozen=True, slots=True, eq=False)
class MapValue(Value):
    """The content of a dict: key -> value (a choice with ``ABSENT`` when conditional).

    ``open`` says why there may be more keys.
    """

    entries: Mapping[Hashable, Value]
    open: Note | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Method(Value):
    """A method of a tensor or unknown object, looked up but not yet called."""

    receiver: Value
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Deferred(Value):
    """A call of a known function whose result nobody has asked for yet."""

    func: Func
    args: tuple[Value, ...]
    kwargs: Mapping[str, Value]
    state: State
    site: Any
    depth: int
    memo: list[Value] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Frozen(Value):
    """A container that outlived the frame that built it."""

    content: Value
    heap: Mapping[Hashable, Value]


@dataclass(frozen=True, slots=True, eq=False)
class SuperRef(Value):
    obj: Instance
    owner: ClassRef
