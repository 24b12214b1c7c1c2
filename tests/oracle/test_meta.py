"""Shapes and dtypes of every case against torch_npu's own meta kernels.

Needs an interpreter in which ``import torch_npu`` works (with CANN, or with stub runtime libraries); name
it in KVLINT_NPU_PYTHON. It must see this kvlint, torch and typer are not needed beyond that.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("KVLINT_NPU_PYTHON", "")


@pytest.mark.skipif(not PYTHON, reason="KVLINT_NPU_PYTHON names no interpreter with torch_npu")
def test_shapes_equal_those_of_the_meta_kernels() -> None:
    script = Path(__file__).with_name("meta_shapes.py")
    done = subprocess.run([PYTHON, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["checked"] > 100
    assert found["differences"] == []
