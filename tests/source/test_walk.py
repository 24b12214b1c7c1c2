"""Walking trees."""

from __future__ import annotations

import ast
from pathlib import Path

from kvlint.source.walk import nodes_of


def test_every_node_but_contexts_in_the_order_of_the_library() -> None:
    tree = ast.parse(Path(__file__).read_text())
    assert nodes_of(tree) == [n for n in ast.walk(tree) if not isinstance(n, ast.expr_context)]
