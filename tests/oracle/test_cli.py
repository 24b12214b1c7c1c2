"""The command line: exit codes, one-line errors, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvlint.oracle.cli import app


def kvlint(*args: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, list(args), env=env)


def test_run_passes_and_writes_reports(tmp_path: Path) -> None:
    done = kvlint("run", "--case", "dit-*", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "2 pass" in done.output
    assert {p.name for p in tmp_path.iterdir()} == {"report.json", "report.md", "report.html"}
    assert json.loads((tmp_path / "report.json").read_text())["summary"]["pass"] == 2


def test_run_fails_with_where_and_why() -> None:
    done = kvlint("run", "--backend", "sim:uniform-average", "--case", "tnd-no-mask-bidirectional")
    assert done.exit_code == 1
    assert "FAIL tnd-no-mask-bidirectional" in done.output
    assert "why: the numbers are those of: scores are ignored" in done.output


def test_json_on_standard_output() -> None:
    done = kvlint("run", "--case", "dit-full-bnsd", "--output-format", "json")
    assert json.loads(done.stdout)["cases"][0]["name"] == "dit-full-bnsd"


def test_another_seed_gives_other_numbers() -> None:
    errors = [
        json.loads(kvlint("run", "--case", "dit-full-bnsd", "--output-format", "json", "--seed", s).stdout)[
            "cases"
        ][0]["verdict"]["worst_error"]
        for s in ("0", "0", "1")
    ]
    assert errors[0] == errors[1] != errors[2]


def test_compare(tmp_path: Path) -> None:
    kvlint("run", "--case", "tnd-paged-block-16", "--out", str(tmp_path / "a"))
    kvlint(
        "run", "--case", "tnd-paged-block-16", "--backend", "sim:block-size-16", "--out", str(tmp_path / "b")
    )
    reports = [str(tmp_path / x / "report.json") for x in "ab"]
    worse = kvlint("compare", *reports)
    assert worse.exit_code == 1 and "regression" in worse.output
    assert kvlint("compare", reports[0], reports[0]).exit_code == 0
    assert kvlint("compare", *reversed(reports)).exit_code == 0
    listed = json.loads(kvlint("compare", *reports, "--output-format", "json").stdout)
    assert listed[0]["kind"] == "regression"


def test_list() -> None:
    quick, full = kvlint("list"), kvlint("list", "--full")
    assert quick.exit_code == full.exit_code == 0
    assert len(full.stdout.splitlines()) > len(quick.stdout.splitlines()) > 100
    assert "[Qwen3-MoE]" in quick.stdout
    only = json.loads(kvlint("list", "--modes", "sliding", "--output-format", "json").stdout)
    assert {c["cache"] for c in only} == {"sliding"}


def test_backends_and_hypotheses() -> None:
    shown = kvlint("backends").output
    assert "sim" in shown and "sdpa" in shown and "npu" in shown
    assert "scale-default" in kvlint("hypotheses").output


def test_feature_caches() -> None:
    shown = kvlint("feature-caches", "--steps", "6")
    assert shown.exit_code == 0 and "taylorseer" in shown.output
    data = json.loads(kvlint("feature-caches", "--steps", "6", "--output-format", "json").stdout)
    assert len(data) == 4 and all(len(r["errors"]) == 6 for r in data)
    assert kvlint("feature-caches", "--steps", "0").exit_code == 2


def test_sharding() -> None:
    names = []
    for rank in ("0", "1"):
        done = kvlint(
            "run", "--case", "dit-*", "--output-format", "json", env={"RANK": rank, "WORLD_SIZE": "2"}
        )
        names += [c["name"] for c in json.loads(done.stdout)["cases"]]
    assert sorted(names) == ["dit-cross-bsnd", "dit-full-bnsd"]


@pytest.mark.parametrize(
    "args",
    [
        ("run", "--case", "nope"),
        ("run", "--modes", "nope"),
        ("run", "-k", "nothing-has-this"),
        ("run", "--backend", "nope"),
        ("run", "--backend", "sim:nope"),
        ("run", "--backend", "npu"),
        ("run", "--reference-device", "nope", "--case", "dit-full-bnsd"),
        ("run", "--case", "dit-full-bnsd", "--output-format", "xml"),
        ("list", "--output-format", "xml"),
        ("compare", "missing.json", "missing.json"),
        ("run", "--no-such-option"),
        ("run", "--case", "dit-full-bnsd", "--out", "/dev/null/x"),
    ],
)
def test_wrong_command_lines_exit_2_in_one_line(args: tuple[str, ...]) -> None:
    done = kvlint(*args)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output and done.exception.__class__ is SystemExit


def test_bad_worker_variables_exit_2() -> None:
    for env in ({"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "5", "WORLD_SIZE": "2"}):
        assert kvlint("run", "--case", "dit-full-bnsd", env=env).exit_code == 2


@pytest.mark.parametrize("command", [("doctor",), ("oracle", "run", "--case", "dit-full-bnsd")])
def test_commands_run_where_a_torch_npu_without_cann_is_installed(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Such a wheel makes a plain ``import torch`` fail; this one does whatever is installed."""
    (tmp_path / "torch_npu_stand_in.py").write_text("def load():\n    raise ImportError('no libhccl.so')\n")
    about = tmp_path / "torch_npu_stand_in-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: torch-npu-stand-in\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nstand_in = torch_npu_stand_in:load\n")
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    environment["PYTHONPATH"] = str(tmp_path)
    plain = [sys.executable, "-c", "import torch"]
    assert subprocess.run(plain, env=environment, capture_output=True, check=False).returncode
    words = [sys.executable, "-m", "kvlint", *command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
