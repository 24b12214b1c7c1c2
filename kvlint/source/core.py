"""What every part of the evaluation builds on: budgets, alternatives, conditions, merging."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any, Protocol, TypeVar

import libcst as cst

from kvlint.contract.keys import intern
from kvlint.contract.merging import REASON, serial
from kvlint.contract.num import Num
from kvlint.contract.paths import Assumptions, Cond, decide, extended
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    ABSENT,
    Absent,
    Choice,
    Const,
    Content,
    DType,
    Hint,
    Join,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

from .algebra import (
    all_options,
    choose,
    conjoined,
    fewer,
    joined,
    may_be_absent,
    one_of,
    plain_leaves,
    same,
    substituted,
    unbound,
    widened,
    with_entries,
)
from .annotations import hint_of
from .chunk import Site
from .corpus import Corpus
from .module import BadSource, ModuleIndex
from .modulestate import unset
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
    Ref,
)
from .state import (
    MAX_DEPTH,
    MAX_LEAVES,
    MAX_STEPS,
    MAX_WIDENED,
    SIDE_STEPS,
    Frame,
    OutOfBudget,
    Record,
    State,
)
from .syntax import (
    find_def,
    parameters_of,
    text_of,
)
from .torchlib import (
    Test,
    key_of,
    label_of,
)
from .transfer import TorchLib

T = TypeVar("T")

# Values that stand for others.
_FORMS = (Choice, Join, Deferred)
_SCALARS = frozenset(("int", "float", "bool", "str", "dtype"))


class Files(Protocol):
    """What is asked of a project's files."""

    def find(self, origin: ModuleIndex, dotted: str, level: int) -> ModuleIndex | None:
        """The module that ``origin`` imports by that name."""

    def load(self, path: str) -> ModuleIndex | None:
        """The module in a file."""

    def corpus(self, path: str) -> Corpus | None:
        """All files of the project that a file belongs to."""


@dataclass(frozen=True)
class Made:
    """An object as a place in the project makes it.

    ``attributes`` are those that the same function sets on it afterwards, with what their containers hold.
    ``partial``: they are all that is known, the rest comes from another object (``dataclasses.replace``).
    """

    instance: Instance
    site: Site
    attributes: Mapping[str, Value] = field(default_factory=dict)
    heap: Mapping[Hashable, Value] = field(default_factory=dict)
    partial: bool = False


@dataclass(frozen=True)
class Passed:
    """A call of a function of the project: the arguments, with what their containers hold."""

    func: Func
    args: tuple[Value, ...]
    kwargs: Mapping[str, Value]
    site: Site
    caller: str
    heap: Mapping[Hashable, Value]


@dataclass
class Watch:
    """What an evaluation makes and sets."""

    made: list[Made] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    written: list[tuple[Value, str, Value]] = field(default_factory=list)
    """Object, attribute, value."""


