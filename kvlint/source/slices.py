"""Which statements of a method decide one attribute: what is evaluated when the whole costs too much."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import libcst as cst

from .syntax import body_of, parameters_of
from .walk import walk

_BINDING = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.CompFor)
Mention = str
"""A local name, or ``.name`` for an attribute of the object itself."""


def deciding(func: cst.FunctionDef, me: str, name: str) -> list[Any]:
    """The statements of a body that set ``me.name``, and those that set what they read, in order."""
    body = list(body_of(func))
    parts = _parts(func, me)
    wanted = {f".{name}"}
    chosen: set[int] = set()
    while True:
        more = {i for i, (stored, _) in enumerate(parts) if i not in chosen and not stored.isdisjoint(wanted)}
        if not more:
            break
        chosen |= more
        for index in more:
            wanted |= parts[index][1]
    return [statement for index, statement in enumerate(body) if index in chosen]


@lru_cache(maxsize=4096)
def _parts(func: cst.FunctionDef, me: str) -> list[tuple[set[Mention], set[Mention]]]:
    """What each statement of a body sets, and what it reads."""
    given = {param.name.value for param, _ in parameters_of(func)}
    return [(_set_in(statement, me, given), _read_in(statement, me)) for statement in body_of(func)]


def _set_in(statement: cst.CSTNode, me: str, given: set[str]) -> set[Mention]:
    """What a statement binds, or may change in place other than the parameters in ``given``."""
    found: set[Mention] = set()
    for node in walk(statement):
        if isinstance(node, _BINDING):
            found.update(_targets(node.target, me))
        elif isinstance(node, cst.AsName):
            found.update(_targets(node.name, me))
        elif isinstance(node, (cst.Import, cst.ImportFrom)) and not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                bound = alias.asname.name if alias.asname is not None else alias.name
                while isinstance(bound, cst.Attribute):
                    bound = bound.value  # type: ignore[assignment]
                found.update(_targets(bound, me))
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            found.add(node.name.value)
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            # A method may change its receiver.
            found.update(item for item in _targets(node.func.value, me) if item not in given)
            if node.func.attr.value.startswith("register_") and node.args:
                first = node.args[0].value
                if isinstance(first, cst.SimpleString):
                    found.add(f".{first.raw_value}")
    return found


def _targets(node: Any, me: str) -> Iterable[Mention]:
    if isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from _targets(element.value, me)
        return
    while isinstance(node, (cst.Subscript, cst.Attribute, cst.Call)):
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == me:
            yield f".{node.attr.value}"
            return
        node = node.func if isinstance(node, cst.Call) else node.value
    if isinstance(node, cst.Name):
        yield node.value


def _read_in(statement: cst.CSTNode, me: str) -> set[Mention]:
    """Every name and own attribute that a statement mentions."""
    found: set[Mention] = set()
    for node in walk(statement):
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == me:
            found.add(f".{node.attr.value}")
        elif isinstance(node, cst.Name) and node.value != me:
            found.add(node.value)
    return found
