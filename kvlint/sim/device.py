"""Redirection of the device ``npu`` to the CPU.

A function mode rewrites the device of every torch call; what is no torch function (constructors,
``torch.load``, ``autocast``) is patched. Modes belong to a thread, so threads that start while the
simulator is on get their own. Tensors stay ordinary CPU tensors: ``x.device`` says ``cpu``, only
``x.is_npu`` says True.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kvlint.sim.patches import Patches
from kvlint.sim.threads import within

_NPU = re.compile(r"(npu|privateuseone)(:\d+)?")
_CUDA = re.compile(r"cuda(:\d+)?")


class Devices:
    """Which device names mean the simulated device."""

    def __init__(self) -> None:
        #: torch_npu.contrib.transfer_to_npu makes cuda another name of npu.
        self.cuda = False

    def is_simulated(self, device: object) -> bool:
        """``device`` names the NPU."""
        if isinstance(device, torch.device):
            return device.type in ("npu", "privateuseone") or (self.cuda and device.type == "cuda")
        if not isinstance(device, str):
            return False
        return bool(_NPU.fullmatch(device) or (self.cuda and _CUDA.fullmatch(device)))

    def host(self, device: Any) -> Any:
        """The device to use instead; anything else is handed back."""
        if self.is_simulated(device):
            return torch.device("cpu")
        return device

    def host_argument(self, device: Any) -> Any:
        """As :meth:`host` for a ``device=`` argument, where a bare index means the accelerator."""
        if isinstance(device, int) and not isinstance(device, bool):
            return torch.device("cpu")
        return self.host(device)


_IDENTITY = {torch.Tensor.pin_memory}
_ALWAYS_FALSE = {torch.Tensor.is_pinned}


class Redirect(TorchFunctionMode):
    """Runs every torch call with the CPU in place of the NPU."""

    def __init__(self, devices: Devices) -> None:
        super().__init__()
        self.devices = devices

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            # The object keeps its name, so that programs which ask for its type take the NPU's path.
            return func(*args, **(kwargs or {}))
        if kwargs:
            if "device" in kwargs:
                kwargs = {**kwargs, "device": self.devices.host_argument(kwargs["device"])}
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
        if any(isinstance(a, (str, torch.device)) for a in args):
            args = tuple(self.devices.host(a) for a in args)
        elif func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], torch.device("cpu"), *args[2:])
        if func in _IDENTITY:
            return args[0]
        if func in _ALWAYS_FALSE:
            return False
        return func(*args, **(kwargs or {}))


def install(patches: Patches, devices: Devices) -> None:
    """Everything but the function mode."""
    _tensors(patches, devices)
    _constructors(patches, devices)
    _threads(patches, devices)
    _eager_compile(patches)
    _distributed(patches)


def _tensors(patches: Patches, devices: Devices) -> None:
    def npu(self: Any, device: Any = None, non_blocking: bool = False, **_: Any) -> Any:
        return self

    patches.set(torch.Tensor, "npu", npu)
    patches.set(torch.Tensor, "is_npu", property(lambda self: self.device.type == "cpu"))
    patches.set(torch.Tensor, "record_stream", lambda self, stream: None)
    patches.set(torch.nn.Module, "npu", lambda self, device=None: self)
    if devices.cuda:
        transfer_cuda(patches, devices)


def transfer_cuda(patches: Patches, devices: Devices) -> None:
    """What ``torch_npu.contrib.transfer_to_npu`` does: cuda becomes another name of npu."""
    devices.cuda = True
    patches.set(torch.Tensor, "cuda", torch.Tensor.npu)  # type: ignore[attr-defined]
    patches.set(torch.Tensor, "is_cuda", torch.Tensor.is_npu)  # type: ignore[attr-defined]
    patches.set(torch.nn.Module, "cuda", getattr(torch.nn.Module, "npu"))  # noqa: B009
    for name in (
        "Stream", "Event", "stream", "current_stream", "default_stream", "synchronize", "set_device",
        "current_device", "device_count", "is_available", "empty_cache", "mem_get_info", "manual_seed",
        "manual_seed_all", "get_device_name", "get_device_properties", "memory_allocated",
        "max_memory_allocated", "memory_reserved", "reset_peak_memory_stats", "device", "is_bf16_supported",
    ):  # fmt: skip
        patches.set(torch.cuda, name, getattr(torch.npu, name))  # type: ignore[attr-defined]


def _constructors(patches: Patches, devices: Devices) -> None:
    original = torch.Generator

    class GeneratorType(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __call__(cls, device: Any = "cpu") -> Any:
            return original(device=devices.host_argument(device))

    patches.set(torch, "Generator", GeneratorType("Generator", (), {"__doc__": original.__doc__}))
    load, default = torch.load, torch.set_default_device

    @functools.wraps(load)
    def load_here(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):
            map_location = {k: devices.host(v) for k, v in map_location.items()}
        elif map_location is None:
            map_location = lambda storage, place: storage if devices.is_simulated(place) else None  # noqa: E731
        return load(f, devices.host_argument(map_location), *args, **kwargs)

    patches.set(torch, "load", load_here)
    patches.set(torch, "set_default_device", lambda device: default(devices.host(device)))
    cast = torch.amp.autocast_mode.autocast
    begin = cast.__init__

    @functools.wraps(begin)
    def begin_here(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if devices.is_simulated(device_type) else device_type, *args, **kwargs)

    patches.set(cast, "__init__", begin_here)


def _threads(patches: Patches, devices: Devices) -> None:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_redirected(self: threading.Thread) -> None:
        within(self, lambda: Redirect(devices))
        start(self)

    patches.set(threading.Thread, "start", start_redirected)


def _eager_compile(patches: Patches) -> None:
    def compile_eagerly(model: Any = None, **_: Any) -> Any:
        return (lambda inner: inner) if model is None else model

    patches.set(torch, "compile", compile_eagerly)
    patches.set(torch.nn.Module, "compile", lambda self, *args, **kwargs: None)


def _distributed(patches: Patches) -> None:
    if not torch.distributed.is_available():
        return
    init, new_group = torch.distributed.init_process_group, torch.distributed.new_group

    def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if "hccl" in str(kwargs.get("backend")):
                kwargs["backend"] = "gloo"
            elif args and isinstance(args[0], str) and "hccl" in args[0]:
                args = ("gloo", *args[1:])
            for unused in ("device_id", "pg_options"):
                kwargs.pop(unused, None)
            return function(*args, **kwargs)

        return call

    patches.set(torch.distributed, "init_process_group", on_host(init))
    patches.set(torch.distributed, "new_group", on_host(new_group))
