"""Operators have no simulated gradient: a backward pass that reaches one says so and stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from kvlint.sim.errors import MissingGradientError


class _Missing(torch.autograd.Function):
    """Stands in the graph where the operator's gradient would."""

    @staticmethod
    def forward(ctx: Any, operator: str, results: Sequence[Sequence[Tensor]], *inputs: Tensor) -> Any:
        ctx.operator = operator
        return tuple(results[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise MissingGradientError(ctx.operator)


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def without_gradient(full: str, operator: Callable[..., Any]) -> Callable[..., Any]:
    """The autograd kernel of an operator: it computes, and only the backward pass is refused.

    What the operator writes into stays as it is: a cache is no result, and takes no part in the graph.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            found = operator(*args, **kwargs)
        if not torch.is_grad_enabled():
            return found
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        sources = [t for t in given if t.requires_grad]
        if not sources:
            return found
        written = {_memory(t) for t in given if not t.requires_grad}
        leaves, form = tree_flatten(found)
        new = [
            i
            for i, t in enumerate(leaves)
            if isinstance(t, Tensor)
            and t.is_floating_point()
            and _memory(t) not in written
            and not any(t is g for g in sources)
        ]
        # Inside a list the results are no inputs of the function. The program could not write into a view.
        results = [leaves[i].clone() if leaves[i]._is_view() else leaves[i] for i in new]
        for i, t in zip(new, _Missing.apply(full, [results], *sources) if new else (), strict=True):
            leaves[i] = t
        return tree_unflatten(leaves, form)

    return call
