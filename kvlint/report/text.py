"""The text and concise reports."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from kvlint.options import Values

    from .model import Finding, Obligation, Result, Step, Tally

# Provenance lines printed per finding; JSON has them all.
MAX_STEPS = 6
# Columns of source printed per line.
MAX_WIDTH = 160


class Style:
    """Colours, or none."""

    CODES = {"bold": "1", "red": "1;31", "yellow": "33", "cyan": "36", "green": "32", "dim": "2"}

    def __init__(self, coloured: bool) -> None:
        self.coloured = coloured

    @classmethod
    def choose(cls, wish: str, out: TextIO) -> Style:
        """By ``--color``; for "auto" by NO_COLOR, then FORCE_COLOR, then whether it is a terminal."""
        if wish != "auto":
            return cls(wish == "always")
        if os.environ.get("NO_COLOR"):
            return cls(False)
        if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
            return cls(True)
        return cls(out.isatty() and os.environ.get("TERM") != "dumb")

    def __call__(self, how: str, text: str) -> str:
        return f"\x1b[{self.CODES[how]}m{text}\x1b[0m" if self.coloured else text


def write_text(result: Result, values: Values, out: TextIO, style: Style) -> None:
    """Writes findings, files that were not checked, the tables asked for, and the summary line."""
    short = values["output_format"] == "concise"
    if values["statistics"]:
        for count, code, name, severity in statistics(result):
            out.write(f"{count:>5}  {code}  {name} [{severity}]\n")
    else:
        for finding in result.findings:
            out.write(_headline(finding, style))
            if not short:
                out.write("".join(f"{line}\n" for line in _details(finding, style)) + "\n")
    for problem in result.problems:
        if problem.kind != "internal":
            where = f"{problem.path}:{problem.line}" if problem.line else problem.path
            out.write(f"{style('bold', clean(where))}: {style('red', 'error')}: {clean(problem.message)}\n")
    if values["undecided"]:
        for item in result.obligations:
            if item.outcome == "undecided":
                out.write(_open(item, style))
    if values["coverage"]:
        out.writelines(f"{line}\n" for line in coverage_table(result))
    out.write(summary(result, style) + "\n")


def statistics(result: Result) -> list[tuple[int, str, str, str]]:
    """(count, code, name, severity), most frequent first."""
    counts: dict[tuple[str, str, str], int] = {}
    for finding in result.findings:
        key = (finding.code, finding.name, finding.severity)
        counts[key] = counts.get(key, 0) + 1
    rows = [(count, *key) for key, count in counts.items()]
    return sorted(rows, key=lambda row: (-row[0], row[1]))


def summary(result: Result, style: Style) -> str:
    """The last line."""
    scope = f"{many(result.calls, 'operator call')} in {result.relevant} of {many(result.files, 'file')}"
    if result.findings:
        kinds = ", ".join(f"{count} {severity}" for severity, count in _worst_first(result))
        found = style("red", f"Found {many(len(result.findings), 'problem')}")
        text = f"{found} ({kinds}): {scope}"
    else:
        text = f"{style('green', 'No problems found')}: {scope}"
    if result.suppressed:
        text += f", {result.suppressed} suppressed"
    if result.problems:
        text += f", {many(len({problem.path for problem in result.problems}), 'file')} with errors"
    return text + "."


def many(count: int, noun: str) -> str:
    """The count with its noun in the right number."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


SEVERITIES = ("silent", "device-error", "host-error", "ignored", "performance", "advice")


def _worst_first(result: Result) -> list[tuple[str, int]]:
    counts = result.counts()
    return [(severity, counts[severity]) for severity in SEVERITIES if severity in counts]


def _headline(finding: Finding, style: Style) -> str:
    spot = finding.spot
    return (
        f"{style('bold', clean(spot.where))}:{spot.column}: {style('red', finding.code)} "
        f"[{finding.severity}] {clean(finding.message)} {style('dim', f'({finding.name})')}\n"
    )


def _details(finding: Finding, style: Style) -> list[str]:
    spot = finding.spot
    number = str(spot.line)
    gutter = " " * len(number)
    lines: list[str] = []
    if finding.excerpt.strip():
        end = spot.end_column if spot.end_line == spot.line else len(finding.excerpt.rstrip()) + 1
        source, marks = underline(finding.excerpt, spot.column, end)
        lines.append(f"{gutter} {style('cyan', '|')}")
        lines.append(f"{number} {style('cyan', '|')} {source}".rstrip())
        lines.append(f"{gutter} {style('cyan', '|')} {style('red', marks)}")
    for label, steps in (("when", finding.when), ("via", finding.via), ("because", finding.steps)):
        for step in steps[:MAX_STEPS]:
            lines.append(f"{gutter} {style('cyan', '=')} {label}: {_step(step)}")
        if len(steps) > MAX_STEPS:
            lines.append(f"{gutter} {style('cyan', '=')} {label}: and {len(steps) - MAX_STEPS} more")
    if finding.fix:
        lines.append(f"{gutter} {style('cyan', '=')} fix: {clean(finding.fix)}")
    if finding.confidence != "high":
        lines.append(f"{gutter} {style('cyan', '=')} confidence: {finding.confidence}")
    return lines


def underline(text: str, column: int, end: int) -> tuple[str, str]:
    """A source line made printable, and the carets under its columns ``column`` to ``end`` (1-based)."""
    start = max(0, min(column - 1, len(text)))
    stop = max(start + 1, min(end - 1, len(text)))
    lead, tail = "", ""
    first, last = 0, len(text)
    if last > MAX_WIDTH:  # a window around the carets
        first = max(0, min(start - 40, last - MAX_WIDTH))
        last = min(last, first + MAX_WIDTH)
        stop = max(start + 1, min(stop, last))
        lead, tail = "..." * (first > 0), "..." * (last < len(text))
    shown = [clean(char) if char != "\t" else "    " for char in text[first:last]]
    widths = [_width(item) for item in shown]
    before = len(lead) + sum(widths[: start - first])
    inside = sum(widths[start - first : stop - first])
    return lead + "".join(shown) + tail, " " * before + "^" * max(1, inside)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def clean(text: str) -> str:
    """The text without characters that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else "\\n" if char == "\n" else repr(char)[1:-1] for char in text
    )


def _step(step: Step) -> str:
    return f"{clean(step.spot.where)}: {clean(step.text)}" if step.spot is not None else clean(step.text)


def _open(item: Obligation, style: Style) -> str:
    why = [
        f"{clean(step.text)} ({clean(step.spot.where)})" if step.spot is not None else clean(step.text)
        for step in item.steps[:3]
    ]
    where = f"{style('bold', clean(item.spot.where))}:{item.spot.column}"
    return f"{where}: {style('yellow', item.code)} undecided: {'; '.join(why) or 'not known'} ({item.name})\n"


def coverage_table(result: Result) -> list[str]:
    """Per rule and overall: how many obligations applied, and how they ended."""
    tallies = [tally for _, tally in sorted(result.tallies.items())]
    if not tallies:
        return ["No obligation applies."]
    rows: list[Sequence[str]] = [("rule", "applies", "proved", "violated", "undecided", "decided")]
    rows += [_row(f"{tally.code} {tally.name}", tally) for tally in tallies]
    rows.append(_row("all rules", result.total()))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _row(label: str, tally: Tally) -> Sequence[str]:
    share = (tally.proved + tally.violated) / tally.total if tally.total else 0.0
    numbers = (tally.total, tally.proved, tally.violated, tally.undecided)
    return (label, *(str(number) for number in numbers), f"{share:.0%}")
