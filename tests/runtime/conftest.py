"""Tests of ``kvlint run``. Programs run in processes of their own, as a user starts them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Running programs is an extra: without torch its tests are left out.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """``python words...`` in the test's folder."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False,
            **options,
        )  # fmt: skip

    return run


@pytest.fixture
def kvlint_run(python: Run) -> Run:
    """``kvlint run words...`` in the test's folder, with the operators of the catalogue."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "kvlint.runtime.cli", "--sim", "--route", "catalogue", *words)

    return run
