"""Runs a script or a module as ``python`` would: arguments, ``__main__``, exit code, traceback."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType, TracebackType
from typing import Any


class ScriptInterrupted(Exception):
    """A KeyboardInterrupt ended the script, and has been reported: python would end itself by SIGINT now."""


class ScriptError(Exception):
    """There is nothing to run: the text is what python itself would print."""


def run_script(path: str, arguments: Sequence[str]) -> int:
    """``python path arguments...``; the exit code."""
    # A link is followed for imports, but not for __file__.
    target, first = os.path.abspath(path), os.path.dirname(os.path.realpath(path))
    package: str | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    if os.path.isdir(path):
        first = os.path.abspath(path)
        target = os.path.join(first, "__main__.py")
        if not os.path.isfile(target):
            raise ScriptError(f"can't find '__main__' module in {path!r}")
        spec = importlib.machinery.ModuleSpec("__main__", None, origin=target)
        package = ""
    try:
        with io.open_code(target) as file:
            source = file.read()
    except OSError as error:
        raise ScriptError(f"can't open file {target!r}: [Errno {error.errno}] {error.strerror}") from error
    loader = importlib.machinery.SourceFileLoader("__main__", target)
    module = _main(target, loader, spec, package)
    return _run(module, lambda: compile(source, target, "exec", dont_inherit=True), [path, *arguments], first)


def run_module(name: str, arguments: Sequence[str]) -> int:
    """``python -m name arguments...``; the exit code."""
    # As `python -m` does, look from the working directory.
    sys.path[0:1] = [os.getcwd()]
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
            if spec is None:
                raise ScriptError(
                    f"No module named {name}.__main__; {name!r} is a package and cannot be directly executed"
                )
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ScriptError(f"Error while finding module specification for {name!r} ({error})") from error
    if spec is None:
        raise ScriptError(f"No module named {name}")
    loader: Any = spec.loader
    found = spec
    if spec.origin is None or not hasattr(loader, "get_code"):
        raise ScriptError(f"No code object available for {name}")

    def code() -> CodeType:
        result: CodeType = loader.get_code(found.name)
        return result

    module = _main(spec.origin, loader, spec, spec.parent)
    module.__cached__ = spec.cached  # type: ignore[attr-defined]
    return _run(module, code, [os.path.abspath(spec.origin), *arguments], os.getcwd())


def _main(
    path: str, loader: Any, spec: importlib.machinery.ModuleSpec | None, package: str | None
) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = loader
    module.__spec__ = spec
    module.__package__ = package
    module.__cached__ = None  # type: ignore[attr-defined]
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    return module


def _run(module: ModuleType, code: Any, argv: list[str], first: str) -> int:
    sys.modules["__main__"] = module
    sys.argv = argv
    sys.path[0] = first
    try:
        exec(code(), module.__dict__)
    except SystemExit as exit_:
        return exit_code(exit_)
    except BaseException:
        kind, error, trace = sys.exc_info()
        assert kind is not None and error is not None
        _report(kind, error, _of_script(trace))
        if isinstance(error, KeyboardInterrupt):
            raise ScriptInterrupted from None
        return 1
    return 0


def exit_code(exit_: SystemExit) -> int:
    """What the interpreter makes of ``sys.exit(x)``."""
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    print(exit_.code, file=sys.stderr)
    return 1


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames above the script."""
    here = __file__
    while trace is not None and trace.tb_frame.f_code.co_filename == here:
        trace = trace.tb_next
    return trace


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    error.__traceback__ = trace
    try:
        sys.excepthook(kind, error, trace)
    except BaseException as second:
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(kind, error, trace)
