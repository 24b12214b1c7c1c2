"""Kinds of bugs in styles of their own: every bad file is found where marked, every good file is clean.

A file below ``cases/bad`` has a twin of the same name below ``cases/good``, which differs by the fix only.
The other files in ``cases/good`` look wrong and are right.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.examples import expected, findings

from kvlint.contract.rule import all_rules

CASES = Path(__file__).parent.parent / "cases"
BAD = sorted((CASES / "bad").glob("*.py"))
GOOD = sorted((CASES / "good").glob("*.py"))
RULES = [rule for rule in all_rules() if rule.default]


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


@pytest.mark.parametrize("path", BAD, ids=names(BAD))
def test_bug_is_found_where_marked(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    marked = expected(source)
    assert marked
    found = findings(source, RULES)
    assert set(found) == marked, f"messages: {found}"


@pytest.mark.parametrize("path", GOOD, ids=names(GOOD))
def test_right_code_is_clean(path: Path) -> None:
    assert findings(path.read_text(encoding="utf-8"), RULES) == {}


def test_every_bug_has_a_corrected_twin() -> None:
    assert set(names(BAD)) <= set(names(GOOD))
