"""KV808: a scale or offset for only one of key and value."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require


class UnpairedKvScale(Rule):
    """A scale or offset for only one of key and value.

    ## What it does
    Checks that the scales of key and value are passed together, their offsets too, and an offset only with
    its scale.

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    Pass both, or neither.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    G09: decode tiling (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV808"
    name = "unpaired-kv-scale"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("G09",)
    families = ("fia",)
    bad = {
        "key only": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks.half(),  # KV808
                actual_seq_lengths_kv=lens)
        """,
        "offset without a scale": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                actual_seq_kvlen=lens,
                dequant_offset_key=ko.half(),  # KV808
                dequant_offset_value=vo.half(),  # KV808
            )
        """,
        "one branch passes both": """
            opts = {"num_heads": 8, "num_key_value_heads": 8, "scale": 0.1, "input_layout": "BSH"}
            if quantised:
                opts["key_antiquant_scale"] = ks.half()  # KV808
            torch_npu.npu_fused_infer_attention_score(q, k, v, actual_seq_lengths_kv=lens, **opts)
        """,
    }
    ok = {
        "both": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks.half(), value_antiquant_scale=vs.half(), actual_seq_lengths_kv=lens)
        """,
        "both in the same branch": """
            opts = {"num_heads": 8, "num_key_value_heads": 8, "scale": 0.1, "input_layout": "BSH"}
            if quantised:
                opts["key_antiquant_scale"] = ks.half()
                opts["value_antiquant_scale"] = vs.half()
            torch_npu.npu_fused_infer_attention_score(q, k, v, actual_seq_lengths_kv=lens, **opts)
        """,
        "may be None": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=layer.k_scale, actual_seq_lengths_kv=lens)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each argument that needs another."""
        for role, other in (
            ("key_quant_scale", "value_quant_scale"),
            ("value_quant_scale", "key_quant_scale"),
            ("key_quant_offset", "value_quant_offset"),
            ("value_quant_offset", "key_quant_offset"),
            ("key_quant_offset", "key_quant_scale"),
            ("value_quant_offset", "value_quant_scale"),
        ):
            mine, needed = call.arg(role), call.arg(other)
            if not call.has(other) or mine.is_none.yes:
                yield NOT_APPLICABLE
                continue
            yield require(
                ~needed.is_none,
                f"{mine.name} is passed without {needed.name}",
                when=mine.present,
                at=mine,
                fix=f"Pass {needed.name} too.",
            )
