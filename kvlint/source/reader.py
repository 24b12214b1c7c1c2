"""Static reader: from source text to operator calls with facts."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import libcst as cst

from kvlint.contract import catalogue
from kvlint.contract.call import Call, Event, Scope, Target, Use, View, bind
from kvlint.contract.keys import origin, within
from kvlint.contract.paths import may_be_one
from kvlint.contract.tri import Note, Place
from kvlint.contract.values import ABSENT, Choice, Join, Tensor, Unknown, Value

from .algebra import plain_leaves
from .chunk import Chunk, Site
from .corpus import Corpora
from .evaluate import Interpreter
from .events import class_events, function_events, module_events
from .flow import Flow
from .imports import Imports
from .module import BadSource, ModuleIndex
from .negative import Span, expected_failures
from .objects import ClassRef, Func
from .prefilter import relevant
from .state import MAX_STEPS, Frame, OutOfBudget, Record, State
from .torchlib import settled
from .usage import Usage, is_layer
from .walk import nodes_of, walk

# How often a function is evaluated again with what its inputs turned out to be.
ROUNDS = 3
CALLER_ROUNDS = 2
MAX_CALLERS = 200
# A caller is followed for what it passes down; that is worth less than the calls themselves.
CALLER_STEPS = 6_000


class SourceError(Exception):
    """A file that cannot be read as Python. ``line`` is 1-based, 0 when there is none."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Analysis:
    """What one module contains: scopes with operator calls and events, in source order."""

    scopes: tuple[Scope, ...]


