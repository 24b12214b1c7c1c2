"""Notebooks: the code cells as one module, and the way back from its lines to cells."""

from __future__ import annotations

import ast
import json
import re

_MAGIC = re.compile(r"(?P<indent>\s*)(?:[%!?]|(?P<name>[\w, ]+?)\s*=\s*[%!]|.*[^\s#?]\?{1,2}\s*$)")
# Cell magics whose cell is still Python that runs in the notebook.
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3")


class NotebookError(ValueError):
    """The file is no notebook."""


def read(source: bytes) -> tuple[str, list[tuple[int, int]]]:
    """The module text, and for each of its lines the 1-based (cell, line in the cell).

    Cells count from the top of the notebook, text cells included, as its readers see them. Raises
    :class:`NotebookError`.
    """
    try:
        document = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise NotebookError(f"not a notebook: {str(error).splitlines()[0]}") from None
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise NotebookError("not a notebook: it has no list of cells")
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        written = cell.get("source", "")
        text = "".join(map(str, written)) if isinstance(written, list) else str(written)
        for index, line in enumerate(_python(text.splitlines()), 1):
            lines.append(line)
            places.append((number, index))
    return "\n".join(lines) + "\n", places


def _python(lines: list[str]) -> list[str]:
    """The lines of a cell with what only IPython understands taken out, line for line."""
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_PYTHON_CELLS):
        return ["" for _ in lines]
    try:
        ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return [_plain(line) for line in lines]
    return lines


def _plain(line: str) -> str:
    match = _MAGIC.match(line)
    if match is None:
        return line
    if match.group("name"):
        return f"{match.group('indent')}{match.group('name').strip()} = None"
    return f"{match.group('indent')}pass"
