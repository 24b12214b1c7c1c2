"""KV127: query and key have different batch sizes."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import differ, paged

BATCH_AXIS = {"BSH": 0, "BSND": 0, "BNSD": 0, "SBH": 1}


class BatchDiffers(RunRule):
    """Query and key have different batch sizes.

    ## What it does
    Compares the batch axes of query and of an unpaged key in layouts that have one.

    ## Why it is wrong
    Tiling rejects the call: keys are not broadcast over the batch. A preallocated cache with room for more
    sequences has to be cut to the batch.

    ## Use instead
    `key_cache[:batch]`, or `expand` the key.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention. All versions.

    ## Evidence
    B18: prefill tiling of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV127"
    name = "batch-differs"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B18",)
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "one key for the batch": """
            q = x.view(4, 8, 16, 128)
            k = y.view(1, 8, 64, 128)
            torch_npu.npu_fused_infer_attention_score(
                q,
                k,  # KV127
                k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
    }
    ok = {
        "equal": """
            q = x.view(4, 8, 16, 128)
            k = y.view(4, 8, 64, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "paged": """
            q = x.view(4, 1, 1024)
            cache = pool.view(64, 128, 1024)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens)
        """,
        "unknown": """
            q = x.view(4, 8, 16, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the two axes."""
        layout = call.query_layout.get("")
        axis = BATCH_AXIS.get(layout)
        if axis is None and layout:
            return NOT_APPLICABLE
        key = call.arg("key")
        mine, theirs = call.batch, key.dim(axis or 0)
        return require(
            ~differ(theirs, mine),
            f"key has batch {theirs.value.label if theirs.known else '?'},"
            f" query has {mine.value.label if mine.known else '?'}",
            when=~paged(call),
            at=key,
            fix="Cut or expand key and value to the batch of query.",
        )