class Core:
    """What every part of the evaluation builds on: budgets, alternatives, conditions, merging."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.find_module = files.find
        self.frugal = False
        self._subclasses: dict[ast.ClassDef, list[ClassRef]] = {}
        # Attributes of objects that outlive the function that set them, by the objects' identities.
        self._left: dict[tuple[Hashable, str], Value] = {}
        self.better: dict[Hashable, Value] = {}
        """What the project's other code tells of a parameter or attribute, by its identity."""
        self.asked: dict[Hashable, tuple[Instance, str]] = {}
        """The attributes of objects of unknown origin that were read, by their identity."""
        self.parameters: dict[Hashable, tuple[Func, str]] = {}
        """The parameters that no caller gave a value, by their identity."""
        self.torch = TorchLib()
        self.records: list[Record] = []
        self.results: dict[Hashable, tuple[Record, int]] = {}
        """The results of the recorded calls, by their identity: the call and which result it is."""
        self.mutated: dict[Hashable, int] = {}
        """How many calls had been met when a value of unknown content may have been changed in place last."""
        self.summed: dict[Hashable, list[frozenset[tuple[Cond, bool]]]] = {}
        """Where the entries come from that a running sum was taken of, and under which tests."""
        self._summing: dict[Any, bool] = {}
        self.rewritten: set[Hashable] = set()
        """Where the entries come from that are replaced in place somewhere: what they hold hangs on when."""
        self.grown: set[Hashable] = set()
        """The memory of buffers that are filled row by row, at a position that an object counts up."""
        self.runs = 0
        self.recording = True
        self.steps = 0
        self.limit = MAX_STEPS
        self._globals: dict[tuple[str, str], Value] = {}
        self._attributes: dict[tuple[Hashable, str], Value] = {}
        self._busy: set[Hashable] = set()
        self._funcs: dict[Any, Func] = {}
        self._serial = 0
        # What deferred calls built, for the paths that did not ask for the result themselves.
        self._built: dict[Hashable, Value] = {}
        self.op_functions: dict[str, frozenset[str]] = {}
        self.nested: list[tuple[Func, State]] = []
        self.views: list[tuple[Site, Tensor, Frame]] = []
        """Attributes that were set to a single element of a buffer that an object keeps."""
        # Where the entries of dicts were written last: findings about ``**options`` point there.
        self._entry_sites: dict[tuple[Hashable, Hashable], Site] = {}
        self._watch: Watch | None = None

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self.limit:
            raise OutOfBudget

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def forget(self) -> None:
        """Drops what was worked out of objects, so that what is better known now takes effect."""
        self._attributes.clear()
        self._left.clear()
        self.__dict__.pop("_state_cache", None)

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Notes the objects made and the attributes set meanwhile, instead of operator calls."""
        before, recording = self._watch, self.recording
        watch = self._watch = Watch()
        self.recording = False
        try:
            yield watch
        finally:
            self._watch, self.recording = before, recording

    def loaded(self, first: ModuleIndex, paths: list[str]) -> list[ModuleIndex]:
        """A module and those in some files, each once."""
        modules = [first]
        for path in paths:
            module = self.files.load(path)
            if module is not None and module not in modules:
                modules.append(module)
        return modules

    @contextmanager
    def frugally(self) -> Iterator[None]:
        """Asks no side questions and follows no calls meanwhile."""
        self.forget()
        self.frugal = True
        try:
            yield
        finally:
            self.frugal = False
            self.forget()

    def aside(self, question: Callable[[], T]) -> T | None:
        """Answers a side question within its own budget; None when it costs too much."""
        if self.frugal:
            return None
        limit = self.limit
        # A question within a question leaves enough for the one around it.
        self.limit = self.steps + min(SIDE_STEPS, max(0, limit - self.steps) // 2)
        try:
            return question()
        except OutOfBudget:
            if self.steps > limit:
                raise
            return None
        finally:
            self.limit = limit

    def function(self, module: ModuleIndex, node: Any, owner: ClassRef | None = None) -> Func | None:
        """The function for an ``ast`` definition; its tree is parsed now."""
        found = self._funcs.get(node)
        if found is None:
            try:
                chunk = module.chunk(node)
            except BadSource:
                return None
            tree = find_def(chunk.body, node.name)
            if tree is None:
                return None
            found = Func(module, chunk, tree, node.name, owner, place=Site(chunk, tree.name))
            self._funcs[node] = found
        return found

    def symbolic_instance(self, cls: ClassRef, exact: bool = False) -> Instance:
        """An object of a class, built by constructor arguments nobody knows; ``exact``: of no subclass."""
        kind = "exactly" if exact else "self"
        return Instance((kind, cls.module.path, cls.name), cls, label="self")

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
        hint = hint_of(param.annotation.annotation) if param.annotation is not None else None
        if hint is not None and isinstance(param.default, cst.Name) and param.default.value == "None":
            # "x: Tensor = None" is how many write "x: Tensor | None = None".
            hint = replace(hint, optional=True)
        plain = Unknown(key, name, "it is a parameter", declared=True, place=site)
        found = self.better.get(plain.key)
        if found is not None:
            return found
        self.parameters[plain.key] = (func, name)
        return self.typed(plain, hint, func.module)

    def typed(self, value: Unknown, hint: Hint | None, module: ModuleIndex) -> Value:
        """An unknown value with its declared type; an object when that is a class of the project.

        ``module`` is where the annotation is written.
        """
        if hint is None:
            return value
        if hint.name == "Tensor":
            tensor = True if not hint.optional else value.is_tensor
            return replace(value, hint=hint, is_tensor=tensor)
        if hint.name in _SCALARS:
            return replace(value, hint=hint, is_tensor=False)
        if hint.name in ("list", "tuple", "dict"):
            return replace(value, hint=hint)
        found = self.class_named(module, hint.name)
        if found is not None:
            return Instance(value.key, found, label=value.label, place=value.place, optional=hint.optional)
        return value

    def class_named(self, module: ModuleIndex, dotted: str) -> ClassRef | None:
        """The class that a module means by a name; None when it is not one of the project."""
        head, *rest = dotted.split(".")
        if head not in module.globals and not module.stars:
            return None
        source = self._defining(module, head, set())
        found: Value | None = self.global_value(source, head) if source is not None else None
        for name in rest:
            if not isinstance(found, Namespace) or not found.name.startswith("project:"):
                return None
            inner = self.find_module(module, found.name, -1)
            if inner is None or name not in inner.globals:
                return None
            found = self.global_value(inner, name)
        return found if isinstance(found, ClassRef) else None

    def merge(self, cond: Cond | None, yes: State, no: State) -> State:
        """One state for two paths; ``cond`` tells them apart, None when nothing does."""

        def pick(a: Value | None, b: Value | None, name: str) -> Value:
            if a is not None and b is not None and same(a, b):
                return a
            left = a if a is not None else unbound(name)
            right = b if b is not None else unbound(name)
            return choose(cond, left, right) if cond is not None else joined(left, right)

        result = State(assumed=yes.assumed, path=yes.path, outer=yes.outer)
        for name in yes.vars.keys() | no.vars.keys():
            result.vars[name] = pick(yes.vars.get(name), no.vars.get(name), name)
        for key in yes.attrs.keys() | no.attrs.keys():
            left, right = yes.attrs.get(key), no.attrs.get(key)
            if left is None or right is None:
                original = unset(key)
                left, right = left or original, right or original
            result.attrs[key] = (
                left
                if same(left, right)
                else choose(cond, left, right)
                if cond is not None
                else joined(left, right)
            )
        for ident in yes.heap.keys() | no.heap.keys():
            built = self._built.get(ident)
            left, right = yes.heap.get(ident, built), no.heap.get(ident, built)
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
                return conjoined(((cond, True), yes), node, frame)
            if yes is False and not isinstance(no, bool):
                return conjoined(((cond, False), no), node, frame)
            if yes is True and not isinstance(no, bool):
                made, holds = conjoined(((cond, False), (no[0], not no[1])), node, frame)
                return made, not holds
            if no is True and not isinstance(yes, bool):
                made, holds = conjoined(((cond, True), (yes[0], not yes[1])), node, frame)
                return made, not holds
            key = ("test", cond, yes, no)
            return Cond("opaque", key, label=text_of(node), place=Site(frame.chunk, node)), True
        content = self.deref(value, frame)
        if isinstance(content, Sequence) and content.items is not None:
            return bool(content.items)
        if isinstance(content, MapValue) and content.open is None:
            if not content.entries:
                return False
            if not any(may_be_absent(v) for v in content.entries.values()):
                return True
        if isinstance(value, (Func, ClassRef, Bound, Namespace, OpRef, PartialCall, DType)):
            return True
        if isinstance(value, Number) and value.num.const is not None:
            return bool(value.num.const)
        return Cond("truth", key_of(value), label=text_of(node), place=Site(frame.chunk, node)), True

    def _arm(
        self, value: Value, cond: Cond, holds: bool, node: cst.BaseExpression, frame: Frame
    ) -> bool | tuple[Cond, bool]:
        """The truth of one side of a choice, where the choice's own test is settled."""
        found = self._truth(value, node, frame)
        if isinstance(found, bool):
            return found
        assumed = extended(frame.state.assumed, cond, holds)
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
        seen: list[Value] = []
        while isinstance(value, Deferred):
            if any(value is call for call in seen):
                # A property or function that asks for itself.
                return Unknown(
                    ("recursive", id(value)),
                    f"{value.func.name}(...)",
                    "it asks for itself",
                    place=value.site,
                )
            seen.append(value)
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
            answer = self.aside(lambda: self._run(call.func, arguments, state, call.depth + 1, ()))
            if answer is None:
                return replace(unknown, reason="the call costs too much to follow")
            result, final = answer
            for ident, content in (final.heap if final is not None else {}).items():
                if ident not in call.state.heap:
                    call.state.heap[ident] = self._built[ident] = content
            if final is not None:
                self._leave_attributes(result, final)
            return result
        finally:
            self.recording = recording
            self._busy.discard(key)

    def _leave_attributes(self, value: Value, final: State) -> None:
        """Keeps what a function has set on the objects that it hands out."""
        for leaf in plain_leaves(value):
            if not isinstance(leaf, (Instance, Unknown)):
                continue
            for (key, name), content in final.attrs.items():
                if key == leaf.key and (key, name) not in self._left:
                    # On the paths that do not set it, it is what the class says.
                    own = self._own_attribute(leaf, name)
                    identity = intern(("attr", key, name))
                    self._left[key, name] = self.outlived(substituted(content, identity, own), final.heap)

    def lift(
        self,
        function: Callable[..., Value],
        values: list[Value],
        frame: Frame,
        assumed: Assumptions | None = None,
        budget: list[int] | None = None,
    ) -> Value:
        """Applies ``function`` to every combination of alternatives that can occur together.

        Where there are too many, to every combination of few that stand for them.
        """
        if not any(isinstance(value, _FORMS) for value in values):
            return function(*values)
        if assumed is None:
            assumed = frame.state.assumed
        if budget is None:
            budget = [MAX_LEAVES, MAX_LEAVES // 2]
        now = [
            self.simplify(self.force(value), assumed) if isinstance(value, _FORMS) else value
            for value in values
        ]
        for index, value in enumerate(now):
            if isinstance(value, Choice):
                budget[0] -= 1
                if budget[0] < 0:
                    return self._lift_widened(function, now, frame, assumed, budget)
                yes = extended(assumed, value.cond, True)
                no = extended(assumed, value.cond, False)
                if yes is None or no is None:
                    now[index] = value.no if yes is None else value.yes
                    return self.lift(function, now, frame, assumed, budget)
                first = self.lift(function, [*now[:index], value.yes, *now[index + 1 :]], frame, yes, budget)
                second = self.lift(function, [*now[:index], value.no, *now[index + 1 :]], frame, no, budget)
                return choose(value.cond, first, second)
            if isinstance(value, Join):
                budget[0] -= len(value.options)
                if budget[0] < 0:
                    return self._lift_widened(function, now, frame, assumed, budget)
                results = [
                    self.lift(function, [*now[:index], option, *now[index + 1 :]], frame, assumed, budget)
                    for option in value.options
                ]
                return one_of(results, results[0]) if value.ident is None else widened(results)
        return function(*now)

    def _lift_widened(
        self,
        function: Callable[..., Value],
        values: list[Value],
        frame: Frame,
        assumed: Assumptions,
        budget: list[int],
    ) -> Value:
        """Applies ``function`` to combinations of few values that stand for all alternatives."""
        few = self._few_of_each(values, assumed, budget[1])
        if few is None:
            alternatives = next(value for value in values if isinstance(value, (Choice, Join)))
            return Unknown(("many", serial()), label_of(alternatives), REASON, place=alternatives.place)
        combinations = [list(combination) for combination in product(*few)]
        budget[1] -= len(combinations)
        # A deferred call among them has alternatives of its own.
        return widened([self.lift(function, values, frame, assumed, budget) for values in combinations])

    def _few_of_each(self, values: list[Value], assumed: Assumptions, most: int) -> list[list[Value]] | None:
        """Options of every value that make at most so many combinations."""
        if most < 1:
            return None
        flat = [all_options([value], assumed) for value in values]
        for each in range(MAX_WIDENED, 0, -1):
            few = [fewer(options, each) if options is not None else None for options in flat]
            known = [options for options in few if options is not None]
            if len(known) < len(few):
                return None
            if prod(map(len, known)) <= most:
                return known
        return None

    def deref(self, value: Value, frame: Frame) -> Value:
        """The content of a container."""
        if isinstance(value, Ref):
            return frame.state.heap.get(value.ident) or self._built.get(value.ident, value)
        if isinstance(value, Frozen):
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
                self.resolved(value.yes, frame, depth),
                self.resolved(value.no, frame, depth),
                place=value.place,
            )
        if isinstance(value, Join):
            options = tuple(self.resolved(option, frame, depth + 1) for option in value.options)
            return replace(value, options=options)
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

    def _allocate(self, content: Value, node: Any, frame: Frame) -> Ref:
        self._serial += 1
        ref = Ref(("heap", self._serial), place=Site(frame.chunk, node))
        frame.state.heap[ref.ident] = content
        return ref

    def _over(self, old: Value, new: Value) -> Value:
        """``new``, but ``old`` where ``new`` is absent."""
        if isinstance(new, Absent):
            return old
        if isinstance(new, Choice):
            return Choice(new.cond, self._over(old, new.yes), self._over(old, new.no))
        return new

    def _frozen(self, value: Value, frame: Frame) -> Value:
        """A value that outlives its frame: containers keep their content beside the reference."""
        if isinstance(value, Ref):
            content = self.deref(value, frame)
            if isinstance(content, (MapValue, Sequence)):
                return Frozen(content, {k: v for k, v in frame.state.heap.items()}, place=value.place)
        return value

    def enter(self, func: Func) -> State | None:
        raise NotImplementedError

    def module_statement(self, module: ModuleIndex, node: ast.stmt) -> State | None:
        raise NotImplementedError

    def mro(self, cls: ClassRef) -> tuple[list[ClassRef], bool]:
        raise NotImplementedError

    def outlived(self, value: Value, heap: Mapping[Hashable, Value]) -> Value:
        raise NotImplementedError

    def _own_attribute(self, obj: Instance | Unknown, name: str) -> Value:
        raise NotImplementedError

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
        for param, kind in parameters_of(func.node):
            name = param.name.value
            site = Site(func.chunk, param)
            if kind == "*":
                result[name] = Sequence(tuple(rest), "tuple", Num.of(len(rest)), place=site)
                rest = []
            elif kind == "**":
                ref = Ref(("kwargs", id(func.node), self._next()), place=site)
                state.heap[ref.ident] = MapValue(with_entries({}, left))
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

    # Defined by the parts that build on this one.

    def global_value(self, module: ModuleIndex, name: str) -> Value:
        raise NotImplementedError

    def _defining(self, module: ModuleIndex, name: str, seen: set[str]) -> ModuleIndex | None:
        raise NotImplementedError

    def block(self, statements: Iterable[Any], frame: Frame, state: State) -> State | None:
        raise NotImplementedError

    def expr(self, node: Any, frame: Frame, statement: bool = False) -> Value:
        raise NotImplementedError

    def _run(
        self,
        func: Func,
        arguments: Mapping[str, Value],
        state: State,
        depth: int,
        trail: tuple[Note, ...],
        body: Iterable[Any] | None = None,
    ) -> tuple[Value, State | None]:
        raise NotImplementedError

    def member(self, namespace: str, name: str) -> Value:
        raise NotImplementedError

    def _invoke(
        self,
        func: Func,
        args: list[Value],
        kwargs: Mapping[str, Value],
        site: Any,
        frame: Frame,
        statement: bool = False,
    ) -> Value:
        raise NotImplementedError

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
        raise NotImplementedError

    def _update(self, ref: Ref, other: Value, frame: Frame, site: Site) -> None:
        raise NotImplementedError

    def assign(self, target: Any, value: Value, frame: Frame, written: Any = None) -> None:
        raise NotImplementedError

    def _changed(
        self, tensor: Tensor, frame: Frame, but: Hashable = None, holds: Content | None = None
    ) -> None:
        raise NotImplementedError

    def _note_entries(self, ref: Ref, node: cst.Call, frame: Frame) -> None:
        raise NotImplementedError
