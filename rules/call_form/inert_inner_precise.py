"""KV142: inner_precise asks for a speed-up that does not exist."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class InertInnerPrecise(RunRule):
    """inner_precise asks for a speed-up that does not exist.

    ## What it does
    Reports a constant 1 or 3 with a query that is known to be bfloat16 or int8, or with float16 and a
    `pse_shift`, in prefill.

    ## Why it is wrong
    High performance exists for float16 only, and a position bias switches it off. The bit has no effect. The
    FIA v2 documentation even restricts packed multi-head bfloat16 calls to 0.

    ## Use instead
    0, or 2 where rows can attend to nothing.

    ## Ops and versions
    FIA v1 and v2. All versions. Off by default.

    ## Evidence
    H04, H05, H21: op-plugin documentation, prefill tiling (CANN 8.5 snapshot).
    """

    code = "KV142"
    name = "inert-inner-precise"
    severity = Severity.IGNORED
    confidence = Confidence.MEDIUM
    default = False
    contract = ("H04", "H05", "H21")
    families = ("fia",)
    bad = {
        "bfloat16": """
            torch_npu.npu_fused_infer_attention_score(
                x.bfloat16(), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                inner_precise=1,  # KV142
            )
        """,
    }
    ok = {
        "float16": """
            torch_npu.npu_fused_infer_attention_score(
                x.half(), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                inner_precise=1)
        """,
        "unknown dtype": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH", inner_precise=1)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges bit 0 against the dtype of query."""
        precise, query, bias = call.arg("inner_precise"), call.arg("query"), call.arg("pse_shift")
        if precise.given.no:
            return NOT_APPLICABLE
        dtype = query.dtype.get("?")
        effective = query.dtype.equals("float16") & ~bias.present
        return require(
            effective,
            f"inner_precise {precise.constant.get('?')} has no effect for {dtype}"
            + (" with a pse_shift" if dtype == "float16" else ""),
            when=precise.constant.among((1, 3)),
            at=precise,
        )
