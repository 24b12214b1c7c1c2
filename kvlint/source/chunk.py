"""Pieces of a module parsed with libcst on demand, with positions only where they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import libcst as cst


class Chunk:
    """One definition or statement of a module, parsed on its own.

    An indented piece is parsed under ``if 1:``, which keeps its columns and shifts lines by one.
    """

    __slots__ = ("_module", "_offset", "_positions", "body", "path")

    def __init__(self, path: str, text: str, first_line: int, indented: bool) -> None:
        self.path = path
        self._module = cst.parse_module("if 1:\n" + text if indented else text)
        self._offset = first_line - (2 if indented else 1)
        self._positions: Mapping[cst.CSTNode, Any] | None = None
        body: Any = self._module.body
        if indented:
            body = body[0].body.body
        self.body: tuple[cst.BaseStatement, ...] = tuple(body)

    def span(self, node: cst.CSTNode) -> tuple[int, int, int, int]:
        """(line, column, end line, end column) in the file, 1-based."""
        if self._positions is None:
            from libcst.metadata import MetadataWrapper, PositionProvider

            try:
                wrapper = MetadataWrapper(self._module, unsafe_skip_copy=True)
                self._positions = wrapper.resolve(PositionProvider)
            except (RecursionError, KeyError):
                # Too deeply nested to be walked: the place is the definition as a whole.
                self._positions = {}
        found = self._positions.get(node)
        if found is None:
            return (self._offset + 1, 1, self._offset + 1, 1)
        start, end = found.start, found.end
        return (start.line + self._offset, start.column + 1, end.line + self._offset, end.column + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """The place of a node; its position is computed when somebody prints it."""

    chunk: Chunk
    node: cst.CSTNode

    @property
    def path(self) -> str:
        return self.chunk.path

    @property
    def line(self) -> int:
        return self.chunk.span(self.node)[0]

    @property
    def column(self) -> int:
        return self.chunk.span(self.node)[1]

    @property
    def end_line(self) -> int:
        return self.chunk.span(self.node)[2]

    @property
    def end_column(self) -> int:
        return self.chunk.span(self.node)[3]

    def __repr__(self) -> str:
        return f"<{type(self.node).__name__} in {self.path}>"

    def text(self) -> str:
        """The node as the source writes it, on one line."""
        return " ".join(cst.Module(body=[]).code_for_node(self.node).split())


class LineSite:
    """A place known by its line alone."""

    __slots__ = ("column", "end_column", "end_line", "line", "path")

    def __init__(self, path: str, line: int, column: int = 1) -> None:
        self.path = path
        self.line = line
        self.column = column
        self.end_line = line
        self.end_column = column
