"""Module variables that functions rebind through ``global``."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any

import libcst as cst

from kvlint.contract.values import Choice, Unknown, Value

from .module import ModuleIndex
from .syntax import parameters_of

if TYPE_CHECKING:
    from .core import Core

MAX_REBINDERS = 4


def slot(module: ModuleIndex, name: str) -> tuple[Hashable, str]:
    """Where a state keeps what the running code set a module variable to."""
    return ("globals", module.path), name


def unset(key: tuple[Hashable, str]) -> Unknown:
    """What an attribute or module variable holds on a path that does not set it."""
    owner, name = key
    reason = "it is not set on every path"
    if isinstance(owner, tuple) and owner[:1] == ("globals",):
        return Unknown(("global", owner[1], name), name, reason, declared=True)
    return Unknown(("attr", *key), name, reason)


def built_once(value: Value, module: ModuleIndex, name: str, function: Any) -> Value:
    """What ``if _NAME is None: _NAME = build()`` leaves: an earlier run has built the same.

    That holds of a private variable that starts as None, and that only this function sets, without
    arguments that could be others then.
    """
    if not (isinstance(value, Choice) and value.cond.kind == "none" and name.startswith("_")):
        return value
    before = ("global", module.path, name)
    if value.cond.key != before or not isinstance(value.no, Unknown) or value.no.key != before:
        return value
    if not isinstance(function, cst.FunctionDef) or any(True for _ in parameters_of(function)):
        return value
    setters = list(rebinders(module, name))
    alone = [node.name for node in setters] == [function.name.value] and _declarations(module, name) == 1
    return value.yes if alone and _starts_as_none(module, name) else value


def _starts_as_none(module: ModuleIndex, name: str) -> bool:
    bindings = module.globals.get(name, [])
    values = [getattr(binding.node, "value", None) for binding in bindings]
    return len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value is None


def _declarations(module: ModuleIndex, name: str) -> int:
    return sum(isinstance(node, ast.Global) and name in node.names for node in ast.walk(module.tree))


def rebinders(module: ModuleIndex, name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions at the top of a module that declare the name global."""
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _declares(node, name):
            yield node


def _declares(function: ast.AST, name: str) -> bool:
    return any(isinstance(node, ast.Global) and name in node.names for node in ast.walk(function))


def rebound(core: Core, module: ModuleIndex, name: str) -> list[Value] | None:
    """What the functions of a module set a variable to; None when not all of that is visible."""
    found = list(rebinders(module, name))
    inside = sum(isinstance(n, ast.Global) and name in n.names for f in found for n in ast.walk(f))
    if not found or len(found) > MAX_REBINDERS or inside != _declarations(module, name):
        return None
    values: list[Value] = []
    for node in found:
        func = core.function(module, node)
        if func is None:
            return None
        entered = func
        recording, core.recording = core.recording, False
        try:
            state = core.aside(lambda entered=entered: core.enter(entered))  # type: ignore[misc]
        finally:
            core.recording = recording
        if state is None:
            return None
        value = state.attrs.get(slot(module, name))
        if value is not None:
            values.append(core.outlived(core.force(value), state.heap))
    return values
