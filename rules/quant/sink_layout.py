"""KV801: a learnable sink in a layout that does not serve it."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class SinkLayout(RunRule):
    """A learnable sink in a layout that does not serve it.

    ## What it does
    Reports a `learnable_sink` with another layout than TND or NTD_TND.

    ## Why it is wrong
    Only the packed prefill kernels add the sink to the softmax denominator. Tiling rejects the call; for one
    query token in BSH, BSND or BNSD there is no kernel with a sink at all.

    ## Use instead
    TND, for decode too: one token per sequence, cumulative query lengths.

    ## Ops and versions
    FIA v2. v1 has no sink (KV102 reports it there).

    ## Evidence
    H07, H08: output checks in tiling (CANN 8.5 snapshot), op-plugin documentation; the meta kernel accepts
    any sink (executed).
    """

    code = "KV801"
    name = "sink-layout"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("H07", "H08")
    families = ("fia",)
    bad = {
        "BSH": """
            sink = torch.zeros(8, dtype=torch.bfloat16)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                learnable_sink=sink,  # KV801
            )
        """,
        "layout of the default": """
            sinks = weights.to(torch.bfloat16)
            opts = {"num_query_heads": 8, "num_key_value_heads": 8, "softmax_scale": 0.1}
            torch.ops.npu.npu_fused_infer_attention_score_v2(
                q, k, v,
                learnable_sink=sinks,  # KV801
                **opts)
        """,
    }
    ok = {
        "TND": """
            sink = torch.zeros(8, dtype=torch.bfloat16)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=ends, learnable_sink=sink)
        """,
        "no sink": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                learnable_sink=None)
        """,
        "passed on": """
            def attend(q, k, v, sink=None):
                return torch_npu.npu_fused_infer_attention_score_v2(
                    q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                    learnable_sink=sink)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the layout under a sink."""
        sink = call.arg("sink")
        if not call.has("sink"):
            return NOT_APPLICABLE
        return require(
            call.layout.among(("TND", "NTD_TND")),
            f"learnable_sink needs TND or NTD_TND, the layout is {call.layout.get('?')}",
            when=sink.present,
            at=sink,
            fix="Pack the tokens and use TND.",
        )
