"""Module variables that functions rebind through ``global``."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import libcst as cst

from kvlint.contract.values import Choice, Unknown, Value

from .module import ModuleIndex
from .syntax import parameters_of
from .torchlib import key_of
from .walk import nodes_of

if TYPE_CHECKING:
    from .core import Core

MAX_REBINDERS = 4
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def slot(module: ModuleIndex, name: str) -> tuple[Hashable, str]:
    """Where a state keeps what the running code set a module variable to."""
    return ("globals", module.path), name


def entry_slot(holder: Value, index: Value) -> tuple[Hashable, str]:
    """Where a state keeps what was stored in a dict under a key that is not visible."""
    return ("entry", key_of(holder), key_of(index)), "[]"


def forget_entries(attrs: dict[tuple[Hashable, str], Value], holder: Value) -> None:
    """Drops what was stored under keys that are not visible: the dict may have changed since."""
    marker = ("entry", key_of(holder))
    for slot_ in [key for key in attrs if isinstance(key[0], tuple) and key[0][:2] == marker]:
        del attrs[slot_]


def unset(key: tuple[Hashable, str]) -> Unknown:
    """What an attribute or module variable holds on a path that does not set it."""
    owner, name = key
    reason = "it is not set on every path"
    if isinstance(owner, tuple) and owner[:1] == ("globals",):
        return Unknown(("global", owner[1], name), name, reason, declared=True)
    if isinstance(owner, tuple) and owner[:1] == ("entry",):
        return Unknown(("item", *owner[1:]), "an entry of a dict", "it was stored before, if at all")
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
    setters = _declarations(module).get(name, [])
    alone = [node.name if node is not None else None for node in setters] == [function.name.value]
    return value.yes if alone and _starts_as_none(module, name) else value


def _starts_as_none(module: ModuleIndex, name: str) -> bool:
    bindings = module.globals.get(name, [])
    values = [getattr(binding.node, "value", None) for binding in bindings]
    return len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value is None


@lru_cache(maxsize=4096)
def _declarations(module: ModuleIndex) -> dict[str, list[Definition | None]]:
    """Name -> for each ``global`` statement with it, the function at the top of the module around it."""
    found: dict[str, list[Definition | None]] = {}
    for statement in module.tree.body if module.global_writes else ():
        function = statement if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
        for node in nodes_of(statement):
            if isinstance(node, ast.Global):
                for name in set(node.names):
                    found.setdefault(name, []).append(function)
    return found


def rebound(core: Core, module: ModuleIndex, name: str) -> list[Value] | None:
    """What the functions of a module set a variable to; None when not all of that is visible."""
    setters = dict.fromkeys(_declarations(module).get(name, ()))
    if not setters or len(setters) > MAX_REBINDERS or None in setters:
        return None
    values: list[Value] = []
    for node in setters:
        assert node is not None
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
