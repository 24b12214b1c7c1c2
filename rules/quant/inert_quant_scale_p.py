"""KV815: quant_scale_p on a product that drops it."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided


class InertQuantScaleP(RunRule):
    """quant_scale_p on a product that drops it.

    ## What it does
    Reports a `quant_scale_p` unless the configured product is 950.

    ## Why it is wrong
    On A2 and A3 the wrapper does not hand it to the operator: no effect, no error.

    ## Use instead
    Nothing on A2 and A3; per-tensor int8 attention is FIA v1 there.

    ## Ops and versions
    FIA v2, op-plugin 26.0.0 and newer.

    ## Evidence
    G20: wrapper source of op-plugin.
    """

    code = "KV815"
    name = "inert-quant-scale-p"
    severity = Severity.IGNORED
    confidence = Confidence.MEDIUM
    contract = ("G20",)
    families = ("fia",)
    bad = {
        "passed": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                quant_scale_p=p.float(),  # KV815
            )
        """,
    }
    ok = {
        "none": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                quant_scale_p=None)
        """,
        "may be None": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                quant_scale_p=layer.p)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges presence."""
        scale = call.named("quant_scale_p")
        if scale.is_none.yes or call.target.soc_in("950").yes:
            return NOT_APPLICABLE
        eight_bit = call.arg("query").dtype.among(("float16", "bfloat16", "int8")).no
        if (eight_bit or call.arg("query_quant_scale").given.yes) and call.target.soc is None:
            # A quantised query is how 950 uses it.
            return undecided(call.target.soc_in("950"))
        return require(scale.is_none, "quant_scale_p has no effect on A2 and A3", at=scale)
