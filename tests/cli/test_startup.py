"""What a run may import. Start-up time is imports, so they are what is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy", "rich", "pydantic")
FOR_OPERATORS = ("libcst", "kvlint.analysis", "kvlint.source.reader", "kvlint.contract", "kvlint.rules")
# Each costs some milliseconds of its own.
COSTLY = ("typer", "click", "dataclasses", "inspect", "tokenize", "json", "tomllib", "kvlint.cli")


def imported(folder: Path, *words: str) -> set[str]:
    """The modules that a run imports, besides those of an idle interpreter."""

    def modules(*command: str) -> set[str]:
        child = subprocess.run(
            [sys.executable, "-X", "importtime", *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert child.returncode in (0, 1), child.stderr
        return {
            line.rpartition("|")[2].strip()
            for line in child.stderr.splitlines()
            if line.startswith("import time:")
        }

    return modules("-m", "kvlint", *words) - modules("-c", "pass")


def found(modules: set[str], names: tuple[str, ...]) -> list[str]:
    return sorted(m for m in modules for name in names if m == name or m.startswith(f"{name}."))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A project with settings and ignore files, and without operator calls."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / ".gitignore").write_text("build/\n*.so\n/out\n.env*\n")
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import torch_npu\nx = 1\n")
    return tmp_path


def test_tree_without_operator_calls_imports_next_to_nothing(plain: Path) -> None:
    modules = imported(plain, "check")
    assert "kvlint.check" in modules, "the run was not seen at all"
    assert found(modules, HEAVY + FOR_OPERATORS + COSTLY) == []
    assert found(modules, ("re", "pathlib")) == []


def test_tree_with_operator_calls_imports_no_framework(plain: Path) -> None:
    (plain / "c.py").write_text("import torch_npu\ntorch_npu.npu_fusion_attention(q, k, v, 8, 'BSH')\n")
    modules = imported(plain, "check", "--output-format", "json", "--coverage")
    assert "libcst" in modules, "the run was not seen at all"
    assert found(modules, (*HEAVY, "typer", "kvlint.cli", "libcst.matchers")) == []


def test_version_imports_nothing(plain: Path) -> None:
    assert found(imported(plain, "--version"), HEAVY + FOR_OPERATORS + COSTLY) == []


def test_help_loads_neither_rich_nor_pydantic(plain: Path) -> None:
    modules = imported(plain, "check", "--help")
    assert "typer" in modules, "the run was not seen at all"
    assert found(modules, HEAVY + FOR_OPERATORS) == []
