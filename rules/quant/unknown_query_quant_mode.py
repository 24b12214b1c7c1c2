"""KV814: a query_quant_mode without meaning."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class UnknownQueryQuantMode(RunRule):
    """A query_quant_mode without meaning.

    ## What it does
    Reports a constant `query_quant_mode` other than 0 and 3, and 3 without `dequant_scale_query`.

    ## Why it is wrong
    Only 3 (per token and head, for int8 MLA) is implemented. Tiling rejects the call, the meta kernel accepts
    it.

    ## Use instead
    3 with `dequant_scale_query` for int8 MLA, nothing otherwise.

    ## Ops and versions
    FIA v2.

    ## Evidence
    G19, F16: tiling (CANN 8.5 snapshot), op-plugin documentation; mode 1 is accepted by the meta kernel
    (executed).
    """

    code = "KV814"
    name = "unknown-query-quant-mode"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("G19", "F16")
    families = ("fia",)
    bad = {
        "one": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                query_quant_mode=1,  # KV814
            )
        """,
        "no scale": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                query_quant_mode=3,  # KV814
            )
        """,
    }
    ok = {
        "default": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                query_quant_mode=0)
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                query_quant_mode=mode)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the mode and its scale."""
        mode = call.arg("query_quant_mode")
        if not call.has("query_quant_mode") or mode.given.no:
            yield NOT_APPLICABLE
            return
        # Ascend 950 has modes from 6 on, for 8-bit floats.
        newer = mode.constant.holds(lambda value: isinstance(value, int) and value > 5)
        yield require(
            mode.constant.among((0, 3)),
            f"query_quant_mode is {mode.constant.get('?')}, not 0 or 3",
            when=~newer | call.target.soc_in("A2", "A3", "310P"),
            at=mode,
        )
        yield require(
            ~call.arg("query_quant_scale").is_none,
            "query_quant_mode is 3, but dequant_scale_query is not passed",
            when=mode.constant.equals(3),
            at=mode,
        )
