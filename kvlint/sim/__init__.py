"""NPU code on a machine without an NPU.

Typical use::

    from kvlint.sim import simulate

    with simulate():
        import torch_npu
        ...                      # device="npu", .npu(), torch.npu.*, torch_npu.npu_*: all on the CPU

Names are loaded on first use, so that importing the package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvlint.autoload import leave_npu_alone

if TYPE_CHECKING:
    from kvlint.sim.errors import MissingKernelError, SimulationError
    from kvlint.sim.registry import kernel, simulated
    from kvlint.sim.session import Simulation, active, install, simulate, uninstall

_HOMES = {
    "MissingKernelError": "errors",
    "Simulation": "session",
    "SimulationError": "errors",
    "active": "session",
    "install": "session",
    "kernel": "registry",
    "simulate": "session",
    "simulated": "registry",
    "uninstall": "session",
}

__all__ = [
    "MissingKernelError",
    "Simulation",
    "SimulationError",
    "active",
    "install",
    "kernel",
    "simulate",
    "simulated",
    "uninstall",
]

leave_npu_alone()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"kvlint.sim.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
