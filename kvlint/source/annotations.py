"""Type annotations: what they say of a value, without trusting them for a fault."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import libcst as cst

from kvlint.contract.values import Hint

_TENSORS = frozenset(
    ("torch.Tensor", "Tensor", "torch.nn.Parameter", "nn.Parameter", "Parameter", "torch.nn.Buffer")
)
_PLAIN = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "torch.dtype": "dtype",
    "dict": "dict",
    "Dict": "dict",
    "Mapping": "dict",
    "list": "list",
    "List": "list",
    "Sequence": "list",
    "Iterable": "list",
    "tuple": "list",
    "Tuple": "list",
}
_WRAPPERS = frozenset(("Final", "ClassVar", "Annotated", "Required", "NotRequired"))


def hint_of(annotation: Any) -> Hint | None:
    """What an annotation (an ``ast`` or libcst expression) says; None when it says nothing that helps."""
    if annotation is None:
        return None
    if isinstance(annotation, ast.expr):
        return _hint(annotation)
    if isinstance(annotation, cst.Name):
        return _parsed(annotation.value)
    return _parsed(cst.Module(body=[]).code_for_node(annotation))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Hint | None:
    try:
        return _hint(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _hint(node: ast.expr) -> Hint | None:
    if isinstance(node, ast.Constant):
        return _parsed(node.value) if isinstance(node.value, str) else None
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = _dotted(node)
        kind = _PLAIN.get(name) or (
            _PLAIN.get(_last(name)) if name.startswith(("typing.", "collections.")) else None
        )
        return Hint("Tensor" if name in _TENSORS else kind or name) if name else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([node.left, node.right])
    if not isinstance(node, ast.Subscript):
        return None
    outer = _last(_dotted(node.value))
    inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if outer == "Optional":
        return _union([*inner, ast.Constant(None)])
    if outer == "Union":
        return _union(inner)
    if outer in _WRAPPERS:
        return _hint(inner[0])
    kind = _PLAIN.get(outer)
    if kind not in ("list", "dict"):
        return None
    if kind == "dict":
        inner = inner[1:]
    homogeneous = outer not in ("tuple", "Tuple") or (
        len(inner) == 2 and isinstance(inner[1], ast.Constant) and inner[1].value is ...
    )
    found = [_hint(item) for item in (inner[:1] if homogeneous else inner)]
    # One unreadable item of a tuple makes the positions of the others useless.
    items = tuple(item for item in found if item is not None) if None not in found else ()
    return Hint(kind if homogeneous else "tuple", items=items)


def _union(parts: list[ast.expr]) -> Hint | None:
    """One type or None; several types say nothing."""
    rest = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is None)]
    hint = _hint(rest[0]) if len(rest) == 1 else None
    if hint is None:
        return None
    return Hint(hint.name, hint.optional or len(rest) < len(parts), hint.items)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]