@dataclass(frozen=True, slots=True)
class _Definition:
    """An outermost function or method, by its ``ast`` node."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: ast.ClassDef | None
    names: frozenset[str]

    @property
    def steps(self) -> int:
        """What may be spent on it: more for a long function."""
        return MAX_STEPS + 2 * sum(1 for _ in ast.walk(self.node))


class Project:
    """The files that questions may be answered from.

    Args:
        roots: folders that absolute imports are looked up in.
        target: the stack that the code is meant for.
        corpora: the trees of files to search; without them only imports are followed.
    """

    def __init__(self, roots: Iterable[str], target: Target, corpora: Corpora | None = None) -> None:
        self.target = target
        self._imports = Imports(roots, corpora)

    def read(self, path: str, source: bytes) -> Analysis:
        """Analyses one module. Raises :class:`SourceError` when it does not decode or parse."""
        try:
            module = self._imports.add(path, source)
        except BadSource as error:
            raise SourceError(str(error), error.line) from None
        # With nothing kept of the files before: what is found in one must not depend on them.
        interpreter = Interpreter(self._imports)
        return _Reading(interpreter, Flow(interpreter), module, self.target).run()


class _Reading:
    """The analysis of one module."""

    def __init__(self, interpreter: Interpreter, flow: Flow, module: ModuleIndex, target: Target) -> None:
        self.interpreter = interpreter
        self.flow = flow
        self.module = module
        self.target = target
        self.operators = catalogue.names()
        # Names that may stand for an operator in a call.
        self.callees = self.operators | _aliases(module.tree, self.operators)
        self._funcs: dict[Any, Func] = {}
        self._trees: dict[Any, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.definitions = list(self._definitions(module.tree.body, None))

    def run(self) -> Analysis:
        wanted = self._roots()
        scopes: dict[Any, list[Record]] = {}
        order: list[Any] = []
        names: dict[Any, str] = {}
        for definition in wanted:
            func = self._function(definition)
            if func is None:
                continue
            self.interpreter.limit = definition.steps if definition.names & self.callees else CALLER_STEPS
            self._evaluate(func, definition.names)
            self._trees[func.node] = definition.node
            self._funcs[func.node] = func
        self._module_level()
        usages: dict[Chunk, Usage] = {}
        runs: dict[int, list[Record]] = {}
        for record in self.interpreter.records:
            runs.setdefault(record.run, []).append(record)
        writers: dict[int, Call | None] = {}
        # A call in another file is reported where that file is read.
        records = [r for r in self.interpreter.records if r.frame.module is self.module]
        failures = expected_failures(self.module)
        if failures:
            records = [record for record in records if not self._expected(record, failures)]
        records.sort(key=lambda record: len(record.trail))
        for record in records:
            key = record.frame.node or record.frame.chunk
            if key not in scopes:
                scopes[key] = []
                order.append(key)
                names[key] = record.frame.name
            scopes[key].append(record)
        result: list[Scope] = []
        groups: dict[Any, list[Call]] = {}
        members: list[tuple[int, Any]] = []
        for key in order:
            calls: list[Call] = []
            seen: set[tuple[int, tuple[Any, ...]]] = set()
            for record in scopes[key]:
                call = self._call(record, usages)
                if call is None:
                    continue
                mark = (
                    id(record.site.node),
                    tuple(id(note.place.node) for note in record.trail if isinstance(note.place, Site)),
                )
                if mark in seen:
                    continue
                seen.add(mark)
                call.earlier, call.later = self._around(record, runs.get(record.run, []), writers, usages)
                calls.append(call)
            if calls:
                self._cover(key, calls)
                tree = self._trees.get(key)
                found = tuple(function_events(self.module, tree, calls)) if tree is not None else ()
                owner = scopes[key][0].frame.owner
                group = owner.index.node if owner is not None else key
                groups.setdefault(group, []).extend(call for call in calls if not call.trail)
                members.append((len(result), group))
                result.append(Scope(names[key], tuple(calls), found))
        for index, group in members:
            result[index] = replace(result[index], peers=tuple(groups[group]))
        for name, event in (
            *class_events(self.module, self.operators, partial(self.interpreter.class_named, self.module)),
            *module_events(self.module, self.operators),
        ):
            result.append(Scope(name, (), (event,), event.place))
        for site, value, frame in self.interpreter.views:
            if frame.module is self.module:
                event = Event("kept-length-view", site, {"name": site.text(), "value": value.label}, ())
                result.append(Scope(frame.name, (), (event,), site))
        for scope in result:
            for call in scope.calls:
                call.scope = scope
        return Analysis(tuple(result))

    def _cover(self, key: Any, calls: list[Call]) -> None:
        """Marks the calls of a function in its own right when its callers stand for all that can be."""
        func = self._funcs.get(key)
        entered = [call.trail[-1] for call in calls if call.trail]
        sites = {(n.place.path, n.place.line) for n in entered if isinstance(n.place, Site) and _is_call(n)}
        if func is None:
            return
        # The search for further callers is worth its cost only to who counts proofs.
        covered = cache(partial(self.flow.covered, func, sites))
        for call in calls:
            if not call.trail:
                call.covered = covered

    # Which functions to evaluate.

    def _definitions(self, body: list[ast.stmt], owner: ast.ClassDef | None) -> Iterable[_Definition]:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield _Definition(node, owner, _mentioned(node))
            elif isinstance(node, ast.ClassDef):
                yield from self._definitions(node.body, node)
            elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
                for part in ("body", "orelse", "finalbody"):
                    yield from self._definitions(getattr(node, part, []), owner)
                for handler in getattr(node, "handlers", []):
                    yield from self._definitions(handler.body, owner)

    def _roots(self) -> list[_Definition]:
        """Functions with an operator's name in them, and the functions of this file that call those."""
        direct = [d for d in self.definitions if d.names & self.callees]
        carriers = {d.node.name for d in direct}
        chosen = list(direct)
        picked = {id(d) for d in direct}
        frontier = carriers - {"forward", "__init__", "__call__"}
        reached = set(carriers)
        for _ in range(CALLER_ROUNDS):
            more = [d for d in self.definitions if id(d) not in picked and d.names & frontier]
            chosen.extend(more)
            picked.update(id(d) for d in more)
            frontier = {d.node.name for d in more} - reached - {"forward", "__init__", "__call__"}
            reached |= frontier
        self.interpreter.op_functions[self.module.path] = frozenset(reached)
        return direct + chosen[len(direct) :][:MAX_CALLERS]

    def _function(self, definition: _Definition) -> Func | None:
        owner = None
        if definition.owner is not None:
            index = self.module.classes.get(definition.owner)
            owner = ClassRef(self.module, index) if index is not None else None
        return self.interpreter.function(self.module, definition.node, owner)

    def _evaluate(self, func: Func, names: frozenset[str]) -> None:
        # What was found before a question got too costly counts; the rest stays unknown.
        interpreter = self.interpreter
        limit = interpreter.limit
        records, views = len(interpreter.records), len(interpreter.views)
        self._run(func, names)
        for _ in range(ROUNDS):
            told = self.flow.improve(func, interpreter.records[records:])
            interpreter.limit = limit
            if not told:
                break
            # With what the rest of the project tells of the parameters and attributes that were met.
            del interpreter.records[records:], interpreter.views[views:]
            self._run(func, names)

    def _run(self, func: Func, names: frozenset[str]) -> None:
        interpreter = self.interpreter
        self._ordered(partial(interpreter.run_root, func))
        if self._mentions_operator(func):
            for cls in self.flow.receivers(func, names):
                self._ordered(partial(interpreter.run_on, func, cls))
            for passed in self.flow.contexts(func):
                self._ordered(partial(interpreter.run_called, func, passed))
        seen: set[int] = set()
        pending = self._nested(func, seen)
        while pending:
            nested, state = pending.pop(0)
            self._ordered(partial(interpreter.run_root, replace(nested, closure=state)))
            pending.extend(self._nested(func, seen))

    def _ordered(self, evaluate: Callable[[], object]) -> None:
        """Evaluates a function; the calls met meanwhile are in the order they run."""
        interpreter = self.interpreter
        interpreter.runs += 1
        interpreter.mutated.clear()
        start = len(interpreter.records)
        try:
            evaluate()
        except (OutOfBudget, RecursionError):
            # The calls behind that point are met all the same, with less known of their arguments.
            with interpreter.frugally(), contextlib.suppress(OutOfBudget, RecursionError):
                evaluate()
        for record in interpreter.records[start:]:
            record.run = interpreter.runs

    def _nested(self, func: Func, seen: set[int]) -> list[tuple[Func, State]]:
        """The functions inside a function that evaluation has come across, and that mention an operator."""
        found: list[tuple[Func, State]] = []
        for nested, state in self.interpreter.nested:
            if nested.chunk is func.chunk and id(nested.node) not in seen and len(seen) < MAX_CALLERS:
                seen.add(id(nested.node))
                if self._mentions_operator(nested):
                    found.append((nested, state))
        self.interpreter.nested.clear()
        return found

    def _mentions_operator(self, func: Func) -> bool:
        wanted = self.callees | self.interpreter.op_functions[self.module.path]
        return any(
            (isinstance(n, cst.Name) and n.value in wanted)
            or (isinstance(n, cst.SimpleString) and n.raw_value in self.operators)
            for n in walk(func.node)
        )

    def _module_level(self) -> None:
        """Operator calls outside any function."""
        statements = [
            node
            for node in self.module.tree.body
            if not isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
            )
        ]
        if not any(_mentioned(node) & self.callees for node in statements):
            return
        state = State()
        interpreter = self.interpreter
        interpreter.steps = 0
        frame: Frame | None = None
        for node in self.module.tree.body:
            if isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
            ):
                continue
            try:
                chunk = self.module.chunk(node)
                frame = Frame(self.module, chunk, "<module>", state, 0)
                after = interpreter.block(chunk.body, frame, state)
            except (BadSource, OutOfBudget, RecursionError):
                continue
            if after is None:
                break
            state = after

    # Records to calls.

    def _expected(self, record: Record, failures: list[Span]) -> bool:
        """Whether a test says that a call fails, where it stands or where the function was entered."""
        places = [record.site, *(note.place for note in record.trail)]
        return any(
            first <= place.line <= last
            for place in places
            if place is not None and place.path == self.module.path
            for first, last in failures
        )

    def _around(
        self,
        record: Record,
        run: list[Record],
        writers: dict[int, Call | None],
        usages: dict[Chunk, Usage],
    ) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
        """The cache writers that run before and after a call, whenever the call itself runs."""
        if not record.run or _writes_cache(record):
            return (), ()
        passed = {*record.path, *record.assumed.items()}
        found: tuple[list[Call], list[Call]] = ([], [])
        for other in run:
            if other is record or not _writes_cache(other):
                continue
            if not all(item in passed for item in (*other.path, *other.assumed.items())):
                continue
            if id(other) not in writers:
                writers[id(other)] = self._call(other, usages)
            call = writers[id(other)]
            if call is None:
                continue
            early, late = (other, record) if other.number < record.number else (record, other)
            changed = {key for key, number in late.mutated if number > early.number}
            if not any(key in changed for key in _identities(call)):
                found[early is record].append(call)
        return tuple(found[0]), tuple(found[1])

    def _use(self, record: Record, usages: dict[Chunk, Usage]) -> Use:
        """What the code does with the results, here and in the functions that they are returned to."""
        entered = [note.place for note in reversed(record.trail) if isinstance(note.place, Site)]
        sites = [record.site, *(site for site in entered if isinstance(site.node, cst.Call))]
        use = Use()
        for site in sites:
            usage = _usage(usages, site.chunk)
            use = usage.of(site.node)
            if not usage.is_returned(site.node):
                break
        touched: dict[int, Place] = {}
        views: list[View] = []
        operands: list[View] = []
        for touch in record.touches:
            if not touch.sure:
                continue
            if touch.how != "passed" or is_layer(touch.name):
                touched.setdefault(touch.index, touch.site)
            found = View(touch.index, touch.name, touch.sizes, touch.site)
            if touch.how == "method":
                views.append(found)
            elif touch.how in ("operand", "argument") and not touch.cast:
                operands.append(found)
        return replace(use, touched=touched, views=tuple(views), operands=tuple(operands))

    def _call(self, record: Record, usages: dict[Chunk, Usage]) -> Call | None:
        operator = catalogue.find(record.operator, record.overload, self.target.torch_npu) or catalogue.find(
            record.operator, record.overload
        )
        if operator is None:
            return None
        binding = bind(operator, record.positional, record.keywords, record.opaque)
        usage = _usage(usages, record.site.chunk)
        use = self._use(record, usages)
        values: dict[str, Value] = dict(binding.values)
        for param in operator.params:
            values[param.name] = settled(values[param.name], "Tensor" in param.type)
            # npu_kv_rmsnorm_rope_cache writes its caches without saying so.
            if param.mutated or param.role in ("rope_cache", "nope_cache"):
                values[param.name] = self._settled(
                    values.get(param.name, ABSENT), binding.places.get(param.name), usage
                )
                if record.trail:
                    # What a caller makes of a copy that it passes in is its own affair.
                    values[param.name] = _uncopied(values[param.name], record.site.chunk)
        binding = replace(binding, values=values)
        return Call(
            operator,
            binding,
            self.target,
            record.site,
            record.assumed,
            None,
            use,
            record.trail,
            record.path,
            summed=self._summed(record),
            rewritten=frozenset(self.interpreter.rewritten),
            grown=frozenset(self.interpreter.grown),
        )

    def _summed(self, record: Record) -> frozenset[Hashable]:
        """What a running sum is taken of whenever a call runs.

        One that is taken on some paths only may be there because the entries are running sums on the others.
        """
        passed = {*record.path, *record.assumed.items()}
        if may_be_one(passed):
            return frozenset()
        return frozenset(
            key
            for key, found in self.interpreter.summed.items()
            if not within(key, self.interpreter.rewritten)
            and any(all(test in passed for test in tests) for tests in found)
        )

    def _settled(self, value: Value, place: Any, usage: Usage) -> Value:
        """A copy that is used later (returned, copied back) is no lost write."""
        if isinstance(place, Site) and usage.used_later(place.node):
            return _uncopied(value)
        return value


