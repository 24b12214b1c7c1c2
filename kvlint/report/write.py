"""Prints a result in the format that was asked for."""

from __future__ import annotations

from .text import Style, write_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from kvlint.options import Values

    from .model import Result


def write(result: Result, values: Values, out: TextIO, err: TextIO) -> None:
    """Writes the report to ``out``, and what went wrong inside kvlint to ``err``."""
    if values["output_format"] == "json":
        from .as_json import write_json

        write_json(result, values, out)
    else:
        write_text(result, values, out, Style.choose(str(values["color"]), out))
    out.flush()
    for problem in result.problems:
        if problem.kind == "internal":
            err.write(f"kvlint: error: {problem.path}: {problem.message}\n")
