"""Abstract evaluation of functions: what values reach the operator calls, and on which path.

A function is run forward once. Where the source branches, both arms run and what they left
different becomes a :class:`Choice` on the test, so that values picked by the same test stay
correlated. Calls of known functions are evaluated when somebody asks for their result.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import libcst as cst

from kvlint.contract.num import Num
from kvlint.contract.paths import Cond
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    ABSENT,
    Choice,
    Const,
    Content,
    Join,
    LengthForm,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

from .algebra import (
    choose,
    conjunction,
    indexed,
    is_hashable,
    is_kept,
    is_running_sum,
    labelled,
    plain_leaves,
    same,
    without_none,
)
from .chunk import Site
from .contexts import Contexts
from .core import Passed
from .module import BadSource, ModuleIndex
from .modulestate import entry_slot, forget_entries, slot
from .objects import (
    ClassRef,
    Frozen,
    Func,
    MapValue,
    Namespace,
    Ref,
)
from .patterns import Arm
from .state import (
    Frame,
    State,
)
from .syntax import (
    AUGMENTED,
    assigned_names,
    body_of,
    decorators_of,
    elements_of,
    parameters_of,
)
from .torchlib import (
    integer_of,
    key_of,
    label_of,
    number_of,
    select,
    whole_entries,
)


class Interpreter(Contexts):
    """Evaluates the code of one project.

    Args:
        find_module: resolves a dotted import seen from a module to another module of the project.
    """

    def run_root(self, func: Func, receiver: Value | None = None) -> None:
        """Evaluates a function on unknown arguments, recording the operator calls in it."""
        self.steps = 0
        self.enter(func, receiver)

    def run_on(self, func: Func, cls: ClassRef) -> None:
        """Evaluates a method on an object of a subclass that inherits it."""
        self.steps = 0
        self.enter(func, self.symbolic_instance(cls), (Note(f"on an object of {cls.name}", func.place),))

    def enter(self, func: Func, receiver: Value | None = None, trail: tuple[Note, ...] = ()) -> State | None:
        """Evaluates a function on unknown arguments; its state at the end, None when it always raises."""
        state = State()
        arguments: dict[str, Value] = {}
        parameters = list(parameters_of(func.node))
        decorators = decorators_of(func.node)
        if func.owner is not None and parameters and "staticmethod" not in decorators:
            first = parameters.pop(0)
            if "classmethod" in decorators:
                arguments[first[0].name.value] = func.owner
            else:
                arguments[first[0].name.value] = receiver or self.symbolic_instance(func.owner)
        for param, kind in parameters:
            arguments[param.name.value] = self._parameter(func, param, kind, state)
        return self._run(func, arguments, state, 0, trail)[1]

    def run_called(self, func: Func, passed: Passed) -> None:
        """Evaluates a function on what a caller passes, recording the operator calls in it."""
        self.steps = 0
        state = State(heap=dict(passed.heap))
        arguments = self.bind(func, list(passed.args), dict(passed.kwargs), state)
        if arguments is None:
            return
        trail = (Note(f"called from {passed.caller}", passed.site),)
        self._run(func, {name: self.outlived(v, {}) for name, v in arguments.items()}, state, 0, trail)

    def module_statement(self, module: ModuleIndex, node: ast.stmt) -> State | None:
        """Evaluates one statement of a module by itself."""
        try:
            chunk = module.chunk(node)
        except BadSource:
            return None
        frame = Frame(module, chunk, "<module>", State(), 1)
        return self.block(chunk.body, frame, frame.state)

    def _run(
        self,
        func: Func,
        arguments: Mapping[str, Value],
        state: State,
        depth: int,
        trail: tuple[Note, ...],
        body: Iterable[Any] | None = None,
    ) -> tuple[Value, State | None]:
        """Runs a function; returns its result and the state at its end (None when it always raises).

        ``body``: the statements to run, when not all of them.
        """
        inner = State(dict(arguments), state.heap, state.attrs, state.assumed, (), state.outer)
        parameters = [p for p, _ in parameters_of(func.node)]
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
        end = self.block(body_of(func.node) if body is None else body, frame, inner.copy())
        exits = list(frame.returns)
        if end is not None:
            exits.append((end, Const(None, place=func.place)))
        if not exits:
            return Unknown(
                ("raises", func.name, id(func)), func.name, "it always raises", place=func.place
            ), None
        final, result = exits[-1]
        for exit_state, value in reversed(exits[:-1]):
            cond = conjunction(exit_state.path)
            if cond is None:
                final, result = exit_state, value
                continue
            result = choose(cond, value, result)
            final = self.merge(cond, exit_state, final)
        if frame.generator:
            result = self.generated(func, frame)
        return result, final

    def block(self, statements: Iterable[Any], frame: Frame, state: State) -> State | None:
        frame.state = state
        for statement in statements:
            self._step()
            if type(statement) is cst.SimpleStatementLine:
                for small in statement.body:
                    try:
                        falls_through = self._small(small, frame)
                    except RecursionError:
                        falls_through = True
                        for name in assigned_names(small):
                            key = ("deep", id(small), name)
                            frame.state.vars[name] = Unknown(key, name, "its expression is nested too deeply")
                    if not falls_through:
                        return None
            else:
                following = self._compound(statement, frame)
                if following is None:
                    return None
                frame.state = following
        return frame.state

    def _small(self, node: Any, frame: Frame) -> bool:
        """Runs a simple statement; False when control leaves the block."""
        kind = type(node)
        if kind is cst.Assign:
            value = self.expr(node.value, frame)
            for target in node.targets:
                self.assign(target.target, value, frame, node.value)
        elif kind is cst.AnnAssign:
            if node.value is not None:
                self.assign(node.target, self.expr(node.value, frame), frame, node.value)
        elif kind is cst.AugAssign:
            self._augment(node, frame)
        elif kind is cst.Expr:
            self.expr(node.value, frame, statement=True)
        elif kind is cst.Return:
            value = self.expr(node.value, frame) if node.value is not None else Const(None)
            frame.returns.append((frame.state, value))
            return False
        elif kind in (cst.Break, cst.Continue):
            frame.jumps[kind is cst.Continue].append(frame.state)
            return False
        elif kind is cst.Raise:
            return False
        elif kind is cst.Assert:
            test = self.condition(node.test, frame)
            if isinstance(test, tuple):
                following = frame.state.assume(*test)
                if following is not None:
                    following.path = frame.state.path
                    frame.state = following
        elif kind in (cst.Import, cst.ImportFrom):
            self._import(node, frame)
        elif kind is cst.Global:
            frame.globals_ = frame.globals_ | {item.name.value for item in node.names}
        elif kind is cst.Del:
            for target in elements_of(node.target):
                if isinstance(target, cst.Name):
                    frame.state.vars.pop(target.value, None)
                elif isinstance(target, cst.Subscript):
                    base = self.expr(target.value, frame)
                    self._delete_key(base, target, frame)
        return True

    def _compound(self, node: Any, frame: Frame) -> State | None:
        kind = type(node)
        if kind is cst.If:
            return self._if(node, frame)
        if kind in (cst.For, cst.While):
            return self._loop(node, frame)
        if kind is cst.With:
            for item in node.items:
                value = self.expr(item.item, frame)
                if item.asname is not None:
                    self.assign(item.asname.name, self.entered(value, item, frame), frame)
            return self.block(body_of(node), frame, frame.state)
        if kind in (cst.Try, cst.TryStar):
            return self._try(node, frame)
        if kind is cst.FunctionDef:
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
        if kind is cst.ClassDef:
            frame.state.vars[node.name.value] = self._opaque(node.name, "it is a local class", frame)
            if self.recording:
                for item in body_of(node):
                    if isinstance(item, cst.FunctionDef):
                        site = Site(frame.chunk, item.name)
                        method = Func(frame.module, frame.chunk, item, item.name.value, place=site)
                        self.nested.append((method, frame.state))
            return frame.state
        if kind is cst.Match:
            return self._match(node, frame)
        return frame.state

    def _if(self, node: cst.If, frame: Frame) -> State | None:
        # A chain of ``elif`` is a loop here: it may be longer than Python lets calls be nested.
        arms: list[Arm] = []
        last: State | None
        while True:
            test = self.condition(node.test, frame)
            orelse = node.orelse
            rest: Any = [] if orelse is None or isinstance(orelse, cst.If) else body_of(orelse)
            if test is True:
                last = self.block(body_of(node), frame, frame.state)
                break
            if isinstance(test, tuple):
                cond, holds = test
                before = frame.state
                first, second = before.assume(cond, holds), before.assume(cond, not holds)
                after = self.block(body_of(node), frame, first) if first is not None else None
                arms.append((cond, holds, before, after))
                if second is None:
                    last = None
                    break
                frame.state = second
            if isinstance(orelse, cst.If):
                node = orelse
                continue
            last = self.block(rest, frame, frame.state)
            break
        return self.join_arms(arms, last)

    def _try(self, node: Any, frame: Frame) -> State | None:
        before = frame.state.copy()
        after = self.block(body_of(node), frame, frame.state.copy())
        if after is not None and node.orelse is not None:
            after = self.block(body_of(node.orelse), frame, after)
        results = [after] if after is not None else []
        for handler in node.handlers:
            # Anything the body assigns may or may not have happened.
            start = before if after is None else self.merge(None, before.copy(), after.copy())
            start = start.copy()
            if handler.name is not None and isinstance(handler.name.name, cst.Name):
                start.vars[handler.name.name.value] = Unknown(
                    ("except", id(handler)), "exception", "it is an exception"
                )
            end = self.block(body_of(handler), frame, start)
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
                body_of(node.finalbody), frame, merged.copy() if merged is not None else before.copy()
            )
            return end if merged is not None else None
        return merged

    def _loop(self, node: cst.For | cst.While, frame: Frame) -> State | None:
        before = frame.state
        assigned = assigned_names(node)
        element: Value | None = None
        if isinstance(node, cst.For):
            iterable = self.expr(node.iter, frame)
            element, _items = self._iterate(iterable, node, frame)
        # First pass: what one round leaves, so that the second sees loop-carried values.
        recording, self.recording = self.recording, False
        frame.rounds += 1
        returns = list(frame.returns)
        try:
            after, broken = self._round(node, element, before.copy(), frame)
        finally:
            self.recording = recording
            frame.rounds -= 1
            frame.returns = returns
        head = before.copy()
        if after is not None:
            self._carry(head, before, after, assigned, node, frame)
        test: bool | tuple[Cond, bool] | None = None
        # In the first pass of an outer loop one round has to do: two would double with every level.
        if not frame.rounds:
            frame.state = head
            if isinstance(node, cst.For) and element is not None:
                self.assign(node.target, element, frame)
            # The head stays as it is: the loop may run no round at all.
            entered = frame.state.copy()
            if isinstance(node, cst.While):
                test = self.condition(node.test, frame)
                if isinstance(test, tuple):
                    entered = head.assume(*test) or head.copy()
            entered.path = before.path
            inner_returns = len(frame.returns)
            after, broken = self._round(node, None, entered, frame)
            # A return inside a loop happens on some round: no test of this path decides it.
            for index in range(inner_returns, len(frame.returns)):
                returned, value = frame.returns[index]
                marker = Cond("opaque", ("loop-return", id(node), index), label="")
                frame.returns[index] = (replace(returned, path=(*before.path, (marker, True))), value)
        # ``while True`` is left by its breaks alone.
        ended = self._either([] if test is True else [after, head], before)
        if ended is not None and node.orelse is not None:
            ended = self.block(body_of(node.orelse), frame, ended)
        return self._either([ended, *broken], before)

    def _round(
        self, node: cst.For | cst.While, element: Value | None, state: State, frame: Frame
    ) -> tuple[State | None, list[State]]:
        """One round of a loop: the state for the next round, and the states that its breaks leave."""
        jumps, frame.jumps = frame.jumps, ([], [])
        frame.state = state
        try:
            if isinstance(node, cst.For) and element is not None:
                self.assign(node.target, element, frame)
            after = self.block(body_of(node), frame, frame.state)
            breaks, continues = frame.jumps
            return self._either([after, *continues], state), breaks
        finally:
            frame.jumps = jumps

    def _either(self, states: list[State | None], before: State) -> State | None:
        """One state for several that nothing tells apart."""
        found = [state for state in states if state is not None]
        if not found:
            return None
        result = found[0]
        for state in found[1:]:
            result = self.merge(None, result, state)
        result.path, result.assumed = before.path, before.assumed
        return result

    def _carry(
        self, head: State, before: State, after: State, assigned: frozenset[str], node: Any, frame: Frame
    ) -> None:
        """Gives the loop head values that stand for every round."""
        for name in assigned:
            old, new = before.vars.get(name), after.vars.get(name)
            if old is None or new is None or same(old, new):
                continue
            label = name
            if is_running_sum(old, new):
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
            old = before.heap.get(ident) or self._built.get(ident)
            if old is None:
                # A list that a round makes, for what collects these lists.
                head.heap[ident] = content
            elif old is not content:
                head.heap[ident] = self._widened(old, content)

    def _widened(self, old: Value, new: Value) -> Value:
        """A container that a loop body changes."""
        if isinstance(old, Sequence) and isinstance(new, (Choice, Join)):
            return self._uneven(old, new)
        if isinstance(old, Sequence) and isinstance(new, Sequence):
            added = new.items[len(old.items) :] if old.items is not None and new.items is not None else ()
            element = added[0] if len(added) == 1 and not old.items else None
            # What its elements have in common, a round that stands for all of them tells.
            key = ("grown" if old.items == () else "extended", id(old))
            return Sequence(None, old.kind, None, element, key=key, label="list", place=old.place)
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
        grown = [leaf for leaf in plain_leaves(new) if isinstance(leaf, Sequence)]
        counts = {len(leaf.items) - len(old.items or ()) for leaf in grown if leaf.items is not None}
        uneven = None
        if isinstance(new, Choice) and old.items == () and len(counts) > 1 and min(counts) >= 1:
            text = f"a round of the loop adds {min(counts)} or {max(counts)} entries, by {new.cond.label}"
            uneven = Note(text, new.cond.place)
        return Sequence(
            None, old.kind, None, key=("grown", id(old)), label=old.label, place=old.place, uneven=uneven
        )

    def assign(self, target: Any, value: Value, frame: Frame, written: Any = None) -> None:
        """Binds a target; ``written`` is the expression on the right, where there is one."""
        if isinstance(target, cst.Name):
            if target.value in frame.globals_:
                frame.state.attrs[slot(frame.module, target.value)] = value
                return
            frame.state.vars[target.value] = labelled(value, target.value)
        elif isinstance(target, (cst.Tuple, cst.List)):
            self._unpack(target, value, frame)
        elif isinstance(target, cst.Attribute):
            base = self.force(self.expr(target.value, frame))
            if isinstance(value, Tensor) and value.copied is not None:
                # A copy that an object keeps is that object's own memory.
                value = replace(value, copied=None, storage=("fresh", "kept", value.key))
            if self.recording and isinstance(value, Tensor) and value.shape == () and is_kept(value):
                self.views.append((Site(frame.chunk, target), value, frame))
            for leaf in plain_leaves(base):
                key = key_of(leaf)
                if self._watch is not None:
                    self._watch.written.append((leaf, target.attr.value, value))
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
        site = Site(frame.chunk, node)
        value = self.tuple_of(self.deref(value, frame), site, frame)
        if isinstance(value, Sequence):
            if value.items is not None and index < len(value.items):
                return value.items[index]
            if isinstance(value.key, tuple) and value.key[:1] == ("shape",):
                tensor = Tensor(value.key[1], value.label.removesuffix(".shape"), place=value.place)
                size = Num.atom(("dim", tensor.key, index), f"{value.label}[{index}]")
                return Number(size, True, place=site)
            if value.element is not None:
                return indexed(value.element, index)
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
        for leaf in plain_leaves(base):
            if isinstance(self.deref(leaf, frame), MapValue):
                forget_entries(frame.state.attrs, leaf)
                visible = isinstance(key, Const) and not isinstance(leaf, Frozen)
                if key is not None and not visible and not isinstance(key, (Choice, Join)):
                    frame.state.attrs[entry_slot(leaf, key)] = value
            if isinstance(leaf, Ref):
                content = self.deref(leaf, frame)
                if isinstance(content, MapValue):
                    if isinstance(key, Const) and is_hashable(key.value):
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
            else:
                self.note_rewritten(leaf)
            if isinstance(leaf, Tensor):
                if is_kept(leaf) and self._at_counter(target, frame):
                    self.grown.add(leaf.storage)
                self._changed(leaf, frame, holds=self._stored_after_zero(leaf, target, value))

    def _at_counter(self, target: cst.Subscript, frame: Frame) -> bool:
        """Whether an index, or the beginning of a slice, is a number that an object counts up."""
        for element in target.slice:
            part = element.slice
            start = part.value if isinstance(part, cst.Index) else None
            if isinstance(part, cst.Slice):
                start = part.lower
            num = number_of(self.force(self.expr(start, frame))) if start is not None else None
            atom = num.single if num is not None else None
            if atom is not None and isinstance(atom.key, tuple) and atom.key[:1] == ("counter",):
                return True
        return False

    def _stored_after_zero(self, tensor: Tensor, target: cst.Subscript, value: Value) -> Content | None:
        """``ends[1:] = cumsum(...)`` into zeros: running sums that start where the first sequence does."""
        part = target.slice[0].slice if len(target.slice) == 1 else None
        first = isinstance(part, cst.Slice) and part.step is None and isinstance(part.lower, cst.Integer)
        if not first or part.lower.value != "1" or tensor.content.fill != 0:  # type: ignore[union-attr]
            return None
        value = self.force(value)
        sums = isinstance(value, (Tensor, Sequence)) and value.content.lengths is LengthForm.CUMULATIVE
        return Content(lengths=LengthForm.CUMULATIVE) if sums else None

    def _delete_key(self, base: Value, target: cst.Subscript, frame: Frame) -> None:
        key = self._subscript_key(target, frame)
        for leaf in plain_leaves(self.force(base)):
            if isinstance(leaf, Ref):
                content = self.deref(leaf, frame)
                if isinstance(content, MapValue) and isinstance(key, Const):
                    frame.state.heap[leaf.ident] = MapValue(
                        {k: v for k, v in content.entries.items() if k != key.value}, content.open
                    )

    def _augment(self, node: cst.AugAssign, frame: Frame) -> None:
        left = self.expr(node.target, frame)
        right = self.expr(node.value, frame)
        operator = AUGMENTED.get(type(node.operator), "?")
        site = Site(frame.chunk, node)
        if operator == "|":
            for leaf in plain_leaves(self.force(left)):
                if isinstance(leaf, Ref) and isinstance(self.deref(leaf, frame), MapValue):
                    self._update(leaf, right, frame, site)
                    return
        if operator == "+":
            for leaf in plain_leaves(self.force(left)):
                content = self.deref(leaf, frame)
                if isinstance(leaf, Ref) and isinstance(content, Sequence):
                    entries = whole_entries(content, self.deref(self.force(right), frame))
                    frame.state.heap[leaf.ident] = Sequence(
                        None, "list", None, entries, key=("extended", id(node)), label="list", place=site
                    )
                    return
        result = self.binary(left, operator, right, site, frame)
        if isinstance(left, Tensor):
            # In place: every name of the tensor sees it.
            self._changed(left, frame)
        self.assign(node.target, result, frame)

    def expr(self, node: Any, frame: Frame, statement: bool = False) -> Value:
        self._step()
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            return self._opaque(node, "this form of expression is not followed", frame)
        if statement and type(node) is cst.Call:
            return self.call(node, frame, statement)
        return handler(self, node, frame)

    def _name(self, node: cst.Name, frame: Frame) -> Value:
        return self.simplify(self.name(node, frame), frame.state.assumed)

    def _attribute(self, node: cst.Attribute, frame: Frame) -> Value:
        # Of None nothing is read: the other alternatives are the ones that get here.
        base = without_none(self.force(self.expr(node.value, frame)))
        name = node.attr.value
        site = Site(frame.chunk, node)
        return self.lift(lambda value: self.attribute(value, name, site, frame), [base], frame)

    def _lambda(self, node: cst.Lambda, frame: Frame) -> Value:
        func = Func(
            frame.module, frame.chunk, node, "lambda", None, frame.state, place=Site(frame.chunk, node)
        )
        if self.recording:
            self.nested.append((func, frame.state))
        return func

    def _named(self, node: cst.NamedExpr, frame: Frame) -> Value:
        value = self.expr(node.value, frame)
        self.assign(node.target, value, frame)
        return value

    def _await(self, node: cst.Await, frame: Frame) -> Value:
        return self.expr(node.expression, frame)

    def _yield(self, node: cst.Yield, frame: Frame) -> Value:
        frame.generator = True
        value = node.value.item if isinstance(node.value, cst.From) else node.value
        given = self.expr(value, frame) if value is not None else Const(None)
        frame.yielded.append(given)
        return self._opaque(node, "it is sent into a generator", frame)

    def _starred(self, node: Any, frame: Frame) -> Value:
        return self.expr(node.value, frame)


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

__all__ = ["Interpreter"]
