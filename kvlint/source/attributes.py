"""Attributes: of objects of known classes, of classes, of values."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import libcst as cst

from kvlint.contract import catalogue
from kvlint.contract.keys import intern
from kvlint.contract.num import Num
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    Choice,
    Const,
    Hint,
    Join,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
    is_none,
)

from .algebra import (
    is_counter,
    kept,
    one_of,
    placed,
    weakened,
)
from .annotations import hint_of
from .chunk import Site
from .core import Core, Made
from .module import BadSource
from .objects import (
    Bound,
    ClassRef,
    Deferred,
    Frozen,
    Func,
    Instance,
    MapValue,
    Method,
    Namespace,
    OpRef,
    Ref,
    SuperRef,
)
from .slices import deciding
from .state import (
    MAX_WRITERS,
    Frame,
    State,
)
from .syntax import (
    ast_dotted,
    decorators_of,
    mentions,
    parameters_of,
    wrapping_decorator,
)
from .torchlib import (
    Test,
    key_of,
    label_of,
    number_tensor,
)

# Names that code under check gives to a namespace of NPU operators it received as an argument.
_NAMESPACE_NAMES = frozenset(("npu", "torch_npu", "tnpu", "fa_ops", "npu_ops"))

_PLAIN_BASES = frozenset(
    (
        "torch.nn.Module",
        "torch.nn.modules.Module",
        "abc.ABC",
        "typing.Protocol",
        "typing.Generic",
        "typing.NamedTuple",
        "enum.Enum",
        "enum.IntEnum",
        "builtins.object",
    )
)


TENSOR_METHODS = frozenset(
    [
        "triu",
        "tril",
        "to",
        "type",
        "type_as",
        "bool",
        "int",
        "long",
        "short",
        "char",
        "byte",
        "float",
        "half",
        "bfloat16",
        "double",
        "npu",
        "cpu",
        "detach",
        "requires_grad_",
        "pin_memory",
        "clone",
        "contiguous",
        "view",
        "reshape",
        "transpose",
        "swapaxes",
        "permute",
        "unsqueeze",
        "squeeze",
        "expand",
        "repeat",
        "flatten",
        "unflatten",
        "split",
        "chunk",
        "unbind",
        "cumsum",
        "diff",
        "tolist",
        "item",
        "repeat_interleave",
        "masked_fill",
        "logical_not",
        "bitwise_not",
        "new_zeros",
        "new_ones",
        "new_empty",
        "new_full",
        "size",
        "narrow",
        "select",
        "gather",
        "index_select",
        "clamp",
        "clamp_min",
        "max",
        "min",
        "sum",
        "eq",
        "ne",
        "lt",
        "gt",
        "le",
        "ge",
        "logical_or",
        "logical_and",
        "triu_",
        "tril_",
        "masked_fill_",
        "topk",
        "argsort",
    ]
)


# Methods of a torch module that give back the module.
_FLUENT = frozenset(
    (
        "to",
        "npu",
        "cuda",
        "cpu",
        "half",
        "float",
        "double",
        "bfloat16",
        "type",
        "eval",
        "train",
        "requires_grad_",
        "share_memory",
        "apply",
    )
)
MAX_SUBCLASSES = 24
NOT_SET = "how it is set is not visible"
STARTS_AS_NONE = "it starts as None and is set elsewhere"
STARTS_EMPTY = "it starts empty and is set elsewhere"


def is_empty(value: Value) -> bool:
    """Whether a value is a tensor without elements."""
    sizes = value.shape if isinstance(value, Tensor) and value.shape is not None else ()
    return any(size is not None and size.integer == 0 for size in sizes)


def defines(cls: ClassRef, name: str) -> bool:
    """Whether a class itself has a method, field or attribute of that name."""
    index = cls.index
    return name in index.methods or name in index.fields or name in index.writers


class Attributes(Core):
    """Attributes: of objects of known classes, of classes, of values."""

    def attribute(self, value: Value, name: str, site: Site, frame: Frame) -> Value:
        """``value.name`` for a value without alternatives."""
        if isinstance(value, Test):
            value = value.tensor
        if isinstance(value, Number) and (name in TENSOR_METHODS or name in ("shape", "dtype", "device")):
            # What was read as a number has a tensor's methods.
            value = number_tensor(value)
        override = (
            frame.state.attrs.get((key_of(value), name))
            if not isinstance(value, (Const, Namespace))
            else None
        )
        if override is None and isinstance(value, (Instance, Unknown)):
            override = self._left.get((value.key, name))
        if override is not None:
            return override
        if isinstance(value, Namespace):
            if value.name.startswith("project:"):
                module = self.find_module(frame.module, value.name, -1)
                if module is not None:
                    if name in module.globals:
                        return self.global_value(module, name)
                    inner = self.find_module(module, name, 1)
                    if inner is not None:
                        return Namespace(f"project:{inner.path}", place=site)
                return Unknown(("member", value.name, name), name, "it is not defined there", place=site)
            return placed(self.member(value.name, name), site)
        if isinstance(value, OpRef):
            return value if name == "default" else OpRef(value.name, name, place=site)
        if isinstance(value, ClassRef):
            return self.class_member(value, name, None, site, frame)
        if isinstance(value, Instance):
            if name in _FLUENT and not any(defines(c, name) for c in self.mro(value.cls)[0]):
                return Method(value, name, place=site)
            return self.instance_attribute(value, name, site, frame)
        if isinstance(value, SuperRef):
            return self._super_member(value, name, site, frame)
        if isinstance(value, Sequence) and value.items is not None and name in value.names:
            return value.items[value.names.index(name)]
        if isinstance(value, (Ref, Frozen, Sequence, MapValue)):
            return Method(value, name, place=site)
        if isinstance(value, (Tensor, Unknown)):
            if name in _NAMESPACE_NAMES and isinstance(value, Unknown):
                pass
            if (
                isinstance(value, Unknown)
                and value.label in _NAMESPACE_NAMES
                and catalogue.find(name) is not None
            ):
                return OpRef(name, place=site)
            if isinstance(value, Tensor) or name in ("shape", "dtype", "device", "ndim"):
                found = self.torch.attribute(value, name, site)
                if found is not None:
                    return found
            if isinstance(value, Tensor):
                return Method(value, name, place=site)
            return Unknown(
                ("attr", value.key, name),
                f"{value.label}.{name}",
                f"it is an attribute of {value.label}",
                declared=value.declared,
                place=site,
            )
        if isinstance(value, Const) and isinstance(value.value, str):
            return Method(value, name, place=site)
        return Unknown(
            ("attr", key_of(value), name),
            f"{label_of(value)}.{name}",
            "it is an attribute of an unknown object",
            place=site,
        )

    def instance_attribute(self, obj: Instance, name: str, site: Site, frame: Frame) -> Value:
        """``obj.name``: from what the class's methods store, its body, or its bases."""
        cache_key = (obj.key, name)
        found = self._attributes.get(cache_key)
        if found is None:
            identity = intern(("attr", *cache_key))
            found = self.better.get(identity)
            self.asked[identity] = (obj, name)
        if found is None:
            unknown = Unknown(
                ("attr", obj.key, name),
                f"{obj.label}.{name}",
                NOT_SET,
                declared=True,
                place=site,
            )
            if (*cache_key, "attribute") in self._busy:
                return unknown
            self._busy.add((*cache_key, "attribute"))
            recording, self.recording = self.recording, False
            try:
                found = self._resolve_attribute(obj, name, unknown, frame)
            finally:
                self.recording = recording
                self._busy.discard((*cache_key, "attribute"))
            if not isinstance(found, Bound):
                self._attributes[cache_key] = found
        if isinstance(found, Unknown) and found.key == ("attr", obj.key, name):
            return replace(found, label=f"{obj.label}.{name}", place=site)
        return found

    def _resolve_attribute(self, obj: Instance, name: str, unknown: Unknown, frame: Frame) -> Value:
        options: list[Value] = []
        mro, open_base = self.mro(obj.cls)
        writers: list[tuple[ClassRef, str]] = []
        for cls in mro:
            for method in cls.index.writers.get(name, []):
                # A method that a subclass overrides without calling it is still counted: that is safe.
                if (cls, method) not in writers:
                    writers.append((cls, method))
            if cls.index.dynamic or len(writers) > MAX_WRITERS:
                options.append(replace(unknown, reason="the class sets attributes by computed names"))
        done: set[str] = set()
        for cls, method in writers[:MAX_WRITERS]:
            if method == "__init__" and "__init__" in done:
                continue
            done.add(method)
            value = self._written_by(obj, mro, cls, method, name, frame)
            if value is not None:
                options.append(value)
        if not all(isinstance(option, Const) for option in options):
            # What one method starts as None another one fills.
            filled = [o if is_none(o) else self._placeheld(o, unknown) for o in options]
            # So is a tensor without elements that another method replaces: no more than a None.
            empty = [f is not o for f, o in zip(filled, options, strict=True)]
            if not all(empty):
                filled = [Const(None, place=o.place) if e else o for o, e in zip(filled, empty, strict=True)]
            options = filled
        else:
            options = [self._placeheld(option, unknown) for option in options]
        if is_counter(options, unknown.key):
            # Whatever it has reached, it is a single number.
            options = [Number(Num.atom(("counter", unknown.key), unknown.label), True, place=unknown.place)]
        foreign = [cls for cls in mro if name in cls.module.foreign_writes]
        if foreign and options:
            options.append(replace(unknown, reason="code outside the class assigns it"))
        if self._changed_elsewhere(mro, name):
            options = [weakened(option) for option in options]
        if options and self._overridden(obj, name):
            options.append(replace(unknown, reason="a subclass sets it too"))
        if options:
            return one_of(options, unknown)
        if self._overridden(obj, name):
            return replace(unknown, reason="a subclass defines it too")
        for cls in mro:
            if name in cls.index.methods or name in cls.index.fields:
                return self.class_member(cls, name, obj, unknown.place, frame)
        if open_base:
            return replace(unknown, reason="a base class outside this file may set it")
        return unknown

    def outlived(self, value: Value, heap: Mapping[Hashable, Value]) -> Value:
        """A value of another function, with the content of its containers."""
        if isinstance(value, Deferred):
            # What the call builds is put where it was called.
            before = value.state.heap
            value, heap = self.force(value), {**before, **heap}
        return self._sealed(self._remote(value), heap)

    def _sealed(self, value: Value, heap: Mapping[Hashable, Value]) -> Value:
        if isinstance(value, Choice):
            return replace(value, yes=self._sealed(value.yes, heap), no=self._sealed(value.no, heap))
        if isinstance(value, Join):
            return replace(value, options=tuple(self._sealed(option, heap) for option in value.options))
        if isinstance(value, Ref):
            content = heap.get(value.ident) or self._built.get(value.ident)
            if content is not None:
                return Frozen(kept(content), dict(heap), place=value.place)
        return value

    def _changed_elsewhere(self, mro: list[ClassRef], name: str) -> bool:
        """Whether code other than the constructors changes the attribute's object in place."""
        return any(
            cls.index.changed.get(name, set()) - {"__init__"} or name in cls.module.foreign_changes
            for cls in mro
        )

    def _overridden(self, obj: Instance, name: str) -> bool:
        """Whether an object of unknown origin may be of a subclass that defines the name."""
        if obj.args is not None or (isinstance(obj.key, tuple) and obj.key[:1] == ("exactly",)):
            return False
        return any(defines(cls, name) for cls in self.subclasses(obj.cls))

    def subclasses(self, cls: ClassRef) -> list[ClassRef]:
        """The classes of the project that derive from a class, nearest first."""
        node = cls.index.node
        if node not in self._subclasses:
            self._subclasses[node] = []
            found: dict[ast.ClassDef, ClassRef] = {}
            pending = [cls]
            while pending and len(found) < MAX_SUBCLASSES:
                for item in self._direct_subclasses(pending.pop(0)):
                    if item.index.node not in found and item.index.node is not node:
                        found[item.index.node] = item
                        pending.append(item)
            self._subclasses[node] = list(found.values())
        return self._subclasses[node]

    def _direct_subclasses(self, cls: ClassRef) -> Iterator[ClassRef]:
        corpus = self.files.corpus(cls.module.path)
        for module in self.loaded(cls.module, corpus.deriving(cls.name) if corpus is not None else []):
            for node, index in module.classes.items():
                for base in node.bases:
                    dotted = ast_dotted(base)
                    if dotted.rsplit(".", 1)[-1] == cls.name:
                        known = self.class_named(module, dotted)
                        if known is not None and known.index is cls.index:
                            yield ClassRef(module, index)

    def _written_by(
        self, obj: Instance, mro: list[ClassRef], cls: ClassRef, method: str, name: str, frame: Frame
    ) -> Value | None:
        node = cls.index.methods.get(method)
        if method == "__init__":
            # The most derived constructor runs; it calls the others.
            owner = next((c for c in mro if "__init__" in c.index.methods), cls)
            node = owner.index.methods["__init__"]
            cls_of_init = owner
        else:
            cls_of_init = cls
        if node is None:
            return None
        func = self.function(cls_of_init.module, node, cls_of_init)
        if func is None:
            return None
        final = self._object_state(obj, func, method)
        if final is None:
            if method not in cls_of_init.index.writers.get(name, []):
                # The constructor of a base sets it; what the derived one hands on is not worked out.
                own = self.function(cls.module, cls.index.methods[method], cls)
                final = self._sliced_state(obj, own, name, open_arguments=True) if own is not None else None
            else:
                final = self._sliced_state(obj, func, name)
        if final is None:
            return Unknown(
                ("attr", obj.key, name),
                f"{obj.label}.{name}",
                f"{method}() costs too much to follow",
                declared=True,
            )
        value = final.attrs.get((obj.key, name))
        if value is None:
            return None
        self._leave_attributes(self.force(value), final)
        return self.outlived(value, final.heap)

    def _own_attribute(self, obj: Instance | Unknown, name: str) -> Value:
        """An attribute as the class of the object leaves it."""
        site = obj.place
        if isinstance(obj, Instance) and isinstance(site, Site):
            frame = Frame(obj.cls.module, site.chunk, "", State(), 1)
            return self.instance_attribute(obj, name, site, frame)
        return Unknown(("unset", obj.key, name), f"{obj.label}.{name}", "it is not set on every path")

    def _placeheld(self, value: Value, unknown: Unknown) -> Value:
        """An attribute that starts as None or as an empty tensor is filled by somebody else."""
        if is_none(value):
            return replace(unknown, reason=STARTS_AS_NONE, place=value.place)
        if is_empty(value):
            return replace(unknown, reason=STARTS_EMPTY, hint=Hint("Tensor"), place=value.place)
        return value

    def _remote(self, value: Value) -> Value:
        """A value from another method: its tests were made there, in another configuration or step."""
        value = self.force(value)
        if isinstance(value, Choice):
            return Choice(
                replace(value.cond, remote=True),
                self._remote(value.yes),
                self._remote(value.no),
                place=value.place,
            )
        if isinstance(value, Join):
            return replace(value, options=tuple(self._remote(option) for option in value.options))
        return kept(value)

    def _object_state(self, obj: Instance, func: Func, method: str) -> State | None:
        """The state at the end of a method run on an object."""
        cache_key = (obj.key, f"state:{method}:{func.owner.name if func.owner else ''}")
        cached = self._states.get(cache_key)
        if cached is not None:
            return cached[0]
        state = State()
        arguments = self._given(obj, func, state)
        self._states[cache_key] = (None,)
        final = self.aside(lambda: self._run(func, arguments, state, 2, ())[1])
        self._states[cache_key] = (final,)
        return final

    def _given(self, obj: Instance, func: Func, state: State) -> dict[str, Value]:
        """The arguments of a method that is run on an object."""
        if func.name == "__init__" and obj.args is not None:
            bound = self.bind(func, [obj, *obj.args], dict(obj.kwargs or {}), state)
            if bound is not None:
                return bound
        arguments: dict[str, Value] = {}
        for position, (param, kind) in enumerate(parameters_of(func.node)):
            name = param.name.value
            arguments[name] = obj if position == 0 else self._parameter(func, param, kind, state)
        return arguments

    def _sliced_state(
        self, obj: Instance, func: Func, name: str, open_arguments: bool = False
    ) -> State | None:
        """The state after the statements of a method that decide one attribute."""
        parameters = [param for param, _ in parameters_of(func.node)]
        if not isinstance(func.node, cst.FunctionDef) or not parameters:
            return None
        state = State()
        arguments = self._given(replace(obj, args=None) if open_arguments else obj, func, state)
        body = deciding(func.node, parameters[0].name.value, name)
        return self.aside(lambda: self._run(func, arguments, state, 2, (), body)[1])

    @property
    def _states(self) -> dict[tuple[Hashable, str], tuple[State | None]]:
        found: dict[tuple[Hashable, str], tuple[State | None]] = self.__dict__.setdefault("_state_cache", {})
        return found

    def mro(self, cls: ClassRef) -> tuple[list[ClassRef], bool]:
        """The class and its known bases, nearest first; True when a base is not known."""
        result: list[ClassRef] = []
        open_base = False
        pending = [cls]
        while pending:
            item = pending.pop(0)
            if any(item.index is seen.index for seen in result) or len(result) > 20:
                continue
            result.append(item)
            for base in item.index.node.bases:
                dotted = ast_dotted(base)
                head, _, tail = dotted.partition(".")
                found: Value | None = (
                    self.global_value(item.module, head) if head in item.module.globals else None
                )
                if isinstance(found, Namespace) and tail:
                    if found.name.startswith("project:"):
                        module = self.find_module(item.module, found.name, -1)
                        found = (
                            self.global_value(module, tail)
                            if module is not None and tail in module.globals
                            else None
                        )
                    else:
                        found = Namespace(f"{found.name}.{tail}")
                if isinstance(found, ClassRef):
                    pending.append(found)
                elif not (isinstance(found, Namespace) and found.name in _PLAIN_BASES) and dotted not in (
                    "object",
                    "ABC",
                    "Protocol",
                    "Generic",
                ):
                    open_base = True
        return result, open_base

    def class_member(self, cls: ClassRef, name: str, obj: Instance | None, site: Any, frame: Frame) -> Value:
        """A method or class attribute, bound to ``obj`` when it is read from an object."""
        mro, open_base = self.mro(cls)
        for item in mro:
            node = item.index.methods.get(name)
            if node is not None:
                func = self.function(item.module, node, item)
                if func is None:
                    break
                decorators = decorators_of(func.node)
                if "property" in decorators or "cached_property" in decorators:
                    if obj is None:
                        break
                    return self._invoke(func, [obj], {}, site, frame)
                if "staticmethod" in decorators:
                    return func
                if "classmethod" in decorators:
                    return Bound(func, cls)
                if wrapping_decorator(func.node):
                    return Unknown(
                        ("attr", key_of(obj) if obj else cls.name, name), name, "it is decorated", place=site
                    )
                return Bound(func, obj) if obj is not None else func
            statements = item.index.fields.get(name)
            if statements:
                return self._class_field(item, name, statements, obj, site)
        reason = "a base class outside this file may define it" if open_base else NOT_SET
        return Unknown(
            ("attr", key_of(obj) if obj else ("class", cls.module.path, cls.name), name),
            name,
            reason,
            declared=True,
            place=site,
        )

    def _class_field(
        self, cls: ClassRef, name: str, statements: list[Any], obj: Instance | None, site: Any
    ) -> Value:
        key = ("classfield", cls.module.path, cls.name, name)
        unknown = Unknown(
            ("attr", obj.key if obj else key, name),
            name,
            f"it is a field of {cls.name}",
            declared=True,
            place=site,
        )
        dataclass_like = any("dataclass" in ast_dotted(d) for d in cls.index.node.decorator_list) or any(
            ast_dotted(b).rsplit(".", 1)[-1] in ("NamedTuple", "BaseModel", "TypedDict")
            for b in cls.index.node.bases
        )
        if obj is not None and dataclass_like:
            given = self._field_given(cls, name, obj)
            if given is not None:
                return given
            # What the constructor is not given has its default, which ``field(...)`` may compute.
            default = getattr(statements[-1], "value", None)
            if obj.args is None or default is None or isinstance(default, ast.Call):
                return self._field_typed(cls, statements, unknown)
            if isinstance(default, ast.Constant) and default.value is None:
                return replace(unknown, reason=STARTS_AS_NONE)
        if key in self._busy:
            return unknown
        self._busy.add(key)
        try:
            options: list[Value] = []
            for statement in statements:
                try:
                    chunk = cls.module.chunk(statement)
                except BadSource:
                    return unknown
                state = State()
                for other, others in cls.index.fields.items():
                    if (
                        other != name
                        and others
                        and others[0].lineno < statement.lineno
                        and mentions(statement, other)
                    ):
                        state.vars[other] = self._class_field(cls, other, others, None, site)
                frame = Frame(cls.module, chunk, cls.name, state, 1)
                self.block(chunk.body, frame, state)
                value = frame.state.vars.get(name)
                options.append(self._frozen(value, frame) if value is not None else unknown)
            if name in cls.module.foreign_writes:
                options.append(unknown)
            bases = {ast_dotted(b).rsplit(".", 1)[-1] for b in cls.index.node.bases}
            if "Enum" in bases and not bases & {"int", "str"}:
                # A member is no number, but equal to itself alone.
                return Const(f"{cls.name}.{name}", place=site)
            # None is no value to compute with: a subclass, or whoever owns the object, sets another.
            options = [replace(unknown, reason=STARTS_AS_NONE) if is_none(o) else o for o in options]
            return one_of(options, unknown)
        finally:
            self._busy.discard(key)

    def _field_typed(self, cls: ClassRef, statements: list[Any], unknown: Unknown) -> Value:
        """A field by its annotation."""
        hint = hint_of(getattr(statements[0], "annotation", None))
        default = getattr(statements[-1], "value", None)
        if hint is not None and isinstance(default, ast.Constant) and default.value is None:
            hint = replace(hint, optional=True)
        return self.typed(unknown, hint, cls.module)

    def _field_given(self, cls: ClassRef, name: str, obj: Instance) -> Value | None:
        if obj.args is None:
            return None
        if obj.kwargs is not None and name in obj.kwargs:
            return obj.kwargs[name]
        order = [n for n, items in cls.index.fields.items() if hasattr(items[0], "annotation")]
        if name in order and order.index(name) < len(obj.args):
            return obj.args[order.index(name)]
        return None

    def _construct(
        self,
        cls: ClassRef,
        args: list[Value],
        kwargs: dict[str, Value],
        opaque: Note | None,
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value:
        key = (
            "new",
            cls.module.path,
            cls.name,
            id(node),
            *(key_of(a) for a in args),
            *((k, key_of(v)) for k, v in kwargs.items()),
        )
        frozen = tuple(self._frozen(a, frame) for a in args)
        named = {k: self._frozen(v, frame) for k, v in kwargs.items()}
        known = opaque is None
        made = Instance(
            key, cls, frozen if known else None, named if known else None, label=cls.name, place=site
        )
        if self._watch is not None:
            self._watch.made.append(Made(made, site))
        return made

    def _super(self, frame: Frame, site: Site) -> Value:
        if frame.owner is None or not frame.me:
            return Unknown(("super", id(frame)), "super()", "it is not followed", place=site)
        me = frame.state.vars.get(frame.me)
        if not isinstance(me, Instance):
            return Unknown(("super", id(frame)), "super()", "it is not followed", place=site)
        return SuperRef(me, frame.owner, place=site)

    def _super_member(self, value: SuperRef, name: str, site: Site, frame: Frame) -> Value:
        mro, _ = self.mro(value.obj.cls)
        position = next((i for i, c in enumerate(mro) if c.index is value.owner.index), -1)
        for cls in mro[position + 1 :]:
            node = cls.index.methods.get(name)
            if node is not None:
                func = self.function(cls.module, node, cls)
                if func is not None:
                    return Bound(func, value.obj, place=site)
        return Unknown(
            ("super", key_of(value.obj), name),
            f"super().{name}",
            "it is defined outside this file",
            place=site,
        )
