"""Walking libcst trees without visitors: only the children that carry code."""

from __future__ import annotations

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


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Direct children that carry code, in source order as far as the fields are."""
    for name in _code_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, cst.CSTNode):
                    yield item


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Every node below and including ``node``, depth first in source order."""
    stack = [node]
    while stack:
        item = stack.pop()
        yield item
        stack.extend(reversed(list(children(item))))


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
