"""kvlint must report the misuses that the mutation tool injects, and nothing in the correct files."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from kvlint.contract.rule import find_rule

from .mutate import KINDS, mutants
from .report import FIXTURES, Score, detected, findings, measure, table

# What kvlint is known not to see. Shrinks only.
UNSEEN = {"lengths that are summed elsewhere, for packed queries", "slots of another block size"}
PER_KIND = 1
LARGEST = 60_000


@cache
def scores() -> dict[str, Score]:
    """The scores over the fixtures."""
    return measure(FIXTURES)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_fixtures_are_clean(path: Path) -> None:
    assert findings(str(path), path.read_text(encoding="utf-8")) == set()


def test_kinds_name_rules() -> None:
    assert len({item.name for item in KINDS}) == len(KINDS)
    for item in KINDS:
        for code in item.codes:
            assert find_rule(code) is not None, f"{item.name}: {code}"


def test_mutants_are_the_same_every_time() -> None:
    text = FIXTURES[0].read_text(encoding="utf-8")
    first = [(item.kind.name, item.text) for item in mutants(text)]
    assert first == [(item.kind.name, item.text) for item in mutants(text)]


@pytest.mark.parametrize("kind", [item.name for item in KINDS])
def test_every_kind_is_reported(kind: str) -> None:
    score = scores().get(kind, Score())
    assert score.total, "no fixture has a call for it"
    assert score.detected or kind in UNSEEN, "\n".join(score.missed)


def test_nearly_all_mutants_are_reported() -> None:
    total = sum(score.total for score in scores().values())
    hits = sum(score.detected for score in scores().values())
    assert len(KINDS) >= 25
    assert hits >= 0.95 * total, table(scores())


def _sglang() -> Path | None:
    """The ``sglang`` package: from KVLINT_SGLANG, or an installed one; it is not imported."""
    named = os.environ.get("KVLINT_SGLANG")
    if named:
        return Path(named)
    found = importlib.util.find_spec("sglang")
    return Path(found.origin).parent if found and found.origin else None


def test_misuses_in_sglang() -> None:
    """Misuses that the call itself shows, a few of each kind, in files of a real package."""
    root = _sglang()
    if root is None:
        pytest.skip("sglang is not installed, and KVLINT_SGLANG does not name its folder")
    local = [item for item in KINDS if item.local]
    done: Counter[str] = Counter()
    missed = []
    for path in sorted((root / "srt").rglob("*.py")):
        if "npu" not in str(path.relative_to(root)) or path.stat().st_size > LARGEST:
            continue
        text = path.read_text(encoding="utf-8")
        if "npu." not in text and "torch_npu" not in text:
            continue
        base = None
        for mutant in mutants(text, [item for item in local if done[item.name] < PER_KIND]):
            if done[mutant.kind.name] >= PER_KIND:
                continue
            if base is None:
                base = findings(str(path), text)
            done[mutant.kind.name] += 1
            found = findings(str(path), mutant.text)
            if not detected(mutant, found):
                missed.append(f"{mutant.kind.name}: {path.name}:{mutant.line} {sorted(found - base)}")
            kept = Counter(code for line, code in base if line not in mutant.lines)
            assert not kept - Counter(code for _, code in found), "a finding disappeared"
    total = sum(done.values())
    assert total >= 25
    assert total - len(missed) >= 0.95 * total, "\n".join(missed)
