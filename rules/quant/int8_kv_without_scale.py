"""KV806: an int8 cache under a float query without a scale."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import FLOATS, kv_scale


class Int8KvWithoutScale(RunRule):
    """An int8 cache under a float query without a scale.

    ## What it does
    Where query is known to be a float and key int8, checks that a scale for the cache is passed, and for a
    bfloat16 query that it is the split form (one scale for key, one for value).

    ## Why it is wrong
    Tiling rejects the call: the operator has nothing to turn the integers back with.

    ## Use instead
    `key_antiquant_scale` and `value_antiquant_scale` in v1, `dequant_scale_key` and `dequant_scale_value` in
    v2.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions.

    ## Evidence
    G07: tiling of both engines (CANN 8.5 snapshot).
    """

    code = "KV806"
    name = "int8-kv-without-scale"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("G07",)
    families = ("fia", "ifa")
    bad = {
        "no scale": """
            cache = torch.zeros(64, 128, 1024, dtype=torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                x.half(),
                cache,  # KV806
                cache, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens)
        """,
        "merged scale for bfloat16": """
            k = y.to(torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                x.bfloat16(),
                k,  # KV806
                k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                antiquant_scale=scales.bfloat16(), actual_seq_lengths_kv=lens)
        """,
    }
    ok = {
        "split scales": """
            k = y.to(torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                x.bfloat16(), k, k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks, value_antiquant_scale=vs, actual_seq_lengths_kv=lens)
        """,
        "unknown query": """
            k = y.to(torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges presence, then the form."""
        query, key = call.arg("query"), call.arg("key")
        case = query.dtype.among(FLOATS) & key.dtype.equals("int8")
        if case.no:
            yield NOT_APPLICABLE
            return
        yield require(
            kv_scale(call),
            "key is int8 and query is float, but no scale for the cache is passed",
            when=case,
            at=key,
        )
        if not case.yes:
            return
        merged, split = call.arg("merged_quant_scale"), call.arg("key_quant_scale")
        if call.operator.family == "fia":
            yield require(
                ~(merged.present & split.is_none),
                "a bfloat16 query needs one scale for key and one for value, not a merged one",
                when=query.dtype.equals("bfloat16"),
                at=key,
            )
