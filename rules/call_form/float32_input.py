"""KV126: a dtype that the inference operators do not compute in."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require

from ._common import INFERENCE

REJECTED = ("float32", "float64", "int64", "int16", "bool", "complex64")


class Float32Input(RunRule):
    """A dtype that the inference operators do not compute in.

    ## What it does
    Reports a query that is float32 (or float64, int64, bool).

    ## Why it is wrong
    The inference operators take float16, bfloat16 and quantised input. Wrapper and meta kernel accept
    float32, tiling rejects it. A rotary embedding with float32 cos and sin is a usual source.

    ## Use instead
    `.to(model_dtype)` after the rotary embedding. npu_fusion_attention takes float32.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions.

    ## Evidence
    B17: tiling of ops-transformer (CANN 8.5 snapshot); accepted by the meta kernel (executed).
    """

    code = "KV126"
    name = "float32-input"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B17",)
    families = INFERENCE
    bad = {
        "float()": """
            torch_npu.npu_fused_infer_attention_score(
                x.float(),  # KV126
                k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "default dtype": """
            q = torch.randn(2, 16, 1024, dtype=torch.float32)
            torch_npu.npu_prompt_flash_attention(
                q,  # KV126
                q, q, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH")
        """,
    }
    ok = {
        "half": """
            torch_npu.npu_fused_infer_attention_score(
                x.half(), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "training": """
            torch_npu.npu_fusion_attention(x.float(), y.float(), z.float(), 8, "BSH", scale=0.1)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the dtype of query."""
        query = call.arg("query")
        return require(
            ~query.dtype.among(REJECTED),
            f"query is {query.dtype.get('?')}, the operator takes float16, bfloat16 and quantised input",
            at=query,
            fix="Convert query, key and value to the dtype of the model.",
        )
