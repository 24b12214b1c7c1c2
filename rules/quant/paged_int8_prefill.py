"""KV821: prefill over a paged int8 cache in a form it does not have."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided

from ._common import FLOATS, whole


class PagedInt8Prefill(RunRule):
    """Prefill over a paged int8 cache in a form it does not have.

    ## What it does
    For a float query with more than 16 tokens over a paged int8 cache (3-D), checks: float16, BSH or BSND,
    split scales in mode 0, inner_precise 1, sparse_mode 3 with a mask, no position bias.

    ## Why it is wrong
    Documentation excludes it; the CANN 8.5 tiling lets exactly this form through and rejects the rest.

    ## Use instead
    Attend to the fresh key and value of the prompt, and write the int8 cache for decode.

    ## Ops and versions
    FIA v1 and v2. Silent for a configured CANN of 9.0 or newer.

    ## Evidence
    G26: prefill tiling (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV821"
    name = "paged-int8-prefill"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("G26",)
    families = ("fia",)
    bad = {
        "bfloat16": """
            cache = torch.zeros(64, 128, 1024, dtype=torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                x.bfloat16().view(1, 512, 1024),  # KV821
                cache, cache, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table.int(), block_size=128, actual_seq_lengths_kv=lens, atten_mask=mask,
                sparse_mode=3, key_antiquant_scale=ks, value_antiquant_scale=vs, inner_precise=1)
        """,
    }
    ok = {
        "the form that is served": """
            cache = torch.zeros(64, 128, 1024, dtype=torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                x.half().view(1, 512, 1024), cache, cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", block_table=table.int(), block_size=128, actual_seq_lengths_kv=lens,
                atten_mask=mask, sparse_mode=3, key_antiquant_scale=ks, value_antiquant_scale=vs,
                inner_precise=1)
        """,
        "decode": """
            cache = torch.zeros(64, 128, 1024, dtype=torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                x.bfloat16().view(4, 1, 1024), cache, cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", block_table=table.int(), block_size=128, actual_seq_lengths_kv=lens,
                key_antiquant_scale=ks, value_antiquant_scale=vs)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the call under such a cache."""
        query, key = call.arg("query"), call.arg("key")
        tokens = whole(call.query_length)
        many = call.query_length.holds(lambda size: size.integer is not None and size.integer > 16)
        case = call.paged & key.dtype.equals("int8") & query.dtype.among(FLOATS) & ~call.packed
        if case.no or (tokens is not None and tokens <= 16) or call.target.cann_at_least("9.0").yes:
            yield NOT_APPLICABLE
            return
        if case.unknown or tokens is None or not many.yes:
            yield undecided(case, *call.query_length.notes)
            return
        yield require(
            query.dtype.equals("float16"), "a paged int8 cache in prefill needs a float16 query", at=query
        )
        for role, allowed in (
            ("layout", ("BSH", "BSND")),
            ("inner_precise", (1,)),
            ("sparse_mode", (3,)),
            ("key_quant_mode", (0,)),
            ("value_quant_mode", (0,)),
        ):
            arg = call.arg(role)
            yield require(
                arg.constant.among(allowed),
                f"a paged int8 cache in prefill takes {arg.name} {' or '.join(map(str, allowed))},"
                f" not {arg.constant.get('?')}",
                at=arg if arg.given.yes else call.place,
            )
        merged = call.arg("merged_quant_scale")
        yield require(merged.is_none, "a paged int8 cache in prefill needs split scales", at=merged)
