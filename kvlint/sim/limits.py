"""What the operators reject before they run, with the contract id of each limit.

Only limits that a host check or the tiling of the device enforces are here: a call that the device accepts
and computes wrongly must stay accepted and wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.kernels import KernelError

Arguments = Mapping[str, Any]
_HALF = (torch.float16, torch.bfloat16)
_PACKED = ("TND", "NTD", "TND_NTD", "NTD_TND")


def check(name: str, given: Arguments) -> None:
    """Raises :class:`KernelError` where the operator would refuse the call."""
    for test in _CHECKS.get(name.removesuffix("_"), ()):
        problem = test(given)
        if problem:
            raise KernelError(f"{name}: {problem}")


def _first(given: Arguments, *names: str) -> Any:
    return next((given[n] for n in names if n in given), None)


def _heads(given: Arguments) -> str:
    heads = _first(given, "num_heads", "num_query_heads")
    kv = given.get("num_key_value_heads") or heads
    if heads <= 0:
        return f"the number of query heads must be positive, got {heads} (A05)"
    if heads % kv:
        return f"{heads} query heads are not a multiple of {kv} key heads (B07)"
    if heads // kv > 64 and given.get("query_rope") is None:
        return f"{heads} query heads per {kv} key heads: at most 64 to one (B07)"
    if given["input_layout"].startswith("BSH") and given["query"].shape[-1] % heads:
        return f"query H {given['query'].shape[-1]} is not a multiple of {heads} heads (B03)"
    return ""


def _types(given: Arguments) -> str:
    q, k, v = given["query"], given["key"], given["value"]
    if k.dtype != v.dtype:
        return f"key is {k.dtype} and value {v.dtype} (B15)"
    if q.is_floating_point() and q.dtype not in _HALF:
        return f"query must be float16 or bfloat16, got {q.dtype} (B17)"
    if q.is_floating_point() and k.is_floating_point() and q.dtype != k.dtype:
        return f"query is {q.dtype} and key {k.dtype} (B17)"
    return ""


def _ranks(given: Arguments) -> str:
    if given.get("block_table") is None and given["key"].dim() != given["query"].dim():
        return f"key has {given['key'].dim()} dims and query {given['query'].dim()} (B16)"
    return ""


def _rope(given: Arguments) -> str:
    if (given.get("query_rope") is None) != (given.get("key_rope") is None):
        return "query_rope and key_rope go together (F01)"
    return ""


def _lengths(given: Arguments) -> str:
    if given["input_layout"] not in _PACKED:
        return ""
    q = _first(given, "actual_seq_lengths", "actual_seq_qlen")
    kv = _first(given, "actual_seq_lengths_kv", "actual_seq_kvlen")
    if q is None or kv is None:
        return f"layout {given['input_layout']} needs query and key lengths (D01)"
    steps = list(q)
    if any(b < a for a, b in pairwise(steps)):
        return "query lengths of a packed layout are cumulative and must not fall (D02)"
    query = given["query"]
    tokens = query.shape[0 if given["input_layout"].startswith("T") else 1]
    if steps and steps[-1] != tokens and query.shape[-1] != 512:
        return f"the last query length is {steps[-1]}, the query has {tokens} tokens (D02)"
    if len(steps) != len(kv):
        return f"{len(steps)} query lengths and {len(kv)} key lengths (D01)"
    return ""


def _mask(given: Arguments) -> str:
    mask, mode = given.get("atten_mask"), given["sparse_mode"]
    if mask is not None and mask.dtype not in (torch.bool, torch.int8, torch.uint8):
        return f"atten_mask must be bool, int8 or uint8, got {mask.dtype} (C01)"
    if mode in (2, 3, 4) and _tokens(given) > 1:
        if mask is None:
            return f"sparse_mode {mode} needs atten_mask (C03)"
        if tuple(mask.shape[-2:]) != (2048, 2048):
            return f"sparse_mode {mode} takes a mask of 2048 x 2048, got {tuple(mask.shape)} (C04)"
    return ""


def _tokens(given: Arguments) -> int:
    """Query tokens per request as the host sees them; all tokens of a packed layout."""
    axes, query = given["input_layout"].partition("_")[0], given["query"]
    return int(query.shape[axes.index("S")]) if "S" in axes and query.dim() == len(axes) else 2


def _sink(given: Arguments) -> str:
    sink = given.get("learnable_sink")
    if sink is None:
        return ""
    if given["input_layout"] not in ("TND", "NTD_TND"):
        return f"learnable_sink needs layout TND or NTD_TND, got {given['input_layout']} (H07, H08)"
    if tuple(sink.shape) != (given["num_query_heads"],) or sink.dtype != torch.bfloat16:
        return f"learnable_sink must be bfloat16 of shape (N1,), got {sink.dtype} {tuple(sink.shape)} (H07)"
    return ""


def _table(given: Arguments) -> str:
    table = given.get("block_table")
    if table is None:
        return ""
    if table.dtype != torch.int32:
        return f"block_table must be int32, got {table.dtype} (PG01)"
    if table.dim() != 2:
        return f"block_table must have 2 dims, got {table.dim()} (PG02)"
    if not given["block_size"]:
        return "block_table needs block_size (PG03)"
    return ""


def _scatter_update(given: Arguments) -> str:
    data, indices, updates = (_first(given, *n) for n in (("data", "input"), ("indices",), ("updates",)))
    if data.dim() != updates.dim():
        return f"data has {data.dim()} dims and updates {updates.dim()} (SU-01)"
    if data.dtype != updates.dtype:
        return f"data is {data.dtype} and updates {updates.dtype} (SU-05)"
    return "indices must be integers (SU-06)" if indices.is_floating_point() else ""


def _kv_norm(given: Arguments) -> str:
    modes = ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")
    if given["cache_mode"] not in modes:
        return f"cache_mode {given['cache_mode']!r} is not one of {', '.join(modes)} (KR-01)"
    index: Tensor = given["index"]
    if index.dtype != torch.int64:
        return f"index must be int64, got {index.dtype} (KR-03)"
    if index.dim() != (2 if given["cache_mode"] == "Norm" else 1):
        return f"index of mode {given['cache_mode']} has the wrong rank {index.dim()} (KR-04)"
    if given["kv"].dim() != 4 or given["gamma"].dim() != 1 or given["cos"].dim() != 4:
        return "kv and cos have 4 dims, gamma has 1 (KR-13)"
    width = given["kv"].shape[-1] - given["gamma"].numel()
    if given.get("v") is None and given["k_cache"].shape[-1] != width:
        return f"k_cache is the rope cache, {width} wide, got {given['k_cache'].shape[-1]} (KR-02)"
    return ""


_FIA = (_heads, _types, _ranks, _rope, _lengths, _mask, _table)
_CHECKS: Mapping[str, tuple[Callable[[Arguments], str], ...]] = {
    "npu_fused_infer_attention_score": _FIA,
    "npu_fused_infer_attention_score_v2": (*_FIA, _sink),
    "npu_prompt_flash_attention": (_heads, _types, _ranks, _mask),
    "npu_incre_flash_attention": (_heads, _types),
    "scatter_update": (_scatter_update,),
    "npu_kv_rmsnorm_rope_cache": (_kv_norm,),
    "npu_kv_rmsnorm_rope_cache_v2": (_kv_norm,),
}
