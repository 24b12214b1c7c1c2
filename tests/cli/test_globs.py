"""Patterns mean what git makes of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlint.globs import Globs

CASES = [
    # pattern, path, is a folder, verdict
    ("a.py", "a.py", False, True),
    ("a.py", "x/a.py", False, True),
    ("/a.py", "x/a.py", False, None),
    ("x/a.py", "x/a.py", False, True),
    ("x/a.py", "y/x/a.py", False, None),
    ("build/", "build", True, True),
    ("build/", "build", False, None),
    ("x/build/", "x/build", True, True),
    ("*.py", "x/a.py", False, True),
    ("*.py", ".py", False, True),
    ("test*", "x/test_a.py", False, True),
    ("t*t.py", "test.py", False, True),
    ("x/*.py", "x/a.py", False, True),
    ("x/*.py", "x/y/a.py", False, None),
    ("x/**", "x/y/a.py", False, True),
    ("x/**", "x", True, None),
    ("**/y", "x/y", True, True),
    ("**/y", "y", True, True),
    ("x/**/a.py", "x/a.py", False, True),
    ("x/**/a.py", "x/y/z/a.py", False, True),
    ("x/**/a.py", "xy/a.py", False, None),
    ("a?.py", "ab.py", False, True),
    ("x?y", "x/y", False, None),
    ("[ab].py", "b.py", False, True),
    ("[!ab].py", "b.py", False, None),
    ("[a-c].py", "b.py", False, True),
    ("[]a].py", "].py", False, True),
    ("[[:digit:]].py", "7.py", False, True),
    ("[a", "[a", False, None),
    (r"\#a", "#a", False, True),
    (r"\!a", "!a", False, True),
    ("#a", "#a", False, None),
    (r"a\*", "a*", False, True),
    (r"a\*", "ab", False, None),
    ("a ", "a", False, True),
    (r"a\ ", "a ", False, True),
    ("", "a", False, None),
    ("/", "a", True, None),
    (".*/", ".git", True, True),
    (".*/", ".env", False, None),
    ("a.+(b)", "a.+(b)", False, True),
    ("a.b", "axb", False, None),
]


@pytest.mark.parametrize(("pattern", "path", "is_dir", "verdict"), CASES)
def test_one_pattern(pattern: str, path: str, is_dir: bool, verdict: bool | None) -> None:
    assert Globs("/", [pattern]).match(path, is_dir) is verdict


@pytest.mark.parametrize(
    ("lines", "path", "verdict"),
    [
        (["*.py", "!a.py"], "a.py", False),
        (["!a.py", "*.py"], "a.py", True),
        (["*.py", "!a.py", "a*"], "a.py", True),
        (["a.py", "!*.py", "b.py"], "a.py", False),
        (["x/*.py", "!a.py"], "x/a.py", False),
    ],
)
def test_the_last_pattern_decides(lines: list[str], path: str, verdict: bool) -> None:
    assert Globs("/", lines).match(path, False) is verdict


def test_covers_looks_at_the_folders_above() -> None:
    globs = Globs("/", ["gen/"])
    assert globs.covers("x/gen/deep/a.py")
    assert not globs.covers("x/gen.py")


_PIECES = st.sampled_from(
    ["a", "b", "ab", "a.py", "*", "**", "*.py", "a*", "?", "[ab]", "[!a]", "a**b", r"\a"]
)
_PATTERN = st.builds(
    lambda negated, lead, pieces, tail: negated + lead + "/".join(pieces) + tail,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "/"]),
    st.lists(_PIECES, min_size=1, max_size=3),
    st.sampled_from(["", "/"]),
)
_NAMES = ["a", "b", "ab", "a.py", "axb"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git to compare with")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(_PATTERN, min_size=1, max_size=3))
def test_agrees_with_git(lines: list[str], tmp_path: Path) -> None:
    if not (tmp_path / ".git").exists():
        subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
        for name in _NAMES:
            (tmp_path / "d" / name).mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("\n".join(lines) + "\n")
    globs = Globs(str(tmp_path), lines)
    ours = [name for name in _NAMES if globs.covers(f"d/{name}", True)]
    child = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        input="\n".join(f"d/{name}" for name in _NAMES),
        cwd=tmp_path,
        capture_output=True,
        check=False,  # 1 means that nothing is ignored
        text=True,
    )
    theirs = [line.removeprefix("d/") for line in child.stdout.splitlines()]
    assert ours == theirs
