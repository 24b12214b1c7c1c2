"""How modules use classes and functions, from the shape of their trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from .module import ModuleIndex
from .objects import ClassRef
from .walk import nodes_of

# Calls that a class is handed to without being made.
_HARMLESS_CALLS = frozenset(("isinstance", "issubclass", "cast", "super", "hasattr", "type", "fields"))

# What is read from these modules is no function or class of the project.
_LIBRARIES = frozenset(("torch", "torch_npu", "torchair", "numpy", "np"))

_PARTS = frozenset(("body", "orelse", "values", "elts"))

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Uses:
    """How a module uses some classes."""

    escapes: bool = False
    """A class is handed on, so that other places may make its objects."""
    subclasses: list[ast.ClassDef] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """Names that stand for the classes in calls."""


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


def uses_of(module: ModuleIndex, names: frozenset[str]) -> Uses:
    """How a module uses the classes that it knows by these names."""
    uses = Uses(names=set(names))
    pending: list[tuple[ast.AST, ast.AST, str]] = [(module.tree, module.tree, "")]
    while pending:
        node, parent, role = pending.pop()
        if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in names:
            if isinstance(node.ctx, ast.Load) and not _harmless(node, parent, role):
                targets = _aliases(parent, role)
                if targets is None:
                    uses.escapes = True
                    return uses
                uses.names.update(targets)
            continue
        if isinstance(node, ast.ClassDef) and any(last_name(base) in names for base in node.bases):
            uses.subclasses.append(node)
        for name, value in vars(node).items():
            if name in ("annotation", "returns"):
                continue
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST):
                    # What a choice gives is what its parts give; a tuple is for its reader to take apart.
                    through = isinstance(node, (ast.IfExp, ast.BoolOp, ast.Tuple)) and name in _PARTS
                    pending.append((child, parent if through else node, role if through else name))
    return uses


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name; of ``layers[i]`` that of ``layers``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _harmless(node: ast.AST, parent: ast.AST, role: str) -> bool:
    """Whether a mention of a class makes an object right there, or none at all."""
    if isinstance(parent, ast.Call):
        return role == "func" or last_name(parent.func) in _HARMLESS_CALLS
    if isinstance(parent, ast.ClassDef):
        return role == "bases"
    return isinstance(parent, (ast.Subscript, ast.Attribute, ast.Compare, ast.ExceptHandler, ast.Delete))


def _aliases(parent: ast.AST, role: str) -> set[str] | None:
    """The names that a class is given; None when it goes elsewhere."""
    if isinstance(parent, (ast.Assign, ast.AnnAssign)) and role == "value":
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        found = {last_name(target) for target in targets}
        return found if "" not in found else None
    return None


def calls_of(
    module: ModuleIndex, names: frozenset[str] | set[str], owners: frozenset[int] = frozenset()
) -> Iterator[tuple[Definition | ast.stmt, ClassRef | None]]:
    """The functions and module-level statements with a call by one of the names.

    In the classes whose nodes are ``owners`` (by ``id``), ``cls(...)`` is one too.
    """
    if not module.called:
        for definition, of in definitions(module):
            module.called.append((definition, of, _called_in(definition)))
        for statement in module.tree.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.With)):
                module.called.append((statement, None, _called_in(statement)))
    for node, owner, called in module.called:
        assert owner is None or isinstance(owner, ClassRef)
        own = owner is not None and id(owner.index.node) in owners
        if not called.isdisjoint(names) or (own and "cls" in called):
            yield node, owner


def _called_in(node: ast.AST) -> frozenset[str]:
    calls = (item.func for item in nodes_of(node) if isinstance(item, ast.Call))
    return frozenset(last_name(func) for func in calls if not _of_library(func))


def _of_library(node: ast.AST) -> bool:
    """Whether a dotted name starts with a library's: an operator may be called like the function it is in."""
    if not isinstance(node, ast.Attribute):
        return False
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in _LIBRARIES


def mentions_of(module: ModuleIndex, name: str) -> set[int] | None:
    """The lines of the calls of a function by its name; None when it is handed on instead of called."""
    found: set[int] = set()
    called: set[int] = set()
    for node in nodes_of(module.tree):
        if isinstance(node, ast.Call) and last_name(node.func) == name:
            if not _of_library(node.func):
                found.add(node.lineno)
            called.add(id(node.func))
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            # A call is walked before its parts.
            if last_name(node) == name and id(node) not in called and not _of_library(node):
                return None
        elif isinstance(node, ast.ImportFrom) and any(a.name == name and a.asname for a in node.names):
            return None
    return found


def holders_of(module: ModuleIndex, names: set[str]) -> set[str]:
    """The names that hold objects made by calls of ``names``: variables, attributes, loop variables."""
    found: set[str] = set()
    for node in nodes_of(module.tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            if any(isinstance(i, ast.Call) and last_name(i.func) in names for i in nodes_of(node.value)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(last_name(target) for target in targets)
        elif isinstance(node, ast.Call) and last_name(node.func) in ("append", "add_module", "setdefault"):
            inside = (item for argument in node.args for item in nodes_of(argument))
            made = any(isinstance(item, ast.Call) and last_name(item.func) in names for item in inside)
            if made and isinstance(node.func, ast.Attribute):
                found.add(last_name(node.func.value))
    found.discard("")
    for node in nodes_of(module.tree):
        if not isinstance(node, (ast.For, ast.comprehension)):
            continue
        if any(last_name(i) in found for i in nodes_of(node.iter)):
            found.update(last_name(i) for i in nodes_of(node.target) if isinstance(i, ast.Name))
    return found


def writers_of(
    module: ModuleIndex, name: str
) -> Iterator[tuple[Definition, ClassRef | None, list[object] | None]]:
    """The functions that set an attribute of that name on something other than ``self``.

    With the constants they give it; None when they give it something else.
    """
    if module.written is None:
        module.written = {}
        for node, owner in definitions(module):
            for attribute, constants in _written_in(node).items():
                module.written.setdefault(attribute, []).append((node, owner, constants))
    for definition, of, values in module.written.get(name, ()):
        assert isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef))
        assert of is None or isinstance(of, ClassRef)
        yield definition, of, values


def _written_in(node: ast.AST) -> dict[str, list[object] | None]:
    found: dict[str, list[object] | None] = {}
    for item in nodes_of(node):
        if isinstance(item, ast.Assign):
            targets = item.targets
        elif isinstance(item, (ast.AnnAssign, ast.AugAssign, ast.For, ast.NamedExpr)):
            targets = [item.target]
        elif isinstance(item, ast.withitem) and item.optional_vars is not None:
            targets = [item.optional_vars]
        elif isinstance(item, ast.Call) and last_name(item.func) == "setattr" and len(item.args) == 3:
            if isinstance(item.args[1], ast.Constant) and isinstance(item.args[1].value, str):
                found[item.args[1].value] = None
            continue
        else:
            continue
        value = getattr(item, "value", None)
        for target in targets:
            for part in nodes_of(target):
                if not _is_foreign(part):
                    continue
                constant = part is target and isinstance(item, (ast.Assign, ast.AnnAssign))
                known = found.setdefault(part.attr, [])
                if not constant or not isinstance(value, ast.Constant):
                    found[part.attr] = None
                elif known is not None:
                    known.append(value.value)
    return found


def _is_foreign(part: ast.AST) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and not (isinstance(part.value, ast.Name) and part.value.id == "self")
    )
