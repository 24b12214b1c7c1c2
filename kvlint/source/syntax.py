"""Questions about the shape of a tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import libcst as cst

from .walk import children, nodes_of


@lru_cache(maxsize=1 << 16)
def text_of(node: cst.CSTNode) -> str:
    """A node as the source writes it, on one line, cut at 80 characters."""
    text = " ".join(cst.Module(body=[]).code_for_node(node).split())
    return text if len(text) <= 80 else text[:77] + "..."


@lru_cache(maxsize=1 << 14)
def evaluated(literal: Any) -> object:
    """The value of a literal; None for strings that are not all plain. Raises as ``ast.literal_eval``."""
    return literal.evaluated_value


def body_of(node: Any) -> Any:
    inner = node.body
    return (
        inner.body
        if isinstance(inner, (cst.IndentedBlock, cst.SimpleStatementSuite))
        and isinstance(inner, cst.IndentedBlock)
        else [cst.SimpleStatementLine(body=inner.body)]
    )


def parameters_of(node: cst.FunctionDef | cst.Lambda) -> Iterable[tuple[cst.Param, str]]:
    params = node.params
    for param in (*params.posonly_params, *params.params):
        yield param, "positional"
    if isinstance(params.star_arg, cst.Param):
        yield params.star_arg, "*"
    for param in params.kwonly_params:
        yield param, "keyword"
    if params.star_kwarg is not None:
        yield params.star_kwarg, "**"


def decorators_of(node: cst.FunctionDef | cst.Lambda) -> list[str]:
    if isinstance(node, cst.Lambda):
        return []
    return [
        dotted_name(d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator).rsplit(".", 1)[-1]
        for d in node.decorators
    ]


# Decorators that leave a function's result as it is.
TRANSPARENT = frozenset(
    (
        "staticmethod",
        "classmethod",
        "property",
        "cached_property",
        "lru_cache",
        "cache",
        "no_grad",
        "inference_mode",
        "override",
        "abstractmethod",
        "torch_compile",
        "contextmanager",
        "wraps",
        "jit",
        "script",
        "disable",
        "torch_inference",
        "final",
        "overload",
        "typechecked",
        "record_function",
        "register_fake",
    )
)


def wrapping_decorator(node: cst.FunctionDef | cst.Lambda) -> bool:
    return any(name not in TRANSPARENT for name in decorators_of(node))


def dotted_name(node: Any) -> str:
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if isinstance(node, cst.Name):
        parts.append(node.value)
        return ".".join(reversed(parts))
    return ""


def ast_dotted(node: Any) -> str:

    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ".".join(reversed(parts))


def mentions(statement: ast.AST, name: str) -> bool:
    return name in _names_in(statement)


@lru_cache(maxsize=1 << 14)
def _names_in(statement: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in nodes_of(statement) if isinstance(n, ast.Name))


def elements_of(node: Any) -> list[Any]:
    return [e.value for e in node.elements] if isinstance(node, (cst.Tuple, cst.List)) else [node]


def find_def(body: Iterable[Any], name: str) -> cst.FunctionDef | None:
    for statement in body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == name:
            return statement
        inner = getattr(getattr(statement, "body", None), "body", None)
        if isinstance(statement, (cst.ClassDef, cst.If, cst.Try, cst.With)) and inner is not None:
            found = find_def(inner, name)
            if found is not None:
                return found
    return None


@lru_cache(maxsize=1 << 14)
def assigned_names(code: cst.CSTNode) -> frozenset[str]:
    """Names a piece of code binds."""
    found: set[str] = set()
    pending: list[Any] = [code]
    while pending:
        node = pending.pop()
        if isinstance(
            node, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.CompFor)
        ):
            targets = [node.target]
            while targets:
                target = targets.pop()
                if isinstance(target, cst.Name):
                    found.add(target.value)
                elif isinstance(target, (cst.Tuple, cst.List)):
                    targets.extend(e.value for e in target.elements)
        elif isinstance(node, (cst.MatchAs, cst.MatchStar)) and node.name is not None:
            found.add(node.name.value)
        elif isinstance(node, cst.MatchMapping) and node.rest is not None:
            found.add(node.rest.value)
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            continue
        pending.extend(children(node))
    return frozenset(found)


BINARY: dict[type, str] = {
    cst.Add: "+",
    cst.Subtract: "-",
    cst.Multiply: "*",
    cst.Divide: "/",
    cst.FloorDivide: "//",
    cst.Modulo: "%",
    cst.Power: "**",
    cst.BitOr: "|",
    cst.BitAnd: "&",
    cst.LeftShift: "<<",
    cst.RightShift: ">>",
    cst.BitXor: "^",
    cst.MatrixMultiply: "@",
}


AUGMENTED: dict[type, str] = {
    cst.AddAssign: "+",
    cst.SubtractAssign: "-",
    cst.MultiplyAssign: "*",
    cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%",
    cst.PowerAssign: "**",
    cst.BitOrAssign: "|",
    cst.BitAndAssign: "&",
    cst.MatrixMultiplyAssign: "@",
}


ORDER: dict[type, str] = {
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
}
