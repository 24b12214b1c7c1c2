"""The transfer functions of torch by name: what a function, method or attribute gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvlint.contract.values import Const, DType, Tensor, Unknown, Value

from . import creation, numpylib, torchlib
from .torchlib import as_tensor, shape_value, transposed

_METHODS = torchlib.METHODS
_FUNCTIONS = {**torchlib.FUNCTIONS, **creation.FUNCTIONS}
_TAKES_ARRAYS = frozenset(("tensor", "as_tensor", "asarray", "from_numpy"))
_AS_METHOD = torchlib.AS_METHOD


class TorchLib:
    """Transfer functions. ``site`` is the place results are attributed to."""

    def function(self, name: str, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        """Result of ``torch.<name>(...)``; None when nothing is known."""
        if any(isinstance(value, Tensor) and value.numpy for value in args) and name not in _TAKES_ARRAYS:
            return None
        handler = _FUNCTIONS.get(name)
        if handler is not None:
            return handler(args, kwargs, site)
        if name in _AS_METHOD and args:
            return self.method(args[0], name, args[1:], kwargs, site)
        return None

    def method(
        self, receiver: Value, name: str, args: list[Value], kwargs: Mapping[str, Value], site: Any
    ) -> Value | None:
        """Result of ``receiver.<name>(...)``; None when nothing is known."""
        if isinstance(receiver, Tensor) and receiver.numpy:
            return numpylib.method(receiver, name, args, kwargs, site)
        handler = _METHODS.get(name)
        if handler is None and name.endswith("_") and name[:-1] in _METHODS and not name.startswith("_"):
            handler = _METHODS[name[:-1]]
            tensor = as_tensor(receiver)
            if tensor is None:
                return None
            result = handler(tensor, args, kwargs, site)
            if isinstance(result, Tensor):
                # In place: the dtype and the memory stay.
                return replace(
                    result,
                    dtypes=tensor.dtypes,
                    storage=tensor.storage,
                    copied=tensor.copied,
                    shape=tensor.shape,
                    strided=tensor.strided,
                )
            return result
        if handler is None:
            return None
        tensor = as_tensor(receiver)
        return handler(tensor, args, kwargs, site) if tensor is not None else None

    def attribute(self, receiver: Value, name: str, site: Any) -> Value | None:
        """``receiver.<name>`` for tensor attributes."""
        tensor = as_tensor(receiver)
        if tensor is None:
            return None
        if tensor.numpy and name not in ("shape", "ndim"):
            return numpylib.attribute(tensor, name, site)
        if name == "shape":
            return shape_value(tensor, site)
        if name == "dtype":
            if tensor.dtypes is not None and len(tensor.dtypes) == 1:
                return DType(tensor.dtypes[0], place=site)
            return Unknown(
                ("dtype", tensor.key),
                f"{tensor.label}.dtype",
                tensor.reason or "dtype not visible",
                place=site,
            )
        if name == "device":
            if tensor.device is not None:
                return Const(tensor.device, place=site)
            return Unknown(("device", tensor.key), f"{tensor.label}.device", "device not visible", place=site)
        if name == "ndim" and tensor.shape is not None:
            return Const(len(tensor.shape), place=site)
        if name == "T" and tensor.shape is not None and len(tensor.shape) != 2:
            # Every axis is turned round.
            axes: list[Value] = [Const(axis) for axis in reversed(range(len(tensor.shape)))]
            return self.method(tensor, "permute", axes, {}, site) if axes else tensor
        if name in ("T", "mT", "H", "mH"):
            return transposed(tensor, [Const(-2), Const(-1)], {}, site)
        if name == "data":
            return replace(tensor, place=site)
        return None


def arithmetic(left: Value, operator: str, right: Value, site: Any) -> Value | None:
    """Result of an operator with a tensor or array on one side; None without one."""
    result = torchlib.arithmetic(left, operator, right, site)
    arrays = any(isinstance(value, Tensor) and value.numpy for value in (left, right))
    if arrays and isinstance(result, Tensor):
        return replace(result, dtypes=numpylib.promoted(left, operator, right), numpy=True)
    return result
