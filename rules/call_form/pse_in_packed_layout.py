"""KV143: a position bias in a packed layout."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require


class PseInPackedLayout(RunRule):
    """A position bias in a packed layout.

    ## What it does
    Reports a `pse_shift` with TND, NTD or their output variants.

    ## Why it is wrong
    The bias has a batch axis, packed layouts have none. Tiling rejects the call.

    ## Use instead
    BNSD or BSND with the bias, or npu_fusion_attention_v2 with alibi slopes.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention. All versions.

    ## Evidence
    H11: prefill tiling (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV143"
    name = "pse-in-packed-layout"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("H11",)
    families = ("fia", "pfa")
    bad = {
        "TND": """
            bias = slopes.view(1, 8, 1, 1) * positions
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends,
                pse_shift=bias,  # KV143
            )
        """,
    }
    ok = {
        "BNSD": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD", pse_shift=bias)
        """,
        "none": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND", pse_shift=None,
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "only with the other layout": """
            def attend(q, k, v, bias, packed, ends):
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="TND" if packed else "BNSD", pse_shift=None if packed else bias,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the pair."""
        bias = call.arg("pse_shift")
        return require(
            ~call.packed,
            f"{call.layout.get('the layout')} does not go with {bias.name}; tiling rejects the call",
            when=bias.present,
            at=bias,
        )
