"""Builtins and library functions."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

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

from .algebra import (
    BUT_FIRST,
    BUT_LAST,
    may_be_absent,
    plain_leaves,
    with_entries,
)
from .chunk import Site
from .containers import Containers
from .objects import (
    Frozen,
    MapValue,
    Namespace,
    OpRef,
    PartialCall,
    Ref,
)
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
    key_of,
    label_of,
    number_of,
    scalar,
)

_TORCH_PREFIXES = ("torch.nn.functional.", "torch.", "torch_npu.")


# What they are given is what is read from them.
_HOLDERS = frozenset(("torch.nn.Parameter", "torch.nn.Buffer", "torch.nn.ModuleList", "torch.nn.ModuleDict"))


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
        if name in ("numpy.cumsum", "np.cumsum") and args:
            tensor = as_tensor(self.force(args[0]))
            if tensor is not None:
                return self.torch.method(tensor, "cumsum", args[1:], {}, site)
        if name in ("math.sqrt", "numpy.sqrt", "torch.sqrt") and len(args) == 1:
            return self.lift(lambda v: self._root(v, site), args, frame)
        if name in ("math.pow",) and len(args) == 2:
            return self.binary(args[0], "**", args[1], site, frame)
        if name in ("torch.finfo", "torch.iinfo"):
            dtype = self.force(args[0]) if args else None
            return Namespace(f"{name}({dtype.name if isinstance(dtype, DType) else ''})", place=site)
        if name in _HOLDERS and args:
            return self.force(args[0])
        if name in ("torch.device", "torch.jit.script") and args:
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

    def _torch_function(
        self, name: str, args: list[Value], kwargs: dict[str, Value], site: Site, frame: Frame
    ) -> Value | None:
        for leaf in plain_leaves(self.force(kwargs["out"])) if "out" in kwargs else ():
            if isinstance(leaf, Tensor):
                self._changed(leaf, frame)
        names = list(kwargs)
        missing: list[bool] = [False]

        def apply(*values: Value) -> Value:
            shown = [self._resolve_items(self.deref(v, frame), frame) for v in values]
            found = self.torch.function(
                name, shown[: len(args)], dict(zip(names, shown[len(args) :], strict=True)), site
            )
            if found is None:
                missing[0] = True
                return Unknown(
                    ("torch", name, *(key_of(v) for v in values)),
                    f"torch.{name}(...)",
                    f"torch.{name} is not modelled",
                    place=site,
                )
            return found

        result = self.lift(apply, [*args, *kwargs.values()], frame)
        return result

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
            element = Number(Num.atom(("range", id(node)), "index"), place=site)
            return Sequence(
                None,
                "list",
                length,
                element,
                key=("range", *(key_of(self.force(a)) for a in args)),
                label="range(...)",
                place=site,
            )
        if name == "sum" and args:
            return None
        return None

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
            index = Number(Num.atom(("index", id(site.node)), "index"), place=site)
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
                return scalar(content.length, site)
            return Number(Num.atom(("len", content.key or id(content)), f"len({content.label})"), place=site)
        if isinstance(content, Tensor):
            return dim_value(content, 0, site)
        if isinstance(content, Unknown):
            return Number(Num.atom(("dim", content.key, 0), f"len({content.label})"), place=site)
        if (
            isinstance(content, MapValue)
            and content.open is None
            and not any(may_be_absent(v) for v in content.entries.values())
        ):
            return Const(len(content.entries), place=site)
        if isinstance(content, Const) and isinstance(content.value, str):
            return Const(len(content.value), place=site)
        return Number(Num.atom(("len", key_of(value)), "len(...)"), place=site)

    def _to_number(self, name: str, value: Value, site: Site) -> Value:
        if isinstance(value, Const) and isinstance(value.value, (int, float, str)):
            try:
                return Const(int(value.value) if name == "int" else float(value.value), place=site)
            except (TypeError, ValueError, OverflowError):
                pass
        if isinstance(value, Number):
            return value
        if isinstance(value, Tensor):
            return Number(Num.atom(("item", value.key), f"{name}({value.label})"), place=site)
        if isinstance(value, Unknown):
            return Number(Num.atom(value.key, value.label, value.declared), place=site)
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
                place=site,
            )
        return Unknown(
            (name, *(key_of(v) for v in values)), f"{name}(...)", "its operands are not known", place=site
        )

    def _isinstance(self, value: Value, kind: Value, site: Site, node: cst.Call, frame: Frame) -> Value:
        names = [k.name for k in plain_leaves(self.force(kind)) if isinstance(k, Namespace)]
        if isinstance(kind, Sequence) and kind.items is not None:
            names = [k.name for k in kind.items if isinstance(k, Namespace)]
        if names:
            if isinstance(value, Tensor) or (isinstance(value, Unknown) and value.is_tensor):
                return Const("torch.Tensor" in names, place=site)
            if isinstance(value, Const):
                actual = f"builtins.{type(value.value).__name__}"
                return Const(actual in names, place=site)
            content = self.deref(value, frame)
            if isinstance(content, Sequence):
                return Const(f"builtins.{content.kind}" in names, place=site)
            if isinstance(content, MapValue):
                return Const("builtins.dict" in names, place=site)
        cond = Cond(
            "isinstance",
            key_of(value),
            tuple(sorted(names)) or id(node),
            label=text_of(node),
            place=site,
        )
        return Choice(cond, Const(True), Const(False), place=site)
