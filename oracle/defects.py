"""Public operator defects, re-created as faulty simulator kernels, to prove that the matrix would find them.

``kvlint oracle run --backend sim:NAME`` runs the matrix against one of them; the run must fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .kernels import KERNELS

_V1, _V2 = "npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"


@dataclass(frozen=True, slots=True)
class Defect:
    """``wrap`` turns a correct operator into the faulty one, for each name in ``operators``."""

    summary: str
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    operators: tuple[str, ...] = (_V1, _V2)

    def replacements(self) -> dict[str, Callable[..., Any]]:
        return {name: self.wrap(KERNELS[name]) for name in self.operators}


def _mask_past_512(correct: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(query: Tensor, key: Tensor, value: Tensor, **kw: Any) -> Any:
        mask = kw.get("atten_mask")
        if mask is not None and kw.get("sparse_mode", 0) in (0, 1) and mask.shape[-1] > 512:
            kw["atten_mask"] = mask.clone()
            kw["atten_mask"][..., 512:] = 0
        return correct(query, key, value, **kw)

    return faulty


def _uniform_average(correct: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(query: Tensor, key: Tensor, value: Tensor, **kw: Any) -> Any:
        if kw.get("input_layout") == "TND" and kw.get("atten_mask") is None and kw.get("query_rope") is None:
            query = torch.zeros_like(query)
        return correct(query, key, value, **kw)

    return faulty


def _block_size_16(correct: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(query: Tensor, key: Tensor, value: Tensor, **kw: Any) -> Any:
        table = kw.get("block_table")
        if table is not None and kw.get("block_size") == 16 and table.shape[1] > 1:
            # Pages are fetched as pairs of 32 rows: every second entry of the table is taken for its
            # neighbour.
            kw["block_table"] = table.clone()
            odd = torch.arange(1, table.shape[1], 2)
            kw["block_table"][:, odd] = table[:, odd - 1]
        return correct(query, key, value, **kw)

    return faulty


DEFECTS: dict[str, Defect] = {
    "mask-past-512": Defect("atten_mask is not honoured past KV position 512", _mask_past_512),
    "uniform-average": Defect("TND with sparse_mode 0 and no mask returns the mean of V", _uniform_average),
    "block-size-16": Defect("output is corrupted at block size 16", _block_size_16),
}
