"""KV822: an int8 output is computed with as if it were float."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, PROVED, Confidence, RunRule, Severity, Verdict, violated

_FLOAT = frozenset(
    (
        "Linear",
        "linear",
        "LayerNorm",
        "layer_norm",
        "RMSNorm",
        "rms_norm",
        "softmax",
        "gelu",
        "silu",
        "dropout",
    )
)


class QuantisedOutputAsFloat(RunRule):
    """An int8 output is computed with as if it were float.

    ## What it does
    Follows the output of a call with `quant_scale2` / `quant_scale_out` and reports where it is added,
    handed to a torch.nn layer or to a float function without being converted.

    ## Why it is wrong
    With a post-quantisation scale the operator returns int8. Added to a float tensor the integers
    themselves are taken for values, off by the scale; a float layer rejects them.

    ## Use instead
    Leave the scale out, or convert: `out.to(x.dtype) * scale`.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    G03: the output dtype is int8 (executed on torch_npu 2.13).
    """

    code = "KV822"
    name = "quantised-output-as-float"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("G03",)
    families = ("fia",)
    bad = {
        "layer": """
            class Attention(torch.nn.Module):
                def __init__(self, width):
                    super().__init__()
                    self.out = torch.nn.Linear(width, width)
                    self.out_scale = torch.nn.Parameter(torch.ones(1))

                def forward(self, q, k, v):
                    attn, _ = torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                        quant_scale2=self.out_scale)
                    return self.out(attn)  # KV822
        """,
        "added": """
            def attend(q, k, v, x):
                scale = torch.full((1,), 0.05)
                attn = torch_npu.npu_fused_infer_attention_score_v2(
                    q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                    quant_scale_out=scale)[0]
                return x + attn  # KV822
        """,
    }
    ok = {
        "converted": """
            def attend(q, k, v, x):
                scale = torch.full((1,), 0.05)
                attn = torch_npu.npu_fused_infer_attention_score_v2(
                    q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                    quant_scale_out=scale)[0]
                return x + attn.to(x.dtype) * scale
        """,
        "for a quantised layer": """
            def attend(self, q, k, v):
                scale = torch.full((1,), 0.05)
                attn, _ = torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                    quant_scale2=scale)
                return self.o_proj(attn)
        """,
        "no scale": """
            class Attention(torch.nn.Module):
                def __init__(self, width):
                    super().__init__()
                    self.out = torch.nn.Linear(width, width)

                def forward(self, q, k, v, scale=None):
                    attn, _ = torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                        quant_scale2=scale)
                    return self.out(attn)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the first use that takes the output for a float tensor."""
        scale = call.arg("out_quant_scale")
        if scale.is_none.yes:
            return NOT_APPLICABLE
        if call.operator.param("out_dtype") is not None and not call.named("out_dtype").is_none.yes:
            return NOT_APPLICABLE
        uses = [use for use in call.use.operands if use.index == 0]
        for use in uses:
            if scale.is_tensor.yes and (use.method in ("+", "-") or use.method in _FLOAT):
                return violated(
                    f"the output is int8, because {scale.name} is passed, and is used as a float tensor here",
                    use.place,
                    scale.is_tensor.notes,
                    f"Leave out {scale.name}, or convert: out.to(dtype) * scale.",
                )
        return PROVED if uses and scale.is_none.no else NOT_APPLICABLE
