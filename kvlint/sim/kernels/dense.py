"""Matrix products and expert routing: float32 accumulation, results in the input dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.kernels import KernelError


def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``."""
    y = input.float() @ weight.float().t()
    return (y if bias is None else y + bias.float()).to(input.dtype)


def npu_transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int = 1,
) -> Tensor:
    """Both inputs permuted, multiplied per batch, the result permuted: by default [B, M, N] -> [M, B, N].

    ``batch_split_factor`` F splits the batch axis and moves the parts to the front: [F, M, B/F * N].
    """
    if bias is not None or scale is not None:
        raise KernelError("npu_transpose_batchmatmul: bias and scale are not simulated")
    a = input.permute(tuple(perm_x1 or (0, 1, 2))).float()
    b = weight.permute(tuple(perm_x2 or (0, 1, 2))).float()
    y = torch.bmm(a, b).permute(tuple(perm_y or (1, 0, 2))).to(input.dtype)
    if batch_split_factor > 1:
        rows, batch, width = y.shape
        y = y.reshape(rows, batch_split_factor, -1).transpose(0, 1)
        return y.reshape(batch_split_factor, rows, batch * width // batch_split_factor).contiguous()
    return y.contiguous()


def npu_bmmV2(input: Tensor, mat2: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Batched product."""
    return torch.matmul(input.float(), mat2.float()).to(input.dtype)


def npu_grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    bias: Sequence[Tensor] | None = None,
    group_list: Tensor | Sequence[int] | None = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
) -> list[Tensor]:
    """One tensor of rows in groups, one weight [E, K, N] (or a list): the unquantised MoE product.

    ``group_list`` holds row ends (type 0) or row counts (type 1).
    """
    if len(x) != 1 or group_list is None:
        return [
            (a.float() @ w.float() + (0 if not bias else bias[i].float())).to(a.dtype)
            for i, (a, w) in enumerate(zip(x, weight, strict=True))
        ]
    rows = x[0]
    groups = [int(n) for n in (group_list.tolist() if isinstance(group_list, Tensor) else group_list)]
    experts = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
    ends = groups if group_list_type == 0 else torch.tensor(groups).cumsum(0).tolist()
    out = rows.new_zeros(rows.shape[0], experts[0].shape[-1])
    begin = 0
    for e, end in enumerate(ends):
        y = rows[begin:end].float() @ experts[e].float()
        if bias:
            y = y + (bias[0][e] if len(bias) == 1 else bias[e]).float()
        out[begin:end] = y.to(out.dtype)
        begin = end
    return [out]


def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """(weights, expert ids, row ids) of the k best experts after softmax."""
    weights, experts = torch.softmax(x.float(), -1).topk(k, -1)
    count = x.shape[0]
    rows = torch.arange(count * k, dtype=torch.int32).reshape(k, count).t().contiguous()
    experts = experts.int()
    if finished is not None:
        experts[finished] = x.shape[-1]
    return weights.to(x.dtype), experts, rows


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        npu_linear, npu_transpose_batchmatmul, npu_bmmV2, npu_grouped_matmul, npu_moe_gating_top_k_softmax,
    )
} | {"npu_grouped_matmul.List": npu_grouped_matmul}  # fmt: skip
