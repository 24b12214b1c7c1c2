"""The two routes: operators of the catalogue, and the real wheel beside stand-in libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvlint.contract import catalogue
from kvlint.oracle.backends import backend
from kvlint.oracle.errors import OracleError
from kvlint.sim import SimulationError, install, simulate
from kvlint.sim.session import wheel_installed

HERE = Path(__file__).parent
#: The catalogue's operators and overloads, all of which the release that both routes have knows.
OPERATORS = {f"{o.namespace}::{o.full_name}" for o in catalogue.operators("2.13.0")}
assert len(OPERATORS) == len(list(catalogue.operators())) == 100
needs_wheel = pytest.mark.skipif(not wheel_installed(), reason="torch_npu is not installed")


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def schema_errors(route: str) -> dict[str, list[str]]:
    done = python(str(HERE / "schema_errors.py"), route, "2.13.0")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@needs_wheel
def test_both_routes_make_the_same_schema_errors() -> None:
    real, ours = schema_errors("wheel"), schema_errors("catalogue")
    assert set(real) == OPERATORS
    assert ours == real


def test_schema_errors_are_errors() -> None:
    found = schema_errors("catalogue")
    assert set(found) == OPERATORS
    for operator, errors in found.items():
        assert "accepted" not in errors, operator


def test_the_oracle_does_not_take_the_simulator_for_a_device(simulation: object) -> None:
    with pytest.raises(OracleError, match="backend npu: the simulator is on"):
        backend("npu")


@pytest.mark.parametrize("route", ["catalogue", pytest.param("wheel", marks=needs_wheel)])
def test_both_routes_give_the_same_numbers(route: str) -> None:
    done = python(str(HERE / "route_numbers.py"), route)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(python(str(HERE / "route_numbers.py"), "catalogue").stdout)


def test_defaults_are_those_of_the_release() -> None:
    """npu_apply_rotary_pos_emb had layout BSH first; kernels must not put their own default in its place."""
    program = (
        "from kvlint.sim import simulate, kernel\n"
        "seen = []\n"
        "@kernel('npu_apply_rotary_pos_emb')\n"
        "def fake(query, key, cos, sin, layout='none', rotary_mode='none'):\n"
        "    seen.append(layout)\n"
        "    return query.clone(), key.clone()\n"
        "for release in ('2.8.0', '2.13.0'):\n"
        "    with simulate('catalogue', release=release):\n"
        "        import torch, torch_npu\n"
        "        x = torch.zeros(1)\n"
        "        torch_npu.npu_apply_rotary_pos_emb(x, x, x, x)\n"
        "print(seen)\n"
    )
    assert python("-c", program).stdout.strip() == "['BSH', 'BSND']"


def test_a_simulation_leaves_no_trace() -> None:
    program = (
        "from kvlint.sim import simulate\n"
        "import sys, threading, torch\n"
        "before = {n: getattr(torch, n) for n in ('Generator', 'load', 'compile', 'set_default_device')}\n"
        "start = threading.Thread.start\n"
        "with simulate('catalogue'):\n"
        "    import torch_npu, torchair, torch_npu.contrib.transfer_to_npu\n"
        "    assert torch.zeros(1, device='cuda').is_npu\n"
        "assert all(getattr(torch, n) is v for n, v in before.items()) and threading.Thread.start is start\n"
        "assert not hasattr(torch, 'npu') and not hasattr(torch.Tensor, 'npu')\n"
        "assert not [n for n in sys.modules if n.startswith(('torch_npu', 'torchair'))]\n"
        "with simulate('catalogue'):\n"
        "    import torch_npu\n"
        "    torch_npu.npu_rms_norm(torch.zeros(2, 4), torch.ones(4))\n"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_no_torch() -> None:
    done = python(
        "-c", "import kvlint.cli, kvlint.sim, kvlint.runtime, sys; assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_nested_simulations_are_one(simulation: object) -> None:
    with simulate() as inner:
        assert inner is simulation
    with pytest.raises(SimulationError, match="on already"):
        install()


def test_bad_choices_are_named() -> None:
    program = (
        "from kvlint.sim import install, SimulationError\n"
        "for options in ({'route': 'x'}, {'route': 'catalogue', 'release': '9.9'}):\n"
        "    try: install(**options)\n"
        "    except SimulationError as error: print(error)\n"
    )
    lines = python("-c", program).stdout.splitlines()
    assert lines[0] == "no route 'x'; routes: auto, catalogue, wheel"
    assert "'9.9'" in lines[1]


def test_threads_share_one_simulation() -> None:
    """Blocks that overlap in time: the first turns the simulator on, the last turns it off."""
    program = (
        "import threading, torch\n"
        "from kvlint.sim import active, simulate\n"
        "wrong, inside = [], threading.Barrier(4)\n"
        "def use():\n"
        "    try:\n"
        "        for turn in range(3):\n"
        "            with simulate('catalogue'):\n"
        "                if not turn: inside.wait(60)\n"
        "                import torch_npu\n"
        "                assert torch.zeros(1, device='npu').is_npu\n"
        "    except Exception as error: wrong.append(error)\n"
        "threads = [threading.Thread(target=use) for _ in range(4)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "assert not wrong, wrong\n"
        "assert active() is None and not hasattr(torch.Tensor, 'npu')\n"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("times", [1, 3])
def test_an_exception_inside_turns_the_simulator_off(times: int) -> None:
    program = (
        "import multiprocessing.spawn, sys, threading, torch\n"
        "from kvlint.sim import active, simulate\n"
        "before = threading.Thread.start, multiprocessing.spawn.get_preparation_data, list(sys.meta_path)\n"
        f"for _ in range({times}):\n"
        "    try:\n"
        "        with simulate('catalogue'), simulate():\n"
        "            import torch_npu\n"
        "            raise KeyError\n"
        "    except KeyError: pass\n"
        "    assert active() is None and 'torch_npu' not in sys.modules\n"
        "after = threading.Thread.start, multiprocessing.spawn.get_preparation_data, list(sys.meta_path)\n"
        "assert after == before\n"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
