"""KV805: scales of full quantisation with a float query."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided

from ._common import FLOATS


class ScalesOnFloatQuery(RunRule):
    """Scales of full quantisation with a float query.

    ## What it does
    Reports `dequant_scale1`, `quant_scale1` or `dequant_scale2` (v2: `dequant_scale_query`) with a query that
    is known to be float16 or bfloat16.

    ## Why it is wrong
    Tiling rejects the call: for float input only the output may be quantised.

    ## Use instead
    Drop them, or quantise query, key and value.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions.

    ## Evidence
    G04, F17: tiling of both engines (CANN 8.5 snapshot).
    """

    code = "KV805"
    name = "scales-on-float-query"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("G04", "F17")
    families = ("fia", "pfa", "ifa")
    bad = {
        "float16": """
            torch_npu.npu_fused_infer_attention_score(
                x.half(), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                dequant_scale1=scale.float(),  # KV805
            )
        """,
    }
    ok = {
        "none": """
            torch_npu.npu_fused_infer_attention_score(
                x.half(), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                dequant_scale1=None)
        """,
        "may be None": """
            torch_npu.npu_fused_infer_attention_score(
                x.half(), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                dequant_scale1=layer.scale)
        """,
        "int8": """
            torch_npu.npu_fused_infer_attention_score(
                x.to(torch.int8), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                dequant_scale1=a, quant_scale1=b, dequant_scale2=c)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each scale under a float query."""
        dtype = call.arg("query").dtype.among(FLOATS)
        for role in ("dequant_scale1", "quant_scale1", "dequant_scale2", "query_quant_scale"):
            scale = call.arg(role)
            if scale.is_none.yes:
                yield NOT_APPLICABLE
            elif dtype.unknown:
                yield undecided(dtype)
            else:
                yield require(
                    scale.is_none,
                    f"{scale.name} is passed, but query is {call.arg('query').dtype.get('a float')}",
                    when=dtype,
                    at=scale,
                )
