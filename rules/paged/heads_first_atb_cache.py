"""KV413: an ATB operator gets a cache with the heads before the block axis."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    undecided,
    violated,
)
from kvlint.contract.sizes import constant, equal
from kvlint.contract.tri import Fact, Tri

_NZ = (16, 32)


class HeadsFirstAtbCache(RunRule):
    """An ATB operator gets a cache with the heads before the block axis.

    ## What it does
    Looks at 4-D caches of ATB operators with a block table. Where axis 1 is the KV head count of the call,
    and axis 2 is not, the cache is in the order of FIA: (blocks, heads, block, dim).

    ## Why it is wrong
    The ATB family reads (blocks, **block, heads**, dim), the opposite of FIA. ATB rejects the heads that do
    not match, or reads other tokens' rows where the numbers agree.

    ## Use instead
    Allocate (blocks, block, heads, dim) for ATB and flatten it for FIA.

    ## Ops and versions
    All `_npu_paged_attention*` and `_npu_flash_attention_qlens`, `_prefix_v2`, npu_paged_cache_load. 310P
    caches in NZ form are left alone.

    ## Evidence
    ATB-02: ATB operation checks.
    """

    code = "KV413"
    name = "heads-first-atb-cache"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("ATB-02",)
    families = ("atb",)
    bad = {
        "the order of FIA": """
            kc = pool.view(-1, 8, 128, 64)
            torch_npu._npu_paged_attention(
                query=q,
                key_cache=kc,  # KV413
                value_cache=kc,  # KV413
                num_kv_heads=8, num_heads=32, scale_value=0.1, block_table=table, context_lens=lens, out=out)
        """,
        "counts by name": """
            class Decode:
                def __init__(self, blocks, heads, kv_heads, dim):
                    self.heads, self.kv_heads = heads, kv_heads
                    self.kc = torch.zeros(blocks, kv_heads, 128, dim, dtype=torch.float16)

                def forward(self, q, table, lens, out):
                    torch_npu._npu_paged_attention(
                        query=q, num_kv_heads=self.kv_heads, num_heads=self.heads, scale_value=0.1,
                        block_table=table, context_lens=lens, out=out,
                        key_cache=self.kc,  # KV413
                        value_cache=self.kc,  # KV413
                    )
        """,
    }
    ok = {
        "block before heads": """
            kc = pool.view(-1, 128, 8, 64)
            torch_npu._npu_paged_attention(
                query=q, key_cache=kc, value_cache=kc, num_kv_heads=8, num_heads=32, scale_value=0.1,
                block_table=table, context_lens=lens, out=out)
        """,
        "unknown": """
            torch_npu._npu_paged_attention(
                query=q, key_cache=kc, value_cache=kc, num_kv_heads=8, num_heads=32, scale_value=0.1,
                block_table=table, context_lens=lens, out=out)
        """,
        "NZ form": """
            kc = pool.view(-1, 32, 128, 16)
            torch_npu._npu_paged_attention(
                query=q, key_cache=kc, value_cache=kc, num_kv_heads=8, num_heads=32, scale_value=0.1,
                block_table=table, context_lens=lens, out=out)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges both caches."""
        for role in ("key_cache", "value_cache"):
            cache = call.arg(role)
            if not call.has("block_table") or cache.is_none.yes:
                yield NOT_APPLICABLE
                continue
            if not cache.rank.equals(4).yes:
                yield undecided(Tri(None, cache.rank.notes))
                continue
            heads = call.kv_heads
            first, second = equal(cache.dim(1), heads), equal(cache.dim(2), heads)
            if second.yes or constant(cache.dim(3)).among(_NZ).yes:
                yield PROVED
            elif first.yes and (second.no or _named(heads)):
                yield violated(
                    f"axis 1 of {cache.name} is the KV head count, but ATB reads (blocks, block, heads, dim)",
                    cache,
                    (*first.notes, *second.notes),
                    f"Pass {cache.name} as (blocks, block, heads, dim).",
                )
            else:
                yield undecided(first, second)


def _named(heads: Fact[Num]) -> bool:
    """Whether the count is no constant: another size that equals it does so by accident."""
    return heads.known and heads.value.integer is None
