"""The modules of a program written for Ascend: torch_npu where it is absent, torchair, and their parts."""

from __future__ import annotations

import enum
import importlib
import importlib.machinery
from types import ModuleType
from typing import Any, Final

import torch

from kvlint.contract import catalogue
from kvlint.sim import npu_api
from kvlint.sim.dtypes import CONSTANTS, FORMATS
from kvlint.sim.inert import InertModule

#: Packages of which every submodule can be imported.
INERT: Final = ("torchair", "npugraph_ex", "torch_npu", "mstx")
#: Where the real wheel is installed, only these are replaced.
INERT_BESIDE_WHEEL: Final = (
    "torchair",
    "npugraph_ex",
    "torch_npu.contrib.transfer_to_npu",
    "torch_npu.profiler",
)
TRANSFER: Final = "torch_npu.contrib.transfer_to_npu"
_SUBMODULES: Final = frozenset(
    ("contrib", "profiler", "utils", "dynamo", "distributed", "multiprocessing", "optim", "testing",
     "op_plugin", "_C", "asd", "_inductor", "_logging")
)  # fmt: skip


def operator(name: str) -> Any:
    """``torch.ops.npu.name`` or ``torch.ops.atb.name``, None if there is none."""
    for namespace in (torch.ops.npu, torch.ops.atb):
        found = getattr(namespace, name, None)
        if found is not None:
            return found
    return None


class TorchNpu(ModuleType):
    """The module ``torch_npu`` where the wheel is absent: operators, ``npu`` and constants."""

    def __init__(self, version: str) -> None:
        super().__init__("torch_npu", "torch_npu, simulated by kvlint on the CPU")
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec("torch_npu", None, is_package=True)
        self.__version__ = version
        self.Format = enum.IntEnum("Format", FORMATS)  # type: ignore[misc]
        self.npu = npu_module()
        self.atb = ModuleType("torch_npu.atb")
        vars(self).update(CONSTANTS)

    def __getattr__(self, name: str) -> Any:
        if name in _SUBMODULES:
            return importlib.import_module(f"torch_npu.{name}")
        found = None if name.startswith("__") else operator(name)
        if found is None:
            raise AttributeError(
                f"module 'torch_npu' has no attribute {name!r} (simulated torch_npu {self.__version__})"
            )
        setattr(self, name, found)
        return found


def npu_module() -> ModuleType:
    """The module ``torch_npu.npu``, also known as ``torch.npu``."""
    module = ModuleType("torch_npu.npu", "torch.npu, simulated by kvlint on the CPU")
    module.__path__ = []
    module.__spec__ = importlib.machinery.ModuleSpec("torch_npu.npu", None, is_package=True)
    vars(module).update(npu_api.names())
    for part in ("memory", "streams", "graphs", "random"):
        # The same names are also kept by topic.
        child = ModuleType(f"torch_npu.npu.{part}")
        vars(child).update(npu_api.names())
        setattr(module, part, child)
    return module


def atb_names(release: str | None) -> list[str]:
    """Names of the ATB operators of a release."""
    return sorted({o.name for o in catalogue.operators(release) if o.namespace == "atb"})


def furnish(module: ModuleType) -> None:
    """The names of an inert module that must do something."""
    if module.__name__ == "torchair":
        for name in ("ops", "scope", "inference"):
            setattr(module, name, importlib.import_module(f"torchair.{name}"))
        vars(module).update(get_npu_backend=lambda **_: "eager", get_compiler=lambda *_, **__: _identity)
    elif module.__name__ == "torchair.ops":
        module.__class__ = _Operators
        vars(module).update(npu_wait_tensor=_wait, npu_print=_nothing)
    elif module.__name__ == "torchair.scope":
        vars(module).update(
            npu_wait_tensor=_wait, npu_tagged_event_record=_nothing, npu_tagged_event_wait=_nothing
        )
    elif module.__name__ in ("torchair.inference", "npugraph_ex.inference"):
        vars(module).update(cache_compile=_identity, readable_cache=_nothing)
    elif module.__name__ == "torch_npu.contrib":
        module.__class__ = _Contrib
    elif module.__name__ == TRANSFER:
        from kvlint.sim import session

        session.transfer_cuda()


class _Operators(InertModule):
    """``torchair.ops``: operators first, then inert names."""

    def __getattr__(self, name: str) -> Any:
        found = None if name.startswith("__") else operator(name)
        return super().__getattr__(name) if found is None else found


class _Contrib(InertModule):
    """``torch_npu.contrib``: importing ``transfer_to_npu`` from it must run that module."""

    def __getattr__(self, name: str) -> Any:
        if name == "transfer_to_npu":
            return importlib.import_module(TRANSFER)
        return super().__getattr__(name)


def _identity(function: Any, *_: Any, **__: Any) -> Any:
    return function


def _wait(tensor: Any, *_: Any) -> Any:
    return tensor


def _nothing(*_: Any, **__: Any) -> None:
    return None
