"""``pytest --kvlint-sim``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = "import torch_npu\nBEFORE = torch_npu.__version__\n"
TEST = """\
def test_device():
    import torch, torch_npu
    assert torch.zeros(1, device="npu").is_npu
"""
FIXTURE = """\
import sys
def test_fixture(kvlint_sim):
    import torch, torch_npu
    assert torch.zeros(1, device="npu").is_npu
    assert "npu::npu_rms_norm" not in kvlint_sim.calls
    torch_npu.npu_rms_norm(torch.zeros(2, 4), torch.ones(4))
    assert kvlint_sim.calls["npu::npu_rms_norm"] == 1
"""
PLAIN = "import sys\ndef test_no_torch():\n    assert 'torch' not in sys.modules\n"


def run(folder: Path, *words: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_option_simulates_before_any_conftest(tmp_path: Path) -> None:
    done = run(tmp_path, "--kvlint-sim=catalogue", "-v", conftest=CONFTEST, test_it=TEST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kvlint-sim: catalogue, torch_npu " in done.stdout


@pytest.mark.parametrize(("name", "text"), [("test_fixture", FIXTURE), ("test_plain", PLAIN)])
def test_without_the_option(tmp_path: Path, name: str, text: str) -> None:
    done = run(tmp_path, **{name: text})
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_route_is_a_usage_error(tmp_path: Path) -> None:
    done = run(tmp_path, "--kvlint-sim=nothing", test_it=TEST)
    assert done.returncode == 4
    assert "invalid choice: 'nothing'" in done.stderr
