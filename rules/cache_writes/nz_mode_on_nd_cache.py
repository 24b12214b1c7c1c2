"""KV606: npu_scatter_pa_kv_cache writes NZ bytes into an ND cache."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require, undecided
from kvlint.contract.sizes import constant
from kvlint.contract.tri import Tri, tri

from ._common import SCATTER_PA

_HEAD_DIM = re.compile(r"(^|[._])(d|dim|head_dim|head_size|headdim|width|hidden\w*|\w*rank)$")


class NzModeOnNdCache(Rule):
    """npu_scatter_pa_kv_cache writes in NZ form, the cache is plain (blocks, block, heads, dim).

    ## What it does
    Reports a call whose `cache_mode` is PA_NZ (the default) with a cache whose shape is visibly not in NZ
    form: its last axis is the head dim instead of 16 (32 for int8). A plain tensor that is re-viewed to NZ
    shape is right.

    ## Why it is wrong
    PA_NZ stores tiles of (block, 16). Written into an ND cache they are rejected or scramble the rows;
    every reader that views the cache as (blocks, block, heads * dim) then gets wrong numbers.

    ## Use instead
    `cache_mode="Norm"` for an ND cache, or a cache viewed as (blocks, heads * dim // 16, block, 16).

    ## Ops and versions
    npu_scatter_pa_kv_cache and its functional form. `cache_mode` exists since op-plugin 26.0.0; before, the
    operator is NZ only and an ND cache cannot be served.

    ## Evidence
    PA-01: op-plugin documentation and wrapper; fixed twice in vllm-ascend. The meta kernel accepts any
    cache (executed).
    """

    code = "KV606"
    name = "nz-mode-on-nd-cache"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("PA-01",)
    operators = SCATTER_PA
    bad = {
        "mode omitted, cache of the class": """
            class Pool:
                def __init__(self, blocks, block, heads, dim):
                    shape = (blocks, block, heads, dim)
                    self.k = torch.zeros(shape, dtype=torch.bfloat16)
                    self.v = torch.zeros(shape, dtype=torch.bfloat16)

                def append(self, key, value, slots):
                    torch_npu.npu_scatter_pa_kv_cache(  # KV606
                        key.contiguous(), value.contiguous(), self.k, self.v, slots)
        """,
        "constants": """
            k = pool.view(-1, 128, 8, 128)
            torch_npu.npu_scatter_pa_kv_cache(
                key, value, k, k, slots,
                cache_mode="PA_NZ")  # KV606
        """,
    }
    ok = {
        "Norm": """
            k = pool.view(-1, 128, 8, 128)
            torch_npu.npu_scatter_pa_kv_cache(key, value, k, k, slots, cache_mode="Norm")
        """,
        "viewed to NZ": """
            k = pool.view(blocks, heads * dim // 16, block, 16)
            torch_npu.npu_scatter_pa_kv_cache(key, value, k, k, slots)
        """,
        "NZ with a named tile": """
            k = pool.view(blocks, rank // self.nz_dim, block, self.nz_dim)
            torch_npu.npu_scatter_pa_kv_cache(key, value, k, k, slots)
        """,
        "unknown": """
            torch_npu.npu_scatter_pa_kv_cache(key, value, kc, vc, slots)
        """,
        "NZ only on the NZ path": """
            k = pool.view(-1, 64, 128, 16) if nz else pool.view(-1, 128, 8, 128)
            torch_npu.npu_scatter_pa_kv_cache(
                key, value, k, k, slots, cache_mode="PA_NZ" if nz else "Norm")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the first cache that is visibly ND."""
        mode = call.arg("cache_mode")
        by_tiles = mode.constant.equals("PA_NZ")
        if by_tiles.no:
            yield NOT_APPLICABLE
            return
        for role in ("key_cache", "value_cache"):
            cache = call.arg(role)
            tiles = self._in_tiles(cache)
            if tiles.no:
                shape = ", ".join("?" if dim is None else dim.label for dim in cache.shape.value)
                yield require(
                    tiles,
                    f"{mode.name} PA_NZ writes tiles of 16 columns, but {cache.name} is ({shape}): "
                    "the rows are scrambled",
                    when=by_tiles,
                    at=mode if mode.given.yes else call.place,
                    fix='Pass cache_mode="Norm", or the cache viewed as (blocks, width // 16, block, 16).',
                )
                return
            yield undecided(tiles)

    @staticmethod
    def _in_tiles(cache: Arg) -> Tri:
        last = cache.dim(-1)
        size = constant(last)
        if size.known:
            return size.among((16, 32))
        if not last.known or not cache.rank.known or not last.value.declared:
            return Tri(None, last.notes)
        second: Num | None = cache.shape.value[1] if cache.rank.value == 4 else None
        if second is None:
            return Tri(None, last.notes)
        tied = bool(second.atoms() & last.value.atoms())
        named = _HEAD_DIM.search(last.value.label.lower()) and "nz" not in last.value.label.lower()
        return tri(False, *last.notes) if named and not tied else Tri(None, last.notes)
