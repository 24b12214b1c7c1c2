"""Runs the misuses against kvlint and counts what is reported. ``python -m tests.mutation`` prints it."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kvlint import options
from kvlint.analysis import Session
from kvlint.config import Config, Flags
from kvlint.discovery import Candidate
from kvlint.report.model import Result
from kvlint.source.reader import Project

from .mutate import KINDS, Kind, Mutant, mutants

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.py"))

Found = set[tuple[int, str]]


@dataclass
class Score:
    """How often a kind was injected and reported."""

    total: int = 0
    detected: int = 0
    missed: list[str] = field(default_factory=list)


def findings(path: str, text: str) -> Found:
    """Line and code of everything kvlint reports about a text in the place of a file."""
    config = Config(Flags({**options.defaults(), "isolated": True}, os.path.dirname(path)))
    result = Result()
    # A mutant is a file by itself: the files around it know only the original.
    session = Session(result, os.path.dirname(path), project=Project, debug=True)
    session.check(Candidate(path, path, config.default), text.encode(), True)
    assert not result.problems, result.problems
    return {(finding.spot.line, finding.code) for finding in result.findings}


def detected(mutant: Mutant, found: Found) -> bool:
    """Whether one of the expected rules answers inside what was changed."""
    return any(code in mutant.kind.codes and line in mutant.lines for line, code in found)


def measure(paths: Iterable[Path], kinds: list[Kind] | None = None) -> dict[str, Score]:
    """The score of every kind over some files."""
    scores: dict[str, Score] = defaultdict(Score)
    for path in paths:
        for mutant in mutants(path.read_text(encoding="utf-8"), kinds):
            found = findings(str(path), mutant.text)
            score = scores[mutant.kind.name]
            score.total += 1
            if detected(mutant, found):
                score.detected += 1
            else:
                shown = ", ".join(f"{code}:{line}" for line, code in sorted(found)) or "nothing"
                score.missed.append(f"{path.name}:{mutant.line} {mutant.operator}: reported {shown}")
    return scores


def table(scores: dict[str, Score]) -> str:
    """One line per kind, with what was missed under it, and a total."""
    width = max(len(item.name) for item in KINDS)
    lines = [f"{'kind':{width}}  mutants  detected      %"]

    def row(name: str, total: int, hit: int) -> str:
        share = f"{100 * hit / total:5.1f}" if total else "    -"
        return f"{name:{width}}  {total:7}  {hit:8}  {share}"

    for item in KINDS:
        score = scores.get(item.name, Score())
        lines.append(row(item.name, score.total, score.detected))
        lines.extend(f"    missed: {text}" for text in score.missed)
    total = sum(score.total for score in scores.values())
    lines.append(row("all", total, sum(score.detected for score in scores.values())))
    return "\n".join(lines)


def main() -> int:
    """Prints the table for the fixtures, or for the files named on the command line."""
    paths = [Path(name).resolve() for name in sys.argv[1:]] or FIXTURES
    print(table(measure(paths)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
