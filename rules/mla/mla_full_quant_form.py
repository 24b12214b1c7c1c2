"""KV513: full-quantised MLA with an incomplete set of arguments."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import with_rope

_OFFSETS = ("key_quant_offset", "value_quant_offset")


class MlaFullQuantForm(RunRule):
    """Full-quantised MLA (int8 query with rope parts) lacks or mixes up its arguments.

    ## What it does
    For an int8 query with rope parts in FIA v2: key and value scales must be passed, `query_quant_mode`
    must be 3, `key_quant_mode` and `value_quant_mode` 0, offsets absent, the layout not BNSD, the cache
    paged in NZ form (5-D).

    ## Why it is wrong
    The decode checker knows this one form and rejects others.

    ## Use instead
    `dequant_scale_query`, `dequant_scale_key`, `dequant_scale_value` and `query_quant_mode=3` with a
    (blocks, 1, 16, block, 32) view of the int8 cache.

    ## Ops and versions
    FIA v2. All versions. (v1 has no query scale: it cannot do this.)

    ## Evidence
    F16, G19: decode checker (ops-transformer, CANN 8.5 snapshot).
    """

    code = "KV513"
    name = "mla-full-quant-form"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("F16", "G19")
    operators = ("npu_fused_infer_attention_score_v2",)
    bad = {
        "mode forgotten": """
            torch_npu.npu_fused_infer_attention_score_v2(  # KV513
                q.to(torch.int8), kv, kv, query_rope=q_pe, key_rope=k_pe, num_query_heads=32,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BSND", dequant_scale_query=a.float(),
                dequant_scale_key=b, dequant_scale_value=b, block_table=table, block_size=128,
                actual_seq_kvlen=lens)
        """,
        "heads first": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.to(torch.int8), kv, kv, query_rope=q_pe, key_rope=k_pe, num_query_heads=32,
                num_key_value_heads=1, softmax_scale=0.1, dequant_scale_query=a.float(), query_quant_mode=3,
                input_layout="BNSD",  # KV513
                dequant_scale_key=b, dequant_scale_value=b, block_table=table, block_size=128,
                actual_seq_kvlen=lens)
        """,
    }
    ok = {
        "complete": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.to(torch.int8), kv, kv, query_rope=q_pe, key_rope=k_pe, num_query_heads=32,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BSND", dequant_scale_query=a.float(),
                query_quant_mode=3, dequant_scale_key=b, dequant_scale_value=b, block_table=table,
                block_size=128, actual_seq_kvlen=lens)
        """,
        "float query": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.bfloat16(), kv, kv, query_rope=q_pe, key_rope=k_pe, num_query_heads=32,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BNSD", block_table=table,
                block_size=128, actual_seq_kvlen=lens)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the arguments of the full-quant form."""
        when = call.arg("query").dtype.equals("int8") & with_rope(call)
        if when.no:
            yield NOT_APPLICABLE
            return
        mode = call.arg("query_quant_mode")
        yield require(
            # Other modes are unknown-query-quant-mode.
            ~mode.constant.equals(0),
            f"{mode.name} is {mode.constant.get('?')}, full-quantised MLA needs 3",
            when=when,
            at=mode if mode.given.yes else call.place,
            fix=f"Pass {mode.name}=3.",
        )
        for role in ("key_quant_scale", "value_quant_scale"):
            scale = call.arg(role)
            yield require(scale.meant, f"{scale.name} is missing for an int8 query", when=when, at=call.place)
        for role in ("key_quant_mode", "value_quant_mode"):
            other = call.arg(role)
            yield require(
                other.constant.equals(0),
                f"{other.name} is {other.constant.get('?')}, full-quantised MLA needs 0",
                when=when,
                at=other,
            )
        for role in _OFFSETS:
            offset = call.arg(role)
            yield require(offset.is_none, f"{offset.name} does not go with it", when=when, at=offset)
        yield require(
            ~call.layout.among(("BNSD", "BNSD_NBSD")),
            f"input_layout={call.layout.get('')!r} is not served with an int8 query",
            when=when,
            at=call.arg("layout"),
            fix="Use BSND or TND.",
        )
        key = call.arg("key")
        yield require(
            key.rank.equals(5),
            f"{key.name} has {key.rank.get(0)} axes, full-quantised MLA reads an NZ cache (5)",
            when=when & call.arg("block_table").meant,
            at=key,
            fix="View the int8 cache as (blocks, 1, 512 // 32, block, 32).",
        )
