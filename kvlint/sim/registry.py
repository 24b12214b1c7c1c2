"""Which function stands behind which operator.

Kernels of attention and cache operators come from :mod:`kvlint.oracle.kernels`, those around them from
:mod:`kvlint.sim.kernels`; a program adds its own with :func:`kernel`. Every operator of a schema set gets a
function: without a kernel, one that says so when it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kvlint.contract import catalogue
from kvlint.oracle.kernels import KERNELS as ATTENTION
from kvlint.oracle.kernels import KernelError
from kvlint.sim import limits
from kvlint.sim.dtypes import torch_dtype
from kvlint.sim.errors import MissingKernelError, SimulationError
from kvlint.sim.kernels import KERNELS as AROUND

Kernel = Callable[..., Any]

_OWN: dict[str, Kernel] = {}
_OWN_SCHEMAS: dict[str, str] = {}
_ATB_NAMES = frozenset(n for n in catalogue.names() if (o := catalogue.find(n)) and o.namespace == "atb")
#: Bytes of every simulated workspace. Kernels never use one.
WORKSPACE = 1024


def kernel(name: str, schema: str | None = None) -> Callable[[Kernel], Kernel]:
    """Decorator: the function is the simulated kernel of operator ``name`` (``"npu::npu_foo"``).

    It takes CPU tensors under the parameters of the operator's schema and returns what the operator returns.
    Keyword-only parameters that it does not name may then be passed with their default only.
    ``schema``, such as ``"foo(Tensor x, *, int axis=-1) -> Tensor"``, defines an operator that is not in
    torch_npu (``"custom::foo"``).
    """
    full = name if "::" in name else f"{'atb' if name in _ATB_NAMES else 'npu'}::{name}"

    def register(function: Kernel) -> Kernel:
        if schema is not None:
            _OWN_SCHEMAS[full] = schema
        _OWN[full] = function
        from kvlint.sim import session

        session.kernel_added(full)
        return function

    return register


def own_schemas() -> dict[str, str]:
    """Operators that the program defined: full name -> schema."""
    return dict(_OWN_SCHEMAS)


def find(namespace: str, name: str, overload: str = "") -> Kernel | None:
    """The kernel of an operator, or of the operator that it is a variant of."""
    full = f"{namespace}::{name}"
    for key in (f"{full}.{overload}", full) if overload else (full,):
        if key in _OWN:
            return _OWN[key]
    if namespace not in ("npu", "atb"):
        return None
    exact = f"{name}.{overload}" if overload else name
    for table in (AROUND, ATTENTION):
        if exact in table:
            return table[exact]
    if overload and "out" in overload:
        base = find(namespace, name)
        return None if base is None else _filling(base)
    if name.endswith(("_get_max_workspace", "_get_workspace")):
        return _workspace
    if name.endswith("_functional"):
        base_name = name.removesuffix("_functional")
        base = find(namespace, base_name)
        return None if base is None else _copying(base, base_name)
    for table in (AROUND, ATTENTION):
        if name in table:
            return table[name]
    return None


def has_kernel(full_name: str) -> bool:
    """``npu::name`` or ``npu::name.overload`` can be simulated."""
    namespace, _, rest = full_name.partition("::")
    name, _, overload = rest.partition(".")
    return find(namespace, name, overload) is not None


def _workspace(*args: Any, **kwargs: Any) -> Tensor:
    return torch.zeros(WORKSPACE, dtype=torch.uint8)


def _filling(base: Kernel) -> Kernel:
    """The form with given outputs: they are filled and returned, and must have the right shape and dtype."""

    def filling(*args: Any, _outputs: Sequence[Tensor] = (), **kwargs: Any) -> Any:
        kwargs.pop("workspace", None)
        results = base(*args, **kwargs)
        found = results if isinstance(results, tuple) else (results,)
        for i, (into, value) in enumerate(zip(_outputs, found, strict=False)):
            if value.numel() == 0 and i > 0:
                continue  # not requested: the buffer may have any shape (A10)
            if into.shape != value.shape or into.dtype != value.dtype:
                raise KernelError(
                    f"output {i} must be {tuple(value.shape)} {value.dtype}, "
                    f"got {tuple(into.shape)} {into.dtype} (contract 1.4)"
                )
            into.copy_(value)
        return tuple(_outputs) if isinstance(results, tuple) else _outputs[0]

    return filling


def _copying(base: Kernel, base_name: str) -> Kernel:
    """The functional form: what the base operator mutates is copied first and returned last."""
    operator = catalogue.find(base_name)
    mutated = [p.name for p in operator.params if p.mutated] if operator is not None else []
    order = [p.name for p in operator.params] if operator is not None else []

    def copying(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(order, args, strict=False)) | kwargs
        copies = [given[name].clone() for name in mutated]
        given |= zip(mutated, copies, strict=True)
        lead = [given.pop(name) for name in order[: len(args)]]
        results = base(*lead, **given)
        first = () if results is None else results if isinstance(results, tuple) else (results,)
        kept = [r for r in first if not any(r is c for c in copies)]
        return (*kept, *copies)

    return copying


@cache
def _accepted(function: Kernel) -> tuple[frozenset[str], bool]:
    """Names that the function takes, and whether it takes any."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in parameters), any(p.kind is p.VAR_KEYWORD for p in parameters)


