"""Where the objects of a class are made, and what they are given there, in the whole project."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from kvlint.contract.num import Num
from kvlint.contract.values import Choice, Const, Join, Number, Sequence, Tensor, Unknown, Value

from .algebra import is_numeric, one_of, plain_leaves
from .chunk import Site
from .evaluate import Interpreter
from .module import ModuleIndex
from .objects import ClassRef, Func, Instance
from .state import Frame, OutOfBudget, Record, State

# A class used in more files than this is no detail of one module; its objects are not followed.
MAX_FILES = 40
MAX_FAMILY = 12
MAX_QUESTIONS = 40
MAX_PARTS = 20_000
# What one question may cost.
QUESTION_STEPS = 20_000
MAX_PLACES = 12
MAX_MADE = 8
# Calls that a class is handed to without being made.
_HARMLESS_CALLS = frozenset(("isinstance", "issubclass", "cast", "super", "hasattr", "type", "fields"))

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Made:
    """An object as a place in the project makes it.

    ``attributes`` are those that the same function sets on it afterwards, with what their containers hold.
    """

    instance: Instance
    attributes: Mapping[str, Value]
    heap: Mapping[Hashable, Value]


@dataclass
class _Uses:
    """How a module uses some classes."""

    escapes: bool = False
    """A class is handed on, so that other places may make its objects."""
    subclasses: list[ast.ClassDef] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """Names that stand for the classes in calls."""


def _joint(options: list[Value], plain: Unknown) -> Value | None:
    """What all places agree on; None when that says nothing."""
    if not options:
        return None
    if all(isinstance(option, Const) and option.value is None for option in options):
        # Whoever reads it relies on code that is not visible.
        return replace(plain, reason="it is None wherever it is set", place=options[0].place)
    joint = one_of(options, plain)
    leaves = plain_leaves(joint)
    # Several numbers are told apart better by the name they have here.
    if isinstance(joint, Join) and any(is_numeric(leaf) for leaf in leaves):
        return None
    return joint


def _inputs(records: Iterable[Record], interpreter: Interpreter) -> list[Hashable]:
    """The parameters and attributes that the arguments of calls come from."""
    found: dict[Hashable, None] = {}
    pending: list[object] = []
    for record in records:
        pending.extend(value for value, _ in record.positional)
        pending.extend(value for value, _ in record.keywords.values())
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
    return list(found)[:MAX_QUESTIONS]


class _TooMany(Exception):
    """Too many files use a class."""


class Sites:
    """Finds them, for the values that reach operator calls.

    Args:
        interpreter: evaluates the functions that make objects, and is told what that shows.
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self._made: dict[ast.ClassDef, tuple[Made, ...]] = {}
        self._tried: set[Hashable] = set()

    def improve(self, records: Iterable[Record]) -> bool:
        """Follows the parameters and attributes in the arguments of calls; whether that told anything new."""
        interpreter = self.interpreter
        told = False
        for key in _inputs(records, interpreter):
            if key in self._tried:
                continue
            self._tried.add(key)
            interpreter.steps = 0
            interpreter.limit = QUESTION_STEPS
            with suppress(OutOfBudget, RecursionError), interpreter.watching():
                value = self._answer(key)
                if value is not None:
                    interpreter.better[key] = value
                    told = True
        if told:
            interpreter.forget()
        return told

    def _answer(self, key: Hashable) -> Value | None:
        interpreter = self.interpreter
        if key in interpreter.asked:
            return self._attribute(*interpreter.asked[key])
        func, name = interpreter.parameters[key]
        return self._constructor(func, name) if func.name == "__init__" and func.owner is not None else None

    def _attribute(self, obj: Instance, name: str) -> Value | None:
        """An attribute of an object of unknown origin."""
        interpreter = self.interpreter
        made = self.made(obj.cls)
        elsewhere = self._assigned(obj.cls, name) if made else None
        if elsewhere is None:
            return None
        options: list[Value] = []
        for item in made:
            value = item.attributes.get(name)
            if value is None:
                site = item.instance.place
                assert isinstance(site, Site)
                frame = Frame(obj.cls.module, site.chunk, "", State(), 1)
                value = interpreter.instance_attribute(item.instance, name, site, frame)
            options.append(interpreter.outlived(value, item.heap))
        options += [interpreter.outlived(value, {}) for value in elsewhere]
        label = f"{obj.label}.{name}"
        return _joint(options, Unknown(("attr", obj.key, name), label, "", declared=True, place=obj.place))

    def _constructor(self, func: Func, name: str) -> Value | None:
        """A parameter of a constructor."""
        interpreter = self.interpreter
        assert func.owner is not None
        options: list[Value] = []
        for item in self.made(func.owner):
            instance = item.instance
            given = interpreter.bind(
                func, [instance, *(instance.args or ())], dict(instance.kwargs or {}), State()
            )
            if given is None or name not in given:
                return None
            options.append(interpreter.outlived(given[name], item.heap))
        return _joint(options, Unknown(("given", func.name, name), name, "", declared=True, place=func.place))

    def made(self, cls: ClassRef) -> tuple[Made, ...]:
        """Every object of the class; empty when they are not all visible."""
        node = cls.index.node
        if node not in self._made:
            self._made[node] = ()
            with suppress(_TooMany):
                self._made[node] = self._find(cls)
        return self._made[node]

    def _find(self, cls: ClassRef) -> tuple[Made, ...]:
        family = {cls.index.node: cls}
        places: list[tuple[ModuleIndex, Definition | ast.stmt, ClassRef | None]] = []
        while True:
            before = len(family)
            places.clear()
            for module, names in self._modules(cls, family):
                uses = _uses(module, names)
                if uses.escapes:
                    return ()
                for node in uses.subclasses:
                    index = module.classes.get(node)
                    if index is not None:
                        family.setdefault(node, ClassRef(module, index))
                places.extend(_places(module, uses.names, {id(c) for c in family}))
            if len(family) > MAX_FAMILY or len(places) > MAX_PLACES:
                return ()
            if len(family) == before:
                break
        corpus = self.interpreter.files.corpus(cls.module.path)
        if corpus is not None and not corpus.complete:
            return ()
        made: list[Made] = []
        for module, place, owner in places:
            found = self._made_in(module, place, owner, family)
            if found is None:
                return ()
            made.extend(found)
        return tuple(made) if len(made) <= MAX_MADE else ()

    def _modules(
        self, cls: ClassRef, family: Mapping[ast.ClassDef, ClassRef]
    ) -> Iterator[tuple[ModuleIndex, frozenset[str]]]:
        """The modules that may use the classes, with the names that mean them there."""
        interpreter = self.interpreter
        names = frozenset(c.name for c in family.values())
        corpus = interpreter.files.corpus(cls.module.path)
        paths = corpus.using(*sorted(names)) if corpus is not None else []
        if len(paths) > MAX_FILES:
            raise _TooMany
        modules = [cls.module]
        for path in paths:
            module = interpreter.files.load(path)
            if module is not None and module not in modules:
                modules.append(module)
        for module in modules:
            known = set()
            for name in names:
                value = interpreter.global_value(module, name) if name in module.globals else None
                for leaf in plain_leaves(value) if value is not None else ():
                    if isinstance(leaf, ClassRef) and leaf.index.node in family:
                        known.add(name)
            if known:
                yield module, frozenset(known)

    def _made_in(
        self,
        module: ModuleIndex,
        node: Definition | ast.stmt,
        owner: ClassRef | None,
        family: Mapping[ast.ClassDef, ClassRef],
    ) -> list[Made] | None:
        """The objects that a function or a module-level statement makes; None when it is not followed."""
        interpreter = self.interpreter
        with interpreter.watching() as watch:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                func = interpreter.function(module, node, owner)
                if func is None:
                    return None
                final = interpreter.aside(lambda: interpreter.enter(func))
                if final is None:
                    return None
            else:
                final = interpreter.aside(lambda: interpreter.module_statement(module, node))
                if final is None:
                    return None
        found: dict[Hashable, Made] = {}
        for instance in watch.made:
            if instance.cls.index.node not in family:
                continue
            if instance.args is None:
                return None
            written = {name: value for (key, name), value in final.attrs.items() if key == instance.key}
            found[instance.key] = Made(instance, written, final.heap)
        return list(found.values())

    def _assigned(self, cls: ClassRef, name: str) -> tuple[Value, ...] | None:
        interpreter = self.interpreter
        corpus = interpreter.files.corpus(cls.module.path)
        modules = [cls.module]
        paths = corpus.assigning(name) if corpus is not None else []
        if len(paths) > MAX_FILES:
            return None
        for path in paths:
            module = interpreter.files.load(path)
            if module is not None and module not in modules:
                modules.append(module)
        found: list[Value] = []
        for module in modules:
            if name not in module.foreign_writes:
                continue
            for node, owner in definitions(module):
                if not _writes(node, name):
                    continue
                func = interpreter.function(module, node, owner)
                if func is None:
                    return None
                with interpreter.watching() as watch:
                    final = interpreter.aside(lambda func=func: interpreter.enter(func))  # type: ignore[misc]
                if final is None:
                    return None
                for base, attribute, value in watch.written:
                    if attribute != name:
                        continue
                    if not isinstance(base, Instance):
                        return None
                    if any(base.cls.index is c.index for c in interpreter.mro(cls)[0]) or any(
                        cls.index is c.index for c in interpreter.mro(base.cls)[0]
                    ):
                        found.append(value)
        return tuple(found)


