"""KV810: quantisation in a packed layout that does not serve it."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class QuantInPackedLayout(RunRule):
    """Quantisation in a packed layout that does not serve it.

    ## What it does
    Reports a quantised output, or an int8 cache under a float query, in TND and NTD with the prefill engine
    (head dim other than 512).

    ## Why it is wrong
    Tiling rejects the call: the packed prefill kernels compute in float16 and bfloat16 only. Documentation
    lists quantised output for BSH, BNSD, BSND and BNSD_BSND.

    ## Use instead
    BSH or BNSD for quantised layers; absorbed MLA has its own int8 form.

    ## Ops and versions
    FIA v1 and v2. Read from the CANN 8.5 snapshot; silent for a configured CANN of 9.0 or newer.

    ## Evidence
    G23, G24: prefill tiling (CANN 8.5 snapshot), op-plugin documentation of FIA v1.
    """

    code = "KV810"
    name = "quant-in-packed-layout"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("G23", "G24")
    families = ("fia",)
    bad = {
        "quantised output": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends,
                quant_scale2=scale.float(),  # KV810
            )
        """,
    }
    ok = {
        "float output": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "BSH": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                quant_scale2=scale.float())
        """,
        "may be None": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends, quant_scale2=layer.scale)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges output scale and cache dtype."""
        if call.packed.no or call.target.cann_at_least("9.0").yes:
            yield NOT_APPLICABLE
            return
        prefill = call.packed & ~call.decode_engine
        layout = call.layout.get("a packed layout")
        scale, key = call.arg("out_quant_scale"), call.arg("key")
        yield require(scale.is_none, f"{layout} does not serve a quantised output", when=prefill, at=scale)
        yield require(
            ~key.dtype.equals("int8"),
            f"{layout} does not serve an int8 cache",
            when=prefill & call.arg("query").dtype.among(("float16", "bfloat16")),
            at=key,
        )