class Bound:
    """One operator overload with its kernel: what the dispatcher calls.

    The dispatcher drops arguments that equal the schema's default; they are filled in again from the schema,
    because the defaults of a release, not those of the kernel, are what counts.
    """

    def __init__(self, namespace: str, schema: Any) -> None:
        self.namespace, self.schema = namespace, schema
        self.full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        self.name = schema.name.partition("::")[2]
        self.outputs = [
            a.name
            for a in schema.arguments
            if a.is_out or (a.name == "out" and "out" in schema.overload_name)
        ]
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = find(self.namespace, self.name, self.schema.overload_name)
        if function is None:
            raise MissingKernelError(self.full)
        self.calls += 1
        lead, rest = self._complete(args, kwargs)
        limits.check(self.name, dict(zip((a.name for a in self.schema.arguments), lead, strict=False)) | rest)
        with torch.no_grad():
            if "_outputs" not in _accepted(function)[0]:
                return function(*lead, **self._known(function, rest))
            outputs = [t for n in self.outputs if n in rest for t in _as_list(rest.pop(n))]
            return function(*lead, _outputs=outputs, **rest)

    def _complete(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        lead: list[Any] = []
        rest: dict[str, Any] = {}
        for i, argument in enumerate(self.schema.arguments):
            if not argument.kwarg_only and i < len(args):
                value = args[i]
            elif argument.name in kwargs:
                value = kwargs[argument.name]
            elif argument.has_default_value():
                value = argument.default_value
            else:
                raise SimulationError(f"{self.full}: {argument.name} is missing")
            if argument.name.endswith("dtype") or argument.name == "dst_type":
                value = torch_dtype(value)
            if argument.kwarg_only:
                rest[argument.name] = value
            else:
                lead.append(value)
        return lead, rest

    def _known(self, function: Kernel, rest: dict[str, Any]) -> dict[str, Any]:
        names, anything = _accepted(function)
        if anything:
            return rest
        defaults = {a.name: a.default_value for a in self.schema.arguments if a.has_default_value()}
        for name, value in rest.items():
            if name not in names and not _same(value, defaults.get(name)):
                raise MissingKernelArgument(self.full, name)
        return {n: v for n, v in rest.items() if n in names}


class MissingKernelArgument(MissingKernelError):
    """The kernel of the operator does not model one of its arguments."""

    def __init__(self, operator: str, argument: str) -> None:
        super().__init__(operator)
        self.args = (f"{operator}: the simulated kernel does not model {argument}",)


def _same(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


def _as_list(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def simulated(release: str | None = None) -> Iterator[str]:
    """Full names of the catalogue's operators that have a kernel."""
    for operator in catalogue.operators(release):
        if find(operator.namespace, operator.name, operator.overload) is not None:
            yield f"{operator.namespace}::{operator.full_name}"