def definitions(module: ModuleIndex) -> Iterator[tuple[Definition, ClassRef | None]]:
    """The outermost functions and methods of a module."""
    pending: list[tuple[ast.stmt, ClassRef | None]] = [(node, None) for node in reversed(module.tree.body)]
    while pending:
        node, owner = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, owner
        elif isinstance(node, ast.ClassDef):
            index = module.classes.get(node)
            inner = ClassRef(module, index) if index is not None else owner
            pending.extend((item, inner) for item in reversed(node.body))
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            parts = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            parts += [handler.body for handler in getattr(node, "handlers", [])]
            pending.extend((item, owner) for part in reversed(parts) for item in reversed(part))


def _uses(module: ModuleIndex, names: frozenset[str]) -> _Uses:
    uses = _Uses(names=set(names))
    pending: list[tuple[ast.AST, ast.AST, str]] = [(module.tree, module.tree, "")]
    while pending:
        node, parent, role = pending.pop()
        if isinstance(node, (ast.Name, ast.Attribute)) and _last(node) in names:
            if isinstance(node.ctx, ast.Load) and not _harmless(node, parent, role):
                targets = _aliases(parent, role)
                if targets is None:
                    uses.escapes = True
                    return uses
                uses.names.update(targets)
            continue
        if isinstance(node, ast.ClassDef) and any(_last(base) in names for base in node.bases):
            uses.subclasses.append(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST):
                    # What a choice gives is what its parts give.
                    through = isinstance(node, (ast.IfExp, ast.BoolOp)) and name in (
                        "body",
                        "orelse",
                        "values",
                    )
                    pending.append((child, parent if through else node, role if through else name))
    return uses


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _harmless(node: ast.AST, parent: ast.AST, role: str) -> bool:
    """Whether a mention of a class makes an object right there, or none at all."""
    if isinstance(parent, ast.Call):
        return role == "func" or _last(parent.func) in _HARMLESS_CALLS
    if isinstance(parent, ast.ClassDef):
        return role == "bases"
    return isinstance(parent, (ast.Subscript, ast.Attribute, ast.Compare, ast.ExceptHandler, ast.Delete))


