"""KV148: an argument that the operator reserves."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

RESERVED: dict[str, tuple[str, ...]] = {
    "npu_fused_infer_attention_score": ("key_rope_antiquant_scale",),
    "npu_fused_infer_attention_score_v2": ("dequant_scale_key_rope",),
    "npu_prompt_flash_attention": ("padding_mask",),
    "npu_incre_flash_attention": ("padding_mask",),
    "npu_kv_quant_sparse_flash_attention": ("key_dequant_scale", "value_dequant_scale"),
}


class ReservedArgument(RunRule):
    """An argument that the operator reserves.

    ## What it does
    Reports a tensor passed for an argument that the operator does not implement.

    ## Why it is wrong
    FIA rejects `key_rope_antiquant_scale` / `dequant_scale_key_rope`: the rope part is never quantised.
    `padding_mask` has no effect. The scales of npu_kv_quant_sparse_flash_attention live inside the 656-byte
    rows of the cache.

    ## Use instead
    Leave it out; padding is told by the length lists.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention,
    npu_kv_quant_sparse_flash_attention. All versions.

    ## Evidence
    H20, SP-14, 2.2, 2.3: existence checks in tiling (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV148"
    name = "reserved-argument"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("H20", "SP-14", "2.2", "2.3")
    operators = tuple(RESERVED)
    bad = {
        "scale of the rope part": """
            scales = torch.ones(8, dtype=torch.float32)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_rope_antiquant_scale=scales,  # KV148
            )
        """,
        "padding mask": """
            torch_npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                padding_mask=x.view(2, 16),  # KV148
            )
        """,
    }
    ok = {
        "none": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_rope_antiquant_scale=None)
        """,
        "passed on": """
            def attend(q, k, v, padding_mask=None):
                return torch_npu.npu_prompt_flash_attention(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                    padding_mask=padding_mask)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each reserved argument."""
        for name in RESERVED[call.operator.name]:
            arg = call.named(name)
            if arg.given.no:
                yield NOT_APPLICABLE
                continue
            yield require(arg.is_none, f"{name} is reserved, the operator does not implement it", at=arg)
