"""What programs use of ``torch.npu``: one device, streams that run in order, memory that is never short."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from kvlint.sim import graphs

DEVICE_NAME = "Ascend910_9391"
SOC_VERSION = 250  # Atlas A3
MEMORY = 64 << 30
_ids = itertools.count(1)


class Stream:
    """Work runs when it is submitted, so streams need no waiting."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device("cpu")
        self.stream_id = self.npu_stream = next(_ids)
        self.priority = priority

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        _streams.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _streams.pop()


class Event:
    """Marks a time on the host."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self.enable_timing = enable_timing
        self.time: float | None = None

    def record(self, stream: Any = None) -> None:
        self.time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        pass

    def reset(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds."""
        if self.time is None or end_event.time is None:
            raise RuntimeError("both events must be recorded before the time between them is asked for")
        return (end_event.time - self.time) * 1000


_default_stream = Stream()
_streams: list[Stream] = [_default_stream]


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """``with torch.npu.stream(s)``."""
    if stream is None:
        yield
        return
    with stream:
        yield


class device:  # the name in torch.npu
    """``with torch.npu.device(0)``."""

    def __init__(self, device: Any) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _set_stream(stream: Stream) -> None:
    _streams[-1] = stream


def _properties(*_: Any) -> Any:
    return SimpleNamespace(
        name=DEVICE_NAME, total_memory=MEMORY, multi_processor_count=24, cube_core_num=24, vector_core_num=48,
        L2_cache_size=192 << 20, major=0, minor=0,
    )  # fmt: skip


class _GradScaler(torch.amp.GradScaler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu", *args, **kwargs)


class _Autocast(torch.amp.autocast_mode.autocast):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu", *args, **kwargs)


def names() -> dict[str, Any]:
    """Name in ``torch.npu`` -> value."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def zero(*_: Any, **__: Any) -> int:
        return 0

    def empty(*_: Any, **__: Any) -> dict[str, int]:
        return {}

    amp = ModuleType("torch_npu.npu.amp")
    vars(amp).update(autocast=_Autocast, GradScaler=_GradScaler)
    found: dict[str, Any] = {
        "Stream": Stream, "Event": Event, "ExternalEvent": Event, "ExternalStream": Stream,
        "SyncLaunchStream": Stream, "StreamContext": stream, "stream": stream, "device": device,
        "device_of": lambda tensor: nullcontext(),
        "current_stream": lambda device=None: _streams[-1],
        "default_stream": lambda device=None: _default_stream,
        "set_stream": _set_stream, "is_available": lambda: True, "is_initialized": lambda: True,
        "is_bf16_supported": lambda: True, "current_device": zero, "device_count": lambda: 1,
        "get_device_name": lambda device=None: DEVICE_NAME, "get_device_properties": _properties,
        "get_soc_version": lambda: SOC_VERSION, "get_device_capability": nothing, "utilization": zero,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY), "amp": amp,
        "config": SimpleNamespace(allow_internal_format=False),
        "default_generators": (torch.default_generator,),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "initial_seed": torch.initial_seed, "_is_in_bad_fork": lambda: False,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "memory_stats": empty, "memory_summary": lambda *a, **k: "", "memory_snapshot": lambda *a, **k: [],
        "can_device_access_peer": lambda a, b: True, "get_stream_limit": empty, "get_device_limit": empty,
        "NPUGraph": graphs.NPUGraph, "graph": graphs.graph, "graph_pool_handle": lambda: (0, 0),
        "graph_task_group_begin": graphs.graph_task_group_begin,
        "graph_task_group_end": graphs.graph_task_group_end,
        "graph_task_update_begin": graphs.graph_task_update_begin,
        "graph_task_update_end": graphs.graph_task_update_end,
        "is_current_stream_capturing": graphs.is_current_stream_capturing,
        "make_graphed_callables": graphs.make_graphed_callables,
        "use_mem_pool": graphs.use_mem_pool, "MemPool": SimpleNamespace, "manual_seed": nothing,
        # torch.manual_seed calls this back; seeding again here would never end.
        "manual_seed_all": nothing, "seed": nothing, "seed_all": nothing,
    }  # fmt: skip
    for name in (
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
        "memory_cached", "max_memory_cached",
    ):  # fmt: skip
        found[name] = zero
    for name in (
        "synchronize", "set_device", "empty_cache", "init", "ipc_collect", "reset_peak_memory_stats",
        "reset_max_memory_allocated", "reset_max_memory_cached", "reset_accumulated_memory_stats",
        "set_compile_mode", "set_option", "set_stream_limit", "reset_stream_limit", "set_device_limit",
        "set_per_process_memory_fraction", "set_sync_debug_mode", "set_deterministic_level", "set_aoe",
        "set_dump", "init_dump", "finalize_dump", "_lazy_init", "_lazy_call", "set_op_timeout_ms",
        "set_task_queue_enable", "super_kernel_scope_begin", "super_kernel_scope_end",
    ):  # fmt: skip
        found[name] = nothing
    return found
