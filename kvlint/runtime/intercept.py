"""Interception of operator calls, on the device and in the simulator alike."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from kvlint.contract import catalogue
from kvlint.sim.threads import within

#: Families whose calls are worth watching; the rest only prepare or convert.
FAMILIES = frozenset(
    (
        "fia",
        "pfa",
        "ifa",
        "fusion",
        "sparse",
        "indexer",
        "atb",
        "cache_write",
        "cache_read",
        "merge",
        "prolog",
    )
)
_HELPERS = ("_get_max_workspace", "_get_workspace", "_infer_output")


@dataclass(frozen=True, slots=True)
class Watched:
    """An operator that is watched: its namespace, schema and parameter names."""

    namespace: str
    name: str
    overload: str
    family: str
    parameters: tuple[str, ...]
    mutated: tuple[str, ...]

    @property
    def full_name(self) -> str:
        return f"{self.namespace}::{self.name}" + (f".{self.overload}" if self.overload else "")

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Parameter name -> argument as passed; defaults are left out."""
        return dict(zip(self.parameters, args, strict=False)) | dict(kwargs)


class Observer(Protocol):
    """Is told of every watched call."""

    def before(self, operator: Watched, given: Mapping[str, Any]) -> Any:
        """Called before the operator runs; the result is handed to :meth:`after`."""

    def after(self, operator: Watched, given: Mapping[str, Any], note: Any, result: Any) -> None:
        """Called when it has run."""


@functools.cache
def watched(namespace: str, name: str, overload: str) -> Watched | None:
    """The operator, if it is one to watch."""
    known = catalogue.find(name, overload)
    if known is None or known.namespace != namespace or known.family not in FAMILIES:
        return None
    if name.endswith(_HELPERS):
        return None
    params = tuple(p.name for p in known.params)
    mutated = tuple(p.name for p in known.params if p.mutated)
    return Watched(namespace, name, known.overload, known.family, params, mutated)


class _Mode(TorchFunctionMode):
    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator = self._operator(func)
        if operator is None:
            return func(*args, **kwargs)
        given = operator.bind(args, kwargs)
        note = self.observer.before(operator, given)
        result = func(*args, **kwargs)
        self.observer.after(operator, given, note, result)
        return result

    @staticmethod
    def _operator(func: Any) -> Watched | None:
        if isinstance(func, torch._ops.OpOverload):
            return watched(func.namespace, func._opname, func._overloadname.replace("default", ""))
        if isinstance(func, torch._ops.OpOverloadPacket):
            namespace, _, name = func._qualified_op_name.partition("::")
            return watched(namespace, name, "")
        return None


class Interceptor:
    """Tells an observer of every watched call, in all threads that start from now on."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._mode = _Mode(observer)
        self._start = threading.Thread.start

    def __enter__(self) -> Interceptor:
        start, observer = self._start, self._observer

        @functools.wraps(start)
        def start_watched(thread: threading.Thread) -> None:
            within(thread, lambda: _Mode(observer))
            start(thread)

        setattr(threading.Thread, "start", start_watched)  # noqa: B010
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        setattr(threading.Thread, "start", self._start)  # noqa: B010
