"""KV803: a learnable sink with arguments that exclude it."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import kv_scale


class SinkConflict(RunRule):
    """A learnable sink with arguments that exclude it.

    ## What it does
    Reports a `learnable_sink` together with a position bias, quantised key and value, or a post-quantisation
    scale.

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    A float cache and float output for layers with a sink.

    ## Ops and versions
    FIA v2.

    ## Evidence
    H07: prefill tiling (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV803"
    name = "sink-conflict"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("H07",)
    families = ("fia",)
    bad = {
        "position bias": """
            bias = slopes.view(1, 8, 1, 1).bfloat16()
            torch_npu.npu_fused_infer_attention_score_v2(
                x.bfloat16(), k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1,
                input_layout="TND", actual_seq_qlen=ends, actual_seq_kvlen=ends,
                pse_shift=bias,  # KV143
                learnable_sink=weights.bfloat16(),  # KV803
            )
        """,
        "quantised output": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=ends,
                quant_scale_out=scale.float(),  # KV810
                learnable_sink=weights.bfloat16(),  # KV803
            )
        """,
    }
    ok = {
        "sink alone": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=ends, learnable_sink=weights.bfloat16(),
                pse_shift=None)
        """,
        "what may be None": """
            class Attention:
                def forward(self, q, k, v, ends):
                    return torch_npu.npu_fused_infer_attention_score_v2(
                        q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1,
                        input_layout="TND", actual_seq_qlen=ends, actual_seq_kvlen=ends,
                        learnable_sink=self.sinks.bfloat16(), quant_scale_out=self.out_scale)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each conflict."""
        sink = call.arg("sink")
        if not call.has("sink") or sink.is_none.yes:
            yield NOT_APPLICABLE
            return
        conflicts = (
            ("a position bias", call.arg("pse_shift").present),
            ("quantised key and value", kv_scale(call)),
            ("a quantised query", call.arg("query_quant_scale").present),
            ("a quantised output", call.arg("out_quant_scale").present),
        )
        for what, holds in conflicts:
            yield require(~holds, f"learnable_sink does not go with {what}", when=sink.present, at=sink)
