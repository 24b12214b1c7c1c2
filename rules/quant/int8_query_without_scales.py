"""KV804: an int8 query without the scales of full quantisation."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided

from ._common import decode_engine


class Int8QueryWithoutScales(RunRule):
    """An int8 query without the scales of full quantisation.

    ## What it does
    For a query that is known to be int8, checks that `dequant_scale1`, `quant_scale1` and `dequant_scale2`
    are passed (in npu_prompt_flash_attention `deq_scale1`, `quant_scale1`, `deq_scale2`), and that the call
    is prefill. For FIA v2 it checks that the int8 query is the MLA form with rope
    parts and `dequant_scale_query`.

    ## Why it is wrong
    Tiling rejects the call. Per-tensor int8 attention exists in v1 only; v2 dropped its scales. Decode does
    not serve it (nor do paged caches, see KV412).

    ## Use instead
    v1 with all three scales, or a float query over an int8 cache.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention. All versions.

    ## Evidence
    G01, G23, F16: prefill tiling and decode checker (CANN 8.5 snapshot); the meta kernel accepts the
    call (executed).
    """

    code = "KV804"
    name = "int8-query-without-scales"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("G01", "F16")
    families = ("fia", "pfa")
    bad = {
        "two of three": """
            q = x.to(torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                q,  # KV804
                k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                dequant_scale1=a, quant_scale1=b)
        """,
        "v2 without rope parts": """
            q = x.to(torch.int8)
            torch_npu.npu_fused_infer_attention_score_v2(
                q,  # KV804
                k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH")
        """,
    }
    ok = {
        "all three": """
            q = x.to(torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH", dequant_scale1=a,
                quant_scale1=b, dequant_scale2=c)
        """,
        "float query": """
            torch_npu.npu_fused_infer_attention_score(
                x.half(), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "unknown query": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges what an int8 query needs."""
        query = call.arg("query")
        quantised = query.dtype.equals("int8")
        if not quantised.yes:
            yield NOT_APPLICABLE if quantised.no else undecided(quantised)
            return
        if not call.has("dequant_scale1"):
            mla = ~call.arg("query_rope").is_none & ~call.arg("query_quant_scale").is_none
            yield require(
                mla,
                "query is int8, but v2 takes that for MLA with rope parts and dequant_scale_query only",
                at=query,
                fix="Use v1 with dequant_scale1, quant_scale1 and dequant_scale2, or a float query.",
            )
            return
        for role in ("dequant_scale1", "quant_scale1", "dequant_scale2"):
            scale = call.arg(role)
            yield require(~scale.is_none, f"query is int8, but {scale.name} is not passed", at=query)
        yield require(~decode_engine(call), "query is int8, but decode does not serve it", at=query)
