"""The README says what is true. ``KVLINT_UPDATE_README=1 pytest tests/test_readme.py`` updates it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvlint.config import KEYS, _check
from kvlint.contract.rule import all_rules
from kvlint.report.rules import table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def between(text: str, start: str, end: str) -> str:
    """The part of the README between two markers."""
    found = re.search(re.escape(start) + r"\n(.*?)" + re.escape(end), text, re.DOTALL)
    assert found is not None, f"{start} is gone from the README"
    return found.group(1)


def in_step(start: str, end: str, wanted: str) -> None:
    """Asserts that a generated part is current, or makes it so."""
    text = README.read_text(encoding="utf-8")
    held = between(text, start, end)
    if os.environ.get("KVLINT_UPDATE_README"):
        README.write_text(
            text.replace(start + "\n" + held + end, start + "\n" + wanted + end), encoding="utf-8"
        )
        return
    assert held == wanted, "run KVLINT_UPDATE_README=1 pytest tests/test_readme.py"


def test_rules_table() -> None:
    in_step("<!-- rules -->", "<!-- end of rules -->", f"\n{table(all_rules())}\n")


def test_example_output() -> None:
    child = subprocess.run(
        [sys.executable, "-m", "kvlint", "check", "kvlint/examples", "--color=never"],
        capture_output=True,
        check=False,
        text=True,
        cwd=ROOT,
    )
    assert (child.returncode, child.stderr) == (1, "")
    in_step("<!-- example output -->\n```text", "```\n\nTo install it", child.stdout)


def test_example_shows_faults_that_raise_nothing() -> None:
    output = between(
        README.read_text(encoding="utf-8"), "<!-- example output -->\n```text", "```\n\nTo install it"
    )
    assert output.count("[silent]") >= 2
    assert "= when: " in output and "= because: " in output and "= fix: " in output


def test_configuration_example_is_valid_and_complete() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    tables = [tomllib.loads(block)["tool"]["kvlint"] for block in blocks]
    for key, value in tables[0].items():
        _check(key, value, "README")
    assert set(tables[0]) == set(KEYS)


@pytest.mark.parametrize("name", ["kvlint", "rules", "oracle", "tests", "kvlint/contract", "kvlint/examples"])
def test_layout_names_folders_that_exist(name: str) -> None:
    assert (ROOT / name).is_dir()
    assert f"{name.rpartition('/')[2]}/" in README.read_text(encoding="utf-8")


def test_ci_runs_the_command_of_the_readme() -> None:
    command = between(README.read_text(encoding="utf-8"), "<!-- test command -->\n```sh", "```").strip()
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    line = next(line for line in script.splitlines() if line.startswith("command="))
    child = subprocess.run(
        ["bash", "-c", f'{line}; printf %s "$command"'], capture_output=True, check=True, text=True, cwd=ROOT
    )
    assert child.stdout == command
    assert command.count("\n") == 0 and command.endswith("pytest")
