"""Calls: operators, functions of the code under check, methods."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import libcst as cst

from kvlint.contract import catalogue
from kvlint.contract.keys import origin
from kvlint.contract.num import Num
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    ABSENT,
    Choice,
    Const,
    Content,
    Join,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

from . import numpylib
from .algebra import (
    choose,
    few_options,
    is_hidden,
    plain_leaves,
    same,
)
from .attributes import TENSOR_METHODS
from .chunk import Site
from .core import Passed
from .library import Library
from .modulestate import forget_entries
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
    PartialCall,
    RecordType,
    Ref,
)
from .results import DEPENDS, operator_results, result_kinds
from .state import (
    MAX_DEPTH,
    Frame,
    Record,
    State,
)
from .syntax import ast_dotted
from .torchlib import (
    Test,
    as_tensor,
    key_of,
    label_of,
    makes_object,
)
from .walk import walk

# In-place methods that change the form only.
KEEP_ELEMENTS = frozenset(
    ("requires_grad_", "share_memory_", "squeeze_", "unsqueeze_", "transpose_", "t_", "detach_")
)


# Methods of tensors that modules of a model are called by, too.
_RANKING = frozenset(("topk", "argsort"))


def _ranks_tensor(base: Hashable, args: list[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether ``topk`` or ``argsort`` of an unknown value is that of a tensor: its arguments are numbers."""
    if not all(isinstance(arg, (Const, Number)) for arg in args[:1]) or len(args) > 4:
        return False
    kept = isinstance(base, tuple) and base[:1] == ("attr",)
    return "dim" in kwargs or (len(args) > 1 and isinstance(args[1], Const)) or not kept


def _unknown_attribute(value: Value) -> tuple[Hashable, str]:
    """The identity of an object, and which attribute of it an unknown value is; no name for another one."""
    key = value.key if isinstance(value, Unknown) else None
    if isinstance(key, tuple) and len(key) == 3 and key[0] == "attr":
        return key[1], str(key[2])
    return None, ""


def _is_typed_dict(cls: ClassRef) -> bool:
    return any(ast_dotted(base).rsplit(".", 1)[-1] == "TypedDict" for base in cls.index.node.bases)


