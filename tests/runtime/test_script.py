"""A program under ``kvlint run`` sees what it sees under ``python``."""

from __future__ import annotations

import signal
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


CHILDREN = """\
import multiprocessing, sys, torch, torch_npu

def work(queue, n):
    x = torch.ones(2, device="npu")
    queue.put((n, x.is_npu, torch_npu.npu_rms_norm(x, x)[0].shape[0], torch.ops.mine.twice(x).tolist()))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    processes = [context.Process(target=work, args=(queue, n)) for n in range(2)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    print([p.exitcode for p in processes], sorted(queue.get(timeout=9) for p in processes))
"""
OWN = """\
from kvlint.sim import kernel
kernel("mine::twice", schema="twice(Tensor x) -> Tensor")(lambda x: x * 2)
"""


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_processes_that_the_script_starts_simulate_too(tmp_path: Path, kvlint_run: Any, start: str) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    (tmp_path / "own.py").write_text(OWN)
    done = kvlint_run("--kernels", "own.py", "children.py", start)
    assert done.stdout == "[0, 0] [(0, True, 2, [2.0, 2.0]), (1, True, 2, [2.0, 2.0])]\n", done.stderr


def test_a_capture_holds_the_calls_of_its_own_process_only(tmp_path: Path, kvlint_run: Any) -> None:
    (tmp_path / "forks.py").write_text(
        "import os, torch, torch_npu\n"
        "def write():\n"
        "    cache = torch.zeros(1, 4, 2)\n"
        "    torch_npu.scatter_update_(cache, torch.tensor([1]), torch.ones(1, 1, 2), 1)\n"
        "child = os.fork()\n"
        "write()\n"
        "if child: os.waitpid(child, 0)\n"
        "else: os._exit(0)\n"
        "write()\n"
    )
    done = kvlint_run("--capture", "cap", "forks.py")
    assert done.stderr == "kvlint: cap: 2 calls recorded\n"
    assert len(list((tmp_path / "cap" / "calls").iterdir())) == 2


def test_a_linked_script_imports_from_where_it_really_is(
    tmp_path: Path, kvlint_run: Any, python: Any
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "s.py").write_text(
        "import beside, sys; print(beside.V, __file__, sys.path[0], __cached__)"
    )
    (tmp_path / "real" / "beside.py").write_text("V = 3\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "s.py")
    assert kvlint_run("link.py").stdout == python("link.py").stdout != ""


def test_an_interrupt_ends_the_process_as_it_ends_python(
    tmp_path: Path, kvlint_run: Any, python: Any
) -> None:
    (tmp_path / "stop.py").write_text(
        "import atexit, os, signal\n"
        "atexit.register(print, 'bye')\n"
        # Where the tests run in the background, the signal is ignored from the start.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.pause()\n"
    )
    ours, real = kvlint_run("stop.py"), python("stop.py")
    assert (ours.returncode, ours.stdout, ours.stderr) == (real.returncode, real.stdout, real.stderr)
    assert ours.returncode == -signal.SIGINT and ours.stdout == "bye\n"
    (tmp_path / "code.py").write_text("raise SystemExit(130)\n")
    assert kvlint_run("code.py").returncode == 130


def test_the_traceback_of_a_thread_is_the_scripts_own(
    tmp_path: Path, kvlint_run: Any, python: Any
) -> None:
    (tmp_path / "t.py").write_text(
        "import threading\n"
        "def f(): raise ValueError('x')\n"
        "t = threading.Thread(target=f)\n"
        "t.start(); t.join()\n"
    )
    plain = python("t.py").stderr
    assert kvlint_run("t.py").stderr == plain and "ValueError: x" in plain
    captured = kvlint_run("--capture", "cap", "t.py").stderr
    assert captured == plain + "kvlint: cap: 0 calls recorded\n"


WITH_NPU = """\
import glob, sys
files = glob.glob
def seen(pattern, *args, **kwargs):
    return ["/dev/davinci0"] if "davinci" in pattern else files(pattern, *args, **kwargs)
glob.glob = seen
from kvlint.runtime.cli import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("options", "simulated"), [([], False), (["--device", "npu"], False), (["--sim"], True)]
)
def test_with_an_npu_nothing_is_simulated_unless_asked(
    tmp_path: Path, python: Any, options: list[str], simulated: bool
) -> None:
    (tmp_path / "with_npu.py").write_text(WITH_NPU)
    (tmp_path / "ask.py").write_text(
        "import kvlint.sim, os, torch\n"
        "print(kvlint.sim.active() is not None, hasattr(torch.Tensor, 'npu'))\n"
        "try:\n"
        "    with kvlint.sim.simulate('catalogue'): print('on')\n"
        "except kvlint.sim.SimulationError as error: print(error)\n"
    )
    done = python("with_npu.py", *options, "--route", "catalogue", "ask.py")
    first, second = done.stdout.splitlines()
    assert first == f"{simulated} {simulated}"
    refused = "this machine has an NPU; ask for the simulator explicitly (force=True, --sim)"
    assert second == ("on" if simulated else refused)
