"""Recording of attention and cache calls while a program runs."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

import kvlint
from kvlint.runtime.intercept import Watched
from kvlint.runtime.store import CapturedCall, CaptureError, Writer

DEFAULT_LIMIT = 2 << 30
_NOT_THE_PROGRAM = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (kvlint.__file__, torch.__file__)
)


class Capture:
    """An observer that writes calls to a folder.

    ``program``: script and arguments, by default those of the process; an existing capture keeps its own.
    ``every``: of each operator's calls, record every n-th. ``limit``: bytes that the folder may hold; calls
    that do not fit are counted in ``skipped``. Recording never stops the program: a call that cannot be
    recorded is counted in ``unrecordable``, and after an error of the disk recording ends, ``problem`` saying
    why. Only the process that made the object records; its forks do not.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit: int = DEFAULT_LIMIT,
        every: int = 1,
        program: Sequence[str] | None = None,
    ) -> None:
        argv = list(sys.argv if program is None else program)
        head = {"kvlint": kvlint.__version__, "torch": torch.__version__, "argv": argv}
        self._writer = Writer(folder, head, limit)
        self._every = every
        self._seen: Counter[str] = Counter()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self.recorded = self.unsampled = self.unrecordable = 0
        self.problem = ""

    @property
    def skipped(self) -> int:
        """Calls that the size limit left out."""
        return self._writer.skipped

    def before(self, operator: Watched, given: Mapping[str, Any]) -> dict[str, Any] | None:
        if self.problem or os.getpid() != self._process:
            return None
        with self._lock:
            turn = self._seen[operator.full_name]
            self._seen[operator.full_name] += 1
        if turn % self._every:
            self.unsampled += 1
            return None
        if _without_content(given) or _capturing_graph():
            self.unrecordable += 1
            return None
        try:
            # Copies, because the operator may write into what it is given.
            return {name: _copy(value, name in operator.mutated) for name, value in given.items()}
        except Exception:  # out of memory, a tensor without storage: the program must not notice
            self.unrecordable += 1
            return None

    def after(
        self, operator: Watched, given: Mapping[str, Any], note: dict[str, Any] | None, result: Any
    ) -> None:
        if note is None:
            return
        results = [r for r in tree_leaves(result) if isinstance(r, Tensor)]
        mutated = {name: given[name] for name in operator.mutated if name in given}
        with self._lock:
            call = CapturedCall(self._writer.next, operator.full_name, note, results, mutated, _place())
            try:
                if self._writer.add(call):
                    self.recorded += 1
            except CaptureError as error:
                self.problem = str(error).splitlines()[0]
            except Exception:  # a kind of tensor that has no form in the file
                self.unrecordable += 1

    def summary(self) -> str:
        """One line for the user."""
        parts = [f"{self.recorded} calls recorded"]
        if self.unsampled:
            parts.append(f"{self.unsampled} not sampled")
        if self.skipped:
            parts.append(f"{self.skipped} left out by the size limit")
        if self.unrecordable:
            parts.append(f"{self.unrecordable} in a graph or without a form on disk")
        if self.problem:
            parts.append(f"recording ended early: {self.problem}")
        return ", ".join(parts)


def _without_content(given: Mapping[str, Any]) -> bool:
    """Tensors that stand for others while a graph is traced, or that have shapes only."""
    tensors = [t for t in tree_leaves(dict(given)) if isinstance(t, Tensor)]
    return any(t.is_meta or isinstance(t, FakeTensor) or torch._is_functional_tensor(t) for t in tensors)


def _copy(value: Any, written: bool) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True) if written else value
    if isinstance(value, (list, tuple)):
        return [_copy(v, written) for v in value]
    return value


def _capturing_graph() -> bool:
    """Reading tensors back would break a graph capture on the device."""
    npu = getattr(torch, "npu", None)
    return bool(npu is not None and npu.is_current_stream_capturing())


def _place() -> str:
    """``file:line`` of the innermost frame that is the program's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THE_PROGRAM) and os.sep in name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
