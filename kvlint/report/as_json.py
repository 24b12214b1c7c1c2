"""The JSON report. Keys are only ever added; ``schema`` grows when one changes its meaning."""

from __future__ import annotations

import json

from kvlint import __version__

from .text import statistics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from kvlint.options import Values

    from .model import Finding, Obligation, Result, Spot, Step, Tally

SCHEMA = 1


def write_json(result: Result, values: Values, out: TextIO) -> None:
    """Writes one object, indented, with a line end."""
    document: dict[str, object] = {
        "schema": SCHEMA,
        "version": __version__,
        "findings": [_finding(finding) for finding in result.findings],
        "errors": [
            {"kind": problem.kind, "path": problem.path, "line": problem.line, "message": problem.message}
            for problem in result.problems
        ],
        "summary": {
            "files": result.files,
            "files_with_calls": result.relevant,
            "calls": result.calls,
            "findings": len(result.findings),
            "by_severity": dict(sorted(result.counts().items())),
            "suppressed": result.suppressed,
            "errors": len(result.problems),
        },
    }
    if values["statistics"]:
        document["statistics"] = [
            {"code": code, "name": name, "severity": severity, "count": count}
            for count, code, name, severity in statistics(result)
        ]
    if values["coverage"]:
        document["coverage"] = {
            "rules": [_tally(tally) for _, tally in sorted(result.tallies.items())],
            "all": _tally(result.total()),
        }
    if values["coverage"] or values["undecided"]:
        document["obligations"] = [_obligation(item) for item in result.obligations]
    json.dump(document, out, indent=2)
    out.write("\n")


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "message": finding.message,
        "fix": finding.fix,
        "operator": finding.operator or None,
        **_spot(finding.spot),
        "when": [_step(step) for step in finding.when],
        "via": [_step(step) for step in finding.via],
        "provenance": [_step(step) for step in finding.steps],
    }


def _obligation(item: Obligation) -> dict[str, object]:
    return {
        "code": item.code,
        "name": item.name,
        "outcome": item.outcome,
        "operator": item.operator or None,
        **_spot(item.spot),
        "provenance": [_step(step) for step in item.steps],
    }


def _spot(spot: Spot) -> dict[str, object]:
    found: dict[str, object] = {
        "path": spot.path,
        "line": spot.line,
        "column": spot.column,
        "end_line": spot.end_line,
        "end_column": spot.end_column,
    }
    if spot.cell:
        found["cell"] = spot.cell
    return found


def _step(step: Step) -> dict[str, object]:
    found: dict[str, object] = {"message": step.text}
    if step.spot is not None:
        found["path"] = step.spot.path
        found["line"] = step.spot.line
        found["column"] = step.spot.column
        if step.spot.cell:
            found["cell"] = step.spot.cell
    return found


def _tally(tally: Tally) -> dict[str, object]:
    found: dict[str, object] = {"code": tally.code, "name": tally.name} if tally.code else {}
    found.update(proved=tally.proved, violated=tally.violated, undecided=tally.undecided, total=tally.total)
    return found
