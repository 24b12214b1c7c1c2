"""KV320: query lengths for absorbed MLA with a batch axis."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class MlaQueryLengths(RunRule):
    """Query lengths are passed to absorbed MLA or int8 NZ attention in a layout with a batch axis.

    ## What it does
    Reports query lengths with separate rope, head dim 512 and BSH, BSND or BNSD, or with a 5-D int8 cache.
    Off by default: the documentation says that they are ignored, and public code passes them.

    ## Why it is wrong
    The checkers of older releases want None there and reject the call.

    ## Use instead
    Leave the query lengths out; key lengths alone are needed.

    ## Ops and versions
    FIA v1 and v2 up to the CANN 8.5 snapshot; silent for a configured CANN from 9.0 on.

    ## Evidence
    D07, D09, X14: MLA checker and decode checker of ops-transformer (CANN 8.5 snapshot); the op-plugin
    documentation disagrees.
    """

    code = "KV320"
    name = "mla-query-lengths"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("D07", "D09", "X14")
    families = ("fia",)
    default = False
    bad = {
        "query lengths for draft tokens": """
            qr, kr = qr.contiguous(), kr.contiguous()
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(b, 8, 2, 512), kc, kc, query_rope=qr, key_rope=kr, num_query_heads=8,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BNSD", block_table=table,
                block_size=128, actual_seq_kvlen=lens, sparse_mode=3, atten_mask=hidden,
                actual_seq_qlen=[2] * 4,  # KV320
            )
        """,
    }
    ok = {
        "left out": """
            qr, kr = qr.contiguous(), kr.contiguous()
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(b, 8, 2, 512), kc, kc, query_rope=qr, key_rope=kr, num_query_heads=8,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BNSD", block_table=table,
                block_size=128, actual_seq_kvlen=lens, sparse_mode=3, atten_mask=hidden,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the presence of query lengths."""
        lengths, key = call.arg("q_lens"), call.arg("key")
        if call.target.cann_at_least("9.0").yes:
            return NOT_APPLICABLE
        window = call.arg("sparse_mode").constant.equals(4)
        grouped = key.rank.equals(5) & key.dtype.equals("int8") & ~call.rope
        return require(
            lengths.is_none,
            f"{lengths.name} must be None here for CANN up to 8.5",
            when=~call.packed & ((call.absorbed & ~window) | grouped),
            at=lengths,
            fix=f"Leave {lengths.name} out.",
        )
