"""KV407: a paged cache with a number of axes the layout does not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call, leaves
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
from kvlint.contract.sizes import constant
from kvlint.contract.tri import NO, Tri

from ._common import paged, split_heads

_NO_4D = ("BSH", "BSND", "BSH_NBSD", "BSND_NBSD", "BSH_BNSD", "BSND_BNSD")


class PagedCacheRank(RunRule):
    """The paged cache has a number of axes that its layout does not take.

    ## What it does
    With a block table, compares the rank of the key and value caches with `input_layout`: 3-D (blocks,
    block, heads * dim) goes with all layouts, 4-D (blocks, heads, block, dim) with BNSD and the TND family,
    5-D (NZ) with absorbed MLA (not BNSD), with an int8 cache for at most 16 query tokens, and with TND in
    prefill.

    ## Why it is wrong
    The operator picks the physical layout by rank alone. A rank the layout does not take is rejected; the
    meta kernel only rejects 1, 2 and more than 5 axes.

    ## Use instead
    `cache.view(blocks, block_size, -1)`: every layout takes the 3-D form.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention (3-D, or 4-D with BNSD). All versions.

    ## Evidence
    1.5, PG09, PG17, PG23, IFA-04: layout selection in the decode and prefill tiling (ops-transformer, CANN
    8.5 snapshot); the 2-D cache is rejected by the wrapper (executed).
    """

    code = "KV407"
    name = "paged-cache-rank"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("1.5", "PG09", "PG17", "PG23", "IFA-04")
    families = ("fia", "ifa")
    bad = {
        "flat cache": """
            rows = pool.view(-1, 1024)
            torch_npu.npu_fused_infer_attention_score(
                q,
                rows,  # KV407
                rows,  # KV407
                num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=128,
                actual_seq_lengths_kv=lens,
            )
        """,
        "4-D cache with BSND": """
            opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BSND", "block_size": 128}
            cache = pool.view(-1, 8, 128, 64)
            torch_npu.npu_fused_infer_attention_score_v2(
                q,
                cache,  # KV407
                cache,  # KV407
                block_table=table, actual_seq_kvlen=lens, **opts)
        """,
        "NZ cache with BNSD_BSND": """
            cache = pool.view(-1, 8, 4, 128, 16)
            torch_npu.npu_fused_infer_attention_score_v2(
                q,
                cache,  # KV407
                cache,  # KV407
                num_query_heads=8, softmax_scale=0.1, input_layout="BNSD_BSND", block_table=table,
                block_size=128, actual_seq_kvlen=lens,
            )
        """,
    }
    ok = {
        "3-D": """
            rows = pool.view(-1, 128, 1024)
            torch_npu.npu_fused_infer_attention_score(
                q, rows, rows, num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=128,
                actual_seq_lengths_kv=lens,
            )
        """,
        "4-D with BNSD": """
            cache = pool.view(-1, 8, 128, 64)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, cache, cache, num_query_heads=8, softmax_scale=0.1, input_layout="BNSD", block_size=128,
                block_table=table, actual_seq_kvlen=lens)
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, cache, cache, num_query_heads=8, softmax_scale=0.1, input_layout="BSND", block_size=128,
                block_table=table, actual_seq_kvlen=lens)
        """,
        "flattened by a starred view": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k_pool.view(*k_pool.shape[:2], -1), v_pool.view(*v_pool.shape[:2], -1), num_query_heads=8,
                softmax_scale=0.1, input_layout="BSND", block_size=128, block_table=table,
                actual_seq_kvlen=lens)
        """,
        "layout by path": """
            cache = pool.view(-1, 8, 128, 64) if heads_first else pool.view(-1, 128, 512)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, cache, cache, num_query_heads=8, softmax_scale=0.1,
                input_layout="BNSD" if heads_first else "BSND", block_size=128,
                block_table=table, actual_seq_kvlen=lens)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the key and the value cache."""
        is_paged = paged(call)
        if is_paged.no:
            yield NOT_APPLICABLE
            return
        for role in ("key", "value"):
            cache = call.arg(role)
            rank = cache.rank
            if not rank.known or not is_paged.yes:
                yield undecided(Tri(None, rank.notes), is_paged)
                continue
            if rank.value == 4 and split_heads(call, cache).yes:
                yield NOT_APPLICABLE  # bnbsnd-cache
                continue
            wrong, why = self._illegal(call, rank.value)
            if wrong.yes:
                yield violated(
                    f"the paged {cache.name} has {rank.value} axes{why}, which is rejected",
                    cache,
                    (*rank.notes, *wrong.notes),
                    f"Pass {cache.name}.view(blocks, block_size, heads * dim).",
                )
            else:
                yield PROVED if wrong.no else undecided(wrong)

    @staticmethod
    def _illegal(call: Call, rank: int) -> tuple[Tri, str]:
        if rank not in (3, 4, 5):
            return ~NO, ", it must have 3, 4 or 5"
        if rank == 3:
            return NO, ""
        layout = call.layout
        if rank == 4:
            # Shipped MLA code passes (blocks, 1, block, 512) with BSND: newer releases take it.
            return layout.among(_NO_4D) & ~call.rope, f" with input_layout={layout.get('')!r}"
        if call.operator.family == "ifa":
            return Tri(None), ""
        never = layout.among(("BNSD_BSND", "NSD"))
        if len(leaves(call.arg("key").value, {})) == 1:
            # Whether the cache is NZ and which layout reads it are often two switches of one program.
            never = never | (layout.among(("BNSD", "BNSD_NBSD")) & call.rope)
        long = constant(call.query_length).holds(lambda size: size > 16)
        batched = layout.among(("BSH", "BSND", "BNSD")) & long & ~call.arg("sparse_mode").constant.equals(4)
        return never | batched, f" (NZ) with input_layout={layout.get('')!r}"