class Calls(Library):
    """Calls: operators, functions of the code under check, methods."""

    def call(self, node: cst.Call, frame: Frame, statement: bool = False) -> Value:
        callee = self.expr(node.func, frame)
        positional: list[tuple[Value, Site | None]] = []
        keywords: dict[str, tuple[Value, Site | None]] = {}
        opaque: Note | None = None
        stars: list[tuple[Value, Site]] = []
        for arg in node.args:
            site = Site(frame.chunk, arg)
            value = self.expr(arg.value, frame)
            if arg.star == "*":
                items = self._star_items(value, frame)
                if items is not None:
                    positional.extend((item, site) for item in items)
                else:
                    opaque = opaque or Note(f"*{label_of(value)} is not visible", site)
                    hidden = Sequence(
                        None,
                        "tuple",
                        key=("star", key_of(self.force(value)), id(arg)),
                        label=f"*{label_of(value)}",
                    )
                    positional.append((hidden, site))
            elif arg.star == "**":
                stars.append((value, site))
            elif arg.keyword is not None:
                keywords[arg.keyword.value] = (value, site)
            else:
                positional.append((value, site))
        for value, site in stars:
            opaque = self._spread(value, site, keywords, opaque, frame)
        site = Site(frame.chunk, node)

        def apply(leaf: Value) -> Value:
            return self.apply(leaf, positional, keywords, opaque, site, frame, node, statement)

        callee = self.simplify(self.force(callee), frame.state.assumed)
        if isinstance(callee, (Choice, Join)):
            ops = [leaf for leaf in plain_leaves(callee) if isinstance(leaf, OpRef)]
            distinct = {(op.name, op.overload) for op in ops}
            if ops and len(distinct) == 1:
                # Several namespaces hold the same operator.
                return apply(ops[0])
            if isinstance(callee, Choice):
                return self._apply_choice(callee, apply, frame)
        return self.lift(apply, [callee], frame)

    def _star_items(self, value: Value, frame: Frame) -> list[Value] | None:
        """The elements of ``*value``, when their number is known."""
        value = self.lift(lambda leaf: self.tuple_of(leaf, leaf.place, frame), [value], frame)
        counts: set[int | None] = set()
        for leaf in plain_leaves(value):
            content = self.deref(leaf, frame)
            counts.add(
                len(content.items) if isinstance(content, Sequence) and content.items is not None else None
            )
        count = counts.pop() if len(counts) == 1 else None
        if count is None:
            return None

        def element(leaf: Value, index: int) -> Value:
            content = self.deref(leaf, frame)
            assert isinstance(content, Sequence) and content.items is not None
            return content.items[index]

        return [self.lift(lambda leaf, i=i: element(leaf, i), [value], frame) for i in range(count)]

    def _apply_choice(self, callee: Value, apply: Callable[[Value], Value], frame: Frame) -> Value:
        """Calls whichever function a test picked, each under its own assumption."""
        callee = self.simplify(self.force(callee), frame.state.assumed)
        if not isinstance(callee, Choice):
            return self.lift(apply, [callee], frame)
        state = frame.state
        results: list[Value] = []
        ends: list[State] = []
        for arm, holds in ((callee.yes, True), (callee.no, False)):
            inner = state.assume(callee.cond, holds)
            if inner is None:
                results.append(Unknown(("dead", id(callee)), "value", "this arm cannot run"))
                continue
            inner.path = state.path
            frame.state = inner
            results.append(self._apply_choice(arm, apply, frame))
            ends.append(frame.state)
        frame.state = self._rejoin(callee.cond, state, ends)
        return choose(callee.cond, results[0], results[1])

    def _note_entries(self, ref: Ref, node: cst.Call, frame: Frame) -> None:
        """Remembers where ``dict(key=...)`` and ``d.update(key=...)`` write their entries."""
        for arg in node.args:
            if arg.keyword is not None:
                self._entry_sites[ref.ident, arg.keyword.value] = Site(frame.chunk, arg)

    def _entry_site(self, value: Value, key: str, frame: Frame) -> Site | None:
        """Where the entry of a dict was written, when that is in the same function."""
        found = self._entry_sites.get((value.ident, key)) if isinstance(value, Ref) else None
        if found is None:
            return None
        here = found.chunk is frame.chunk
        module_level = frame.node is None and found.path == frame.chunk.path
        return found if here or module_level else None

    def _spread(
        self,
        value: Value,
        site: Site,
        keywords: dict[str, tuple[Value, Site | None]],
        opaque: Note | None,
        frame: Frame,
    ) -> Note | None:
        """Adds the entries of ``**value``."""
        value = self.simplify(self.force(value), frame.state.assumed)
        if isinstance(value, Choice):
            first: dict[str, tuple[Value, Site | None]] = {}
            second: dict[str, tuple[Value, Site | None]] = {}
            opaque = self._spread(value.yes, site, first, opaque, frame)
            opaque = self._spread(value.no, site, second, opaque, frame)
            for name in [*first, *(n for n in second if n not in first)]:
                a = first.get(name, (ABSENT, site))
                b = second.get(name, (ABSENT, site))
                keywords[name] = (a[0] if same(a[0], b[0]) else choose(value.cond, a[0], b[0]), a[1] or b[1])
            return opaque
        content = self.deref(value, frame)
        if isinstance(content, MapValue):
            for key, entry in content.entries.items():
                if isinstance(key, str):
                    keywords[key] = (entry, self._entry_site(value, key, frame) or site)
            return opaque or content.open
        return opaque or Note(f"**{label_of(value)} is not visible here", site)

    def apply(
        self,
        callee: Value,
        positional: list[tuple[Value, Site | None]],
        keywords: dict[str, tuple[Value, Site | None]],
        opaque: Note | None,
        site: Site,
        frame: Frame,
        node: cst.Call,
        statement: bool,
    ) -> Value:
        """Calls a value without alternatives."""
        args = [value for value, _ in positional]
        kwargs = {name: value for name, (value, _) in keywords.items()}
        self.touched_by_call(callee, args, kwargs, site, frame)
        self._note_sum(callee, args, frame)
        self._note_rewritten(callee, kwargs.get("out"))
        if isinstance(callee, OpRef):
            return self._operator(callee, positional, keywords, opaque, site, frame, node)
        if isinstance(callee, PartialCall):
            merged = {**callee.kwargs, **keywords}
            return self.apply(
                callee.func, [*callee.args, *positional], merged, opaque, site, frame, node, statement
            )
        if isinstance(callee, Func):
            return self._call_function(callee, args, kwargs, opaque, site, frame, statement)
        if isinstance(callee, Bound):
            return self._call_function(
                callee.func, [callee.receiver, *args], kwargs, opaque, site, frame, statement
            )
        if isinstance(callee, RecordType) and opaque is None:
            items = dict(zip(callee.names, args, strict=False)) | kwargs
            if items.keys() == set(callee.names):
                parts = tuple(items[name] for name in callee.names)
                return Sequence(parts, "tuple", Num.of(len(parts)), names=callee.names, place=site)
        if isinstance(callee, ClassRef) and opaque is None and not args and _is_typed_dict(callee):
            found = self._builtin("dict", args, kwargs, site, frame, node)
            if found is not None:
                return found
        if isinstance(callee, ClassRef):
            return self._construct(callee, args, kwargs, opaque, site, frame, node)
        if isinstance(callee, Namespace):
            found = self._library(callee.name, positional, keywords, site, frame, node)
            if found is not None:
                return found
        if isinstance(callee, Method):
            found = self._method(callee.receiver, callee.name, args, kwargs, site, frame, node)
            if found is not None:
                return found
        if (
            isinstance(callee, Unknown)
            and isinstance(callee.key, tuple)
            and callee.key[0] == "attr"
            and len(callee.key) == 3
        ):
            found = self._unknown_method(callee, args, kwargs, site, frame, node)
            if found is not None:
                return found
        if isinstance(callee, Instance):
            forward = next(
                (
                    c.index.methods[m]
                    for c in self.mro(callee.cls)[0]
                    for m in ("forward", "__call__")
                    if m in c.index.methods
                ),
                None,
            )
            if forward is not None:
                bound = self.instance_attribute(callee, forward.name, site, frame)
                if isinstance(bound, Bound):
                    return self._call_function(
                        bound.func, [callee, *args], kwargs, opaque, site, frame, statement
                    )
        self._escape(args, kwargs, frame, site, statement)
        base, method = _unknown_attribute(callee)
        if statement and method:
            # The object whose method is called may be changed, too.
            self.rewritten.add(base)
        name = label_of(callee) if not isinstance(callee, Namespace) else callee.name
        key = (
            "call",
            key_of(callee),
            *(key_of(self.force(a)) for a in args),
            *((k, key_of(self.force(v))) for k, v in kwargs.items()),
        )
        if name.rsplit(".", 1)[-1] in ("next", "pop", "popleft", "rand", "randn") or makes_object(name):
            key = (*key, id(node))
        return Unknown(key, f"{name}(...)", f"what {name}() returns is not known", place=site)

    def _note_sum(self, callee: Value, args: list[Value], frame: Frame) -> None:
        """Remembers what a running sum is taken of: those entries count one by one."""
        keys: list[Hashable] = []
        if isinstance(callee, Namespace):
            if args and callee.name.rsplit(".", 1)[-1] in ("cumsum", "accumulate"):
                keys += map(key_of, plain_leaves(self.force(args[0])))
        elif isinstance(callee, Method):
            if callee.name == "cumsum":
                keys += map(key_of, plain_leaves(self.force(callee.receiver)))
        else:
            base, name = _unknown_attribute(callee)
            keys += [base] if name == "cumsum" else []
        if keys:
            tests = frozenset((*frame.state.assumed.items(), *frame.state.under))
            for key in keys:
                self.summed.setdefault(origin(key), []).append(tests)

    def _note_rewritten(self, callee: Value, out: Value | None) -> None:
        """Remembers what a call replaces the entries of: its ``out``, or the receiver of ``cumsum_``."""
        if isinstance(callee, Method) and callee.name.endswith("_") and callee.name not in KEEP_ELEMENTS:
            self.note_rewritten(self.force(callee.receiver))
        else:
            base, name = _unknown_attribute(callee)
            if name.endswith("_"):
                self.rewritten.add(origin(base))
        for leaf in plain_leaves(self.force(out)) if out is not None else ():
            self.note_rewritten(leaf)

    def note_rewritten(self, value: Value) -> None:
        """Remembers that the entries of a value are replaced, and through a view those of what it shows."""
        if not isinstance(value, (Unknown, Tensor, Sequence)):
            return
        key = origin(value.key)
        while isinstance(key, tuple):
            self.rewritten.add(key)
            key = key[1] if key[:1] == ("item",) and len(key) > 2 else None

    def _takes_sums(self, func: Func) -> bool:
        found = self._summing.get(func.node)
        if found is None:
            names = (n.value for n in walk(func.node) if isinstance(n, cst.Name))
            found = self._summing[func.node] = not {"cumsum", "accumulate"}.isdisjoint(names)
        return found

    def _escape(
        self,
        args: list[Value],
        kwargs: Mapping[str, Value],
        frame: Frame,
        site: Site,
        statement: bool = False,
    ) -> None:
        """What is handed to unknown code may be changed by it: a dict always, lists and tensors when nothing
        else can be meant."""
        for value in [*args, *kwargs.values()]:
            for leaf in plain_leaves(value):
                if isinstance(leaf, (Ref, Frozen)):
                    forget_entries(frame.state.attrs, leaf)
                if isinstance(leaf, Ref):
                    content = self.deref(leaf, frame)
                    if isinstance(content, MapValue) and content.open is None:
                        frame.state.heap[leaf.ident] = MapValue(
                            content.entries, Note("it is handed to code that may add keys", site)
                        )
                    elif isinstance(content, Sequence) and statement:
                        frame.state.heap[leaf.ident] = Sequence(
                            None,
                            content.kind,
                            key=("handed", id(site.node)),
                            label=content.label,
                            place=content.place,
                        )
                elif statement:
                    self.note_rewritten(leaf)
                    if isinstance(leaf, Tensor):
                        self._changed(leaf, frame)

    def _operator(
        self,
        op: OpRef,
        positional: list[tuple[Value, Site | None]],
        keywords: dict[str, tuple[Value, Site | None]],
        opaque: Note | None,
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value:
        op = replace(op, overload=catalogue.dispatched(op.name, op.overload, len(positional), keywords))
        record: Record | None = None
        if self.recording:
            # What follows an unpacking of unknown length has no known position.
            shown = next((i for i, (v, _) in enumerate(positional) if is_hidden(v)), len(positional))
            frozen = [(self.resolved(v, frame), s) for v, s in positional[:shown]]
            named = {name: (self.resolved(v, frame), s) for name, (v, s) in keywords.items()}
            record = Record(
                op.name,
                op.overload,
                frozen,
                named,
                opaque,
                site,
                frame.state.assumed,
                frame.state.under,
                frame.trail,
                frame,
            )
            record.number = len(self.records)
            record.mutated = tuple(self.mutated.items())
            self.records.append(record)
        # Every way into the function has a result of its own.
        entered = tuple(id(note.place.node) for note in frame.trail if isinstance(note.place, Site))
        key = ("op", op.name, id(node), entered, *(key_of(self.force(v)) for v, _ in positional))
        operator = catalogue.find(op.name, op.overload)
        count = operator.returns if operator is not None else 0
        first = (
            self.force(positional[0][0])
            if positional
            else self.force(keywords["data"][0])
            if "data" in keywords
            else None
        )
        if (
            operator is not None
            and operator.family == "cache_write"
            and op.name.endswith("_")
            and first is not None
        ):
            for value, _ in positional[:1]:
                for leaf in plain_leaves(self.force(value)):
                    if isinstance(leaf, Tensor):
                        self._changed(leaf, frame)
        if operator is not None and count and op.name != "empty_with_swapped_memory":
            bound = {p.name: v for p, (v, _) in zip(operator.params, positional, strict=False)}
            bound.update({name: v for name, (v, _) in keywords.items()})
            given = {n: self.simplify(self.force(v), frame.state.assumed) for n, v in bound.items()}
            items = self._results(op.name, result_kinds(operator.schema), given, key, site, frame, opaque)
            whole = items[0] if count == 1 else Sequence(tuple(items), "tuple", Num.of(count), place=site)
            if record is not None:
                self.keep_result(record, whole)
                if op.name == "npu_apply_rotary_pos_emb":
                    self.keep_inputs(record, [given.get("query"), given.get("key")])
            return whole
        if op.name == "empty_with_swapped_memory":
            return Tensor(key, "swapped tensor", device="host-swapped", storage=("fresh", key), place=site)
        result = Unknown(key, f"{op.name}(...)", f"it is the result of {op.name}", place=site)
        if record is not None:
            self.keep_result(record, result)
        return result

    def _results(
        self,
        name: str,
        kinds: list[str],
        given: dict[str, Value],
        key: tuple[Hashable, ...],
        site: Site,
        frame: Frame,
        opaque: Note | None,
    ) -> list[Value]:
        """The results of an operator: what they are for each alternative of the arguments they hang on."""

        def results(values: Mapping[str, Value]) -> list[Value]:
            return operator_results(name, kinds, values, key, site, opaque is not None)

        plain = results(given)
        names = [n for n in DEPENDS.get(name, ()) if isinstance(given.get(n), (Choice, Join))]
        if not names:
            return plain

        def joint(index: int) -> Value:
            found = self.lift(
                lambda *values: results({**given, **dict(zip(names, values, strict=True))})[index],
                [given[n] for n in names],
                frame,
            )
            few = few_options([found], 1)
            own = plain[index]
            if few is None or not isinstance(few[0], Tensor) or not isinstance(own, (Tensor, Unknown)):
                return own
            # It is one result, whatever it was made of.
            return replace(few[0], key=own.key)

        return [joint(index) for index in range(len(kinds))]

    def _call_function(
        self,
        func: Func,
        args: list[Value],
        kwargs: dict[str, Value],
        opaque: Note | None,
        site: Site,
        frame: Frame,
        statement: bool,
    ) -> Value:
        if opaque is not None:
            self._escape(args, kwargs, frame, site)
            return Unknown(
                ("call", id(func.node), *(key_of(a) for a in args), id(site.node)),
                f"{func.name}(...)",
                opaque.text,
                place=site,
            )
        return self._invoke(func, args, kwargs, site, frame, statement)

    def _invoke(
        self,
        func: Func,
        args: list[Value],
        kwargs: Mapping[str, Value],
        site: Any,
        frame: Frame,
        statement: bool = False,
    ) -> Value:
        if self._watch is not None and isinstance(site, Site):
            passed = Passed(func, tuple(args), dict(kwargs), site, frame.name, dict(frame.state.heap))
            self._watch.passed.append(passed)
        effects = (
            statement
            or self.has_op(func)
            or self._writes_self(func)
            or any(isinstance(leaf, Ref) for a in [*args, *kwargs.values()] for leaf in plain_leaves(a))
        )
        if not effects:
            snapshot = frame.state.copy()
            deferred = Deferred(func, tuple(args), dict(kwargs), snapshot, site, frame.depth, place=site)
            if self.gets_result((*args, *kwargs.values())) or self._takes_sums(func):
                # What it does with a result or with lengths counts, whether or not its own result is wanted.
                self.force(deferred)
            return deferred
        key = ("active", id(func.node))
        unknown = Unknown(
            ("call", id(func.node), *(key_of(a) for a in args), *((k, key_of(v)) for k, v in kwargs.items())),
            f"{func.name}(...)",
            "the call is too deep to follow",
            place=site,
        )
        if key in self._busy or frame.depth > MAX_DEPTH or self.frugal:
            return unknown
        self._busy.add(key)
        try:
            arguments = self.bind(func, args, dict(kwargs), frame.state)
            if arguments is None:
                return replace(unknown, reason="its arguments do not fit")
            trail = (*frame.trail, Note(f"called from {frame.name}", site))
            inner = State({}, frame.state.heap, frame.state.attrs, frame.state.assumed, (), frame.state.under)
            result, final = self._run(func, arguments, inner, frame.depth + 1, trail)
            if final is not None:
                frame.state.heap = final.heap
                frame.state.attrs = final.attrs
            return result
        finally:
            self._busy.discard(key)

    def _method(
        self,
        receiver: Value,
        name: str,
        args: list[Value],
        kwargs: dict[str, Value],
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value | None:
        content = self.deref(receiver, frame)
        if isinstance(content, Instance):
            return content
        if isinstance(content, (Choice, Join)) and isinstance(receiver, Ref) and name == "append" and args:
            frame.state.heap[receiver.ident] = self._appended(content, args[0], node, frame)
            return Const(None)
        if isinstance(content, MapValue):
            return self._dict_method(receiver, content, name, args, kwargs, site, frame, node)
        if isinstance(content, Sequence):
            return self._list_method(receiver, content, name, args, kwargs, site, frame, node)
        if isinstance(content, Const) and isinstance(content.value, str):
            return self._string_method(content.value, name, args, site, frame)
        if isinstance(content, Test):
            content = content.tensor
        if isinstance(content, (Tensor, Unknown)):
            return self._tensor_method(content, name, args, kwargs, site, frame, node)
        return None

    def _tensor_method(
        self,
        receiver: Tensor | Unknown,
        name: str,
        args: list[Value],
        kwargs: dict[str, Value],
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value | None:
        values = [receiver, *args, *kwargs.values()]
        names = list(kwargs)

        def apply(target: Value, *rest: Value) -> Value:
            plain = [self.deref(v, frame) for v in rest]
            shown = [self._resolve_items(v, frame) for v in plain]
            found = self.torch.method(
                target, name, shown[: len(args)], dict(zip(names, shown[len(args) :], strict=True)), site
            )
            if found is None:
                key = ("method", key_of(target), name, *(key_of(v) for v in rest))
                return Unknown(
                    key, f"{label_of(target)}.{name}(...)", f"what .{name}() returns is not known", place=site
                )
            return found

        result = self.lift(apply, values, frame)
        if isinstance(receiver, Tensor) and receiver.numpy:
            if name in numpylib.IN_PLACE:
                self._changed(receiver, frame)
        elif name.endswith("_") and not name.startswith("_") and isinstance(receiver, Tensor):
            if name not in KEEP_ELEMENTS:
                self._changed(receiver, frame, but=receiver.key)
            self._rebind(node, receiver, result, frame)
        return result

    def _rebind(self, node: cst.Call, before: Tensor, after: Value, frame: Frame) -> None:
        """An in-place method changed the tensor that names hold."""
        for name, value in frame.state.vars.items():
            if value is before or (isinstance(value, Tensor) and value.key == before.key):
                frame.state.vars[name] = after
        for key, value in frame.state.attrs.items():
            if value is before or (isinstance(value, Tensor) and value.key == before.key):
                frame.state.attrs[key] = after
        if before.strided is not None or (isinstance(before.key, tuple) and before.key[:1] == ("item",)):
            # The method went through a view: whatever shares the memory has changed too.
            self._changed(before, frame)

    def _unknown_method(
        self,
        callee: Unknown,
        args: list[Value],
        kwargs: dict[str, Value],
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value | None:
        assert isinstance(callee.key, tuple)
        _, base, name = callee.key
        if name.startswith("register_") and args:
            first = self.force(args[0])
            if isinstance(first, Const) and isinstance(first.value, str) and len(args) > 1:
                frame.state.attrs[(base, first.value)] = args[1]
            return Const(None)
        label = callee.label.removesuffix(f".{name}")
        receiver = Unknown(base, label, callee.reason, declared=callee.declared, place=callee.place)
        if name == "all_to_all" or name.startswith("all_to_all"):
            # An all-to-all gives back as many pieces of the same shapes.
            pieces = self.deref(self.force(args[0]), frame) if args else None
            if isinstance(pieces, Sequence):
                return replace(pieces, key=("all_to_all", pieces.key), place=site)
        if name.startswith("all_gather") and args:
            return self._gathered(args[0], site)
        if name not in TENSOR_METHODS or (name in _RANKING and not _ranks_tensor(base, args, kwargs)):
            return None
        return self._tensor_method(receiver, name, args, kwargs, site, frame, node)

    def _gathered(self, value: Value, site: Site) -> Value | None:
        """The pieces an all-gather gives back: this rank's rows and those of the others."""
        tensor = as_tensor(self.force(value))
        if tensor is None:
            return None
        piece = replace(
            tensor,
            key=("all_gather", tensor.key),
            content=Content(gathered=True),
            shape=None,
            storage=None,
            place=site,
        )
        return Sequence(
            None, "list", None, piece, key=("all_gather", tensor.key), label="all_gather(...)", place=site
        )

    def _changed(
        self, tensor: Tensor, frame: Frame, but: Hashable = None, holds: Content | None = None
    ) -> None:
        """A tensor was written to: what shares its memory no longer holds what it was built with.

        ``but`` is a view that is known to hold something else now, ``holds`` what the tensor itself does.
        """
        self._serial += 1
        serial = self._serial
        done: dict[int, Value] = {}

        def fresh(value: Value) -> Value:
            if isinstance(value, Tensor) and but is not None and value.key == but:
                return value
            if isinstance(value, Tensor) and (
                value.key == tensor.key or (tensor.storage is not None and value.storage == tensor.storage)
            ):
                found = done.get(id(value))
                if found is None:
                    content = holds if holds is not None and value.key == tensor.key else Content()
                    found = replace(value, content=content, key=("stored", serial, value.key))
                    done[id(value)] = found
                return found
            if isinstance(value, Choice):
                # Alternatives share their parts: each is looked at once.
                found = done.get(id(value))
                if found is None:
                    yes, no = fresh(value.yes), fresh(value.no)
                    same_parts = yes is value.yes and no is value.no
                    found = value if same_parts else Choice(value.cond, yes, no, place=value.place)
                    done[id(value)] = found
                return found
            return value

        state = frame.state
        for name, value in state.vars.items():
            state.vars[name] = fresh(value)
        for key, value in state.attrs.items():
            state.attrs[key] = fresh(value)
