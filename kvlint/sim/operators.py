"""Definition of the simulated operators and registration of their kernels with the dispatcher."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from kvlint.contract import catalogue
from kvlint.sim import registry
from kvlint.sim.gradients import without_gradient

_DATA: Final = Path(__file__).parent / "data" / "operators.json"
NAMESPACES: Final = ("npu", "atb")


@cache
def other_schemas() -> tuple[str, ...]:
    """Schemas of the torch_npu operators that are not in the catalogue, as release 2.13.0 registers them."""
    content: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return tuple(content["npu"])


class Definitions:
    """Operators that this process registered. They last as long as the object."""

    def __init__(self) -> None:
        self._libraries: dict[tuple[str, str], torch.library.Library] = {}
        self._defined: set[str] = set()
        self._bound: dict[str, registry.Bound] = {}

    def define_all(self, release: str | None) -> None:
        """Every operator of a torch_npu release, where torch_npu is absent."""
        for operator in catalogue.operators(release):
            self.define(operator.namespace, operator.schema)
        for schema in other_schemas():
            self.define("npu", schema)

    def define_atb(self, release: str | None) -> None:
        """ATB operators, whose library the real wheel loads only beside CANN."""
        for operator in catalogue.operators(release):
            if operator.namespace == "atb":
                self.define("atb", operator.schema)

    def define_own(self) -> None:
        """Operators that the program described with :func:`kvlint.sim.kernel`."""
        for full, schema in registry.own_schemas().items():
            self.define(full.partition("::")[0], schema)

    def define(self, namespace: str, schema: str) -> None:
        """One schema, unless the dispatcher has the operator already."""
        name = schema.partition("(")[0]
        full = f"{namespace}::{name}"
        if full in self._defined or _exists(full):
            return
        self._library(namespace, "FRAGMENT").define(schema)
        self._defined.add(full)

    def register_all(self) -> None:
        """A kernel, or a function that tells that there is none, for every operator of our namespaces."""
        namespaces = {*NAMESPACES, *(n.partition("::")[0] for n in registry.own_schemas())}
        for full in _registered(namespaces):
            self.register(full)

    def register(self, full: str) -> None:
        """``npu::name`` or ``npu::name.overload``."""
        if full in self._bound:
            return
        namespace, _, name = full.partition("::")
        bound = registry.Bound(namespace, _schema(full))
        known = registry.has_kernel(full)
        if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU"):
            return
        takes_tensors = any("Tensor" in str(a.type) for a in bound.schema.arguments)
        if not known and (not takes_tensors or _is_composite(full)):
            return
        # Without a tensor there is no CPU key to dispatch on.
        key = "CPU" if takes_tensors else "BackendSelect"
        self._library(namespace, "IMPL").impl(name, bound, key)
        if key == "CPU" and not _has_gradient(full):
            self._library(namespace, "IMPL").impl(name, without_gradient(full, _overload(full)), "Autograd")
        self._bound[full] = bound

    def calls(self) -> dict[str, int]:
        """Operator -> how often it ran."""
        return {name: bound.calls for name, bound in self._bound.items() if bound.calls}

    def close(self) -> None:
        """Takes the operators out of the dispatcher again."""
        for library in self._libraries.values():
            library._destroy()
        self._libraries.clear()
        self._defined.clear()
        self._bound.clear()

    def _library(self, namespace: str, kind: str) -> torch.library.Library:
        key = (namespace, kind)
        if key not in self._libraries:
            self._libraries[key] = torch.library.Library(namespace, kind)
        return self._libraries[key]


def _exists(full: str) -> bool:
    name, _, overload = full.partition(".")
    return any(s.overload_name == overload for s in torch._C._jit_get_schemas_for_operator(name))


def _schema(full: str) -> Any:
    name, _, overload = full.partition(".")
    return next(s for s in torch._C._jit_get_schemas_for_operator(name) if s.overload_name == overload)


def _overload(full: str) -> Any:
    namespace, _, rest = full.partition("::")
    name, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


def _has_gradient(full: str) -> bool:
    """A formula that holds for CPU tensors; those of the wheel hold for its own device only."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has(full, "Autograd") or has(full, "AutogradCPU"))


def _registered(namespaces: set[str]) -> Iterator[str]:
    for full in torch._C._dispatch_get_all_op_names():
        if full.partition("::")[0] in namespaces and torch._C._dispatch_has_kernel(full) is not None:
            yield full


def _is_composite(full: str) -> bool:
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
        or torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeExplicitAutograd")
    )
