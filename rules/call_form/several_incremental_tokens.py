"""KV137: incremental attention with more than one query token."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri

from ._common import whole


class SeveralIncrementalTokens(RunRule):
    """Incremental attention with more than one query token.

    ## What it does
    Reports a constant query length other than 1.

    ## Why it is wrong
    npu_incre_flash_attention serves one token per sequence. Tiling rejects more, the meta kernel accepts it.

    ## Use instead
    npu_fused_infer_attention_score, which takes several tokens per sequence.

    ## Ops and versions
    npu_incre_flash_attention. All versions.

    ## Evidence
    IFA-01: op-plugin documentation, decode tiling; 16 tokens are accepted by the meta kernel (executed).
    """

    code = "KV137"
    name = "several-incremental-tokens"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("IFA-01",)
    families = ("ifa",)
    bad = {
        "speculative tokens": """
            q = x.view(4, 2, 1024)
            torch_npu.npu_incre_flash_attention(
                q,  # KV137
                k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=lens)
        """,
    }
    ok = {
        "one token": """
            q = x.view(4, 8, 1, 128)
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BNSD",
                actual_seq_lengths=lens)
        """,
        "unknown": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=lens)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the query length."""
        length = call.query_length
        size = whole(length)
        return require(
            Tri(None if size is None else size == 1, length.notes),
            f"query has {size} tokens per sequence, this operator takes one",
            at=call.arg("query"),
            fix="Use npu_fused_infer_attention_score.",
        )
