"""Modules whose names can be imported, applied as decorators and configured, and do nothing.

They stand for graph compilers and profilers (torchair, torch_npu.profiler), which change how fast a program
runs and not what it computes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class Inert:
    """Any attribute is inert too; a call returns the decorated function, or something inert."""

    def __init__(self, path: str) -> None:
        self.__dict__["_path"] = path

    def __repr__(self) -> str:
        return f"<{self._path}, not simulated>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = Inert(f"{self._path}.{name}")
        self.__dict__[name] = found
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Inert):
            return args[0]
        return Inert(f"{self._path}()")

    def __enter__(self) -> Inert:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(())

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class InertModule(ModuleType):
    """A module of inert names, apart from those that are set."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = Inert(f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found


class InertFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes every submodule of some packages importable."""

    def __init__(self, packages: Sequence[str], prepare: Callable[[ModuleType], None] | None = None) -> None:
        self.packages = tuple(packages)
        self.prepare = prepare
        self.made: list[str] = []
        # What is loaded already under these names steps aside.
        self._hidden = {n: m for n, m in sys.modules.items() if self._covers(n)}
        for name in self._hidden:
            del sys.modules[name]

    def _covers(self, name: str) -> bool:
        return name in self.packages or name.startswith(tuple(f"{p}." for p in self.packages))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not self._covers(fullname):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        self.made.append(module.__name__)
        if self.prepare is not None:
            self.prepare(module)

    def forget(self) -> None:
        """Drops the modules that were made and brings back those that were hidden."""
        for name in self.made:
            sys.modules.pop(name, None)
        self.made.clear()
        sys.modules.update(self._hidden)
