"""Values across functions and files: what callers pass, what the makers of objects give them.

Asked only for what reaches an operator call. A function is evaluated on unknown arguments first; the
parameters and attributes in the arguments of its operator calls are then followed to where they are set.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kvlint.contract.keys import intern
from kvlint.contract.num import Num
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

from .algebra import is_numeric, one_of, plain_leaves, same, substituted
from .attributes import NOT_SET, STARTS_AS_NONE, STARTS_EMPTY, defines, is_empty
from .chunk import Site
from .core import Made, Passed, Watch
from .evaluate import Interpreter
from .module import ModuleIndex
from .objects import ClassRef, Func, Instance
from .state import Frame, OutOfBudget, Record, State
from .uses import Definition, calls_of, holders_of, mentions_of, uses_of, writers_of

# A name used in more files than this is no detail of a few modules; it is not followed.
MAX_FILES = 40
MAX_FAMILY = 12
MAX_PLACES = 8
MAX_MADE = 8
MAX_CONTEXTS = 6
MAX_QUESTIONS = 40
# How many steps back a value is followed at once.
MAX_CHAIN = 4
MAX_PARTS = 20_000
# What evaluating one place may cost, and what all places of one question may.
PLACE_STEPS = 5_000
QUESTION_STEPS = 40_000
# What all questions about one file may cost.
FILE_STEPS = 80_000
_CALLED_WITHOUT_NAME = frozenset(("forward", "__call__"))

T = TypeVar("T")
_Family = tuple[dict[ast.ClassDef, ClassRef], list["Place"], bool]
Place = tuple[ModuleIndex, "Definition | ast.stmt", "ClassRef | None"]


class _TooMany(Exception):
    """Too many files use a name."""


@dataclass(frozen=True)
class _Seen:
    """What one function of the project does when it is evaluated on unknown arguments."""

    watch: Watch
    final: State
    _inputs: list[frozenset[Hashable]] = field(default_factory=list)

    def inputs(self, interpreter: Interpreter) -> frozenset[Hashable]:
        """The parameters and attributes that it passes on in some form."""
        if not self._inputs:
            values: list[Value] = [value for _, _, value in self.watch.written]
            for passed in self.watch.passed:
                values += [*passed.args, *passed.kwargs.values()]
            for made in self.watch.made:
                instance = made.instance
                values += [*(instance.args or ()), *(instance.kwargs or {}).values()]
            values += [value for value in self.final.attrs.values()]
            self._inputs.append(frozenset(_inputs(values, interpreter, len(self.final.attrs) + 200)))
        return self._inputs[0]


class Flow:
    """Follows values for one interpreter, and tells it what that shows."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self._made: dict[ast.ClassDef, tuple[Made, ...]] = {}
        self._seen: dict[ast.AST, _Seen | None] = {}
        self._families: dict[ast.ClassDef, _Family] = {}
        self._callers_of: dict[ast.AST | object, list[Place]] = {}
        self._tried: set[Hashable] = set()
        self.left = FILE_STEPS
        """What may still be spent on questions about the file that is read."""

    def improve(self, func: Func, records: Iterable[Record]) -> bool:
        """Follows the parameters and attributes in the arguments of calls; whether that told anything new.

        The parameters of ``func`` itself stay open: its callers are contexts of their own.
        """
        interpreter = self.interpreter
        arguments = [value for r in records for value, _ in (*r.positional, *r.keywords.values())]
        known = interpreter.parameters
        asked = [
            key
            for key in _inputs(arguments, interpreter)
            if key not in self._tried and not (key in known and known[key][0].node is func.node)
        ]
        learned = self._chain(asked)
        if not any(_tells(interpreter.better[key]) for key in asked if key in interpreter.better):
            for key in learned:
                del interpreter.better[key]
            return False
        self._forget(learned)
        return True

    def _chain(self, keys: list[Hashable]) -> list[Hashable]:
        """Answers questions, then those that the answers raise; what was learned."""
        interpreter = self.interpreter
        better = interpreter.better
        learned: list[Hashable] = []
        frontier = keys
        for _ in range(MAX_CHAIN):
            new = [key for key in frontier if self._learned(key)]
            if not new:
                break
            learned += new
            raised = _inputs([better[key] for key in new], interpreter)
            frontier = [key for key in raised if key not in self._tried]
        # The answers in terms of other questions, now that those have answers, too.
        for key in reversed(learned):
            inputs = [item for item in _inputs([better[key]], interpreter) if item in better and item != key]
            if not inputs:
                continue
            if any(not isinstance(leaf, Unknown) for leaf in plain_leaves(better[key])):
                self._forget(inputs)
                self._learned(key)
            else:
                for item in inputs:
                    better[key] = substituted(better[key], item, better[item])
        return learned

    def _forget(self, keys: list[Hashable]) -> None:
        """Drops what was worked out from inputs that are better known now."""
        interpreter = self.interpreter
        interpreter.forget()
        changed = set(keys)
        for node, seen in list(self._seen.items()):
            if seen is not None and not changed.isdisjoint(seen.inputs(interpreter)):
                del self._seen[node]
                self._made.clear()

    def _learned(self, key: Hashable) -> bool:
        self._tried.add(key)
        value = self._within(lambda: self._answer(key))
        if value is None or (key in self.interpreter.better and same(value, self.interpreter.better[key])):
            return False
        self.interpreter.better[key] = value
        return True

    def contexts(self, func: Func) -> list[Passed]:
        """What the callers of a function pass to it, as far as they are visible."""
        found = self._within(lambda: self._passed(func)) or []
        distinct: list[Passed] = []
        for item in found:
            # The reader evaluates the callers in the same file itself, where it knows them by name.
            if item.site.path == func.module.path and func.name not in _CALLED_WITHOUT_NAME:
                continue
            if all(item.site.node is not other.site.node for other in distinct):
                distinct.append(item)
        return distinct[:MAX_CONTEXTS]

    def covered(self, func: Func, sites: set[tuple[str, int]]) -> bool:
        """Whether the calls at ``sites`` (path, line) are all the calls of a function that there can be."""
        if func.name in _CALLED_WITHOUT_NAME or func.name.startswith("__") or not sites:
            return False
        corpus = self.interpreter.files.corpus(func.module.path)
        paths = corpus.mentioning(func.name) if corpus is not None else []
        if len(paths) > MAX_FILES or (corpus is not None and not corpus.complete):
            return False
        for module in self._loaded(func.module, paths):
            lines = mentions_of(module, func.name)
            if lines is None or any((module.path, line) not in sites for line in lines):
                return False
        return True

    def receivers(self, func: Func, names: frozenset[str]) -> list[ClassRef]:
        """The subclasses that inherit a method and define some of the ``names`` it mentions."""
        if func.owner is None:
            return []
        found: list[ClassRef] = []
        for cls in self.interpreter.subclasses(func.owner):
            mro = self.interpreter.mro(cls)[0]
            owner = next((c for c in mro if func.name in c.index.methods), None)
            if owner is not None and owner.index is func.owner.index:
                own = mro[: next(i for i, c in enumerate(mro) if c.index is func.owner.index)]
                if any(defines(c, name) for c in own for name in names):
                    found.append(cls)
        return found[:MAX_CONTEXTS]

    def _within(self, question: Callable[[], T]) -> T | None:
        interpreter = self.interpreter
        if self.left <= 0:
            return None
        steps, limit = interpreter.steps, interpreter.limit
        interpreter.steps, interpreter.limit = 0, min(self.left, QUESTION_STEPS)
        try:
            with interpreter.watching():
                return question()
        except (OutOfBudget, RecursionError, _TooMany):
            return None
        finally:
            self.left -= interpreter.steps
            interpreter.steps, interpreter.limit = steps, limit

    def _answer(self, key: Hashable) -> Value | None:
        interpreter = self.interpreter
        if key in interpreter.asked:
            return self._attribute(*interpreter.asked[key])
        func, name = interpreter.parameters[key]
        plain = Unknown(("given", key), name, "it is a parameter", declared=True, place=func.place)
        if func.name == "__init__" and func.owner is not None:
            return _joint(list(self._constructed(func, name)), plain)
        options: list[Value] = []
        for passed in self._passed(func):
            given = interpreter.bind(func, list(passed.args), dict(passed.kwargs), State())
            if given is None or name not in given:
                return None
            options.append(interpreter.outlived(given[name], passed.heap))
        return _joint(options, plain)

    # Attributes.

    def _attribute(self, obj: Instance, name: str) -> Value | None:
        """An attribute of an object of unknown origin."""
        interpreter = self.interpreter
        # What is known of one object is not what other places make.
        site = obj.place
        one = obj.args is not None
        made = (Made(obj, site),) if one and isinstance(site, Site) else self.made(obj.cls)
        if not made:
            return None
        elsewhere = self._assigned(obj.cls, name)
        options: list[Value] = []
        for item in made:
            instance = item.instance
            own: Value | None = None
            if not item.partial:
                frame = Frame(obj.cls.module, item.site.chunk, "", State(), 1)
                own = interpreter.instance_attribute(instance, name, item.site, frame)
                if isinstance(own, Unknown) and own.reason == STARTS_AS_NONE:
                    # Whoever sets another value is looked at, too.
                    own = Const(None, place=own.place)
                elif elsewhere and isinstance(own, Unknown) and own.reason == NOT_SET:
                    own = None
            value = item.attributes.get(name, own)
            if value is not None and own is not None:
                value = substituted(value, intern(("attr", instance.key, name)), own)
            if value is not None:
                options.append(interpreter.outlived(value, item.heap))
        options += [interpreter.outlived(value, {}) for value in elsewhere]
        label = f"{obj.label}.{name}"
        plain = Unknown(("attr", obj.key, name), label, STARTS_EMPTY, declared=True, hint=Hint("Tensor"))
        options = [_filled(option, plain) for option in options]
        return _joint(options, Unknown(("attr", obj.key, name), label, "", declared=True, place=obj.place))

    def _constructed(self, func: Func, name: str) -> Iterator[Value]:
        """A parameter of a constructor, wherever it is called."""
        interpreter = self.interpreter
        assert func.owner is not None
        for item in self.made(func.owner):
            instance = item.instance
            arguments = [instance, *(instance.args or ())]
            given = interpreter.bind(func, arguments, dict(instance.kwargs or {}), State())
            if given is not None and name in given:
                yield interpreter.outlived(given[name], item.heap)

    def made(self, cls: ClassRef) -> tuple[Made, ...]:
        """Every object of the class; empty when they are not all visible."""
        node = cls.index.node
        if node not in self._made:
            self._made[node] = ()
            with suppress(_TooMany):
                self._made[node] = self._find_made(cls)
        return self._made[node]

    def _find_made(self, cls: ClassRef) -> tuple[Made, ...]:
        family, places, escapes = self._family(cls)
        if escapes or len(family) > MAX_FAMILY or len(places) > MAX_PLACES:
            return ()
        corpus = self.interpreter.files.corpus(cls.module.path)
        if corpus is not None and not corpus.complete:
            return ()
        made: dict[Hashable, Made] = {}
        for place in places:
            seen = self._watched(place)
            made_here = seen.watch.made if seen is not None else []
            if seen is None or not any(item.instance.cls.index.node in family for item in made_here):
                return ()
            for item in made_here:
                if item.instance.cls.index.node in family:
                    if item.instance.args is None:
                        return ()
                    attributes = {
                        name: value
                        for (key, name), value in seen.final.attrs.items()
                        if key == item.instance.key
                    }
                    final = replace(item, attributes={**item.attributes, **attributes}, heap=seen.final.heap)
                    made[item.instance.key, item.partial] = final
        return tuple(made.values()) if len(made) <= MAX_MADE else ()

    def _family(self, cls: ClassRef) -> _Family:
        """The class and its subclasses, where they are called, and whether they may be elsewhere."""
        node = cls.index.node
        if node not in self._families:
            self._families[node] = self._search(cls)
        return self._families[node]

    def _search(self, cls: ClassRef) -> _Family:
        family = {cls.index.node: cls}
        while True:
            before = len(family)
            places: list[Place] = []
            for module, names in self._modules(cls, family):
                uses = uses_of(module, names)
                if uses.escapes:
                    return family, [], True
                for node in uses.subclasses:
                    index = module.classes.get(node)
                    if index is not None:
                        family.setdefault(node, ClassRef(module, index))
                owners = frozenset(id(node) for node in family)
                places += [(module, node, owner) for node, owner in calls_of(module, uses.names, owners)]
            if len(family) == before or len(family) > MAX_FAMILY:
                return family, places, False

    def _modules(
        self, cls: ClassRef, family: Mapping[ast.ClassDef, ClassRef]
    ) -> Iterator[tuple[ModuleIndex, frozenset[str]]]:
        """The modules that may use the classes, with the names that mean them there."""
        interpreter = self.interpreter
        names = frozenset(c.name for c in family.values())
        corpus = interpreter.files.corpus(cls.module.path)
        for module in self._loaded(cls.module, corpus.using(*sorted(names)) if corpus is not None else []):
            known = set()
            for name in names:
                value = interpreter.global_value(module, name) if name in module.globals else None
                for leaf in plain_leaves(value) if value is not None else ():
                    if isinstance(leaf, ClassRef) and leaf.index.node in family:
                        known.add(name)
            if known:
                yield module, frozenset(known)

    def _loaded(self, first: ModuleIndex, paths: list[str]) -> list[ModuleIndex]:
        if len(paths) > MAX_FILES:
            raise _TooMany
        return self.interpreter.loaded(first, paths)

    def _assigned(self, cls: ClassRef, name: str) -> list[Value]:
        """What code outside the class assigns to the attribute."""
        interpreter = self.interpreter
        corpus = interpreter.files.corpus(cls.module.path)
        found: list[Value] = []
        for module in self._loaded(cls.module, corpus.assigning(name) if corpus is not None else []):
            if name not in module.foreign_writes:
                continue
            for node, owner, constants in writers_of(module, name):
                if constants is not None:
                    found += [Const(value) for value in constants]
                    continue
                seen = self._watched((module, node, owner))
                if seen is None:
                    reason = f"{node.name}() sets it and costs too much to follow"
                    found.append(Unknown(("set", id(node), name), name, reason, declared=True))
                    continue
                for base, attribute, value in seen.watch.written:
                    if attribute != name:
                        continue
                    # Of an object that nobody knows it may be one of ours.
                    if not isinstance(base, Instance) or self._related(base.cls, cls):
                        found.append(interpreter.outlived(value, seen.final.heap))
        return found

    def _related(self, a: ClassRef, b: ClassRef) -> bool:
        mro = self.interpreter.mro
        return any(a.index is c.index for c in mro(b)[0]) or any(b.index is c.index for c in mro(a)[0])

    # Parameters.

    def _passed(self, func: Func) -> list[Passed]:
        """The calls of a function that the project shows."""
        found: list[Passed] = []
        for place in self._callers(func):
            seen = self._watched(place)
            if seen is None:
                continue
            for passed in seen.watch.passed:
                if passed.func.node is func.node:
                    found.append(replace(passed, heap=passed.heap or seen.final.heap))
        return found

    def _callers(self, func: Func) -> list[Place]:
        if func.node not in self._callers_of:
            self._callers_of[func.node] = self._find_callers(func)
        return self._callers_of[func.node]

    def _find_callers(self, func: Func) -> list[Place]:
        corpus = self.interpreter.files.corpus(func.module.path)
        places: list[Place] = []
        if func.name in _CALLED_WITHOUT_NAME:
            if func.owner is None:
                return []
            family, made, _ = self._family(func.owner)
            names = {c.name for c in family.values()}
            modules = self._loaded(func.module, [])
            modules += [module for module, _, _ in made if module not in modules]
            for module in modules:
                holders = holders_of(module, names) | {"forward"}
                places += [(module, node, owner) for node, owner in calls_of(module, holders)]
        else:
            names = {func.name}
            for module in self._loaded(func.module, corpus.calling(func.name) if corpus is not None else []):
                places += [(module, node, owner) for node, owner in calls_of(module, names)]
        here = [
            p
            for p in places
            if not (
                p[0] is func.module
                and isinstance(p[1], ast.FunctionDef)
                and p[1].name == func.name
                and p[1].lineno == _line(func)
            )
        ]
        return here[:MAX_PLACES]

    def _watched(self, place: Place) -> _Seen | None:
        """What a function makes, sets and passes on; None when it is not followed to its end."""
        module, node, owner = place
        if node in self._seen:
            return self._seen[node]
        self._seen[node] = None
        interpreter = self.interpreter
        limit = interpreter.limit
        interpreter.limit = min(limit, interpreter.steps + PLACE_STEPS)
        try:
            with interpreter.watching() as watch:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    func = interpreter.function(module, node, owner)
                    if func is None:
                        return None
                    final = self._entered(func)
                else:
                    final = interpreter.module_statement(module, node)
            self._seen[node] = _Seen(watch, final or State())
        except (OutOfBudget, RecursionError):
            if interpreter.steps > limit:
                raise OutOfBudget from None
        finally:
            interpreter.limit = limit
        return self._seen[node]

    def _entered(self, func: Func) -> State | None:
        """The state at the end of a function: of a method, on objects of every class that has it."""
        interpreter = self.interpreter
        if func.owner is None:
            return interpreter.enter(func)
        final = interpreter.enter(func, interpreter.symbolic_instance(func.owner, exact=True))
        names = frozenset(func.owner.index.writers) | frozenset(func.owner.index.fields)
        names |= frozenset(func.owner.index.methods)
        for cls in self.receivers(func, names):
            other = interpreter.enter(func, interpreter.symbolic_instance(cls))
            if final is not None and other is not None:
                final.attrs.update(other.attrs)
                final.heap.update(other.heap)
        return final


