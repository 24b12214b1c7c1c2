"""KV811: a merged scale next to split ones."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class MergedScaleIgnored(RunRule):
    """A merged scale next to split ones.

    ## What it does
    Reports `antiquant_scale` together with `key_antiquant_scale`.

    ## Why it is wrong
    The split scales win, the merged one has no effect.

    ## Use instead
    The split scales alone.

    ## Ops and versions
    FIA v1. v2 has no merged scale.

    ## Evidence
    G14: op-plugin documentation of FIA v1.
    """

    code = "KV811"
    name = "merged-scale-ignored"
    severity = Severity.IGNORED
    confidence = Confidence.MEDIUM
    contract = ("G14",)
    families = ("fia",)
    bad = {
        "both": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                antiquant_scale=both.half(),  # KV811
                key_antiquant_scale=ks.half(), value_antiquant_scale=vs.half(), actual_seq_lengths_kv=lens)
        """,
    }
    ok = {
        "split": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                antiquant_scale=None, key_antiquant_scale=ks.half(), value_antiquant_scale=vs.half(),
                actual_seq_lengths_kv=lens)
        """,
        "merged": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                antiquant_scale=both.half(), actual_seq_lengths_kv=lens)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the pair."""
        merged, split = call.arg("merged_quant_scale"), call.arg("key_quant_scale")
        if not call.has("merged_quant_scale") or merged.is_none.yes:
            return NOT_APPLICABLE
        return require(
            split.is_none,
            f"{merged.name} has no effect next to {split.name}",
            when=merged.present,
            at=merged,
        )
