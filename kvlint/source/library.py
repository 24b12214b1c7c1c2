"""Builtins and library functions."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from kvlint.contract.keys import origin
from kvlint.contract.num import Num
from kvlint.contract.paths import Cond
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    Choice,
    Const,
    Content,
    DType,
    LengthForm,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

from . import numpylib
from .algebra import (
    BUT_FIRST,
    BUT_LAST,
    may_be_absent,
    plain_leaves,
    with_entries,
)
from .chunk import Site
from .containers import Containers
from .core import Made
from .objects import (
    Frozen,
    Instance,
    Manager,
    MapValue,
    Namespace,
    OpRef,
    PartialCall,
    RecordType,
    Ref,
)
from .results import ONE_TENSOR
from .state import (
    Frame,
    Record,
)
from .syntax import (
    text_of,
)
from .torchlib import (
    as_tensor,
    dim_value,
    is_whole,
    key_of,
    label_of,
    makes_object,
    number_of,
    scalar,
)

# Types of which no value of another built-in type is.
_PLAIN_TYPES = frozenset(
    [
        *(f"builtins.{name}" for name in ("bool", "int", "float", "str", "list", "tuple", "dict")),
        "torch.Tensor",
        "numpy.ndarray",
    ]
)
_TORCH_PREFIXES = ("torch.nn.functional.", "torch.", "torch_npu.")


# What they are given is what is read from them.
_HOLDERS = frozenset(("torch.nn.Parameter", "torch.nn.Buffer", "torch.nn.ModuleList", "torch.nn.ModuleDict"))


# Functions that put the tensors of a list together.
_JOINING = frozenset(("cat", "concat", "concatenate", "stack", "hstack", "vstack"))
MAX_JOINED = 4


class Library(Containers):
    """Builtins and library functions."""

    def _library(
        self,
        name: str,
        positional: list[tuple[Value, Site | None]],
        keywords: dict[str, tuple[Value, Site | None]],
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value | None:
        args = [value for value, _ in positional]
        kwargs = {key: value for key, (value, _) in keywords.items()}
        if name in ("functools.partial",) and args:
            target = self.simplify(self.force(args[0]), frame.state.assumed)
            result = PartialCall(target, tuple(positional[1:]), dict(keywords), place=site)
            if isinstance(target, OpRef) and self.recording:
                note = Note("the rest is passed where the partial is called", site)
                frozen = [(self.resolved(v, frame), s) for v, s in positional[1:]]
                named = {key: (self.resolved(v, frame), s) for key, (v, s) in keywords.items()}
                self.records.append(
                    Record(
                        target.name,
                        target.overload,
                        frozen,
                        named,
                        note,
                        site,
                        frame.state.assumed,
                        frame.state.under,
                        frame.trail,
                        frame,
                        partial=True,
                    )
                )
            return result
        if name.startswith("builtins."):
            return self._builtin(name[9:], args, kwargs, site, frame, node)
        if name in ("copy.copy", "copy.deepcopy") and args:
            return self._copied(args[0], node, frame)
        if name in ("dataclasses.replace", "copy.replace") and args:
            return self.lift(lambda v: self._replaced(v, kwargs, site), [args[0]], frame)
        if name in ("types.SimpleNamespace", "argparse.Namespace") and not args:
            return self._namespace(kwargs, site, frame)
        if name in ("collections.namedtuple", "typing.NamedTuple") and len(args) == 2:
            return self._record_type(args[1], site, frame)
        if name == "importlib.import_module" and len(args) == 1:
            wanted = self.simplify(self.force(args[0]), frame.state.assumed)
            if isinstance(wanted, Const) and isinstance(wanted.value, str) and wanted.value[:1] != ".":
                return self._module_value(frame.module, wanted.value, 0)
            return None
        if name == "contextlib.nullcontext":
            return Manager(args[0] if args else kwargs.get("enter_result", Const(None)), place=site)
        if name == "itertools.pairwise" and args:
            return self._pairs(args[0], site)
        if name in ("itertools.accumulate",) and args:
            value = self.deref(self.force(args[0]), frame)
            return Sequence(
                None,
                "list",
                self._count(value),
                content=Content(lengths=LengthForm.CUMULATIVE),
                key=("accumulate", key_of(value)),
                label=f"accumulate({label_of(value)})",
                place=site,
            )
        if name in ("math.sqrt", "numpy.sqrt", "torch.sqrt") and len(args) == 1:
            return self.lift(lambda v: self._root(v, site), args, frame)
        if name in ("math.pow",) and len(args) == 2:
            return self.binary(args[0], "**", args[1], site, frame)
        if name.startswith(numpylib.PREFIX):
            return self._numpy_function(name[len(numpylib.PREFIX) :], args, kwargs, site, frame)
        if name in ("torch.finfo", "torch.iinfo"):
            dtype = self.force(args[0]) if args else None
            return Namespace(f"{name}({dtype.name if isinstance(dtype, DType) else ''})", place=site)
        if name in _HOLDERS and args:
            return self.force(args[0])
        if name in ("torch.device", "torch.jit.script", "torch.compile") and args:
            return args[0]
        if name in ("torch_npu.npu_format_cast", "torch_npu.npu_format_cast_") and args:
            return args[0]
        if name in ("torch_npu.empty_with_swapped_memory",):
            return Tensor(
                ("swapped", id(node)), "swapped tensor", None, None, device="host-swapped", place=site
            )
        if name.endswith(("all_to_all", "all_to_all_single")) and args:
            pieces = self.deref(self.force(args[0]), frame)
            if isinstance(pieces, Sequence):
                return replace(pieces, key=("all_to_all", pieces.key), place=site)
        for prefix in _TORCH_PREFIXES:
            if name.startswith(prefix):
                short = name[len(prefix) :]
                if prefix == "torch.nn.functional.":
                    short = f"nn.functional.{short}"
                return self._torch_function(short, args, kwargs, site, frame)
        return None

    def _replaced(self, value: Value, given: dict[str, Value], site: Site) -> Value:
        """A dataclass object with other values for some fields."""
        if not isinstance(value, Instance):
            return Unknown(
                ("replaced", key_of(value), *((k, key_of(v)) for k, v in given.items())),
                label_of(value),
                "it is a changed copy of an unknown object",
                place=site,
            )
        key = ("replaced", value.key, *((k, key_of(self.force(v))) for k, v in given.items()))
        kwargs = {**(value.kwargs or {}), **given} if value.args is not None else None
        made = Instance(key, value.cls, value.args, kwargs, label=value.label, place=site)
        for name, content in given.items():
            self._left[made.key, name] = content
        if self._watch is not None:
            self._watch.made.append(Made(made, site, attributes=given, partial=value.args is None))
        return made

    def _namespace(self, given: dict[str, Value], site: Site, frame: Frame) -> Value:
        """An object with the attributes it is given, and those that are set later."""
        key = ("namespace", site, *((k, key_of(self.force(v))) for k, v in given.items()))
        made = Unknown(key, "namespace", "it is an object of another kind", is_tensor=False, place=site)
        for name, content in given.items():
            frame.state.attrs[made.key, name] = content
        return made

    def _record_type(self, names: Value, site: Site, frame: Frame) -> Value | None:
        content = self.deref(self.force(names), frame)
        if isinstance(content, Const) and isinstance(content.value, str):
            return RecordType(tuple(content.value.replace(",", " ").split()), place=site)
        if not isinstance(content, Sequence) or content.items is None:
            return None
        found = []
        for item in content.items:
            # ``typing.NamedTuple`` has pairs of a name and a type.
            first = item.items[0] if isinstance(item, Sequence) and item.items else item
            if not isinstance(first, Const) or not isinstance(first.value, str):
                return None
            found.append(first.value)
        return RecordType(tuple(found), place=site)

    def _torch_function(
        self, name: str, args: list[Value], kwargs: dict[str, Value], site: Site, frame: Frame
    ) -> Value | None:
        for leaf in plain_leaves(self.force(kwargs["out"])) if "out" in kwargs else ():
            if isinstance(leaf, Tensor):
                self._changed(leaf, frame)
        names = list(kwargs)

        def apply(*values: Value) -> Value:
            shown = [self._resolve_items(self.deref(v, frame), frame) for v in values]
            found = self.torch.function(
                name, shown[: len(args)], dict(zip(names, shown[len(args) :], strict=True)), site
            )
            if found is None:
                made = (id(site.node),) if makes_object(name) else ()
                return Unknown(
                    ("torch", name, *(key_of(v) for v in values), *made),
                    f"torch.{name}(...)",
                    f"torch.{name} is not modelled",
                    is_tensor=True if name in ONE_TENSOR else None,
                    place=site,
                )
            return found

        first = self.deref(self.force(args[0]), frame) if args and name in _JOINING else None
        if isinstance(first, Sequence) and first.items is not None and 0 < len(first.items) <= MAX_JOINED:
            # The parts have alternatives, too.
            count, parts = len(first.items), first
            return self.lift(
                lambda *values: apply(replace(parts, items=values[:count]), *values[count:]),
                [*first.items, *args[1:], *kwargs.values()],
                frame,
            )
        return self.lift(apply, [*args, *kwargs.values()], frame)

    def _numpy_function(
        self, name: str, args: list[Value], kwargs: dict[str, Value], site: Site, frame: Frame
    ) -> Value | None:
        written = [kwargs["out"]] if "out" in kwargs else args[:1] if name in numpylib.WRITERS else []
        for leaf in (leaf for value in written for leaf in plain_leaves(self.force(value))):
            if isinstance(leaf, Tensor):
                self._changed(leaf, frame)
        names = list(kwargs)

        def apply(*values: Value) -> Value:
            shown = [self._resolve_items(self.deref(v, frame), frame) for v in values]
            named = dict(zip(names, shown[len(args) :], strict=True))
            found = numpylib.function(name, shown[: len(args)], named, site)
            if found is not None:
                return found
            fresh = (id(site.node),) if name.startswith("random.") else ()
            key = ("numpy", name, *(key_of(v) for v in values), *fresh)
            return Unknown(key, f"numpy.{name}(...)", f"numpy.{name} is not modelled", place=site)

        return self.lift(apply, [*args, *kwargs.values()], frame)

    def _root(self, value: Value, site: Site) -> Value:
        num = number_of(value)
        if num is None:
            tensor = as_tensor(value)
            if tensor is not None:
                return replace(tensor, key=("sqrt", tensor.key), content=Content(), dtypes=None)
            return Unknown(("sqrt", key_of(value)), "sqrt(...)", "its operand is not known", place=site)
        return scalar(num.power(0.5), site)

    def _copied(self, value: Value, node: cst.Call, frame: Frame) -> Value:
        value = self.simplify(self.force(value), frame.state.assumed)
        content = self.deref(value, frame)
        if isinstance(content, (MapValue, Sequence)) and isinstance(value, (Ref, Frozen)):
            return self._allocate(content, node, frame)
        return value

    def _builtin(
        self, name: str, args: list[Value], kwargs: dict[str, Value], site: Site, frame: Frame, node: cst.Call
    ) -> Value | None:
        if name == "dict":
            ref = self._allocate(MapValue({}), node, frame)
            for other in args:
                self._update(ref, other, frame, site)
            content = frame.state.heap[ref.ident]
            assert isinstance(content, MapValue)
            frame.state.heap[ref.ident] = MapValue(with_entries(content.entries, kwargs), content.open)
            self._note_entries(ref, node, frame)
            return ref
        if name in ("list", "tuple"):
            if not args:
                empty = Sequence((), name, Num.of(0), place=site)
                return self._allocate(empty, node, frame) if name == "list" else empty
            content = self.deref(self.simplify(self.force(args[0]), frame.state.assumed), frame)
            if isinstance(content, Sequence):
                result = replace(content, kind=name, place=site)
                return self._allocate(result, node, frame) if name == "list" else result
            return None
        if name in ("set", "frozenset") and len(args) == 1:
            content = self.deref(self.simplify(self.force(args[0]), frame.state.assumed), frame)
            return self.constants(content.items, site) if isinstance(content, Sequence) else None
        if name == "getattr" and len(args) >= 2:
            text = self.simplify(self.force(args[1]), frame.state.assumed)
            if isinstance(text, Const) and isinstance(text.value, str):
                attr = text.value
                return self.lift(lambda v: self.attribute(v, attr, site, frame), [args[0]], frame)
            return None
        if name == "setattr" and len(args) == 3:
            text = self.force(args[1])
            if isinstance(text, Const) and isinstance(text.value, str):
                for leaf in plain_leaves(self.force(args[0])):
                    frame.state.attrs[(key_of(leaf), text.value)] = args[2]
            return Const(None)
        if name == "len" and args:
            return self.lift(lambda v: self._len(v, site, frame), args[:1], frame)
        if name in ("int", "float") and len(args) == 1:
            return self.lift(lambda v: self._to_number(name, v, site), args, frame)
        if name == "bool" and args:
            test = self.truth(args[0], node, frame)
            return (
                Const(test, place=site)
                if isinstance(test, bool)
                else Choice(test[0], Const(test[1]), Const(not test[1]), place=site)
            )
        if name == "sum" and len(args) == 1:
            whole = self.deref(self.simplify(self.force(args[0]), frame.state.assumed), frame)
            # What is summed up may be tensors.
            label = f"sum({label_of(whole)})"
            return Unknown(("sum of", origin(key_of(whole))), label, "it is a sum", place=site)
        if name in ("max", "min") and len(args) == 1:
            return self.lift(lambda v: self._picked(name, v, site), args, frame)
        if name in ("max", "min") and len(args) >= 2:
            return self.lift(lambda *v: self._extreme(name, list(v), site), args, frame)
        if name == "isinstance" and len(args) == 2:
            return self.lift(lambda v: self._isinstance(v, args[1], site, node, frame), args[:1], frame)
        if name == "super":
            return self._super(frame, site)
        if name in ("zip", "enumerate", "reversed", "sorted"):
            return self._iterator(name, args, site, frame)
        if name in ("print", "hasattr", "id", "repr", "str"):
            return Unknown(
                (name, *(key_of(self.force(a)) for a in args)),
                f"{name}(...)",
                "it is not followed",
                is_tensor=False,
                place=site,
            )
        if name == "range":
            length = number_of(self.force(args[0])) if len(args) == 1 else None
            element = Number(Num.atom(("range", id(node)), "index"), True, place=site)
            return Sequence(
                None,
                "list",
                length,
                element,
                key=("range", *(key_of(self.force(a)) for a in args)),
                label="range(...)",
                place=site,
            )
        if name == "map" and len(args) == 2:
            return self._mapped(args[0], args[1], site, frame, node)
        return None

    def _mapped(
        self, function: Value, iterable: Value, site: Site, frame: Frame, node: cst.Call
    ) -> Value | None:
        """``map(function, items)``, item by item where they are visible."""
        value = self.deref(self.simplify(self.force(iterable), frame.state.assumed), frame)
        if not isinstance(value, Sequence) or (value.items is not None and len(value.items) > 16):
            return None

        def result(item: Value) -> Value:
            return self.lift(
                lambda leaf: self.apply(leaf, [(item, site)], {}, None, site, frame, node, False),
                [function],
                frame,
            )

        if value.items is not None:
            items = tuple(result(item) for item in value.items)
            return Sequence(items, "list", Num.of(len(items)), place=site)
        if value.element is None:
            return None
        key = ("map", key_of(function), key_of(value))
        return Sequence(None, "list", value.length, result(value.element), key=key, place=site)

    def _pairs(self, value: Value, site: Site) -> Value:
        """Each item with the next."""
        base, label = key_of(value), f"an item of {label_of(value)}"
        items = tuple(
            Unknown(
                ("each", ("item", base, cut), id(site.node)), label, "it comes from an iteration", place=site
            )
            for cut in (BUT_LAST, BUT_FIRST)
        )
        return Sequence(None, "list", None, Sequence(items, "tuple"), key=("pairs", base), place=site)

    def _iterator(self, name: str, args: list[Value], site: Site, frame: Frame) -> Value | None:
        contents = [self.deref(self.simplify(self.force(a), frame.state.assumed), frame) for a in args]
        if name in ("reversed", "sorted"):
            return (
                replace(contents[0], items=None, element=None, key=(name, key_of(contents[0])))
                if contents and isinstance(contents[0], Sequence)
                else None
            )
        elements = [self._iterate(a, site.node, frame)[0] for a in args]
        if name == "enumerate":
            index = Number(Num.atom(("index", id(site.node)), "index"), True, place=site)
            return Sequence(
                None,
                "list",
                self._count(contents[0]),
                Sequence((index, elements[0]), "tuple"),
                key=("enumerate", key_of(contents[0])),
                place=site,
            )
        return Sequence(
            None,
            "list",
            None,
            Sequence(tuple(elements), "tuple"),
            key=("zip", *(key_of(c) for c in contents)),
            place=site,
        )

    def _picked(self, name: str, value: Value, site: Site) -> Value:
        """Python's ``max(tensor)``: one of its elements, as a view of the tensor's memory."""
        if isinstance(value, Tensor):
            content = Content(counts=value.content.counts or value.content.lengths is not None)
            return replace(
                value,
                key=(f"py{name}", value.key),
                shape=(),
                content=content,
                label=f"{name}({value.label})",
                place=site,
            )
        return Unknown(
            (name, key_of(value)), f"{name}({label_of(value)})", "its operand is not known", place=site
        )

    def _len(self, value: Value, site: Site, frame: Frame) -> Value:
        content = self.deref(value, frame)
        if isinstance(content, Sequence):
            if content.items is not None:
                return Const(len(content.items), place=site)
            if content.length is not None:
                return scalar(content.length, site, True)
            size = Num.atom(("len", content.key or id(content)), f"len({content.label})")
            return Number(size, True, place=site)
        if isinstance(content, Tensor):
            return dim_value(content, 0, site)
        if isinstance(content, Unknown):
            return Number(Num.atom(("dim", content.key, 0), f"len({content.label})"), True, place=site)
        if (
            isinstance(content, MapValue)
            and content.open is None
            and not any(may_be_absent(v) for v in content.entries.values())
        ):
            return Const(len(content.entries), place=site)
        if isinstance(content, Const) and isinstance(content.value, str):
            return Const(len(content.value), place=site)
        return Number(Num.atom(("len", key_of(value)), "len(...)"), True, place=site)

    def _to_number(self, name: str, value: Value, site: Site) -> Value:
        if isinstance(value, Const) and isinstance(value.value, (int, float, str)):
            try:
                return Const(int(value.value) if name == "int" else float(value.value), place=site)
            except (TypeError, ValueError, OverflowError):
                pass
        whole = name == "int"
        if isinstance(value, Number):
            return replace(value, whole=whole)
        if isinstance(value, Tensor):
            return Number(Num.atom(("item", value.key), f"{name}({value.label})"), whole, place=site)
        if isinstance(value, Unknown):
            return Number(Num.atom(value.key, value.label, value.declared), whole, place=site)
        return Unknown(
            (name, key_of(value)), f"{name}(...)", "its operand is not known", is_tensor=False, place=site
        )

    def _extreme(self, name: str, values: list[Value], site: Site) -> Value:
        if all(isinstance(v, Const) for v in values):
            try:
                picked = (max if name == "max" else min)(v.value for v in values if isinstance(v, Const))  # type: ignore[type-var]
                return Const(picked, place=site)
            except TypeError:
                pass
        nums = [number_of(v) for v in values]
        if all(n is not None for n in nums):
            known = [n for n in nums if n is not None]
            if all(n == known[0] for n in known):
                return scalar(known[0], site)
            return Number(
                Num.atom(
                    (name, frozenset(known)),
                    f"{name}({', '.join(n.label for n in known)})",
                    all(n.declared for n in known),
                ),
                all(is_whole(v) for v in values),
                place=site,
            )
        return Unknown(
            (name, *(key_of(v) for v in values)), f"{name}(...)", "its operands are not known", place=site
        )

    def _isinstance(self, value: Value, kind: Value, site: Site, node: cst.Call, frame: Frame) -> Value:
        kinds = plain_leaves(self.force(kind))
        if isinstance(kind, Sequence) and kind.items is not None:
            kinds = [self.force(item) for item in kind.items]
        names = [k.name for k in kinds if isinstance(k, Namespace)]
        actual = self._types_of(value, frame)
        if actual and any(name in actual for name in names):
            return Const(True, place=site)
        if actual and len(names) == len(kinds) and all(name in _PLAIN_TYPES for name in names):
            return Const(False, place=site)
        cond = Cond(
            "isinstance",
            key_of(value),
            tuple(sorted(names)) or id(node),
            label=text_of(node),
            place=site,
        )
        return Choice(cond, Const(True), Const(False), place=site)

    def _types_of(self, value: Value, frame: Frame) -> tuple[str, ...]:
        """The built-in types that a value certainly has."""
        if isinstance(value, Tensor) or (isinstance(value, Unknown) and value.is_tensor):
            return ("numpy.ndarray" if isinstance(value, Tensor) and value.numpy else "torch.Tensor",)
        if isinstance(value, Const):
            own = f"builtins.{type(value.value).__name__}"
            return (own, "builtins.int") if isinstance(value.value, bool) else (own,)
        content = self.deref(value, frame)
        if isinstance(content, Sequence):
            return (f"builtins.{content.kind}",)
        return ("builtins.dict",) if isinstance(content, MapValue) else ()
