"""NPU graphs: operators run as they are captured, and run again, on the same storage, at every replay.

As on the device, what the host knew at capture is frozen: lengths given as Python integers stay those of the
capture until a task update replaces them (contract A13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvlint.sim.errors import SimulationError


@dataclass(slots=True)
class Task:
    """One captured operator."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor] = field(default_factory=list)

    def run(self) -> None:
        """Computes again, into the tensors of the capture."""
        found = [t for t in tree_leaves(self.operator(*self.args, **self.kwargs)) if isinstance(t, Tensor)]
        for old, new in zip(self.results, found, strict=True):
            if old is not new and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                if old.shape != new.shape:
                    raise SimulationError(
                        f"{self.operator}: the replay gave {tuple(new.shape)}, the capture {tuple(old.shape)}"
                    )
                old.copy_(new)


class _Capture(TorchDispatchMode):
    def __init__(self, tasks: list[Task]) -> None:
        super().__init__()
        self.tasks = tasks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        results = [t for t in tree_leaves(found) if isinstance(t, Tensor)]
        self.tasks.append(Task(func, args, dict(kwargs or {}), results))
        return found


class _Update(TorchDispatchMode):
    """Operators called here do not run: their arguments replace those of the captured tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__()
        self.left = [t for t in tasks if t.operator.namespace in ("npu", "atb")]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in ("npu", "atb"):
            return func(*args, **(kwargs or {}))
        if not self.left or self.left[0].operator is not func:
            raise SimulationError(f"graph task update: {func} was not captured at this place")
        task = self.left.pop(0)
        task.args, task.kwargs = args, dict(kwargs or {})
        return task.results[0] if len(task.results) == 1 else tuple(task.results)


class NPUGraph:
    """``torch.npu.NPUGraph``."""

    _current: NPUGraph | None = None

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.auto_dispatch_capture = False
        self._mode: _Capture | None = None

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        if NPUGraph._current is not None:
            raise RuntimeError("another NPU graph is being captured")
        self.tasks = []
        self._mode = _Capture(self.tasks)
        self._mode.__enter__()
        NPUGraph._current = self

    def capture_end(self) -> None:
        if self._mode is None:
            raise RuntimeError("this NPU graph is not being captured")
        self._mode.__exit__(None, None, None)
        self._mode = NPUGraph._current = None

    def replay(self) -> None:
        with torch.no_grad():
            for task in self.tasks:
                task.run()

    def reset(self) -> None:
        self.tasks = []

    def pool(self) -> tuple[int, int]:
        return (0, 0)

    def debug_dump(self, debug_path: str) -> None:
        """Nothing to dump."""

    def update(self, cpu_update_input: Sequence[Mapping[str, Any]]) -> None:
        """New host values, one mapping per attention operator in the order of the capture."""
        if not self.auto_dispatch_capture:
            raise RuntimeError("capture with auto_dispatch_capture=True to update the graph")
        attention = [t for t in self.tasks if t.operator.namespace == "npu" and _has_lengths(t)]
        if len(cpu_update_input) not in (1, len(attention)):
            raise RuntimeError(f"{len(cpu_update_input)} updates for {len(attention)} attention operators")
        for i, task in enumerate(attention):
            new = cpu_update_input[i if len(cpu_update_input) > 1 else 0]
            task.kwargs = {**task.kwargs, **new}


def _has_lengths(task: Task) -> bool:
    return any(a.name.startswith("actual_seq") for a in task.operator._schema.arguments)


class graph:  # the name in torch.npu
    """``with torch.npu.graph(g): ...``."""

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: object = None,
        stream: object = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
    ) -> None:
        self.npu_graph = npu_graph
        npu_graph.auto_dispatch_capture = auto_dispatch_capture

    def __enter__(self) -> None:
        self.npu_graph.capture_begin()

    def __exit__(self, *_: object) -> None:
        self.npu_graph.capture_end()


@dataclass(slots=True)
class TaskGroup:
    """Tasks between ``graph_task_group_begin`` and ``graph_task_group_end``."""

    graph: NPUGraph
    first: int
    last: int = -1


_groups: list[TaskGroup] = []
_updates: list[_Update] = []


def graph_task_group_begin(stream: object = None) -> None:
    owner = NPUGraph._current
    if owner is None:
        raise RuntimeError("graph_task_group_begin outside a graph capture")
    _groups.append(TaskGroup(owner, len(owner.tasks)))


def graph_task_group_end(stream: object = None) -> TaskGroup:
    group = _groups.pop()
    group.last = len(group.graph.tasks)
    return group


def graph_task_update_begin(stream: object, handle: TaskGroup) -> None:
    update = _Update(handle.graph.tasks[handle.first : handle.last])
    update.__enter__()
    _updates.append(update)


def graph_task_update_end(stream: object = None) -> None:
    _updates.pop().__exit__(None, None, None)


def is_current_stream_capturing() -> bool:
    return NPUGraph._current is not None


def make_graphed_callables(callables: Any, *_: Any, **__: Any) -> Any:
    """Graphed callables are the callables."""
    return callables


@contextmanager
def use_mem_pool(*_: Any, **__: Any) -> Iterator[None]:
    """Memory pools have no meaning here."""
    yield