def _writes_cache(record: Record) -> bool:
    operator = catalogue.find(record.operator, record.overload)
    return operator is not None and operator.family in ("cache_write", "prolog")


def _identities(call: Call) -> Iterator[Hashable]:
    """What identifies the arguments of a call, under casts and copies to the host."""
    for value in call.binding.values.values():
        for leaf in plain_leaves(value):
            if isinstance(leaf, (Unknown, Tensor)):
                yield leaf.key
                yield origin(leaf.key)


def _usage(usages: dict[Chunk, Usage], chunk: Chunk) -> Usage:
    found = usages.get(chunk)
    if found is None:
        found = usages[chunk] = Usage(chunk)
    return found


def _is_call(note: Note) -> bool:
    return isinstance(note.place, Site) and isinstance(note.place.node, cst.Call)


def _uncopied(value: Value, but: Chunk | None = None) -> Value:
    """A value that is not known to be a copy, except by what the chunk ``but`` does."""
    if isinstance(value, Choice):
        return replace(value, yes=_uncopied(value.yes, but), no=_uncopied(value.no, but))
    if isinstance(value, Join):
        return replace(value, options=tuple(_uncopied(option, but) for option in value.options))
    if isinstance(value, Tensor) and value.copied is not None:
        place = value.copied.place
        if but is not None and isinstance(place, Site) and place.chunk is but:
            return value
        return replace(value, copied=None, storage=None)
    return value


def _aliases(tree: ast.AST, operators: frozenset[str]) -> frozenset[str]:
    """Names and attributes that the module gives to an operator itself, not to what a call returned."""
    found: set[str] = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom):
            found.update(a.asname for a in node.names if a.asname and a.name in operators)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            if not _mentioned(node.value) & operators:
                continue
            called = {id(n.func) for n in nodes_of(node.value) if isinstance(n, ast.Call)}
            if any(id(n) not in called and _named(n) in operators for n in nodes_of(node.value)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(_named(t) for t in targets)
    return frozenset(found - {""})


def _named(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _mentioned(node: ast.AST) -> frozenset[str]:
    found: set[str] = set()
    for item in nodes_of(node):
        if isinstance(item, ast.Attribute):
            found.add(item.attr)
        elif isinstance(item, ast.Name):
            found.add(item.id)
        elif (
            isinstance(item, ast.Constant)
            and isinstance(item.value, str)
            and "npu_" in item.value
            and item.value.isidentifier()
        ):
            found.add(item.value)
    return frozenset(found)


__all__ = ["Analysis", "Project", "SourceError", "relevant"]