def _line(func: Func) -> int:
    place = func.place
    return place.line if place is not None else 0


def _joint(options: list[Value], plain: Unknown) -> Value | None:
    """What all places agree on; None when that says nothing."""
    if not options:
        return None
    if all(is_none(option) for option in options):
        # Whoever reads it relies on code that is not visible.
        return replace(plain, reason="it is None wherever it is set", place=options[0].place)
    joint = one_of(options, plain)
    # Several numbers are told apart better by the name they have here.
    if isinstance(joint, Join) and any(is_numeric(leaf) for leaf in plain_leaves(joint)):
        return None
    return joint


def _filled(value: Value, own: Unknown) -> Value:
    """A value without placeholders: whoever reads one relies on what is put in its place."""
    if isinstance(value, Choice):
        return replace(value, yes=_filled(value.yes, own), no=_filled(value.no, own))
    if isinstance(value, Join):
        return replace(value, options=tuple(_filled(option, own) for option in value.options))
    return replace(own, place=value.place) if is_empty(value) else value


def _tells(value: Value) -> bool:
    """Whether a value is more than another name for something unknown."""
    return any(not isinstance(leaf, Unknown) or leaf.is_tensor for leaf in plain_leaves(value))


def _inputs(values: Iterable[Value], interpreter: Interpreter, most: int = MAX_QUESTIONS) -> list[Hashable]:
    """The parameters and attributes that values come from."""
    found: dict[Hashable, None] = {}
    pending: list[object] = list(values)
    seen: set[int] = set()
    pending.reverse()
    while pending and len(seen) < MAX_PARTS:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, tuple):
            if part in interpreter.asked or part in interpreter.parameters:
                found.setdefault(part)
            pending.extend(item for item in part if isinstance(item, (tuple, Num)))
        elif isinstance(part, Num):
            pending.extend(atom.key for atom in part.atoms())
        elif isinstance(part, Choice):
            pending += [part.no, part.yes]
        elif isinstance(part, Join):
            pending.extend(part.options)
        elif isinstance(part, Number):
            pending.append(part.num)
        elif isinstance(part, Sequence):
            pending += [part.key, part.element, *(part.items or ())]
        elif isinstance(part, Unknown):
            pending.append(part.key)
        elif isinstance(part, Tensor):
            pending += [part.key, *(part.shape or ())]
    return list(found)[:most]


__all__ = ["Flow"]