def _aliases(parent: ast.AST, role: str) -> set[str] | None:
    """The names that a class is given; None when it goes elsewhere."""
    if isinstance(parent, (ast.Assign, ast.AnnAssign)) and role == "value":
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        found = {_last(target) for target in targets}
        return found if "" not in found else None
    return None


def _places(
    module: ModuleIndex, names: set[str], family: set[int]
) -> Iterator[tuple[ModuleIndex, Definition | ast.stmt, ClassRef | None]]:
    """The functions and module-level statements with a call that may make an object."""
    for node, owner in definitions(module):
        own = owner is not None and id(owner.index.node) in family
        for item in ast.walk(node):
            if isinstance(item, ast.Call) and (
                _last(item.func) in names
                or (own and isinstance(item.func, ast.Name) and item.func.id == "cls")
            ):
                yield module, node, owner
                break
    for statement in module.tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)) and any(
            isinstance(item, ast.Call) and _last(item.func) in names for item in ast.walk(statement)
        ):
            yield module, statement, None


def _writes(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(item, ast.Attribute)
        and item.attr == name
        and isinstance(item.ctx, ast.Store)
        and not (isinstance(item.value, ast.Name) and item.value.id == "self")
        for item in ast.walk(node)
    )


__all__ = ["Made", "Sites", "definitions"]
