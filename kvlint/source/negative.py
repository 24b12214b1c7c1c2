"""Operator calls that a test expects to fail: being wrong is their purpose, so they are not judged."""

from __future__ import annotations

import ast
import re

from .module import ModuleIndex
from .walk import nodes_of

_EXPECTS = re.compile(r"raises|assert_?raises\w*|expect_?raises\w*|xfail|expected_?failure", re.I)
_FAILS = frozenset(("fail",))
_RELEVANT = re.compile(r"raises|xfail|expected_?failure|\bfail\(|AssertionError|assert False|assert 0", re.I)
_HELPER_ROUNDS = 4

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Span = tuple[int, int]


def expected_failures(module: ModuleIndex) -> list[Span]:
    """The line ranges, first and last, whose code is meant to raise."""
    if not _RELEVANT.search(module.text):
        return []
    return _Finder(module.tree).spans


class _Finder:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.functions = [node for node in nodes_of(tree) if isinstance(node, _FUNCTIONS)]
        self.wrappers: set[str] = set()
        self.spans: list[Span] = []
        self._collect()
        # A context manager or a runner of the tests' own that expects the failure.
        wrappers = {node.name for node in self.functions if self._expects_inside(node)}
        if wrappers:
            self.wrappers = wrappers
            self.spans.clear()
            self._collect()
        if self.spans:
            self._helpers()

    def _collect(self) -> None:
        for node in nodes_of(self.tree):
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and any(
                self._is_expecting(decorator) for decorator in node.decorator_list
            ):
                self._add(node)
            if isinstance(node, _FUNCTIONS):
                self._contexts(node)
            if isinstance(node, ast.Call) and self._is_expecting(node.func):
                self._add(node)
            for part in ("body", "orelse", "finalbody"):
                block = getattr(node, part, None)
                if isinstance(block, list):
                    self._block(block)
        self._block_contexts(self.tree, set())

    def _add(self, node: ast.stmt | ast.expr) -> None:
        self.spans.append((node.lineno, node.end_lineno or node.lineno))

    def _add_all(self, body: list[ast.stmt]) -> None:
        if body:
            self.spans.append((body[0].lineno, body[-1].end_lineno or body[-1].lineno))

    def _is_expecting(self, node: ast.expr) -> bool:
        """``pytest.raises``, ``self.assertRaises``, ``pytest.mark.xfail(...)``, or one of our wrappers."""
        if isinstance(node, ast.Call):
            node = node.func
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        return bool(_EXPECTS.fullmatch(name)) or name in self.wrappers

    def _expecting_part(self, node: ast.expr) -> bool:
        return any(isinstance(n, ast.Call) and self._is_expecting(n) for n in nodes_of(node))

    def _contexts(self, function: Function) -> None:
        names: set[str] = set()
        for node in nodes_of(function):
            if isinstance(node, ast.Assign) and self._expecting_part(node.value):
                names.update(t.id for t in node.targets if isinstance(t, ast.Name))
        if any(
            _EXPECTS.fullmatch(_last(n))
            for decorator in function.decorator_list
            for n in nodes_of(decorator)
            if isinstance(n, (ast.Name, ast.Attribute))
        ):
            # What the test is parametrized with says which case raises.
            arguments = function.args
            names.update(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
        self._block_contexts(function, names)

    def _block_contexts(self, root: ast.AST, names: set[str]) -> None:
        for node in nodes_of(root):
            if isinstance(node, (ast.With, ast.AsyncWith)) and any(
                self._expecting_part(item.context_expr)
                or (isinstance(item.context_expr, ast.Name) and item.context_expr.id in names)
                for item in node.items
            ):
                self._add_all(node.body)

    def _block(self, block: list[ast.stmt]) -> None:
        for index, node in enumerate(block):
            rest = block[index + 1 :]
            if isinstance(node, ast.Try) and node.handlers and not _all_fail(node):
                after = node.orelse or (rest if all(_leaves(h.body) for h in node.handlers) else [])
                if (after and _fails(after[0])) or (len(node.body) > 1 and _fails(node.body[-1])):
                    self._add_all(node.body)
            elif (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Call)
                and _last(node.value.func) == "xfail"
            ):
                self._add_all(rest)

    def _inside(self, node: ast.stmt | ast.expr) -> bool:
        return any(first <= node.lineno <= last for first, last in self.spans)

    def _expects_inside(self, function: Function) -> bool:
        """Whether a function expects what it is given, or what runs in its context, to fail."""
        arguments = function.args
        given = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        return any(
            self._inside(node)
            for node in nodes_of(function)
            if isinstance(node, ast.Yield)
            or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in given)
        ) and not any(first <= function.lineno <= last for first, last in self.spans)

    def _helpers(self) -> None:
        """Functions that nothing but an expected failure calls."""
        uses: dict[str, list[ast.expr]] = {}
        for node in nodes_of(self.tree):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                uses.setdefault(_last(node), []).append(node)
        pending = [node for node in self.functions if node.name in uses and not self._inside(node)]
        for _ in range(_HELPER_ROUNDS):
            found = [node for node in pending if all(self._inside(use) for use in uses[node.name])]
            if not found:
                break
            for node in found:
                self._add(node)
                pending.remove(node)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _fails(node: ast.stmt) -> bool:
    """``pytest.fail(...)``, ``self.fail()``, ``raise AssertionError``, ``assert False``."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return _last(node.value.func) in _FAILS
    if isinstance(node, ast.Raise) and node.exc is not None:
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return _last(error) == "AssertionError"
    return isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and not node.test.value


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Continue, ast.Break))


def _all_fail(node: ast.Try) -> bool:
    """Whether an exception fails the test as well: then none is expected."""
    return all(any(_fails(s) or isinstance(s, ast.Raise) for s in h.body) for h in node.handlers)


__all__ = ["Span", "expected_failures"]
