"""KV236: advice about a bias that the training operator scales too."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require


class BiasBeforeScale(RunRule):
    """`pse` of npu_fusion_attention is multiplied by the scale; FIA adds its bias after scaling.

    ## What it does
    Points at every `pse` of npu_fusion_attention and _v3, and of _v2 with the default `pse_type` 1. Off by
    default.

    ## Why it is wrong
    These operators compute scale * (QK^T + pse), while FIA, npu_prompt_flash_attention and
    npu_incre_flash_attention compute scale * QK^T + pse_shift, as SDPA does with a float mask. The same
    tensor moved from one to the other changes by the factor of the scale, silently.

    ## Use instead
    Divide a bias that is meant to be added after scaling by the scale, or use _v2 with `pse_type=0`.

    ## Ops and versions
    npu_fusion_attention, _v3; _v2 with pse_type 1.

    ## Evidence
    FUS-15, H23: op-plugin documentation formula, kernels of ops-transformer.
    """

    code = "KV236"
    name = "bias-before-scale"
    severity = Severity.ADVICE
    confidence = Confidence.MEDIUM
    contract = ("FUS-15", "H23")
    operators = ("npu_fusion_attention", "npu_fusion_attention_v2", "npu_fusion_attention_v3")
    default = False
    bad = {
        "bias of an SDPA model": """
            bias = alibi.to(torch.float16)
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BNSD", scale=0.1,
                pse=bias,  # KV236
            )
        """,
    }
    ok = {
        "scale first": """
            torch_npu.npu_fusion_attention_v2(q, k, v, 8, "BNSD", scale=0.1, pse=bias, pse_type=0)
        """,
        "no bias": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Points at the bias."""
        bias = call.arg("pse_shift")
        order = call.named("pse_type")
        scaled = order.constant.equals(1) if call.operator.param("pse_type") else bias.present
        return require(
            ~scaled,
            f"{bias.name} is added before scaling here, FIA adds its bias after scaling",
            when=bias.present,
            at=bias,
            fix=f"Divide {bias.name} by the scale if it comes from an SDPA or FIA model.",
        )
