"""Abstract evaluation of functions: what values reach the operator calls, and on which path.

A function is run forward once. Where the source branches, both arms run and what they left
different becomes a :class:`Choice` on the test, so that values picked by the same test stay
correlated. Calls of known functions are evaluated when somebody asks for their result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst

from kvlint.contract import catalogue
from kvlint.contract.num import Num
from kvlint.contract.paths import Assumptions, Cond, consistent, decide
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    ABSENT,
    Absent,
    Choice,
    Const,
    Content,
    DType,
    Join,
    LengthForm,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

from .chunk import Chunk, Site
from .module import BadSource, Binding, ModuleIndex
from .objects import (
    Bound,
    ClassRef,
    Deferred,
    Func,
    Instance,
    MapValue,
    Method,
    Namespace,
    OpRef,
    PartialCall,
    Ref,
)
from .torchlib import (
    Test,
    TorchLib,
    arithmetic,
    as_tensor,
    compare,
    dim_value,
    dims_of,
    dtype_named,
    full_shape,
    integer_of,
    invert,
    key_of,
    label_of,
    number_of,
    scalar,
    select,
    shape_value,
)

MAX_DEPTH = 10
MAX_STEPS = 20_000
MAX_LEAVES = 16

# Names that code under check gives to a namespace of NPU operators it received as an argument.
_NAMESPACE_NAMES = frozenset(("npu", "torch_npu", "tnpu", "fa_ops", "npu_ops"))
_OP_NAMESPACES = {
    "torch_npu": "npu",
    "torch.ops.npu": "npu",
    "torchair.ops": "npu",
    "torch.ops.atb": "atb",
    "torch_npu.atb": "atb",
    "torch_npu.npu": "",
}
_TORCH_PREFIXES = ("torch.nn.functional.", "torch.", "torch_npu.")
_LENGTH_WORDS = ("len", "seq", "cu_")


class OutOfBudget(Exception):
    """The question costs too much; what was asked stays unknown."""


@dataclass
class State:
    """What a path knows: variables, container contents, attribute overrides, tests that hold."""

    vars: dict[str, Value] = field(default_factory=dict)
    heap: dict[Hashable, Value] = field(default_factory=dict)
    attrs: dict[tuple[Hashable, str], Value] = field(default_factory=dict)
    assumed: Assumptions = field(default_factory=dict)
    path: tuple[tuple[Cond, bool], ...] = ()
    """Tests passed since the function was entered."""
    outer: tuple[tuple[Cond, bool], ...] = ()
    """Tests that the callers had passed when the function was entered."""

    def copy(self) -> State:
        return State(dict(self.vars), dict(self.heap), dict(self.attrs), self.assumed, self.path, self.outer)

    @property
    def under(self) -> tuple[tuple[Cond, bool], ...]:
        """Every test passed on the way here."""
        return self.outer + self.path

    def assume(self, cond: Cond, holds: bool) -> State | None:
        """The state after a test, or None when that arm cannot run."""
        known = decide(cond, self.assumed)
        if known is not None:
            return self.copy() if known == holds else None
        assumed = consistent(self.assumed, [(cond, holds)])
        if assumed is None:
            return None
        result = self.copy()
        result.assumed = assumed
        result.path = (*self.path, (cond, holds))
        return result


@dataclass
class Record:
    """An operator call that evaluation came across."""

    operator: str
    overload: str
    positional: list[tuple[Value, Site | None]]
    keywords: dict[str, tuple[Value, Site | None]]
    opaque: Note | None
    site: Site
    assumed: Assumptions
    path: tuple[tuple[Cond, bool], ...]
    trail: tuple[Note, ...]
    frame: Frame
    partial: bool = False


@dataclass
class Frame:
    """One function being evaluated."""

    module: ModuleIndex
    chunk: Chunk
    name: str
    state: State
    depth: int
    owner: ClassRef | None = None
    me: str = ""
    closure: State | None = None
    returns: list[tuple[State, Value]] = field(default_factory=list)
    trail: tuple[Note, ...] = ()
    node: cst.FunctionDef | cst.Lambda | None = None
    globals_: frozenset[str] = frozenset()
    calls: dict[cst.Call, list[Any]] = field(default_factory=dict)
    generator: bool = False


class Interpreter:
    """Evaluates the code of one project.

    Args:
        find_module: resolves a dotted import seen from a module to another module of the project.
    """

    def __init__(self, find_module: Callable[[ModuleIndex, str, int], ModuleIndex | None]) -> None:
        self.find_module = find_module
        self.torch = TorchLib()
        self.records: list[Record] = []
        self.recording = True
        self.steps = 0
        self.limit = MAX_STEPS
        self._globals: dict[tuple[str, str], Value] = {}
        self._attributes: dict[tuple[Hashable, str], Value] = {}
        self._busy: set[Hashable] = set()
        self._funcs: dict[Any, Func] = {}
        self._serial = 0
        self.op_functions: dict[str, frozenset[str]] = {}
        self.nested: list[tuple[Func, State]] = []
        self.views: list[tuple[Site, Tensor, Frame]] = []
        """Attributes that were set to a single element of a buffer that an object keeps."""
        # Where the entries of dicts were written last: findings about ``**options`` point there.
        self._entry_sites: dict[tuple[Hashable, Hashable], Site] = {}

    # Functions.

    def function(self, module: ModuleIndex, node: Any, owner: ClassRef | None = None) -> Func | None:
        """The function for an ``ast`` definition; its tree is parsed now."""
        found = self._funcs.get(node)
        if found is None:
            try:
                chunk = module.chunk(node)
            except BadSource:
                return None
            tree = _find_def(chunk.body, node.name)
            if tree is None:
                return None
            found = Func(module, chunk, tree, node.name, owner, place=Site(chunk, tree.name))
            self._funcs[node] = found
        return found

    def run_root(self, func: Func, receiver: Value | None = None) -> None:
        """Evaluates a function on unknown arguments, recording the operator calls in it."""
        self.steps = 0
        state = State()
        arguments: dict[str, Value] = {}
        parameters = list(_parameters(func.node))
        decorators = _decorators(func.node)
        if func.owner is not None and parameters and "staticmethod" not in decorators:
            first = parameters.pop(0)
            if "classmethod" in decorators:
                arguments[first[0].name.value] = func.owner
            else:
                arguments[first[0].name.value] = receiver or self.symbolic_instance(func.owner)
        for param, kind in parameters:
            arguments[param.name.value] = self._parameter(func, param, kind, state)
        self._run(func, arguments, state, 0, ())

    def symbolic_instance(self, cls: ClassRef) -> Instance:
        """An object of a class, built by constructor arguments nobody knows."""
        return Instance(("self", cls.module.path, cls.name), cls, label="self")

    def _parameter(self, func: Func, param: cst.Param, kind: str, state: State) -> Value:
        name = param.name.value
        site = Site(func.chunk, param)
        key = ("param", func.module.path, func.owner.name if func.owner else "", func.name, name)
        if kind == "**":
            ref = Ref(("kwargs", key), place=site)
            note = Note(f"**{name} is filled by the caller", site)
            state.heap[ref.ident] = MapValue({}, note)
            return ref
        if kind == "*":
            return Sequence(None, "tuple", key=key, label=name, place=site)
        if param.annotation is not None:
            typed = self._annotated(func, param.annotation.annotation, key, name, site)
            if typed is not None:
                return typed
        return Unknown(key, name, "it is a parameter", declared=True, place=site)

    def _annotated(
        self, func: Func, annotation: cst.BaseExpression, key: Hashable, name: str, site: Site
    ) -> Value | None:
        text = annotation.value.strip("'\"") if isinstance(annotation, cst.SimpleString) else ""
        if isinstance(annotation, cst.Name):
            text = annotation.value
        if text.isidentifier():
            found = self.global_value(func.module, text)
            if isinstance(found, ClassRef):
                return Instance(key, found, label=name, place=site)
            if text in ("int", "float"):
                return Unknown(key, name, "it is a parameter", declared=True, is_tensor=False, place=site)
        if isinstance(annotation, cst.Attribute) and _dotted(annotation) == "torch.Tensor":
            return Unknown(key, name, "it is a parameter", declared=True, is_tensor=True, place=site)
        return None

    def _run(
        self, func: Func, arguments: Mapping[str, Value], state: State, depth: int, trail: tuple[Note, ...]
    ) -> tuple[Value, State | None]:
        """Runs a function; returns its result and the state at its end (None when it always raises)."""
        inner = State(dict(arguments), state.heap, state.attrs, state.assumed, (), state.outer)
        parameters = [p for p, _ in _parameters(func.node)]
        me = parameters[0].name.value if func.owner is not None and parameters else ""
        frame = Frame(
            func.module,
            func.chunk,
            func.name,
            inner,
            depth,
            func.owner,
            me,
            func.closure,
            trail=trail,
            node=func.node,
        )
        if isinstance(func.node, cst.Lambda):
            value = self.expr(func.node.body, frame)
            return value, frame.state
        body = func.node.body
        statements = body.body
        end = self.block(statements, frame, inner.copy())
        exits = list(frame.returns)
        if end is not None:
            exits.append((end, Const(None, place=func.place)))
        if not exits:
            return Unknown(
                ("raises", func.name, id(func)), func.name, "it always raises", place=func.place
            ), None
        final, result = exits[-1]
        for exit_state, value in reversed(exits[:-1]):
            cond = _conjunction(exit_state.path)
            if cond is None:
                final, result = exit_state, value
                continue
            result = choose(cond, value, result)
            final = self.merge(cond, exit_state, final)
        if frame.generator:
            result = Unknown(("generator", id(func.node)), func.name, "it is a generator", place=func.place)
        return result, final

    # Blocks and statements. Each returns the state that falls through, or None.

    def block(self, statements: Iterable[Any], frame: Frame, state: State) -> State | None:
        frame.state = state
        for statement in statements:
            self._step()
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    if not self._small(small, frame):
                        return None
            else:
                following = self._compound(statement, frame)
                if following is None:
                    return None
                frame.state = following
        return frame.state

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self.limit:
            raise OutOfBudget

    def _small(self, node: cst.BaseSmallStatement, frame: Frame) -> bool:
        """Runs a simple statement; False when control leaves the block."""
        if isinstance(node, cst.Assign):
            value = self.expr(node.value, frame)
            for target in node.targets:
                self.assign(target.target, value, frame, node.value)
        elif isinstance(node, cst.AnnAssign):
            if node.value is not None:
                self.assign(node.target, self.expr(node.value, frame), frame, node.value)
        elif isinstance(node, cst.AugAssign):
            self._augment(node, frame)
        elif isinstance(node, cst.Expr):
            self.expr(node.value, frame, statement=True)
        elif isinstance(node, cst.Return):
            value = self.expr(node.value, frame) if node.value is not None else Const(None)
            frame.returns.append((frame.state, value))
            return False
        elif isinstance(node, cst.Raise) or isinstance(node, (cst.Break, cst.Continue)):
            return False
        elif isinstance(node, cst.Assert):
            test = self.condition(node.test, frame)
            if isinstance(test, tuple):
                following = frame.state.assume(*test)
                if following is not None:
                    following.path = frame.state.path
                    frame.state = following
        elif isinstance(node, (cst.Import, cst.ImportFrom)):
            self._import(node, frame)
        elif isinstance(node, cst.Global):
            frame.globals_ = frame.globals_ | {item.name.value for item in node.names}
        elif isinstance(node, cst.Del):
            for target in _elements(node.target):
                if isinstance(target, cst.Name):
                    frame.state.vars.pop(target.value, None)
                elif isinstance(target, cst.Subscript):
                    base = self.expr(target.value, frame)
                    self._delete_key(base, target, frame)
        return True

    def _compound(self, node: cst.BaseCompoundStatement, frame: Frame) -> State | None:
        if isinstance(node, cst.If):
            return self._if(node, frame)
        if isinstance(node, (cst.For, cst.While)):
            return self._loop(node, frame)
        if isinstance(node, cst.With):
            for item in node.items:
                value = self.expr(item.item, frame)
                if item.asname is not None:
                    entered = Unknown(
                        ("with", key_of(value)),
                        label_of(value),
                        "it comes from a context manager",
                        place=Site(frame.chunk, item),
                    )
                    self.assign(item.asname.name, entered, frame)
            return self.block(_body(node), frame, frame.state)
        if isinstance(node, (cst.Try, cst.TryStar)):
            return self._try(node, frame)
        if isinstance(node, cst.FunctionDef):
            func = Func(
                frame.module,
                frame.chunk,
                node,
                node.name.value,
                None,
                frame.state,
                place=Site(frame.chunk, node.name),
            )
            frame.state.vars[node.name.value] = (
                func if not node.decorators else self._opaque(node.name, "it is decorated", frame)
            )
            if self.recording:
                self.nested.append((func, frame.state))
            return frame.state
        if isinstance(node, cst.ClassDef):
            frame.state.vars[node.name.value] = self._opaque(node.name, "it is a local class", frame)
            return frame.state
        if isinstance(node, cst.Match):
            return self._match(node, frame)
        return frame.state

    def _if(self, node: cst.If, frame: Frame) -> State | None:
        test = self.condition(node.test, frame)
        orelse = node.orelse
        other: Any = [] if orelse is None else [orelse] if isinstance(orelse, cst.If) else _body(orelse)
        if isinstance(test, bool):
            return self.block(_body(node) if test else other, frame, frame.state)
        cond, holds = test
        before = frame.state
        first = before.assume(cond, holds)
        second = before.assume(cond, not holds)
        after_first = self.block(_body(node), frame, first) if first is not None else None
        after_second = self.block(other, frame, second) if second is not None else None
        if after_first is None or after_second is None:
            return after_first if after_second is None else after_second
        merged = (
            self.merge(cond, after_first, after_second)
            if holds
            else self.merge(cond, after_second, after_first)
        )
        merged.path = before.path
        merged.assumed = {c: v for c, v in after_first.assumed.items() if after_second.assumed.get(c) == v}
        return merged

    def _match(self, node: cst.Match, frame: Frame) -> State | None:
        subject = self.expr(node.subject, frame)
        before = frame.state
        results: list[State] = []
        for case in node.cases:
            state = before.copy()
            for name in _assigned([case]):
                state.vars[name] = Unknown(
                    ("match", key_of(subject), name), name, "it is bound by a match pattern"
                )
            after = self.block(_body(case), frame, state)
            if after is not None:
                results.append(after)
        results.append(before)
        merged = results[0]
        for state in results[1:]:
            merged = self.merge(None, merged, state)
        merged.path = before.path
        merged.assumed = before.assumed
        return merged

    def _try(self, node: Any, frame: Frame) -> State | None:
        before = frame.state.copy()
        after = self.block(_body(node), frame, frame.state.copy())
        if after is not None and node.orelse is not None:
            after = self.block(_body(node.orelse), frame, after)
        results = [after] if after is not None else []
        for handler in node.handlers:
            # Anything the body assigns may or may not have happened.
            start = before if after is None else self.merge(None, before.copy(), after.copy())
            start = start.copy()
            if handler.name is not None and isinstance(handler.name.name, cst.Name):
                start.vars[handler.name.name.value] = Unknown(
                    ("except", id(handler)), "exception", "it is an exception"
                )
            end = self.block(_body(handler), frame, start)
            if end is not None:
                results.append(end)
        if not results:
            merged: State | None = None
        else:
            merged = results[0]
            for state in results[1:]:
                merged = self.merge(None, merged, state)
            merged.path = before.path
            merged.assumed = before.assumed
        if node.finalbody is not None:
            end = self.block(
                _body(node.finalbody), frame, merged.copy() if merged is not None else before.copy()
            )
            return end if merged is not None else None
        return merged

    def _loop(self, node: cst.For | cst.While, frame: Frame) -> State | None:
        before = frame.state
        assigned = _assigned([node])
        element: Value | None = None
        items: tuple[Value, ...] | None = None
        if isinstance(node, cst.For):
            iterable = self.expr(node.iter, frame)
            element, items = self._iterate(iterable, node, frame)
        # First pass: what one round leaves, so that the second sees loop-carried values.
        recording, self.recording = self.recording, False
        state = before.copy()
        try:
            frame.state = state
            returns = list(frame.returns)
            if isinstance(node, cst.For) and element is not None:
                self.assign(node.target, element, frame)
            after = self.block(_body(node), frame, frame.state)
            frame.returns = returns
        finally:
            self.recording = recording
        head = before.copy()
        if after is not None:
            self._carry(head, before, after, assigned, node, frame)
        frame.state = head
        if isinstance(node, cst.For) and element is not None:
            self.assign(node.target, element, frame)
        entered = frame.state
        if isinstance(node, cst.While):
            test = self.condition(node.test, frame)
            if isinstance(test, tuple):
                entered = head.assume(*test) or head.copy()
        entered.path = before.path
        inner_returns = len(frame.returns)
        after = self.block(_body(node), frame, entered)
        # A return inside a loop happens on some round: no test of this path decides it.
        for index in range(inner_returns, len(frame.returns)):
            returned, value = frame.returns[index]
            marker = Cond("opaque", ("loop-return", id(node), index), label="")
            frame.returns[index] = (replace(returned, path=(*before.path, (marker, True))), value)
        result = head if after is None else self.merge(None, after, head)
        result.path = before.path
        result.assumed = before.assumed
        if node.orelse is not None:
            return self.block(_body(node.orelse), frame, result)
        return result

    def _carry(
        self, head: State, before: State, after: State, assigned: set[str], node: Any, frame: Frame
    ) -> None:
        """Gives the loop head values that stand for every round."""
        for name in assigned:
            old, new = before.vars.get(name), after.vars.get(name)
            if old is None or new is None or same(old, new):
                continue
            label = name
            if _running_sum(old, new):
                key = ("running-sum", id(node), name)
                head.vars[name] = Number(Num.atom(key, label), place=Site(frame.chunk, node))
            elif isinstance(new, Tensor) and isinstance(old, Tensor):
                head.vars[name] = Join((old, new))
            elif isinstance(old, (Const, Number)) and isinstance(new, (Const, Number)):
                head.vars[name] = Unknown(
                    ("loop", id(node), name), label, "it changes in a loop", is_tensor=False
                )
            else:
                head.vars[name] = Join(
                    (old, Unknown(("loop", id(node), name), label, "it changes in a loop"))
                )
        for ident, content in after.heap.items():
            if ident in before.heap and before.heap[ident] is not content:
                head.heap[ident] = self._widened(before.heap[ident], content)

    def _widened(self, old: Value, new: Value) -> Value:
        """A container that a loop body changes."""
        if isinstance(old, Sequence) and isinstance(new, (Choice, Join)):
            return self._uneven(old, new)
        if isinstance(old, Sequence) and isinstance(new, Sequence):
            added = new.items[len(old.items) :] if old.items is not None and new.items is not None else ()
            content = new.content
            if added and all(_is_running(item) for item in added):
                content = Content(lengths=LengthForm.CUMULATIVE)
            element = added[0] if len(added) == 1 and not old.items else None
            return Sequence(
                None, old.kind, None, element, content, key=("grown", id(old)), label="list", place=old.place
            )
        if isinstance(old, MapValue) and isinstance(new, MapValue):
            return MapValue(
                {
                    k: v
                    if k in old.entries and same(old.entries[k], v)
                    else Join((old.entries.get(k, ABSENT), v))
                    for k, v in new.entries.items()
                },
                new.open or old.open,
            )
        return new

    def _uneven(self, old: Sequence, new: Choice | Join) -> Value:
        """A list that some rounds of a loop grow more than others."""
        grown = [leaf for leaf in _plain_leaves(new) if isinstance(leaf, Sequence)]
        counts = {len(leaf.items) - len(old.items or ()) for leaf in grown if leaf.items is not None}
        uneven = None
        if isinstance(new, Choice) and old.items == () and len(counts) > 1 and min(counts) >= 1:
            text = f"a round of the loop adds {min(counts)} or {max(counts)} entries, by {new.cond.label}"
            uneven = Note(text, new.cond.place)
        return Sequence(
            None, old.kind, None, key=("grown", id(old)), label=old.label, place=old.place, uneven=uneven
        )

    def _iterate(self, iterable: Value, node: Any, frame: Frame) -> tuple[Value, tuple[Value, ...] | None]:
        site = Site(frame.chunk, node)
        value = self.deref(self.force(iterable), frame)
        if isinstance(value, Sequence):
            if value.items is not None and value.items:
                first = value.items[0]
                if all(same(first, item) for item in value.items):
                    return first, value.items
                return Join(value.items), value.items
            if value.element is not None:
                return value.element, None
        tensor = value if isinstance(value, Tensor) else None
        if tensor is not None:
            return select(tensor, 0, site, ("each", id(node))), None
        return Unknown(
            ("each", key_of(value), id(node)),
            f"an item of {label_of(value)}",
            "it comes from an iteration",
            place=site,
        ), None

    def merge(self, cond: Cond | None, yes: State, no: State) -> State:
        """One state for two paths; ``cond`` tells them apart, None when nothing does."""

        def pick(a: Value | None, b: Value | None, name: str) -> Value:
            if a is not None and b is not None and same(a, b):
                return a
            left = a if a is not None else Unknown(("unbound", name), name, "it is not set on every path")
            right = b if b is not None else Unknown(("unbound", name), name, "it is not set on every path")
            return choose(cond, left, right) if cond is not None else joined(left, right)

        result = State(assumed=yes.assumed, path=yes.path, outer=yes.outer)
        for name in yes.vars.keys() | no.vars.keys():
            result.vars[name] = pick(yes.vars.get(name), no.vars.get(name), name)
        for key in yes.attrs.keys() | no.attrs.keys():
            left, right = yes.attrs.get(key), no.attrs.get(key)
            if left is None or right is None:
                original = Unknown(("attr", *key), key[1], "it is not set on every path")
                left, right = left or original, right or original
            result.attrs[key] = (
                left
                if same(left, right)
                else choose(cond, left, right)
                if cond is not None
                else joined(left, right)
            )
        for ident in yes.heap.keys() | no.heap.keys():
            left, right = yes.heap.get(ident), no.heap.get(ident)
            if left is None or right is None:
                result.heap[ident] = left or right or ABSENT
            elif left is right:
                result.heap[ident] = left
            elif isinstance(left, MapValue) and isinstance(right, MapValue):
                entries: dict[Hashable, Value] = {}
                for k in [*left.entries, *(k for k in right.entries if k not in left.entries)]:
                    a, b = left.entries.get(k, ABSENT), right.entries.get(k, ABSENT)
                    entries[k] = a if same(a, b) else choose(cond, a, b) if cond is not None else joined(a, b)
                result.heap[ident] = MapValue(entries, left.open or right.open)
            else:
                result.heap[ident] = choose(cond, left, right) if cond is not None else joined(left, right)
        return result

    # Assignment.

    def assign(self, target: Any, value: Value, frame: Frame, written: Any = None) -> None:
        """Binds a target; ``written`` is the expression on the right, where there is one."""
        if isinstance(target, cst.Name):
            if target.value in frame.globals_:
                return
            frame.state.vars[target.value] = _labelled(value, target.value)
        elif isinstance(target, (cst.Tuple, cst.List)):
            self._unpack(target, value, frame)
        elif isinstance(target, cst.Attribute):
            base = self.force(self.expr(target.value, frame))
            if isinstance(value, Tensor) and value.copied is not None:
                # A copy that an object keeps is that object's own memory.
                value = replace(value, copied=None, storage=("fresh", "kept", value.key))
            if self.recording and isinstance(value, Tensor) and value.shape == () and _is_kept(value):
                self.views.append((Site(frame.chunk, target), value, frame))
            for leaf in _plain_leaves(base):
                key = key_of(leaf)
                if not isinstance(leaf, Namespace):
                    frame.state.attrs[(key, target.attr.value)] = value
        elif isinstance(target, cst.Subscript):
            self._store_item(target, value, frame, written)
        elif isinstance(target, cst.StarredElement):
            self.assign(target.value, value, frame)

    def _unpack(self, target: cst.Tuple | cst.List, value: Value, frame: Frame) -> None:
        elements = [element for element in target.elements]
        count = len(elements)
        starred = next((i for i, e in enumerate(elements) if isinstance(e, cst.StarredElement)), None)
        value = self.force(value)

        def part(index: int) -> Value:
            return self.lift(lambda item: self._item(item, index, count, frame, target), [value], frame)

        for index, element in enumerate(elements):
            if starred is not None and index >= starred:
                rest = Unknown(
                    ("rest", key_of(value), index),
                    label_of(value),
                    "it is part of an unpacking",
                    place=Site(frame.chunk, element),
                )
                self.assign(element.value, rest, frame)
            else:
                self.assign(element.value, part(index), frame)

    def _item(self, value: Value, index: int, count: int, frame: Frame, node: cst.CSTNode) -> Value:
        """Element ``index`` of an unpacked value."""
        value = self.deref(value, frame)
        site = Site(frame.chunk, node)
        if isinstance(value, Sequence):
            if value.items is not None and index < len(value.items):
                return value.items[index]
            if isinstance(value.key, tuple) and value.key[:1] == ("shape",):
                tensor = Tensor(value.key[1], value.label.removesuffix(".shape"), place=value.place)
                return Number(Num.atom(("dim", tensor.key, index), f"{value.label}[{index}]"), place=site)
            if value.element is not None:
                return _indexed(value.element, index)
        if isinstance(value, Tensor):
            return select(value, 0, site, ("item", index))
        return Unknown(
            ("item", key_of(value), index),
            f"{label_of(value)}[{index}]",
            "it is unpacked from an unknown value",
            place=site,
        )

    def _store_item(self, target: cst.Subscript, value: Value, frame: Frame, written: Any) -> None:
        base = self.force(self.expr(target.value, frame))
        key = self._subscript_key(target, frame)
        for leaf in _plain_leaves(base):
            if isinstance(leaf, Ref):
                content = frame.state.heap.get(leaf.ident)
                if isinstance(content, MapValue):
                    if isinstance(key, Const) and _hashable(key.value):
                        entries = dict(content.entries)
                        entries[key.value] = value
                        frame.state.heap[leaf.ident] = MapValue(entries, content.open)
                        self._entry_sites[leaf.ident, key.value] = Site(frame.chunk, written or target)
                    else:
                        note = Note("a key is set that is not visible", Site(frame.chunk, target))
                        frame.state.heap[leaf.ident] = MapValue(content.entries, content.open or note)
                elif isinstance(content, Sequence):
                    index = integer_of(key) if key is not None else None
                    if (
                        content.items is not None
                        and index is not None
                        and -len(content.items) <= index < len(content.items)
                    ):
                        items = list(content.items)
                        items[index] = value
                        frame.state.heap[leaf.ident] = replace(content, items=tuple(items), content=Content())
                    else:
                        frame.state.heap[leaf.ident] = Sequence(
                            None,
                            content.kind,
                            content.length,
                            key=("stored", id(target)),
                            label=content.label,
                            place=content.place,
                        )
            elif isinstance(leaf, Tensor):
                self._changed(leaf, frame)

    def _changed(self, tensor: Tensor, frame: Frame) -> None:
        """Part of a tensor was overwritten: its content is no longer what built it."""
        self._serial += 1
        serial = self._serial

        def fresh(value: Value) -> Value:
            if isinstance(value, Tensor) and (
                value.key == tensor.key or (tensor.storage is not None and value.storage == tensor.storage)
            ):
                return replace(value, content=Content(), key=("stored", serial, value.key))
            if isinstance(value, Choice):
                yes, no = fresh(value.yes), fresh(value.no)
                return (
                    value
                    if yes is value.yes and no is value.no
                    else Choice(value.cond, yes, no, place=value.place)
                )
            return value

        state = frame.state
        for name, value in state.vars.items():
            state.vars[name] = fresh(value)
        for key, value in state.attrs.items():
            state.attrs[key] = fresh(value)

    def _delete_key(self, base: Value, target: cst.Subscript, frame: Frame) -> None:
        key = self._subscript_key(target, frame)
        for leaf in _plain_leaves(self.force(base)):
            if isinstance(leaf, Ref):
                content = frame.state.heap.get(leaf.ident)
                if isinstance(content, MapValue) and isinstance(key, Const):
                    frame.state.heap[leaf.ident] = MapValue(
                        {k: v for k, v in content.entries.items() if k != key.value}, content.open
                    )

    def _augment(self, node: cst.AugAssign, frame: Frame) -> None:
        left = self.expr(node.target, frame)
        right = self.expr(node.value, frame)
        operator = _AUGMENTED.get(type(node.operator), "?")
        site = Site(frame.chunk, node)
        if operator == "|":
            for leaf in _plain_leaves(self.force(left)):
                if isinstance(leaf, Ref) and isinstance(frame.state.heap.get(leaf.ident), MapValue):
                    self._update(leaf, right, frame, site)
                    return
        if operator == "+":
            for leaf in _plain_leaves(self.force(left)):
                if isinstance(leaf, Ref) and isinstance(frame.state.heap.get(leaf.ident), Sequence):
                    frame.state.heap[leaf.ident] = Sequence(
                        None, "list", key=("extended", id(node)), label="list", place=site
                    )
                    return
        result = self.binary(left, operator, right, site, frame)
        self.assign(node.target, result, frame)

    def _import(self, node: cst.Import | cst.ImportFrom, frame: Frame) -> None:
        if isinstance(node, cst.Import):
            for alias in node.names:
                dotted = _dotted(alias.name)
                if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                    frame.state.vars[alias.asname.name.value] = self._module_value(frame.module, dotted, 0)
                else:
                    first = dotted.split(".")[0]
                    frame.state.vars[first] = self._module_value(frame.module, first, 0)
            return
        if isinstance(node.names, cst.ImportStar):
            return
        module = _dotted(node.module) if node.module is not None else ""
        level = len(node.relative)
        for alias in node.names:
            name = _dotted(alias.name)
            bound = (
                alias.asname.name.value
                if alias.asname is not None and isinstance(alias.asname.name, cst.Name)
                else name
            )
            frame.state.vars[bound] = self.imported(frame.module, module, name, level)

    def _module_value(self, module: ModuleIndex, dotted: str, level: int) -> Value:
        found = self.find_module(module, dotted, level)
        return Namespace(f"project:{found.path}" if found is not None else _canonical(dotted))

    def imported(self, module: ModuleIndex, source: str, name: str, level: int) -> Value:
        """The value of ``from source import name``."""
        found = self.find_module(module, source, level)
        if found is not None:
            if name in found.globals:
                return self.global_value(found, name)
            submodule = self.find_module(module, f"{source}.{name}" if source else name, level)
            if submodule is not None:
                return Namespace(f"project:{submodule.path}")
        if level:
            return Unknown(
                ("import", module.path, level, source, name),
                name,
                f"it is imported from {'.' * level}{source}",
            )
        submodule = self.find_module(module, f"{source}.{name}", level) if found is None else None
        if submodule is not None:
            return Namespace(f"project:{submodule.path}")
        return self.member(_canonical(source), name)

    def member(self, namespace: str, name: str) -> Value:
        """``namespace.name`` for something outside the code under check."""
        full = f"{namespace}.{name}"
        kind = _OP_NAMESPACES.get(namespace)
        if kind is not None and catalogue.find(name) is not None:
            return OpRef(name)
        if namespace == "torch":
            dtype = dtype_named(name)
            if dtype is not None:
                return DType(dtype)
            if name in ("inf",):
                return Const(float("inf"))
        if full in ("math.inf", "numpy.inf"):
            return Const(float("inf"))
        if full in ("math.pi",):
            return Const(3.141592653589793)
        return Namespace(_canonical(full))

    # Names.

    def name(self, node: cst.Name, frame: Frame) -> Value:
        text = node.value
        if text not in frame.globals_:
            found = frame.state.vars.get(text)
            if found is None and frame.closure is not None:
                found = frame.closure.vars.get(text)
            if found is not None:
                return found
        if text in frame.module.globals:
            return self.global_value(frame.module, text)
        for star in frame.module.stars:
            source = self.find_module(frame.module, star.target, star.level)
            if source is not None and text in source.globals:
                return self.global_value(source, text)
        if text in ("True", "False", "None"):
            return Const({"True": True, "False": False, "None": None}[text])
        if text in _BUILTINS:
            return Namespace(f"builtins.{text}")
        return Unknown(
            ("free", frame.module.path, text),
            text,
            "it is not defined in this file",
            declared=True,
            place=Site(frame.chunk, node),
        )

    def global_value(self, module: ModuleIndex, name: str) -> Value:
        """The value of a module-level name."""
        key = (module.path, name)
        found = self._globals.get(key)
        if found is not None:
            return found
        unknown = Unknown(("global", *key), name, f"it is a module variable of {module.path}", declared=True)
        if key in self._busy:
            return unknown
        self._busy.add(key)
        try:
            bindings = module.globals.get(name, [])
            options: list[Value] = []
            for binding in bindings:
                options.append(self._bound_value(module, name, binding))
            if name in module.global_writes:
                options.append(replace(unknown, reason="a function rebinds it through global"))
            value = _one(options, unknown)
        finally:
            self._busy.discard(key)
        self._globals[key] = value
        return value

    def _bound_value(self, module: ModuleIndex, name: str, binding: Binding) -> Value:
        if binding.kind == "def":
            func = self.function(module, binding.node)
            if func is None:
                return Unknown(("global", module.path, name), name, "its definition cannot be analysed")
            if _wrapping_decorator(func.node):
                return Unknown(("global", module.path, name), name, "it is decorated", place=func.place)
            return func
        if binding.kind == "class":
            index = module.classes.get(binding.node)  # type: ignore[call-overload]
            if index is not None:
                return ClassRef(module, index)
        if binding.kind == "import":
            return self._module_value(module, binding.target, 0)
        if binding.kind == "from":
            return self.imported(module, binding.target, binding.name, binding.level)
        if binding.kind == "assign":
            try:
                chunk = module.chunk(binding.node)
            except BadSource:
                return Unknown(("global", module.path, name), name, "its definition cannot be analysed")
            frame = Frame(module, chunk, "<module>", State(), 1)
            recording, self.recording = self.recording, False
            try:
                self.block(chunk.body, frame, frame.state)
            finally:
                self.recording = recording
            value = frame.state.vars.get(name)
            if value is not None:
                return self._frozen(value, frame)
        return Unknown(("global", module.path, name), name, "how it is set is not visible", declared=True)

    def _frozen(self, value: Value, frame: Frame) -> Value:
        """A value that outlives its frame: containers keep their content beside the reference."""
        if isinstance(value, Ref):
            content = frame.state.heap.get(value.ident)
            if isinstance(content, (MapValue, Sequence)):
                return _Frozen(content, {k: v for k, v in frame.state.heap.items()}, place=value.place)
        return value

    # Conditions.

    def condition(self, node: cst.BaseExpression, frame: Frame) -> bool | tuple[Cond, bool]:
        """A test as a truth value, or as an atomic condition and the value it must have."""
        value = self.expr(node, frame)
        return self.truth(value, node, frame)

    def truth(self, value: Value, node: cst.BaseExpression, frame: Frame) -> bool | tuple[Cond, bool]:
        """A value as a test; the condition remembers the tests it was made under."""
        found = self._truth(value, node, frame)
        if isinstance(found, bool):
            return found
        return replace(found[0], under=frame.state.under), found[1]

    def _truth(self, value: Value, node: cst.BaseExpression, frame: Frame) -> bool | tuple[Cond, bool]:
        value = self.simplify(self.force(value), frame.state.assumed)
        if isinstance(value, Test):
            known = decide(value.cond, frame.state.assumed)
            return (value.cond, value.holds) if known is None else known == value.holds
        if isinstance(value, Const):
            return bool(value.value)
        if isinstance(value, Choice):
            cond = value.cond
            yes = self._arm(value.yes, cond, True, node, frame)
            no = self._arm(value.no, cond, False, node, frame)
            if isinstance(yes, bool) and isinstance(no, bool):
                return yes if yes == no else (cond, yes)
            if no is False and not isinstance(yes, bool):
                return _all(((cond, True), yes), node, frame)
            if yes is False and not isinstance(no, bool):
                return _all(((cond, False), no), node, frame)
            if yes is True and not isinstance(no, bool):
                made, holds = _all(((cond, False), (no[0], not no[1])), node, frame)
                return made, not holds
            if no is True and not isinstance(yes, bool):
                made, holds = _all(((cond, True), (yes[0], not yes[1])), node, frame)
                return made, not holds
            key = ("test", cond, yes, no)
            return Cond("opaque", key, label=_text(node, frame), place=Site(frame.chunk, node)), True
        content = self.deref(value, frame)
        if isinstance(content, Sequence) and content.items is not None:
            return bool(content.items)
        if isinstance(content, MapValue) and content.open is None:
            if not content.entries:
                return False
            if not any(_may_be_absent(v) for v in content.entries.values()):
                return True
        if isinstance(value, (Func, ClassRef, Bound, Namespace, OpRef, PartialCall, DType)):
            return True
        if isinstance(value, Number) and value.num.const is not None:
            return bool(value.num.const)
        return Cond("truth", key_of(value), label=_text(node, frame), place=Site(frame.chunk, node)), True

    def _arm(
        self, value: Value, cond: Cond, holds: bool, node: cst.BaseExpression, frame: Frame
    ) -> bool | tuple[Cond, bool]:
        """The truth of one side of a choice, where the choice's own test is settled."""
        found = self._truth(value, node, frame)
        if isinstance(found, bool):
            return found
        assumed = consistent(frame.state.assumed, [(cond, holds)])
        known = decide(found[0], assumed) if assumed is not None else None
        return found if known is None else known == found[1]

    def simplify(self, value: Value, assumed: Assumptions) -> Value:
        """Drops choices that the assumptions decide."""
        while isinstance(value, Choice):
            known = decide(value.cond, assumed)
            if known is None:
                return value
            value = value.yes if known else value.no
        return value

    def force(self, value: Value) -> Value:
        """Evaluates a deferred call."""
        while isinstance(value, Deferred):
            if not value.memo:
                value.memo.append(self._evaluate_deferred(value))
            value = value.memo[0]
        return value

    def _evaluate_deferred(self, call: Deferred) -> Value:
        key = ("call", id(call.func.node), tuple(key_of(a) for a in call.args))
        unknown = Unknown(
            (*key, tuple((k, key_of(v)) for k, v in call.kwargs.items())),
            f"{call.func.name}(...)",
            "the call is too deep to follow",
            place=call.site,
        )
        if key in self._busy or call.depth > MAX_DEPTH:
            return unknown
        self._busy.add(key)
        recording, self.recording = self.recording, False
        try:
            arguments = self.bind(call.func, list(call.args), dict(call.kwargs), call.state)
            if arguments is None:
                return replace(unknown, reason="its arguments do not fit")
            state = State(
                {}, dict(call.state.heap), dict(call.state.attrs), call.state.assumed, (), call.state.under
            )
            result, final = self._run(call.func, arguments, state, call.depth + 1, ())
            for ident, content in (final.heap if final is not None else {}).items():
                call.state.heap.setdefault(ident, content)
            return result
        finally:
            self.recording = recording
            self._busy.discard(key)

    def lift(
        self,
        function: Callable[..., Value],
        values: list[Value],
        frame: Frame,
        assumed: Assumptions | None = None,
        budget: list[int] | None = None,
    ) -> Value:
        """Applies ``function`` to every combination of alternatives that can occur together."""
        if assumed is None:
            assumed = frame.state.assumed
        if budget is None:
            budget = [MAX_LEAVES]
        now = [self.simplify(self.force(value), assumed) for value in values]
        for index, value in enumerate(now):
            if isinstance(value, Choice):
                budget[0] -= 1
                if budget[0] < 0:
                    return Unknown(
                        ("many", id(value), id(frame)), label_of(value), "it has too many alternatives"
                    )
                yes = consistent(assumed, [(value.cond, True)])
                no = consistent(assumed, [(value.cond, False)])
                if yes is None or no is None:
                    now[index] = value.no if yes is None else value.yes
                    return self.lift(function, now, frame, assumed, budget)
                first = self.lift(function, [*now[:index], value.yes, *now[index + 1 :]], frame, yes, budget)
                second = self.lift(function, [*now[:index], value.no, *now[index + 1 :]], frame, no, budget)
                return choose(value.cond, first, second)
            if isinstance(value, Join):
                budget[0] -= len(value.options)
                if budget[0] < 0:
                    return Unknown(
                        ("many", id(value), id(frame)), label_of(value), "it has too many alternatives"
                    )
                results = [
                    self.lift(function, [*now[:index], option, *now[index + 1 :]], frame, assumed, budget)
                    for option in value.options
                ]
                return _one(results, results[0])
        return function(*now)

    def deref(self, value: Value, frame: Frame) -> Value:
        """The content of a container."""
        if isinstance(value, Ref):
            return frame.state.heap.get(value.ident, value)
        if isinstance(value, _Frozen):
            return value.content
        return value

    def resolved(self, value: Value, frame: Frame, depth: int = 0) -> Value:
        """A value for the outside: deferred calls evaluated, containers by content."""
        value = self.force(value)
        if depth > 6:
            return Unknown(("deep", id(value)), label_of(value), "it is nested too deeply")
        if isinstance(value, Choice):
            known = decide(value.cond, frame.state.assumed)
            if known is not None:
                return self.resolved(value.yes if known else value.no, frame, depth)
            return Choice(
                value.cond,
                self.resolved(value.yes, frame, depth + 1),
                self.resolved(value.no, frame, depth + 1),
                place=value.place,
            )
        if isinstance(value, Join):
            return Join(
                tuple(self.resolved(option, frame, depth + 1) for option in value.options), place=value.place
            )
        content = self.deref(value, frame)
        if isinstance(content, Sequence):
            if content.items is not None:
                items = tuple(self.resolved(item, frame, depth + 1) for item in content.items)
                return replace(content, items=items)
            return content
        if isinstance(content, MapValue):
            return Unknown(
                ("dict", key_of(value)), "dict", "it is a dict", is_tensor=False, place=value.place
            )
        if isinstance(value, (Func, ClassRef, Bound, Namespace, OpRef, PartialCall, Instance, Method)):
            tensor = None if isinstance(value, Instance) else False
            return Unknown(
                key_of(value),
                label_of(value),
                "it is an object of another kind",
                is_tensor=tensor,
                place=value.place,
            )
        return content

    def _opaque(self, node: cst.CSTNode, reason: str, frame: Frame) -> Unknown:
        label = node.value if isinstance(node, cst.Name) else type(node).__name__.lower()
        return Unknown(("node", id(node), id(frame)), label, reason, place=Site(frame.chunk, node))

    # Expressions.

    def expr(self, node: Any, frame: Frame, statement: bool = False) -> Value:
        self._step()
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            return self._opaque(node, "this form of expression is not followed", frame)
        if isinstance(node, cst.Call):
            return self.call(node, frame, statement)
        return handler(self, node, frame)

    def _literal(self, node: Any, frame: Frame) -> Value:
        site = Site(frame.chunk, node)
        try:
            if isinstance(node, (cst.Integer, cst.Float, cst.Imaginary)):
                value: object = node.evaluated_value
            elif isinstance(node, cst.SimpleString):
                value = node.evaluated_value
            else:
                value = node.evaluated_value
                if value is None:
                    return self._opaque(node, "it is a formatted string", frame)
        except (ValueError, SyntaxError):
            return self._opaque(node, "its literal does not evaluate", frame)
        return Const(value, place=site)

    def _ellipsis(self, node: Any, frame: Frame) -> Value:
        return Const(..., place=Site(frame.chunk, node))

    def _formatted(self, node: Any, frame: Frame) -> Value:
        return self._opaque(node, "it is a formatted string", frame)

    def _name(self, node: cst.Name, frame: Frame) -> Value:
        return self.simplify(self.name(node, frame), frame.state.assumed)

    def _tuple(self, node: cst.Tuple | cst.List, frame: Frame) -> Value:
        items: list[Value] | None = []
        for element in node.elements:
            if isinstance(element, cst.StarredElement):
                inner = self.deref(self.force(self.expr(element.value, frame)), frame)
                if isinstance(inner, Sequence) and inner.items is not None and items is not None:
                    items.extend(inner.items)
                elif (
                    isinstance(inner, Sequence)
                    and isinstance(inner.key, tuple)
                    and inner.key[:1] == ("slice-shape",)
                    and items is not None
                ):
                    items = None
                else:
                    items = None
            else:
                value = self.expr(element.value, frame)
                if items is not None:
                    items.append(value)
        kind = "tuple" if isinstance(node, cst.Tuple) else "list"
        site = Site(frame.chunk, node)
        sequence = Sequence(
            tuple(items) if items is not None else None,
            kind,
            Num.of(len(items)) if items is not None else None,
            content=_list_content(items),
            key=None if items is not None else ("display", id(node), id(frame)),
            place=site,
        )
        return sequence if kind == "tuple" else self._allocate(sequence, node, frame)

    def _allocate(self, content: Value, node: Any, frame: Frame) -> Ref:
        self._serial += 1
        ref = Ref(("heap", self._serial), place=Site(frame.chunk, node))
        frame.state.heap[ref.ident] = content
        return ref

    def _dict(self, node: cst.Dict, frame: Frame) -> Value:
        ref = self._allocate(MapValue({}), node, frame)
        for element in node.elements:
            if isinstance(element, cst.DictElement):
                key = self.force(self.expr(element.key, frame))
                value = self.expr(element.value, frame)
                content = frame.state.heap[ref.ident]
                assert isinstance(content, MapValue)
                if isinstance(key, Const) and _hashable(key.value):
                    frame.state.heap[ref.ident] = MapValue(
                        {**content.entries, key.value: value}, content.open
                    )
                    self._entry_sites[ref.ident, key.value] = Site(frame.chunk, element.value)
                else:
                    frame.state.heap[ref.ident] = MapValue(
                        content.entries,
                        content.open or Note("a key is not visible", Site(frame.chunk, element)),
                    )
            else:
                self._update(ref, self.expr(element.value, frame), frame, Site(frame.chunk, element))
        return ref

    def _set(self, node: Any, frame: Frame) -> Value:
        return self._opaque(node, "it is a set", frame)

    def _update(self, ref: Ref, other: Value, frame: Frame, site: Site) -> None:
        """``ref.update(other)``."""
        content = frame.state.heap.get(ref.ident)
        if not isinstance(content, MapValue):
            return

        other = self.simplify(self.force(other), frame.state.assumed)
        if isinstance(other, Choice):
            # The keys of each arm count under its test.
            before = content
            self._update(ref, other.yes, frame, site)
            yes = frame.state.heap[ref.ident]
            frame.state.heap[ref.ident] = before
            self._update(ref, other.no, frame, site)
            no = frame.state.heap[ref.ident]
            assert isinstance(yes, MapValue) and isinstance(no, MapValue)
            entries = {}
            for key in [*yes.entries, *(k for k in no.entries if k not in yes.entries)]:
                a, b = yes.entries.get(key, ABSENT), no.entries.get(key, ABSENT)
                entries[key] = a if same(a, b) else choose(other.cond, a, b)
            frame.state.heap[ref.ident] = MapValue(entries, yes.open or no.open)
            return
        source = self.deref(other, frame)
        if isinstance(source, MapValue):
            entries = dict(content.entries)
            for key, value in source.entries.items():
                entries[key] = self._over(entries.get(key, ABSENT), value)
            frame.state.heap[ref.ident] = MapValue(entries, content.open or source.open)
        else:
            note = Note(f"keys of {label_of(other)} are not visible", site)
            frame.state.heap[ref.ident] = MapValue(content.entries, content.open or note)

    def _over(self, old: Value, new: Value) -> Value:
        """``new``, but ``old`` where ``new`` is absent."""
        if isinstance(new, Absent):
            return old
        if isinstance(new, Choice):
            return Choice(new.cond, self._over(old, new.yes), self._over(old, new.no))
        return new

    def _attribute(self, node: cst.Attribute, frame: Frame) -> Value:
        base = self.expr(node.value, frame)
        name = node.attr.value
        site = Site(frame.chunk, node)
        return self.lift(lambda value: self.attribute(value, name, site, frame), [base], frame)

    def attribute(self, value: Value, name: str, site: Site, frame: Frame) -> Value:
        """``value.name`` for a value without alternatives."""
        if isinstance(value, Test):
            value = value.tensor
        override = (
            frame.state.attrs.get((key_of(value), name))
            if not isinstance(value, (Const, Namespace))
            else None
        )
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
            return _placed(self.member(value.name, name), site)
        if isinstance(value, OpRef):
            return value if name == "default" else OpRef(value.name, name, place=site)
        if isinstance(value, ClassRef):
            return self.class_member(value, name, None, site, frame)
        if isinstance(value, Instance):
            return self.instance_attribute(value, name, site, frame)
        if isinstance(value, _Super):
            return self._super_member(value, name, site, frame)
        if isinstance(value, (Ref, _Frozen, Sequence, MapValue)):
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
            unknown = Unknown(
                ("attr", obj.key, name),
                f"{obj.label}.{name}",
                "how it is set is not visible",
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
            if cls.index.dynamic:
                options.append(replace(unknown, reason="the class sets attributes by computed names"))
        done: set[str] = set()
        for cls, method in writers:
            if method == "__init__" and "__init__" in done:
                continue
            done.add(method)
            value = self._written_by(obj, mro, cls, method, name, frame)
            if value is not None:
                options.append(value)
        options = [self._placeheld(option, unknown) for option in options]
        foreign = [cls for cls in mro if name in cls.module.foreign_writes]
        if foreign and options:
            options.append(replace(unknown, reason="code outside the class assigns it"))
        if options:
            return _one(options, unknown)
        for cls in mro:
            if name in cls.index.methods or name in cls.index.fields:
                return self.class_member(cls, name, obj, unknown.place, frame)
        if open_base:
            return replace(unknown, reason="a base class outside this file may set it")
        return unknown

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
            return None
        value = final.attrs.get((obj.key, name))
        if value is None:
            return None
        value = self._remote(value)
        if isinstance(value, Ref):
            content = final.heap.get(value.ident)
            if content is not None:
                return _Frozen(_kept(content), dict(final.heap), place=value.place)
        return value

    def _placeheld(self, value: Value, unknown: Unknown) -> Value:
        """An attribute that starts as None or as an empty tensor is filled by somebody else."""
        if isinstance(value, Const) and value.value is None:
            return replace(unknown, reason="it starts as None and is set elsewhere", place=value.place)
        if (
            isinstance(value, Tensor)
            and value.shape
            and any(d is not None and d.integer == 0 for d in value.shape)
        ):
            return replace(unknown, reason="it starts empty and is set elsewhere", place=value.place)
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
            return Join(tuple(self._remote(option) for option in value.options), place=value.place)
        return _kept(value)

    def _object_state(self, obj: Instance, func: Func, method: str) -> State | None:
        """The state at the end of a method run on an object."""
        cache_key = (obj.key, f"state:{method}:{func.owner.name if func.owner else ''}")
        cached = self._states.get(cache_key)
        if cached is not None:
            return cached[0]
        state = State()
        arguments: dict[str, Value] | None = None
        if method == "__init__" and obj.args is not None:
            arguments = self.bind(func, [obj, *obj.args], dict(obj.kwargs or {}), state)
        if arguments is None:
            arguments = {}
            for position, (param, kind) in enumerate(_parameters(func.node)):
                if position == 0:
                    arguments[param.name.value] = obj
                else:
                    arguments[param.name.value] = self._parameter(func, param, kind, state)
        self._states[cache_key] = (None,)
        _, final = self._run(func, arguments, state, 2, ())
        self._states[cache_key] = (final,)
        return final

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
                dotted = _ast_dotted(base)
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
                decorators = _decorators(func.node)
                if "property" in decorators or "cached_property" in decorators:
                    if obj is None:
                        break
                    return self._invoke(func, [obj], {}, site, frame)
                if "staticmethod" in decorators:
                    return func
                if "classmethod" in decorators:
                    return Bound(func, cls)
                if _wrapping_decorator(func.node):
                    return Unknown(
                        ("attr", key_of(obj) if obj else cls.name, name), name, "it is decorated", place=site
                    )
                return Bound(func, obj) if obj is not None else func
            statements = item.index.fields.get(name)
            if statements:
                return self._class_field(item, name, statements, obj, site)
        reason = (
            "a base class outside this file may define it" if open_base else "how it is set is not visible"
        )
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
        dataclass_like = any("dataclass" in _ast_dotted(d) for d in cls.index.node.decorator_list) or any(
            _ast_dotted(b).rsplit(".", 1)[-1] in ("NamedTuple", "BaseModel", "TypedDict")
            for b in cls.index.node.bases
        )
        if obj is not None and dataclass_like:
            given = self._field_given(cls, name, obj)
            if given is not None:
                return given
            annotated = self._field_type(cls, statements, obj, name, site)
            return annotated if annotated is not None else unknown
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
                        and _mentions(statement, other)
                    ):
                        state.vars[other] = self._class_field(cls, other, others, None, site)
                frame = Frame(cls.module, chunk, cls.name, state, 1)
                self.block(chunk.body, frame, state)
                value = frame.state.vars.get(name)
                options.append(self._frozen(value, frame) if value is not None else unknown)
            if name in cls.module.foreign_writes:
                options.append(unknown)
            bases = {_ast_dotted(b).rsplit(".", 1)[-1] for b in cls.index.node.bases}
            if bases & {"Enum", "IntEnum", "StrEnum"}:
                return Const(f"{cls.name}.{name}", place=site)
            return _one(options, unknown)
        finally:
            self._busy.discard(key)

    def _field_type(
        self, cls: ClassRef, statements: list[Any], obj: Instance, name: str, site: Any
    ) -> Value | None:
        annotation = getattr(statements[0], "annotation", None)
        text = _ast_dotted(annotation) if annotation is not None else ""
        if text in cls.module.globals:
            found = self.global_value(cls.module, text)
            if isinstance(found, ClassRef):
                return Instance(("attr", obj.key, name), found, label=f"{obj.label}.{name}", place=site)
        return None

    def _field_given(self, cls: ClassRef, name: str, obj: Instance) -> Value | None:
        if obj.args is None:
            return None
        if obj.kwargs is not None and name in obj.kwargs:
            return obj.kwargs[name]
        order = [n for n, items in cls.index.fields.items() if hasattr(items[0], "annotation")]
        if name in order and order.index(name) < len(obj.args):
            return obj.args[order.index(name)]
        return None

    def _subscript(self, node: cst.Subscript, frame: Frame) -> Value:
        base = self.expr(node.value, frame)
        site = Site(frame.chunk, node)
        slices = [element.slice for element in node.slice]
        indices: list[Any] = []
        for item in slices:
            if isinstance(item, cst.Index):
                indices.append(self.expr(item.value, frame))
            else:
                assert isinstance(item, cst.Slice)
                bounds = [
                    self.expr(b, frame) if b is not None else None
                    for b in (item.lower, item.upper, item.step)
                ]
                indices.append(tuple(bounds))
        flat = [value for value in indices if isinstance(value, Value)]
        if len(flat) == len(indices):
            return self.lift(
                lambda value, *keys: self.subscript(value, list(keys), site, frame, node),
                [base, *flat],
                frame,
            )
        return self.lift(lambda value: self.subscript(value, indices, site, frame, node), [base], frame)

    def _subscript_key(self, node: cst.Subscript, frame: Frame) -> Value | None:
        if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
            return self.force(self.expr(node.slice[0].slice.value, frame))
        return None

    def subscript(
        self, value: Value, indices: list[Any], site: Site, frame: Frame, node: cst.Subscript
    ) -> Value:
        """``value[indices]`` for a value without alternatives."""
        content = self.deref(value, frame)
        single = indices[0] if len(indices) == 1 else None
        if isinstance(content, MapValue):
            if isinstance(single, Const) and _hashable(single.value):
                if single.value in content.entries:
                    return content.entries[single.value]
            return Unknown(
                ("item", key_of(value), key_of(single) if isinstance(single, Value) else id(node)),
                f"{label_of(value)}[...]",
                "the key is not visible in the dict",
                place=site,
            )
        if isinstance(content, Sequence):
            return self._index_sequence(content, single, site, node)
        if isinstance(content, (Tensor, Unknown)):
            return self._index_tensor(content, indices, site)
        if (
            isinstance(content, Const)
            and isinstance(content.value, str)
            and isinstance(single, Const)
            and isinstance(single.value, int)
        ):
            try:
                return Const(content.value[single.value], place=site)
            except IndexError:
                pass
        keys = tuple(key_of(i) if isinstance(i, Value) else id(node) for i in indices)
        return Unknown(
            ("item", key_of(value), *keys),
            f"{label_of(value)}[...]",
            "it is indexed from an unknown value",
            place=site,
        )

    def _index_sequence(self, content: Sequence, index: Any, site: Site, node: cst.Subscript) -> Value:
        if isinstance(index, tuple):
            lower, upper, step = index
            if content.items is not None and all(b is None or integer_of(b) is not None for b in index):
                cut = slice(*(None if b is None else integer_of(b) for b in index))
                items = content.items[cut]
                return Sequence(
                    items, content.kind, Num.of(len(items)), content=_list_content(list(items)), place=site
                )
            if isinstance(content.key, tuple) and content.key[:1] == ("shape",) and step is None:
                low = 0 if lower is None else integer_of(lower)
                high = integer_of(upper) if upper is not None else None
                if low is not None and high is not None and 0 <= low <= high:
                    tensor = Tensor(content.key[1], content.label.removesuffix(".shape"))
                    dims = tuple(dim_value(tensor, axis, site) for axis in range(low, high))
                    return Sequence(dims, "tuple", Num.of(len(dims)), place=site)
            kept = content.content if step is None else Content()
            length = number_of(upper) if upper is not None and lower is None and step is None else None
            return Sequence(
                None,
                content.kind,
                length,
                content.element,
                kept,
                key=("slice", content.key, *(key_of(b) if b is not None else None for b in index)),
                label=content.label,
                place=site,
            )
        position = integer_of(index) if isinstance(index, Value) else None
        if position is not None:
            if content.items is not None and -len(content.items) <= position < len(content.items):
                return content.items[position]
            if isinstance(content.key, tuple) and content.key[:1] == ("shape",):
                tensor = Tensor(content.key[1], content.label.removesuffix(".shape"), place=content.place)
                return dim_value(tensor, position, site)
        if content.uneven is not None and isinstance(index, Number):
            key = ("item", content.key, key_of(index))
            return Tensor(
                key,
                f"{content.label}[...]",
                misindexed=content.uneven,
                reason=content.uneven.text,
                place=site,
            )
        if content.element is not None:
            return _indexed(content.element, key_of(index) if isinstance(index, Value) else id(node))
        if content.items:
            return (
                Join(content.items, place=site)
                if not all(same(content.items[0], i) for i in content.items)
                else content.items[0]
            )
        key = ("item", content.key or id(content), key_of(index) if isinstance(index, Value) else id(node))
        return Unknown(
            key, f"{content.label}[...]", "it is an item of a list that is not visible", place=site
        )

    def _index_tensor(self, value: Tensor | Unknown, indices: list[Any], site: Site) -> Value:
        tensor = as_tensor(value)
        if tensor is None:
            return Unknown(
                ("item", key_of(value), id(site.node)),
                f"{label_of(value)}[...]",
                "it is an item of an unknown object",
                place=site,
            )
        plain = isinstance(value, Unknown)
        keys = tuple(
            key_of(i)
            if isinstance(i, Value)
            else ("slice", *(key_of(b) if b is not None else None for b in i))
            for i in indices
        )
        if plain and len(indices) == 1 and isinstance(indices[0], Value):
            # A list, dict or tensor: an element of it is all that is known.
            label = f"{value.label}[{label_of(indices[0])}]"
            return Unknown(
                ("item", value.key, keys[0]),
                label,
                f"it is an item of {value.label}",
                declared=isinstance(value, Unknown) and value.declared and isinstance(indices[0], Const),
                place=site,
            )
        expanded: list[Any] = []
        own = full_shape(tensor)
        for index in indices:
            if isinstance(index, Const) and index.value is ...:
                if own is None:
                    tail = indices[len(expanded) + 1 :]
                    return self._index_tail(tensor, tail, keys, site)
                used = sum(
                    1 for i in indices if not (isinstance(i, Const) and (i.value is ... or i.value is None))
                )
                expanded.extend([(None, None, None)] * max(0, len(own) - used))
            else:
                expanded.append(index)
        shape: list[Num | None] | None = [] if own is not None else None
        strided = tensor.strided
        gaps = tensor.gaps
        contiguous = tensor.contiguous
        storage = tensor.storage
        copied = tensor.copied
        content = Content()
        axis = 0
        advanced = False
        for index in expanded:
            if isinstance(index, Const) and index.value is None:
                if shape is not None:
                    shape.append(Num.of(1))
                continue
            size = own[axis] if own is not None and axis < len(own) else None
            if isinstance(index, tuple):
                lower, upper, step = index
                cut = _slice_size(size, lower, upper, step)
                if shape is not None:
                    shape.append(cut)
                full = lower is None and upper is None and step is None
                if not full and (axis > 0 or step is not None):
                    strided = Note(
                        f"{tensor.label}[...] slices an inner axis, which leaves a strided view", site
                    )
                    contiguous = False
                    gaps = True
            elif isinstance(index, (Const, Number)) or (
                isinstance(index, Unknown) and index.is_tensor is not True
            ):
                if axis > 0:
                    strided = Note(
                        f"{tensor.label}[...] picks from an inner axis, which leaves a strided view", site
                    )
                    contiguous = False
                    gaps = True
                if isinstance(index, Unknown):
                    shape = None
            else:
                advanced = True
            axis += 1
        if shape is not None and own is not None:
            shape.extend(own[axis:])
        only_slice = len(indices) == 1 and isinstance(indices[0], tuple)
        if only_slice and indices[0][2] is None:
            bound = indices[0][1]
            content = replace(
                tensor.content,
                triangle=None,
                values=None,
                cut=label_of(bound) if bound is not None else tensor.content.cut,
            )
        if len(indices) == 2 and all(isinstance(i, tuple) and i[0] is None and i[2] is None for i in indices):
            content = tensor.content
        if advanced:
            fresh = isinstance(storage, tuple) and storage[:1] == ("fresh",)
            copied = None if fresh else Note(f"{tensor.label}[...] with an index tensor is a copy", site)
            return replace(
                tensor,
                key=("item", tensor.key, *keys),
                shape=None,
                content=Content(),
                strided=None,
                order=None,
                gaps=False,
                contiguous=True,
                storage=("fresh", "item", tensor.key),
                copied=copied,
                place=site,
                label=f"{tensor.label}[...]",
            )
        return replace(
            tensor,
            key=("item", tensor.key, *keys),
            shape=tuple(shape) if shape is not None else None,
            content=content,
            strided=strided,
            order=tensor.order
            if shape is not None and tensor.shape is not None and len(shape) == len(tensor.shape)
            else None,
            gaps=gaps,
            contiguous=contiguous,
            storage=storage,
            copied=copied,
            place=site,
            label=f"{tensor.label}[...]" if not only_slice else tensor.label,
        )

    def _index_tail(self, tensor: Tensor, tail: list[Any], keys: tuple[Hashable, ...], site: Site) -> Value:
        """``tensor[..., tail]`` when the rank is not known: only the last axes are."""
        cut = any(isinstance(i, tuple) and any(b is not None for b in i) for i in tail)
        picked = any(
            isinstance(i, (Const, Number)) and not (isinstance(i, Const) and i.value is None) for i in tail
        )
        note = (
            Note(f"{tensor.label}[...] slices the last axis, which leaves a strided view", site)
            if cut or picked
            else tensor.strided
        )
        return replace(
            tensor,
            key=("item", tensor.key, *keys),
            shape=None,
            content=Content(),
            strided=note,
            gaps=tensor.gaps or cut or picked,
            contiguous=False if note else None,
            place=site,
            label=f"{tensor.label}[...]",
        )

    def _unary(self, node: cst.UnaryOperation, frame: Frame) -> Value:
        value = self.expr(node.expression, frame)
        site = Site(frame.chunk, node)
        if isinstance(node.operator, cst.Not):
            test = self.truth(value, node.expression, frame)
            if isinstance(test, bool):
                return Const(not test, place=site)
            cond, holds = test
            return Choice(cond, Const(not holds), Const(holds), place=site)

        def apply(leaf: Value) -> Value:
            if isinstance(leaf, Const):
                try:
                    if isinstance(node.operator, cst.Minus) and isinstance(leaf.value, (int, float)):
                        return Const(-leaf.value, place=site)
                    if isinstance(node.operator, cst.BitInvert) and isinstance(leaf.value, int):
                        return Const(~leaf.value, place=site)
                except TypeError:
                    pass
            if isinstance(leaf, Number) and isinstance(node.operator, cst.Minus):
                return Number(-leaf.num, place=site)
            if isinstance(node.operator, cst.BitInvert):
                tensor = as_tensor(leaf)
                if tensor is not None:
                    return invert(tensor, site)
            if isinstance(leaf, Unknown) and isinstance(node.operator, cst.Minus):
                num = number_of(leaf)
                if num is not None:
                    return Number(-num, place=site)
            tensor = as_tensor(leaf) if isinstance(leaf, Tensor) else None
            if tensor is not None:
                return replace(tensor, key=("neg", tensor.key), content=Content())
            return Unknown(
                ("unary", type(node.operator).__name__, key_of(leaf)),
                f"-{label_of(leaf)}",
                "its operand is not known",
                place=site,
            )

        return self.lift(apply, [value], frame)

    def _binary(self, node: cst.BinaryOperation, frame: Frame) -> Value:
        left, right = self.expr(node.left, frame), self.expr(node.right, frame)
        operator = _BINARY.get(type(node.operator), "?")
        return self.binary(left, operator, right, Site(frame.chunk, node), frame)

    def binary(self, left: Value, operator: str, right: Value, site: Site, frame: Frame) -> Value:
        def apply(a: Value, b: Value) -> Value:
            return self._arithmetic(a, operator, b, site, frame)

        return self.lift(apply, [left, right], frame)

    def _arithmetic(self, a: Value, operator: str, b: Value, site: Site, frame: Frame) -> Value:
        a = a.tensor if isinstance(a, Test) else a
        b = b.tensor if isinstance(b, Test) else b
        if isinstance(a, Const) and isinstance(b, Const):
            found = _fold(a.value, operator, b.value)
            if found is not None:
                return Const(found, place=site)
        first, second = self.deref(a, frame), self.deref(b, frame)
        if isinstance(first, MapValue) and operator == "|":
            ref = Ref(("union", id(site.node), id(frame)), place=site)
            frame.state.heap[ref.ident] = first
            self._update(ref, b, frame, site)
            return ref
        if isinstance(first, Sequence) or isinstance(second, Sequence):
            return self._combine_sequences(first, operator, second, site)
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            if (
                operator == "-"
                and isinstance(a, Tensor)
                and isinstance(b, Tensor)
                and _neighbours(a.key, b.key)
            ):
                return replace(
                    a,
                    key=("diff", a.key),
                    content=Content(lengths=LengthForm.PER_SEQUENCE),
                    shape=None if a.shape is None else (None,),
                    label=f"{a.label} - {b.label}",
                    place=site,
                    storage=("fresh", "diff", a.key),
                    contiguous=True,
                    strided=None,
                )
            found = arithmetic(a, operator, b, site)
            if found is not None:
                return self._slots(found, a, operator, b, site)
        if not isinstance(a, Tensor) and not isinstance(b, Tensor):
            x, y = number_of(a), number_of(b)
            if x is not None and y is not None:
                result = _calculate(x, operator, y)
                if result is not None:
                    value = scalar(result, site)
                    if (isinstance(a, Unknown) and not a.declared) or (
                        isinstance(b, Unknown) and not b.declared
                    ):
                        # It may as well be tensor arithmetic.
                        return self._maybe_tensor(value, a, operator, b, site)
                    return value
        label = f"{label_of(a)} {operator} {label_of(b)}"
        return Unknown(
            ("binary", operator, key_of(a), key_of(b)), label, "its operands are not known", place=site
        )

    def _maybe_tensor(self, value: Value, a: Value, operator: str, b: Value, site: Site) -> Value:
        return value

    def _slots(self, result: Value, a: Value, operator: str, b: Value, site: Site) -> Value:
        """Recognises ``table[...] * block + pos % block``: one slot per token (contract KR-07)."""
        if not isinstance(result, Tensor):
            return result
        if operator == "*":
            for tensor, factor in ((a, b), (b, a)):
                num = number_of(factor) if not isinstance(factor, Tensor) else None
                if isinstance(tensor, Tensor) and num is not None:
                    content = (
                        replace(result.content, slot_block=num, slots="block")
                        if result.content.triangle is None
                        else result.content
                    )
                    return replace(result, content=content)
        if operator == "%":
            num = number_of(b) if not isinstance(b, Tensor) else None
            if num is not None:
                return replace(result, content=Content(slots="offset", slot_block=num))
        if operator == "+":
            for base, offset in ((a, b), (b, a)):
                if (
                    isinstance(base, Tensor)
                    and isinstance(offset, Tensor)
                    and base.content.slots == "block"
                    and offset.content.slots == "offset"
                ):
                    return replace(result, content=Content(slots="token", slot_block=base.content.slot_block))
                if isinstance(base, Number) and isinstance(offset, Tensor):
                    # The table is unknown, so table[...] * block was read as a product of numbers.
                    block = offset.content.slot_block
                    if (
                        offset.content.slots == "offset"
                        and block is not None
                        and _is_multiple(base.num, block)
                    ):
                        return replace(result, content=Content(slots="token", slot_block=block))
        return result

    def _combine_sequences(self, a: Value, operator: str, b: Value, site: Site) -> Value:
        if operator == "+" and isinstance(a, Sequence) and isinstance(b, Sequence):
            if a.items is not None and b.items is not None:
                items = (*a.items, *b.items)
                return Sequence(
                    items, a.kind, Num.of(len(items)), content=_list_content(list(items)), place=site
                )
            length = a.length + b.length if a.length is not None and b.length is not None else None
            return Sequence(None, a.kind, length, key=("concat", key_of(a), key_of(b)), place=site)
        for sequence, count in ((a, b), (b, a)):
            if operator == "*" and isinstance(sequence, Sequence):
                times = integer_of(count)
                if (
                    sequence.items is not None
                    and times is not None
                    and 0 <= times * len(sequence.items) <= 64
                ):
                    items = sequence.items * times
                    return Sequence(
                        items,
                        sequence.kind,
                        Num.of(len(items)),
                        content=_list_content(list(items)),
                        place=site,
                    )
                num = number_of(count)
                element = sequence.items[0] if sequence.items else sequence.element
                length = num * sequence.length if num is not None and sequence.length is not None else None
                # The same number for every request is a count per request, unless there is only one.
                content = (
                    Content(lengths=LengthForm.PER_SEQUENCE)
                    if sequence.items is not None and len(sequence.items) == 1
                    else Content()
                )
                return Sequence(
                    None,
                    sequence.kind,
                    length,
                    element,
                    content,
                    key=("times", key_of(sequence), key_of(count)),
                    place=site,
                )
        return Unknown(
            ("binary", operator, key_of(a), key_of(b)),
            "value",
            "it mixes a list with something else",
            place=site,
        )

    def _boolean(self, node: cst.BooleanOperation, frame: Frame) -> Value:
        left = self.expr(node.left, frame)
        test = self.truth(left, node.left, frame)
        both = isinstance(node.operator, cst.And)
        if isinstance(test, bool):
            return self.expr(node.right, frame) if test == both else left
        cond, holds = test
        state = frame.state
        # The right side is only evaluated when the left lets it.
        inner = state.assume(cond, holds if both else not holds)
        if inner is None:
            return left
        inner.path = state.path
        frame.state = inner
        right = self.expr(node.right, frame)
        frame.state = self._leave(state, inner)
        if both:
            return choose(cond, right, left) if holds else choose(cond, left, right)
        return choose(cond, left, right) if holds else choose(cond, right, left)

    def _leave(self, outer: State, inner: State) -> State:
        outer.heap.update({k: v for k, v in inner.heap.items() if k not in outer.heap})
        return outer

    def _comparison(self, node: cst.Comparison, frame: Frame) -> Value:
        site = Site(frame.chunk, node)
        left = self.expr(node.left, frame)
        if len(node.comparisons) != 1:
            result: Value | None = None
            for comparison in node.comparisons:
                right = self.expr(comparison.comparator, frame)
                part = self._compare(left, comparison.operator, right, site, node, frame)
                if result is None:
                    result = part
                else:
                    test = self.truth(result, node, frame)
                    if isinstance(test, bool):
                        result = part if test else result
                    else:
                        cond, holds = test
                        result = (
                            choose(cond, part, Const(False)) if holds else choose(cond, Const(False), part)
                        )
                left = right
            assert result is not None
            return result
        comparison = node.comparisons[0]
        right = self.expr(comparison.comparator, frame)
        return self._compare(left, comparison.operator, right, site, node, frame)

    def _compare(
        self,
        left: Value,
        operator: cst.BaseCompOp,
        right: Value,
        site: Site,
        node: cst.Comparison,
        frame: Frame,
    ) -> Value:
        kind = type(operator)
        return self.lift(
            lambda a, b: self._compare_leaves(a, kind, b, site, node, frame), [left, right], frame
        )

    def _compare_leaves(
        self, a: Value, kind: type, b: Value, site: Site, node: cst.Comparison, frame: Frame
    ) -> Value:
        negative = kind in (cst.NotEqual, cst.IsNot, cst.NotIn)

        def test(cond: Cond, holds: bool = True) -> Value:
            if isinstance(a, Unknown) and a.is_tensor is None and cond.kind in ("eq", "lt", "le", "opaque"):
                symbol = "!=" if kind is cst.NotEqual else "==" if kind is cst.Equal else _ORDER.get(kind)
                tensor = as_tensor(a)
                if symbol is not None and tensor is not None:
                    return Test(cond, holds, compare(tensor, symbol, b, site), place=site)
            return Choice(cond, Const(holds), Const(not holds), place=site)

        def label() -> str:
            text = _text(node, frame)
            return text

        if kind in (cst.Is, cst.IsNot, cst.Equal, cst.NotEqual):
            if isinstance(b, (Const, DType)) and isinstance(a, (Const, DType)):
                first = a.value if isinstance(a, Const) else ("dtype", a.name)
                second = b.value if isinstance(b, Const) else ("dtype", b.name)
                return Const(
                    ((first == second and type(first) is type(second)) or first == second) != negative,
                    place=site,
                )
            if isinstance(a, (Const, DType)):
                a, b = b, a
            if isinstance(b, Const) and b.value is None:
                if isinstance(a, Unknown) and a.is_tensor is not True:
                    return test(
                        Cond("none", a.key, label=_positive(label(), negative), place=site), not negative
                    )
                return Const(negative, place=site)
            if isinstance(a, Tensor) and kind in (cst.Equal, cst.NotEqual):
                return compare(a, "!=" if negative else "==", b, site)
            if isinstance(b, (Const, DType)):
                value: Hashable = b.value if isinstance(b, Const) else ("dtype", b.name)
                key = key_of(a)
                if isinstance(a, Number) and a.num.const is not None:
                    return Const((a.num.const == value) != negative, place=site)
                if isinstance(a, (Unknown, Number)) and _hashable(value):
                    return test(
                        Cond("eq", key, value, label=_positive(label(), negative), place=site), not negative
                    )
                if isinstance(a, (Func, ClassRef, Namespace, Sequence, Instance)):
                    return Const(negative, place=site)
            if key_of(a) == key_of(b) and isinstance(a, (Unknown, Number)):
                return Const(not negative, place=site)
            x, y = number_of(a), number_of(b)
            if x is not None and y is not None:
                return test(
                    Cond("eq", x - y, 0, label=_positive(label(), negative), place=site), not negative
                )
            pair = (key_of(a), key_of(b))
            return test(
                Cond(
                    "opaque",
                    ("same", *sorted(pair, key=id)),
                    label=_positive(label(), negative),
                    place=site,
                ),
                not negative,
            )
        if kind in _ORDER:
            if isinstance(a, Const) and isinstance(b, Const):
                folded = _fold(a.value, _ORDER[kind], b.value)
                if folded is not None:
                    return Const(folded, place=site)
            if isinstance(a, Tensor):
                return compare(a, _ORDER[kind], b, site)
            symbol = _ORDER[kind]
            if isinstance(a, Const) and not isinstance(b, Const):
                a, b = b, a
                symbol = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}[symbol]
            if (
                isinstance(b, Const)
                and isinstance(b.value, (int, float))
                and isinstance(a, (Unknown, Number))
            ):
                key = key_of(a)
                if symbol in ("<", "<="):
                    return test(
                        Cond("lt" if symbol == "<" else "le", key, b.value, label=label(), place=site)
                    )
                flipped = f"not ({label()})"
                return test(
                    Cond("le" if symbol == ">" else "lt", key, b.value, label=flipped, place=site), False
                )
            return test(Cond("opaque", (symbol, key_of(a), key_of(b)), label=label(), place=site))
        if kind in (cst.In, cst.NotIn):
            content = self.deref(b, frame)
            options: list[object] | None = None
            if (
                isinstance(content, Sequence)
                and content.items is not None
                and all(isinstance(i, Const) for i in content.items)
            ):
                options = [i.value for i in content.items if isinstance(i, Const)]
            elif (
                isinstance(content, MapValue)
                and content.open is None
                and not any(_may_be_absent(v) for v in content.entries.values())
            ):
                options = list(content.entries)
            if options is not None:
                if isinstance(a, Const):
                    return Const((a.value in options) != negative, place=site)
                parts = tuple((Cond("eq", key_of(a), o), False) for o in options if _hashable(o))
                if parts and isinstance(a, (Unknown, Number)) and len(parts) <= 8:
                    # "in" is the negation of "equals none of them".
                    cond = Cond(
                        "all", parts, label=f"not ({label()})" if not negative else label(), place=site
                    )
                    return test(cond, negative)
            return test(
                Cond("opaque", ("in", key_of(a), key_of(b)), label=_positive(label(), negative), place=site),
                not negative,
            )
        return Unknown(("compare", id(node)), "comparison", "it is not followed", place=site)

    def _ifexp(self, node: cst.IfExp, frame: Frame) -> Value:
        test = self.condition(node.test, frame)
        if isinstance(test, bool):
            return self.expr(node.body if test else node.orelse, frame)
        cond, holds = test
        state = frame.state
        results: list[Value] = []
        ends: list[State] = []
        for arm, wanted in ((node.body, holds), (node.orelse, not holds)):
            inner = state.assume(cond, wanted)
            if inner is None:
                results.append(Unknown(("dead", id(arm)), "value", "this arm cannot run"))
                continue
            inner.path = state.path
            frame.state = inner
            results.append(self.expr(arm, frame))
            ends.append(frame.state)
        if not holds:
            ends.reverse()
        frame.state = self._rejoin(cond, state, ends)
        yes, no = results if holds else reversed(results)
        return choose(cond, yes, no)

    def _lambda(self, node: cst.Lambda, frame: Frame) -> Value:
        return Func(
            frame.module, frame.chunk, node, "lambda", None, frame.state, place=Site(frame.chunk, node)
        )

    def _comprehension(self, node: Any, frame: Frame) -> Value:
        site = Site(frame.chunk, node)
        state = frame.state
        frame.state = state.copy()
        clause = node.for_in
        iterable = self.expr(clause.iter, frame)
        value = self.deref(self.force(iterable), frame)
        simple = clause.inner_for_in is None and not clause.ifs
        items: list[Value] | None = None
        element: Value | None = None
        length: Num | None = None
        if (
            simple
            and isinstance(value, Sequence)
            and value.items is not None
            and len(value.items) <= 16
            and not isinstance(node, cst.DictComp)
        ):
            items = []
            for item in value.items:
                self.assign(clause.target, item, frame)
                items.append(self.expr(node.elt, frame))
        else:
            item, _ = self._iterate(iterable, node, frame)
            self.assign(clause.target, item, frame)
            inner = clause
            while inner is not None:
                for guard in inner.ifs:
                    self.expr(guard.test, frame)
                inner = inner.inner_for_in
                if inner is not None:
                    nested, _ = self._iterate(self.expr(inner.iter, frame), inner, frame)
                    self.assign(inner.target, nested, frame)
            if isinstance(node, cst.DictComp):
                self.expr(node.key, frame)
                self.expr(node.value, frame)
            else:
                element = self.expr(node.elt, frame)
            if simple:
                length = self._count(value)
        frame.state = self._leave(state, frame.state)
        if isinstance(node, cst.DictComp):
            return self._allocate(MapValue({}, Note("it is built by a comprehension", site)), node, frame)
        if isinstance(node, cst.SetComp):
            return self._opaque(node, "it is a set", frame)
        content = _list_content(items)
        if element is not None and _is_running(element):
            content = Content(lengths=LengthForm.CUMULATIVE)
        kind = "list"
        result = Sequence(
            tuple(items) if items is not None else None,
            kind,
            Num.of(len(items)) if items is not None else length,
            element,
            content,
            key=None if items is not None else ("comprehension", key_of(value), id(node)),
            place=site,
        )
        return self._allocate(result, node, frame) if isinstance(node, cst.ListComp) else result

    def _count(self, value: Value) -> Num | None:
        if isinstance(value, Sequence):
            return value.length
        if isinstance(value, Tensor) and value.shape:
            return value.shape[0]
        if isinstance(value, Unknown):
            return Num.atom(("dim", value.key, 0), f"len({value.label})")
        return None

    def _named(self, node: cst.NamedExpr, frame: Frame) -> Value:
        value = self.expr(node.value, frame)
        self.assign(node.target, value, frame)
        return value

    def _await(self, node: cst.Await, frame: Frame) -> Value:
        return self.expr(node.expression, frame)

    def _yield(self, node: cst.Yield, frame: Frame) -> Value:
        frame.generator = True
        if isinstance(node.value, cst.BaseExpression):
            self.expr(node.value, frame)
        return self._opaque(node, "it is sent into a generator", frame)

    def _starred(self, node: Any, frame: Frame) -> Value:
        return self.expr(node.value, frame)

    # Calls.

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
            ops = [leaf for leaf in _plain_leaves(callee) if isinstance(leaf, OpRef)]
            distinct = {(op.name, op.overload) for op in ops}
            if ops and len(distinct) == 1:
                # Several namespaces hold the same operator.
                return apply(ops[0])
            if isinstance(callee, Choice):
                return self._apply_choice(callee, apply, frame)
        return self.lift(apply, [callee], frame)

    def _star_items(self, value: Value, frame: Frame) -> list[Value] | None:
        """The elements of ``*value``, when their number is known."""
        value = self.force(value)
        counts: set[int | None] = set()
        for leaf in _plain_leaves(value):
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

    def _rejoin(self, cond: Cond, before: State, ends: list[State]) -> State:
        """The state after both arms of an expression."""
        if not ends:
            return before
        merged = ends[0] if len(ends) == 1 else self.merge(cond, ends[0], ends[1])
        merged.assumed = before.assumed
        merged.path = before.path
        return merged

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
        self._escape(args, kwargs, frame, site)
        name = label_of(callee) if not isinstance(callee, Namespace) else callee.name
        key = (
            "call",
            key_of(callee),
            *(key_of(self.force(a)) for a in args),
            *((k, key_of(self.force(v))) for k, v in kwargs.items()),
        )
        if name.rsplit(".", 1)[-1] in ("next", "pop", "popleft", "rand", "randn"):
            key = (*key, id(node))
        return Unknown(key, f"{name}(...)", f"what {name}() returns is not known", place=site)

    def _escape(self, args: list[Value], kwargs: Mapping[str, Value], frame: Frame, site: Site) -> None:
        """Containers handed to unknown code may be changed by it."""
        for value in [*args, *kwargs.values()]:
            for leaf in _plain_leaves(value):
                if isinstance(leaf, Ref):
                    content = frame.state.heap.get(leaf.ident)
                    if isinstance(content, MapValue) and content.open is None:
                        frame.state.heap[leaf.ident] = MapValue(
                            content.entries, Note("it is handed to code that may add keys", site)
                        )

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
        if self.recording:
            # What follows an unpacking of unknown length has no known position.
            shown = next((i for i, (v, _) in enumerate(positional) if _is_hidden(v)), len(positional))
            frozen = [(self.resolved(v, frame), s) for v, s in positional[:shown]]
            named = {name: (self.resolved(v, frame), s) for name, (v, s) in keywords.items()}
            self.records.append(
                Record(
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
            )
        key = ("op", op.name, id(node), *(key_of(self.force(v)) for v, _ in positional))
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
                for leaf in _plain_leaves(self.force(value)):
                    if isinstance(leaf, Tensor):
                        self._changed(leaf, frame)
        if count > 1:
            items = tuple(
                Unknown(
                    (*key, index),
                    f"{op.name}(...)[{index}]",
                    f"it is a result of {op.name}",
                    is_tensor=True,
                    place=site,
                )
                for index in range(count)
            )
            return Sequence(items, "tuple", Num.of(count), place=site)
        return Unknown(key, f"{op.name}(...)", f"it is the result of {op.name}", place=site)

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
        effects = (
            statement
            or self.has_op(func)
            or self._writes_self(func)
            or any(isinstance(leaf, Ref) for a in [*args, *kwargs.values()] for leaf in _plain_leaves(a))
        )
        if not effects:
            snapshot = frame.state.copy()
            return Deferred(func, tuple(args), dict(kwargs), snapshot, site, frame.depth, place=site)
        key = ("active", id(func.node))
        unknown = Unknown(
            ("call", id(func.node), *(key_of(a) for a in args), *((k, key_of(v)) for k, v in kwargs.items())),
            f"{func.name}(...)",
            "the call is too deep to follow",
            place=site,
        )
        if key in self._busy or frame.depth > MAX_DEPTH:
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

    def _writes_self(self, func: Func) -> bool:
        return func.owner is not None and any(
            func.name in methods for methods in func.owner.index.writers.values()
        )

    def has_op(self, func: Func) -> bool:
        """Whether a function contains an operator call, or calls one of its file that does (by name)."""
        return func.name in self.op_functions.get(func.module.path, frozenset())

    def bind(
        self, func: Func, args: list[Value], kwargs: dict[str, Value], state: State
    ) -> dict[str, Value] | None:
        """Parameter name -> value; None when the arguments do not fit."""
        result: dict[str, Value] = {}
        rest = list(args)
        left = dict(kwargs)
        for param, kind in _parameters(func.node):
            name = param.name.value
            site = Site(func.chunk, param)
            if kind == "*":
                result[name] = Sequence(tuple(rest), "tuple", Num.of(len(rest)), place=site)
                rest = []
            elif kind == "**":
                ref = Ref(("kwargs", id(func.node), self._next()), place=site)
                state.heap[ref.ident] = MapValue(_with({}, left))
                result[name] = ref
                left = {}
            elif kind == "positional" and rest:
                result[name] = rest.pop(0)
            elif name in left:
                result[name] = left.pop(name)
            elif param.default is not None:
                frame = Frame(func.module, func.chunk, func.name, State(), 1, closure=func.closure)
                result[name] = self._frozen(self.expr(param.default, frame), frame)
            else:
                return None
        if rest or left:
            return None
        return result

    def _next(self) -> int:
        self._serial += 1
        return self._serial

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
        return Instance(
            key, cls, frozen if known else None, named if known else None, label=cls.name, place=site
        )

    # Methods of containers, tensors and unknown objects.

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
        if isinstance(content, (Choice, Join)) and isinstance(receiver, Ref) and name == "append" and args:
            frame.state.heap[receiver.ident] = self._appended(content, args[0], node)
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
        if name.endswith("_") and not name.startswith("_") and isinstance(receiver, Tensor):
            self._rebind(node, receiver, result, frame)
        return result

    def _resolve_items(self, value: Value, frame: Frame) -> Value:
        if isinstance(value, Sequence) and value.items is not None:
            return replace(
                value,
                items=tuple(
                    self.simplify(self.force(self.deref(i, frame)), frame.state.assumed) for i in value.items
                ),
            )
        return value

    def _rebind(self, node: cst.Call, before: Tensor, after: Value, frame: Frame) -> None:
        """An in-place method changed the tensor that names hold."""
        for name, value in frame.state.vars.items():
            if value is before or (isinstance(value, Tensor) and value.key == before.key):
                frame.state.vars[name] = after
        for key, value in frame.state.attrs.items():
            if value is before or (isinstance(value, Tensor) and value.key == before.key):
                frame.state.attrs[key] = after

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
        if name not in _TENSOR_METHODS:
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

    def _dict_method(
        self,
        receiver: Value,
        content: MapValue,
        name: str,
        args: list[Value],
        kwargs: dict[str, Value],
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value | None:
        if name == "update" and isinstance(receiver, Ref):
            for other in args:
                self._update(receiver, other, frame, site)
            if kwargs:
                current = frame.state.heap[receiver.ident]
                assert isinstance(current, MapValue)
                frame.state.heap[receiver.ident] = MapValue(_with(current.entries, kwargs), current.open)
                self._note_entries(receiver, node, frame)
            return Const(None)
        first = self.force(args[0]) if args else None
        key = first.value if isinstance(first, Const) and _hashable(first.value) else None
        if name in ("get", "pop", "setdefault") and first is not None:
            default = args[1] if len(args) > 1 else Const(None, place=site)
            if not isinstance(first, Const):
                return None
            found = content.entries.get(key)
            if name == "pop" and isinstance(receiver, Ref):
                frame.state.heap[receiver.ident] = MapValue(
                    {k: v for k, v in content.entries.items() if k != key}, content.open
                )
            if name == "setdefault" and isinstance(receiver, Ref) and found is None and content.open is None:
                frame.state.heap[receiver.ident] = MapValue({**content.entries, key: default}, None)
            if found is not None:
                return self._over(default, found)
            if content.open is None:
                return default
            return Unknown(
                ("get", key_of(receiver), key),
                f"{label_of(receiver)}.get({key!r})",
                content.open.text,
                place=site,
            )
        if name == "copy":
            return self._allocate(content, node, frame)
        if name in ("items", "keys", "values"):
            return Unknown(
                ("view", key_of(receiver), name, id(content)),
                f"dict.{name}()",
                "dict views are not followed",
                is_tensor=False,
                place=site,
            )
        if name == "clear" and isinstance(receiver, Ref):
            frame.state.heap[receiver.ident] = MapValue({})
            return Const(None)
        return None

    def _list_method(
        self,
        receiver: Value,
        content: Sequence,
        name: str,
        args: list[Value],
        kwargs: dict[str, Value],
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value | None:
        if name in ("append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort") and isinstance(
            receiver, Ref
        ):
            if name == "append" and args:
                frame.state.heap[receiver.ident] = self._appended(content, args[0], node)
            else:
                frame.state.heap[receiver.ident] = Sequence(
                    None,
                    content.kind,
                    None,
                    key=("changed", id(node)),
                    label=content.label,
                    place=content.place,
                )
            return Const(None) if name != "pop" else None
        if name == "copy":
            return self._allocate(content, node, frame)
        if name in ("numel", "size") and isinstance(content.key, tuple) and content.key[:1] == ("shape",):
            return Number(Num.atom(("numel", content.key), f"{content.label}.numel()"), place=site)
        return None

    def _appended(self, content: Value, value: Value, node: cst.Call) -> Value:
        """A list with one more element, on every path."""
        if isinstance(content, Choice):
            return Choice(
                content.cond,
                self._appended(content.yes, value, node),
                self._appended(content.no, value, node),
            )
        if isinstance(content, Join):
            return Join(tuple(self._appended(option, value, node) for option in content.options))
        if not isinstance(content, Sequence):
            return Unknown(("appended", key_of(content), id(node)), "list", "what it held is not known")
        if content.items is not None and len(content.items) < 64:
            items = (*content.items, value)
            return replace(
                content, items=items, length=Num.of(len(items)), content=_list_content(list(items))
            )
        kept = content.content if _is_running(value) else Content()
        element = content.element if content.element is not None and same(content.element, value) else None
        key = content.key or ("grown", id(node))
        return replace(content, items=None, length=None, content=kept, element=element, key=key)

    def _string_method(
        self, text: str, name: str, args: list[Value], site: Site, frame: Frame
    ) -> Value | None:
        plain = [self.force(a) for a in args]
        if name in (
            "upper",
            "lower",
            "strip",
            "startswith",
            "endswith",
            "replace",
            "removeprefix",
            "removesuffix",
        ) and all(isinstance(a, Const) for a in plain):
            try:
                return Const(
                    getattr(text, name)(*(a.value for a in plain if isinstance(a, Const))), place=site
                )
            except (TypeError, ValueError):
                return None
        return None

    # Library functions.

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
            return Namespace("torch.finfo()", place=site)
        if name in ("torch.nn.Parameter", "torch.nn.Buffer") and args:
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
        if isinstance(content, (MapValue, Sequence)) and isinstance(value, (Ref, _Frozen)):
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
            frame.state.heap[ref.ident] = MapValue(_with(content.entries, kwargs), content.open)
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
                for leaf in _plain_leaves(self.force(args[0])):
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
            and not any(_may_be_absent(v) for v in content.entries.values())
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
        names = [k.name for k in _plain_leaves(self.force(kind)) if isinstance(k, Namespace)]
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
            label=_text(node, frame),
            place=site,
        )
        return Choice(cond, Const(True), Const(False), place=site)

    def _super(self, frame: Frame, site: Site) -> Value:
        if frame.owner is None or not frame.me:
            return Unknown(("super", id(frame)), "super()", "it is not followed", place=site)
        me = frame.state.vars.get(frame.me)
        if not isinstance(me, Instance):
            return Unknown(("super", id(frame)), "super()", "it is not followed", place=site)
        return _Super(me, frame.owner, place=site)

    def _super_member(self, value: _Super, name: str, site: Site, frame: Frame) -> Value:
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


@dataclass(frozen=True, slots=True, eq=False)
class _Frozen(Value):
    """A container that outlived the frame that built it."""

    content: Value
    heap: Mapping[Hashable, Value]


@dataclass(frozen=True, slots=True, eq=False)
class _Super(Value):
    obj: Instance
    owner: ClassRef


# Helpers.


def choose(cond: Cond | None, yes: Value, no: Value) -> Value:
    """``yes if cond else no``, without a choice when both are the same."""
    if same(yes, no) or cond is None:
        return yes if cond is not None or same(yes, no) else joined(yes, no)
    return Choice(cond, yes, no, place=yes.place)


def joined(a: Value, b: Value) -> Value:
    """Either of two values, for no visible reason."""
    if same(a, b):
        return a
    options: list[Value] = []
    for value in (a, b):
        for option in value.options if isinstance(value, Join) else (value,):
            if not any(same(option, seen) for seen in options):
                options.append(option)
    return (
        Join(tuple(options[:8]))
        if len(options) <= 8
        else Unknown(("many", id(a), id(b)), label_of(a), "it has too many alternatives")
    )


def same(a: Value, b: Value) -> bool:
    """Whether two abstract values are certainly the same run-time value."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Const) and isinstance(b, Const):
        return type(a.value) is type(b.value) and a.value == b.value
    if isinstance(a, (Unknown, Number, DType, Namespace, OpRef, Ref, Absent, Instance)):
        return a == b
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (
            a.key == b.key
            and a.dtypes == b.dtypes
            and a.shape == b.shape
            and a.content == b.content
            and (a.strided is None) == (b.strided is None)
        )
    if isinstance(a, Choice) and isinstance(b, Choice):
        return a.cond == b.cond and same(a.yes, b.yes) and same(a.no, b.no)
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        if a.items is not None and b.items is not None:
            return len(a.items) == len(b.items) and all(
                same(x, y) for x, y in zip(a.items, b.items, strict=True)
            )
        return a.key is not None and a.key == b.key
    if isinstance(a, Bound) and isinstance(b, Bound):
        return a.func is b.func and same(a.receiver, b.receiver)
    return False


def _one(options: list[Value], fallback: Value) -> Value:
    if not options:
        return fallback
    result = options[0]
    for option in options[1:]:
        result = joined(result, option)
    return result


def _plain_leaves(value: Value) -> list[Value]:
    result: list[Value] = []
    pending = [value]
    while pending and len(result) < 64:
        item = pending.pop()
        if isinstance(item, Choice):
            pending.extend((item.no, item.yes))
        elif isinstance(item, Join):
            pending.extend(item.options)
        elif isinstance(item, Deferred) and item.memo:
            pending.append(item.memo[0])
        else:
            result.append(item)
    return result


def _kept(value: Value) -> Value:
    """A value that an object holds: its memory is not fresh, a write to a copy of it is lost."""
    if isinstance(value, Tensor) and isinstance(value.storage, tuple) and value.storage[:1] == ("fresh",):
        return replace(value, storage=("kept", value.storage), copied=None)
    if isinstance(value, Sequence):
        items = tuple(_kept(item) for item in value.items) if value.items is not None else None
        return replace(
            value, items=items, element=_kept(value.element) if value.element is not None else None
        )
    return value


def _is_kept(value: Tensor) -> bool:
    """Whether the memory belongs to a buffer that some object keeps."""
    return isinstance(value.storage, tuple) and value.storage[:1] == ("kept",)


def _is_hidden(value: Value) -> bool:
    """Whether an argument stands for an unpacking of unknown length."""
    return isinstance(value, Sequence) and isinstance(value.key, tuple) and value.key[:1] == ("star",)


def _conjunction(path: tuple[tuple[Cond, bool], ...]) -> Cond | None:
    if not path:
        return None
    label = " and ".join(c.label if holds else f"not ({c.label})" for c, holds in path if c.label)
    return Cond("all", path, label=label, place=path[-1][0].place)


def _all(parts: tuple[tuple[Cond, bool], ...], node: cst.CSTNode, frame: Frame) -> tuple[Cond, bool]:
    return Cond("all", parts, label=_text(node, frame), place=Site(frame.chunk, node)), True


def _text(node: cst.CSTNode, frame: Frame) -> str:
    text = " ".join(cst.Module(body=[]).code_for_node(node).split())
    return text if len(text) <= 80 else text[:77] + "..."


def _positive(text: str, negative: bool) -> str:
    return f"not ({text})" if negative else text


def _labelled(value: Value, name: str) -> Value:
    if isinstance(value, Tensor) and ("(" in value.label or value.label in ("tensor",)):
        return replace(value, label=name)
    if isinstance(value, Sequence) and value.label == "list":
        return replace(value, label=name)
    return value


def _placed(value: Value, site: Site) -> Value:
    return replace(value, place=site) if value.place is None else value


def _indexed(value: Value, index: Hashable) -> Value:
    if isinstance(value, Tensor):
        return replace(value, key=("at", index, value.key))
    return value


def _is_running(value: Value) -> bool:
    if isinstance(value, Number):
        return any(
            isinstance(atom.key, tuple) and atom.key[:1] == ("running-sum",) for atom in value.num.atoms()
        )
    return False


def _running_sum(old: Value, new: Value) -> bool:
    """``total += n`` in a loop: the new value is the old one plus something that varies."""
    if not isinstance(new, (Const, Number)):
        return False
    a, b = number_of(old), number_of(new)
    if a is None or b is None:
        return False
    step = b - a
    return step.const is None and bool(step.atoms())


def _neighbours(a: Hashable, b: Hashable) -> bool:
    """``x[1:]`` and ``x[:-1]``: their difference is the length of each piece."""
    one, minus = ("const", "int", 1), ("const", "int", -1)
    if not (
        isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) == 3 and a[0] == b[0] == "item"
    ):
        return False
    return bool(a[1] == b[1] and a[2] == ("slice", one, None, None) and b[2] == ("slice", None, minus, None))


def _list_content(items: list[Value] | None) -> Content:
    if items and all(isinstance(i, Const) and type(i.value) is int for i in items):
        return Content(
            values=tuple(i.value for i in items if isinstance(i, Const) and isinstance(i.value, int))
        )
    if items and all(_is_running(i) for i in items):
        return Content(lengths=LengthForm.CUMULATIVE)
    return Content()


def _slice_size(size: Num | None, lower: Value | None, upper: Value | None, step: Value | None) -> Num | None:
    if step is not None:
        return None
    low = Num.of(0) if lower is None else number_of(lower)
    if upper is None:
        if size is None or low is None:
            return None
        const = low.integer
        if const is not None and const < 0:
            return Num.of(-const)
        return size - low
    high = number_of(upper)
    if high is None or low is None:
        return None
    if high.integer is not None and high.integer < 0:
        return size + high - low if size is not None else None
    return high - low


def _calculate(x: Num, operator: str, y: Num) -> Num | None:
    if operator == "+":
        return x + y
    if operator == "-":
        return x - y
    if operator == "*":
        return x * y
    if operator in ("/", "//"):
        a, b = x.integer, y.integer
        if a is not None and b:
            return Num.of(a // b if operator == "//" else a / b)
        return x.divide(y)
    if operator == "**":
        exponent = y.const
        return x.power(exponent) if exponent is not None else None
    if operator == "%":
        a, b = x.integer, y.integer
        if a is not None and b:
            return Num.of(a % b)
        return Num.atom(("mod", x, y), f"({x.label} % {y.label})")
    return None


def _fold(a: Any, operator: str, b: Any) -> Any:
    try:
        if operator == "+":
            return a + b
        if operator == "-":
            return a - b
        if operator == "*":
            result = a * b
            return None if isinstance(result, (str, bytes)) and len(result) > 10_000 else result
        if operator == "/":
            return a / b
        if operator == "//":
            return a // b
        if operator == "%":
            return a % b
        if operator == "**":
            if isinstance(a, int) and isinstance(b, int) and abs(b) > 256:
                return None
            result = a**b
            return None if isinstance(result, complex) else result
        if operator == "|":
            return a | b
        if operator == "&":
            return a & b
        if operator == "<<":
            return a << b if 0 <= b < 256 else None
        if operator == ">>":
            return a >> b
        if operator == "<":
            return bool(a < b)
        if operator == "<=":
            return bool(a <= b)
        if operator == ">":
            return bool(a > b)
        if operator == ">=":
            return bool(a >= b)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return None


def _with(entries: Mapping[Hashable, Value], more: Mapping[str, Value]) -> dict[Hashable, Value]:
    """The entries of a dict with keyword arguments added."""
    result: dict[Hashable, Value] = dict(entries)
    result.update(more)
    return result


def _hashable(value: object) -> bool:
    return isinstance(value, (str, int, float, bool, bytes, tuple, type(None)))


def _may_be_absent(value: Value) -> bool:
    return any(isinstance(leaf, Absent) for leaf in _plain_leaves(value))


def _is_multiple(product: Num, factor: Num) -> bool:
    """Whether a product visibly contains a factor (and something else)."""
    quotient = product.divide(factor)
    if quotient is None or len(quotient.terms) != 1 or quotient.const is not None:
        return False
    ((monomial, coefficient),) = quotient.terms.items()
    return coefficient == int(coefficient) and all(exponent > 0 for _, exponent in monomial)


def _body(node: Any) -> Any:
    inner = node.body
    return (
        inner.body
        if isinstance(inner, (cst.IndentedBlock, cst.SimpleStatementSuite))
        and isinstance(inner, cst.IndentedBlock)
        else [cst.SimpleStatementLine(body=inner.body)]
    )


def _parameters(node: cst.FunctionDef | cst.Lambda) -> Iterable[tuple[cst.Param, str]]:
    params = node.params
    for param in (*params.posonly_params, *params.params):
        yield param, "positional"
    if isinstance(params.star_arg, cst.Param):
        yield params.star_arg, "*"
    for param in params.kwonly_params:
        yield param, "keyword"
    if params.star_kwarg is not None:
        yield params.star_kwarg, "**"


def _decorators(node: cst.FunctionDef | cst.Lambda) -> list[str]:
    if isinstance(node, cst.Lambda):
        return []
    return [
        _dotted(d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator).rsplit(".", 1)[-1]
        for d in node.decorators
    ]


# Decorators that leave a function's result as it is.
_TRANSPARENT = frozenset(
    (
        "staticmethod",
        "classmethod",
        "property",
        "cached_property",
        "lru_cache",
        "cache",
        "no_grad",
        "inference_mode",
        "override",
        "abstractmethod",
        "torch_compile",
        "contextmanager",
        "wraps",
        "jit",
        "script",
        "disable",
        "torch_inference",
        "final",
        "overload",
        "typechecked",
        "record_function",
        "register_fake",
    )
)


def _wrapping_decorator(node: cst.FunctionDef | cst.Lambda) -> bool:
    return any(name not in _TRANSPARENT for name in _decorators(node))


def _dotted(node: Any) -> str:
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if isinstance(node, cst.Name):
        parts.append(node.value)
        return ".".join(reversed(parts))
    return ""


def _ast_dotted(node: Any) -> str:
    import ast

    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ".".join(reversed(parts))


def _mentions(statement: Any, name: str) -> bool:
    import ast

    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(statement))


def _elements(node: Any) -> list[Any]:
    return [e.value for e in node.elements] if isinstance(node, (cst.Tuple, cst.List)) else [node]


def _find_def(body: Iterable[Any], name: str) -> cst.FunctionDef | None:
    for statement in body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == name:
            return statement
        inner = getattr(getattr(statement, "body", None), "body", None)
        if isinstance(statement, (cst.ClassDef, cst.If, cst.Try, cst.With)) and inner is not None:
            found = _find_def(inner, name)
            if found is not None:
                return found
    return None


def _assigned(nodes: Iterable[Any]) -> set[str]:
    """Names a piece of code binds."""
    found: set[str] = set()
    pending: list[Any] = list(nodes)
    while pending:
        node = pending.pop()
        if isinstance(
            node, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.CompFor)
        ):
            targets = [node.target]
            while targets:
                target = targets.pop()
                if isinstance(target, cst.Name):
                    found.add(target.value)
                elif isinstance(target, (cst.Tuple, cst.List)):
                    targets.extend(e.value for e in target.elements)
        elif isinstance(node, (cst.MatchAs, cst.MatchStar)) and node.name is not None:
            found.add(node.name.value)
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            continue
        pending.extend(node.children)
    return found


def _canonical(name: str) -> str:
    for short, long in (
        ("np.", "numpy."),
        ("torchair.ops", "torchair.ops"),
        ("torch_npu.dynamo.torchair", "torchair"),
    ):
        if name.startswith(short):
            name = long + name[len(short) :]
    return name


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
_BUILTINS = frozenset(
    [
        "dict",
        "list",
        "tuple",
        "getattr",
        "setattr",
        "len",
        "int",
        "float",
        "bool",
        "max",
        "min",
        "isinstance",
        "super",
        "zip",
        "enumerate",
        "reversed",
        "sorted",
        "print",
        "hasattr",
        "id",
        "repr",
        "str",
        "range",
        "sum",
        "any",
        "all",
        "abs",
        "round",
        "type",
        "object",
        "iter",
        "next",
        "map",
        "filter",
    ]
)
_TENSOR_METHODS = frozenset(
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
    ]
)
_BINARY: dict[type, str] = {
    cst.Add: "+",
    cst.Subtract: "-",
    cst.Multiply: "*",
    cst.Divide: "/",
    cst.FloorDivide: "//",
    cst.Modulo: "%",
    cst.Power: "**",
    cst.BitOr: "|",
    cst.BitAnd: "&",
    cst.LeftShift: "<<",
    cst.RightShift: ">>",
    cst.BitXor: "^",
}
_AUGMENTED: dict[type, str] = {
    cst.AddAssign: "+",
    cst.SubtractAssign: "-",
    cst.MultiplyAssign: "*",
    cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%",
    cst.PowerAssign: "**",
    cst.BitOrAssign: "|",
    cst.BitAndAssign: "&",
}
_ORDER: dict[type, str] = {
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
}

_EXPRESSIONS: dict[type, Callable[[Interpreter, Any, Frame], Value]] = {
    cst.Integer: Interpreter._literal,
    cst.Float: Interpreter._literal,
    cst.Imaginary: Interpreter._literal,
    cst.SimpleString: Interpreter._literal,
    cst.ConcatenatedString: Interpreter._literal,
    cst.FormattedString: Interpreter._formatted,
    cst.Ellipsis: Interpreter._ellipsis,
    cst.Name: Interpreter._name,
    cst.Tuple: Interpreter._tuple,
    cst.List: Interpreter._tuple,
    cst.Dict: Interpreter._dict,
    cst.Set: Interpreter._set,
    cst.Attribute: Interpreter._attribute,
    cst.Subscript: Interpreter._subscript,
    cst.UnaryOperation: Interpreter._unary,
    cst.BinaryOperation: Interpreter._binary,
    cst.BooleanOperation: Interpreter._boolean,
    cst.Comparison: Interpreter._comparison,
    cst.IfExp: Interpreter._ifexp,
    cst.Lambda: Interpreter._lambda,
    cst.ListComp: Interpreter._comprehension,
    cst.SetComp: Interpreter._comprehension,
    cst.GeneratorExp: Interpreter._comprehension,
    cst.DictComp: Interpreter._comprehension,
    cst.NamedExpr: Interpreter._named,
    cst.Await: Interpreter._await,
    cst.Yield: Interpreter._yield,
    cst.StarredElement: Interpreter._starred,
    cst.Call: lambda self, node, frame: self.call(node, frame),
}

__all__ = ["Frame", "Interpreter", "OutOfBudget", "Record", "State", "dims_of", "shape_value"]
