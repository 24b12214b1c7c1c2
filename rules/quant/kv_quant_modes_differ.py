"""KV809: key and value are quantised in modes that do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri, tri

from ._common import decode_engine, kv_scale


class KvQuantModesDiffer(RunRule):
    """Key and value are quantised in modes that do not go together.

    ## What it does
    Checks constant modes: equal for key and value, or 0 for key and 1 for value; in prefill only 0 and 1; in
    decode 0 to 5. Modes 4 and 5 need a block table. Key 0 with value 1 over an int8 cache needs a float16
    query.

    ## Why it is wrong
    Tiling rejects the call (the float16 limit is documented only). The modes: 0 per channel or per tensor,
    1 per token, 2 per tensor and head, 3 per token and head, 4 per token in pages, 5 per token and head in
    pages.

    ## Use instead
    The same mode for both.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    G10, G11, G25: tiling of both engines (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV809"
    name = "kv-quant-modes-differ"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("G10", "G11", "G25")
    families = ("fia",)
    bad = {
        "value mode forgotten": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks.float(), value_antiquant_scale=vs.float(), actual_seq_lengths_kv=lens,
                key_antiquant_mode=1,  # KV809
            )
        """,
        "pages without a table": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                dequant_scale_key=ks.float(), dequant_scale_value=vs.float(), actual_seq_kvlen=lens,
                key_quant_mode=4,  # KV809
                value_quant_mode=4)
        """,
    }
    ok = {
        "equal": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks.float(), value_antiquant_scale=vs.float(), actual_seq_lengths_kv=lens,
                key_antiquant_mode=1, value_antiquant_mode=1)
        """,
        "per channel and per token": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks, value_antiquant_scale=vs, actual_seq_lengths_kv=lens,
                key_antiquant_mode=0, value_antiquant_mode=1)
        """,
        "no scales": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_mode=1)
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks, value_antiquant_scale=vs, actual_seq_lengths_kv=lens,
                key_antiquant_mode=mode, value_antiquant_mode=mode)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the pair of modes."""
        key, value = call.arg("key_quant_mode"), call.arg("value_quant_mode")
        scaled = kv_scale(call)
        if scaled.no or (key.given.no and value.given.no):
            yield NOT_APPLICABLE
            return
        at = key if key.given.yes else value
        mine, theirs = key.constant, value.constant
        # Ascend 950 has more modes and pairs, with 8-bit floats in query too.
        older = call.target.soc_in("A2", "A3", "310P")
        float_query = older | call.arg("query_quant_scale").is_none
        if mine.known and theirs.known:
            pair = (mine.value, theirs.value)
            yield require(
                tri(pair[0] == pair[1] or pair == (0, 1), *mine.notes, *theirs.notes),
                f"{key.name} is {pair[0]} and {value.name} is {pair[1]}",
                when=scaled & float_query,
                at=at,
                fix="Pass the same mode for both.",
            )
            yield require(
                ~call.arg("query").dtype.equals("bfloat16"),
                f"{key.name} 0 with {value.name} 1 needs a float16 query",
                when=scaled & tri(pair == (0, 1)) & call.arg("key").dtype.equals("int8"),
                at=at,
            )
        else:
            yield require(Tri(None, (*mine.notes, *theirs.notes)), "")
        shown = mine.get("?")
        yield require(
            mine.among((0, 1)),
            f"{key.name} is {shown}, prefill takes 0 and 1",
            when=scaled & ~decode_engine(call) & older,
            at=at,
        )
        yield require(
            mine.among(range(6)), f"{key.name} is {shown}, the modes are 0 to 5", when=scaled & older, at=at
        )
        yield require(
            ~call.arg("block_table").is_none,
            f"{key.name} {shown} is for paged scales, but there is no block table",
            when=scaled & mine.among((4, 5)),
            at=at,
        )
