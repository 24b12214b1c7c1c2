"""KV508: an argument that split rope parts exclude."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import with_rope

_EXCLUDED = (
    "pse_shift",
    "key_prefix",
    "value_prefix",
    "query_padding",
    "kv_padding",
    "out_quant_scale",
    "out_quant_offset",
    "merged_quant_scale",
    "merged_quant_offset",
)


class MlaExcludedArgument(RunRule):
    """An argument is passed that split rope parts exclude.

    ## What it does
    With rope parts, reports `pse_shift`, shared prefixes, left padding, a quantised output and the merged
    dequantisation scale.

    ## Why it is wrong
    Both MLA forms reject them.

    ## Use instead
    Drop the argument. Position bias, prefixes and left padding do not exist in MLA; quantise the output
    afterwards.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    F12, F15: existence checks of the MLA checker (ops-transformer, CANN 8.5 snapshot), op-plugin
    documentation of FIA v2.
    """

    code = "KV508"
    name = "mla-excluded-argument"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("F12", "F15")
    families = ("fia",)
    bad = {
        "quantised output": """
            factor = torch.ones(1)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, k, num_query_heads=8, num_key_value_heads=1, softmax_scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=k_pe, actual_seq_qlen=ends, actual_seq_kvlen=lens,
                block_table=table, block_size=128,
                quant_scale_out=factor,  # KV508
            )
        """,
        "position bias on the rope path": """
            opts = {"num_heads": 8, "num_key_value_heads": 8, "scale": 0.1, "input_layout": "BSND"}
            if split:
                opts.update(query_rope=q_pe, key_rope=k_pe)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v,
                pse_shift=bias.half(),  # KV508
                **opts)
        """,
    }
    ok = {
        "none of them": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, k, num_query_heads=8, num_key_value_heads=1, softmax_scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=k_pe, actual_seq_qlen=ends, actual_seq_kvlen=lens,
                block_table=table, block_size=128, quant_scale_out=None,
            )
        """,
        "one or the other": """
            opts = {"num_heads": 8, "num_key_value_heads": 8, "scale": 0.1, "input_layout": "BSND"}
            if split:
                opts.update(query_rope=q_pe, key_rope=k_pe)
            else:
                opts["pse_shift"] = bias.half()
            torch_npu.npu_fused_infer_attention_score(q, k, v, **opts)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each excluded argument."""
        rope = with_rope(call)
        if rope.no:
            yield NOT_APPLICABLE
            return
        for role in _EXCLUDED:
            argument = call.arg(role)
            yield require(
                argument.is_none,
                f"{argument.name} does not go with split rope parts",
                when=rope,
                at=argument,
                fix=f"Drop {argument.name}.",
            )
