"""KV216: a mask parameter that never reaches the operator."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, violated


class UnusedMaskParameter(RunRule):
    """A function takes an attention mask, calls the operator without one and never looks at it.

    ## What it does
    Reports a parameter that is named like a mask and is not read anywhere in a function whose attention
    calls all go without a mask.

    ## Why it is wrong
    A caller that passes a padding or causal mask gets full attention, silently.

    ## Use instead
    Pass the mask on (converted to True = hidden), or raise or fall back when one is given.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, the npu_fusion_attention family.

    ## Evidence
    C08, FUS-05: without a mask every key is attended to.
    """

    code = "KV216"
    name = "unused-mask-parameter"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("C08", "FUS-05")
    events = ("mask-parameter-unused",)
    bad = {
        "backend that drops the mask": """
            class Backend:
                def forward(self, q, k, v, attention_mask=None, **extra):  # KV216
                    out, _ = torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1,
                        sparse_mode=0)
                    return out
        """,
    }
    ok = {
        "passed on": """
            def forward(q, k, v, attention_mask=None):
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1,
                    atten_mask=attention_mask)
        """,
        "signature shared with other backends": """
            def attention(q, k, v, drop_rate=0, attn_mask=None, causal=False, batch_size=1):
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1)
        """,
        "fallback when given": """
            def forward(q, k, v, attention_mask=None):
                if attention_mask is not None:
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1)
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the parameter."""
        name = event.detail.get("name", "the mask")
        return violated(
            f"{name} is never used: the attention call computes without a mask whatever the caller passes",
            event.place,
            event.notes,
            f"Pass {name} on as atten_mask (True = hidden), or reject callers that give one.",
        )
