"""Walking trees: libcst trees without visitors, only the children that carry code; ``ast`` trees fast."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache

import libcst as cst

_TRIVIA = (
    "whitespace",
    "lpar",
    "rpar",
    "comma",
    "semicolon",
    "newline",
    "lines",
    "header",
    "footer",
    "lbrace",
    "rbrace",
    "lbracket",
    "rbracket",
    "indent",
    "colon",
    "dot",
    "equal",
    "operator",
    "default_newline",
)


@cache
def _code_fields(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if not any(part in f.name for part in _TRIVIA))


@cache
def _is_node(kind: type) -> bool:
    # The classes of nodes are abstract base classes: asking for an instance of one is slow.
    return issubclass(kind, cst.CSTNode)


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Direct children that carry code, in source order as far as the fields are."""
    for name in _code_fields(type(node)):
        value = getattr(node, name)
        if value is None:
            continue
        if isinstance(value, (list, tuple)):
            for item in value:
                if _is_node(item.__class__):
                    yield item
        elif _is_node(value.__class__):
            yield value


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Every node below and including ``node``, depth first in source order."""
    stack = [node]
    while stack:
        item = stack.pop()
        yield item
        if type(item) is not cst.Name:
            stack.extend(reversed(list(children(item))))


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """What ``ast.walk`` gives, in its order and several times as fast, without contexts (``Load`` ...)."""
    found = [tree]
    for node in found:
        for value in vars(node).values():
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        found.append(item)
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    return found


def parents(node: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """Child -> parent for every node below ``node``."""
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    stack = [node]
    while stack:
        item = stack.pop()
        for child in children(item):
            found[child] = item
            stack.append(child)
    return found
