"""A program under ``kvlint run`` sees what it sees under ``python``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ABOUT = """\
import os, pickle, sys
print(sys.argv, __name__, os.path.abspath(__file__), __package__, __spec__ and __spec__.name, sys.path[0])
print(os.getcwd(), sys.modules["__main__"].__dict__ is globals())
class Local: pass
assert type(pickle.loads(pickle.dumps(Local()))) is Local
"""

ENDINGS = {
    "falls off the end": "",
    "exit code": "sys.exit(7)",
    "exit without code": "sys.exit()",
    "exit with a text": "sys.exit('done for')",
    "exception": "def f():\n    raise ValueError('no')\nf()",
    "chained exception": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "syntax error": "print(",
    "own hook": "sys.excepthook = lambda kind, error, trace: print('mine', kind.__name__)\n1 / 0",
    "output on both": "print('out'); print('err', file=sys.stderr)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_runs_as_under_python(tmp_path: Path, python: Any, kvlint_run: Any, ending: str) -> None:
    (tmp_path / "program.py").write_text(ABOUT + ENDINGS[ending])
    own, ours = python("program.py", "a", "--sim", "-m"), kvlint_run("program.py", "a", "--sim", "-m")
    assert (ours.returncode, ours.stdout, ours.stderr) == (own.returncode, own.stdout, own.stderr)


@pytest.mark.parametrize(
    "target", [["-m", "pack.part"], ["-m", "pack"], ["pack"], ["sub/inner.py"]], ids="-".join
)
def test_other_targets_run_as_under_python(
    tmp_path: Path, python: Any, kvlint_run: Any, target: list[str]
) -> None:
    for name in ("pack/__init__.py", "pack/part.py", "pack/__main__.py", "sub/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name.endswith("__init__.py") else ABOUT)
    own, ours = python(*target, "x"), kvlint_run(*target, "x")
    assert (ours.returncode, ours.stdout, ours.stderr) == (own.returncode, own.stdout, own.stderr)
    assert own.returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.py"], "can't open file"),
        (["-m", "no_such_module"], "No module named no_such_module"),
        (["-m", "json"], "'json' is a package and cannot be directly executed"),
        (["."], "can't find '__main__' module in '.'"),
        (["--kernels", "none.py", "x.py"], "--kernels none.py: no such file"),
    ],
)
def test_what_cannot_run_is_one_line_and_exit_2(kvlint_run: Any, words: list[str], said: str) -> None:
    done = kvlint_run(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("kvlint: error: ") and said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_device_that_is_not_there(python: Any) -> None:
    done = python("-m", "kvlint.runtime.cli", "--device", "npu", "x.py")
    assert done.returncode == 2
    assert "no NPU is visible" in done.stderr


def test_own_kernels_are_loaded_first(tmp_path: Path, kvlint_run: Any) -> None:
    (tmp_path / "kernels.py").write_text(
        "from kvlint.sim import kernel\n"
        "@kernel('custom::twice', schema='twice(Tensor x) -> Tensor')\n"
        "def twice(x): return x * 2\n"
    )
    (tmp_path / "program.py").write_text(
        "import torch, torch_npu\nprint(torch.ops.custom.twice(torch.ones(1, device='npu')).item())\n"
    )
    done = kvlint_run("--kernels", "kernels.py", "program.py")
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr
