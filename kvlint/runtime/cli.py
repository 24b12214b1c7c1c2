"""The command ``kvlint run``: a program under kvlint, like ``coverage run``."""

from __future__ import annotations

import argparse
import atexit
import os
import re
import runpy
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """``512M`` or ``2GiB`` as a number of bytes."""
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 512M or 2G")
    return int(match[1]) * _UNITS[match[2].upper()]


def positive(text: str) -> int:
    """A count of at least one."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Options come before the script; what follows it is the script's own."""
    made = argparse.ArgumentParser(
        prog="kvlint run",
        description="Run a program written for Ascend, on the device or in the simulator.",
        usage="kvlint run [options] (script.py | -m module) [arguments...]",
        allow_abbrev=False,
    )
    made.add_argument("--sim", action="store_const", const="sim", dest="device", help="same as --device sim")
    made.add_argument(
        "--device", choices=("auto", "npu", "sim"), default="auto",
        help="where operators run; auto: the NPU if there is one, else the simulator",
    )  # fmt: skip
    made.set_defaults(device="auto")  # --sim would set None otherwise
    made.add_argument(
        "--route", choices=("auto", "catalogue", "wheel"), default="auto",
        help="simulate kvlint's catalogue, or use the installed torch_npu wheel (auto: if any)",
    )  # fmt: skip
    made.add_argument("--torch-npu", metavar="RELEASE", help="release that the catalogue imitates")
    made.add_argument(
        "--kernels", action="append", default=[], metavar="FILE",
        help="Python file that adds kernels with kvlint.sim.kernel; may be repeated",
    )  # fmt: skip
    made.add_argument("--capture", metavar="DIR", help="record attention and cache calls with their tensors")
    made.add_argument("--capture-limit", type=size, default=size("2G"), metavar="SIZE", help="default: 2G")
    made.add_argument(
        "--capture-every",
        type=positive,
        default=1,
        metavar="N",
        help="record every N-th call of each operator",
    )
    made.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    made.add_argument("target", metavar="script.py")
    made.add_argument("arguments", nargs=argparse.REMAINDER)
    return made


def run(argv: Sequence[str]) -> int:
    """Runs ``kvlint run argv...`` to the exit code of the program."""
    options = parser().parse_args(argv)
    from kvlint.runtime.script import ScriptError, ScriptInterrupted, run_module, run_script

    # Registered before the program's own, it runs after them.
    ending: list[int] = []
    atexit.register(_end_by_signal, ending)
    with ExitStack() as stack:
        try:
            _prepare(options, stack)
        except _Problem as problem:
            return _fail(str(problem))
        try:
            return (run_module if options.module else run_script)(options.target, options.arguments)
        except ScriptInterrupted:
            ending.append(signal.SIGINT)
            return 128 + signal.SIGINT
        except ScriptError as error:
            return _fail(str(error))


def _end_by_signal(ending: Sequence[int]) -> None:
    """Lets whoever waits for the process see the signal, not an exit code."""
    for number in ending:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


class _Problem(Exception):
    """The options cannot be met."""


def _prepare(options: argparse.Namespace, stack: ExitStack) -> None:
    import kvlint.sim as sim
    from kvlint.autoload import npu_present

    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise _Problem(f"run needs torch ({error})") from error

    simulated = options.device == "sim" or (options.device == "auto" and not npu_present())
    if options.device == "npu" and not npu_present():
        raise _Problem("--device npu: no NPU is visible; --sim runs without one")
    if simulated:
        try:
            simulation = stack.enter_context(
                sim.simulate(options.route, release=options.torch_npu, force=True)
            )
            simulation.kernel_files += [os.path.abspath(f) for f in options.kernels]
        except sim.SimulationError as error:
            raise _Problem(str(error)) from error
    for file in options.kernels:
        if not os.path.isfile(file):
            raise _Problem(f"--kernels {file}: no such file")
        runpy.run_path(file)
    if options.capture:
        _capture(options, stack)


def _capture(options: argparse.Namespace, stack: ExitStack) -> None:
    try:
        from kvlint.runtime.capture import Capture
        from kvlint.runtime.intercept import Interceptor
        from kvlint.runtime.store import CaptureError
    except ImportError as error:
        raise _Problem(f"--capture needs safetensors ({error})") from error
    try:
        capture = Capture(
            Path(options.capture), limit=options.capture_limit, every=options.capture_every,
            program=[*(["-m"] if options.module else []), options.target, *options.arguments],
        )  # fmt: skip
    except CaptureError as error:
        raise _Problem(str(error)) from error
    folder = options.capture
    stack.callback(lambda: print(f"kvlint: {folder}: {capture.summary()}", file=sys.stderr))
    stack.enter_context(Interceptor(capture))


def _fail(text: str) -> int:
    sys.stdout.flush()
    print(f"kvlint: error: {text}", file=sys.stderr)
    return 2


def main() -> NoReturn:
    """``python -m kvlint.runtime.cli``."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
