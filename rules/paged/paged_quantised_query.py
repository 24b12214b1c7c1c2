"""KV412: an int8 query with a block table."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import paged


class PagedQuantisedQuery(RunRule):
    """An int8 query, or an int4 cache, together with a block table.

    ## What it does
    Reports a block table next to an int8 query without rope parts, and next to a key cache of packed int4
    (an int32 tensor).

    ## Why it is wrong
    Full int8 attention is only served on contiguous keys (MLA has its own full-quant mode); packed int4
    keys are not documented for paging and the decode checker takes them in BSH and BSND only.

    ## Use instead
    A float query with an int8 cache and its dequantisation scales.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    PG14, PG15, G18: prefill tiling, decode tiling (ops-transformer, CANN 8.5 snapshot), op-plugin
    documentation of FIA v2.
    """

    code = "KV412"
    name = "paged-quantised-query"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("PG14", "PG15", "G18")
    families = ("fia",)
    bad = {
        "int8 query": """
            q8 = query.to(torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                q8,  # KV412
                k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=128,
                dequant_scale1=a, quant_scale1=b, dequant_scale2=c, actual_seq_lengths_kv=lens,
            )
        """,
    }
    ok = {
        "float query": """
            torch_npu.npu_fused_infer_attention_score(
                query.half(), k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=table,
                block_size=128, actual_seq_lengths_kv=lens,
            )
        """,
        "MLA with full quantisation": """
            torch_npu.npu_fused_infer_attention_score_v2(
                query.to(torch.int8), k, k, query_rope=q_pe.bfloat16(), key_rope=k_pe.bfloat16(),
                num_query_heads=32, num_key_value_heads=1, softmax_scale=0.1, input_layout="TND",
                dequant_scale_query=a, dequant_scale_key=b, dequant_scale_value=b, query_quant_mode=3,
                block_table=table, block_size=128, actual_seq_qlen=ends, actual_seq_kvlen=lens,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the dtypes of a paged call."""
        is_paged = paged(call)
        if is_paged.no:
            return NOT_APPLICABLE
        query, key = call.arg("query"), call.arg("key")
        if key.dtype.equals("int32").yes:
            layout_ok = call.layout.among(("BSH", "BSND"))
            return require(
                layout_ok,
                f"{key.name} is packed int4, which paging does not serve in this layout",
                when=is_paged,
                at=key,
                fix="Use an int8 cache.",
            )
        return require(
            ~query.dtype.equals("int8"),
            f"{query.name} is int8: full int8 attention is not served with a block table",
            when=is_paged & ~call.rope,
            at=query,
            fix="Pass a float query with an int8 cache and its scales.",
        )
