"""Storage formats and list or functional forms of cache writers. A format has no effect on logical values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.kernels import KERNELS as ATTENTION
from kvlint.oracle.kernels import KernelError
from kvlint.sim.dtypes import FORMATS


def npu_format_cast(input: Tensor, acl_format: int, **_: Any) -> Tensor:
    """The same values in another storage: ``input`` stays as it is."""
    if isinstance(acl_format, int) and acl_format not in FORMATS.values():
        raise KernelError(f"npu_format_cast: {acl_format} is not a storage format")
    return input.clone(memory_format=torch.contiguous_format)


def npu_format_cast_(input: Tensor, acl_format: int, **_: Any) -> Tensor:
    """In place."""
    return input


def npu_prefetch(input: Tensor, dependency: Tensor | None, max_size: int, offset: int = 0) -> None:
    """Moves data into a cache: nothing to see."""


def npu_scatter_list_(
    input: Sequence[Tensor],
    indices: Tensor,
    updates: Tensor,
    mask: Tensor | None = None,
    reduce: str = "update",
    axis: int = -2,
) -> None:
    """updates[b] goes into input[b] along ``axis`` from indices[b] on."""
    if reduce != "update":
        raise KernelError(f"npu_scatter_list: reduce {reduce!r} is not supported")
    for b, cache in enumerate(input):
        if mask is not None and not bool(mask.reshape(-1)[b]):
            continue
        begin, at = int(indices.reshape(len(input), -1)[b, 0]), axis % updates.dim() - 1
        span = updates[b].shape[at]
        if begin < 0 or begin + span > cache.shape[at]:
            raise KernelError(f"npu_scatter_list: rows {begin}..{begin + span} of entry {b} leave the cache")
        cache.narrow(at, begin, span).copy_(updates[b])


def npu_scatter_list(
    input: Sequence[Tensor],
    indices: Tensor,
    updates: Tensor,
    mask: Tensor | None = None,
    reduce: str = "update",
    axis: int = -2,
) -> list[Tensor]:
    """The functional form."""
    copies = [t.clone() for t in input]
    npu_scatter_list_(copies, indices, updates, mask, reduce, axis)
    return copies


def npu_quant_scatter(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The functional form of npu_quant_scatter_."""
    result: Tensor = ATTENTION["npu_quant_scatter_"](input.clone(), *args, **kwargs)
    return result


def empty_with_swapped_memory(
    size: Sequence[int], *, dtype: torch.dtype | None = None, device: object = None
) -> Tensor:
    """Host-backed memory: an ordinary CPU tensor."""
    return torch.empty(tuple(size), dtype=dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    "npu_format_cast": npu_format_cast,
    "npu_format_cast.Tensor": npu_format_cast,
    "npu_format_cast_": npu_format_cast_,
    "npu_format_cast_.acl_format": npu_format_cast_,
    "npu_prefetch": npu_prefetch,
    "npu_scatter_list_": npu_scatter_list_,
    "npu_scatter_list": npu_scatter_list,
    "npu_quant_scatter": npu_quant_scatter,
    "empty_with_swapped_memory": empty_with_swapped_memory,
    "get_npu_format": lambda input: FORMATS["ND"],
}
