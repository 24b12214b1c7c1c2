"""Reads the source examples that rules carry, and what a set of rules finds in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import dedent

from kvlint import options
from kvlint.analysis import Session
from kvlint.config import Config, Flags
from kvlint.contract.call import Call, Scope, Target
from kvlint.contract.rule import Outcome, Rule, Verdict, judge
from kvlint.discovery import Candidate
from kvlint.report.model import Result
from kvlint.source.reader import Project

PRELUDE = "import math, itertools, torch, torch_npu, torchair\n"

Finding = tuple[int, str]


def text_of(example: str) -> str:
    """The example as a module."""
    return PRELUDE + dedent(example).strip("\n") + "\n"


def expected(source: str) -> set[Finding]:
    """Line and code of every marker ``# KV101, KV102``."""
    found: set[Finding] = set()
    for number, line in enumerate(source.splitlines(), 1):
        marker = re.search(r"#\s*(KV\d{3}(?:\s*,\s*KV\d{3})*)\s*$", line)
        if marker:
            found.update((number, code) for code in re.findall(r"KV\d{3}", marker.group(1)))
    return found


def calls_of(source: str, target: Target | None = None, path: str = "example.py") -> list[Call]:
    """Every operator call of a module, in source order."""
    return [call for scope in scopes_of(source, target, path) for call in scope.calls]


def scopes_of(source: str, target: Target | None = None, path: str = "example.py") -> tuple[Scope, ...]:
    """The scopes of a module that contain operator calls."""
    return Project([], target or Target()).read(path, source.encode()).scopes


def verdicts(
    source: str, rules: Iterable[Rule], target: Target | None = None
) -> list[tuple[int, Rule, Verdict]]:
    """What the rules say about a module: the line of each verdict, the rule and the verdict."""
    rules = tuple(rules)
    found: list[tuple[int, Rule, Verdict]] = []
    for scope in scopes_of(source, target):
        for call in scope.calls:
            for rule in rules:
                if rule.applies_to(call.operator):
                    for verdict in judge(rule, call):
                        place = verdict.place or call.place
                        found.append((place.line if place else 0, rule, verdict))
        for event in scope.events:
            for rule in rules:
                if event.kind in rule.events:
                    verdict = rule.check_event(event, scope)
                    found.append(((verdict.place or event.place).line, rule, verdict))
    return found


def findings(source: str, rules: Iterable[Rule], target: Target | None = None) -> dict[Finding, str]:
    """Line and code of every violation, with its message."""
    return {
        (line, rule.code): verdict.message
        for line, rule, verdict in verdicts(source, rules, target)
        if verdict.outcome is Outcome.VIOLATED
    }


def reported(source: str, rules: Iterable[Rule]) -> dict[Finding, str]:
    """The same as a user sees it: after suppression comments, with what is wrong about those."""
    values = options.defaults()
    config = Config(Flags({**values, "isolated": True}, "/"))
    result = Result()
    session = Session(result, "/", rules=tuple(rules), debug=True)
    session.check(Candidate("/example.py", "example.py", config.default), source.encode(), True)
    assert not result.problems
    return {(finding.spot.line, finding.code): finding.message for finding in result.findings}
