"""KV820: grouped-query attention over an int8 NZ cache in a form it does not have."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided

from ._common import whole

EXCLUDED = ("key_quant_offset", "value_quant_offset", "pse_shift", "q_lens", "query_padding", "kv_padding")
HEADS = ((10, 1), (64, 8), (80, 8), (128, 16))


class NzInt8CacheForm(RunRule):
    """Grouped-query attention over an int8 NZ cache in a form it does not have.

    ## What it does
    For a 5-D int8 cache without rope parts, checks: bfloat16 query, head dim 128, query and KV heads of 10/1,
    64/8, 80/8 or 128/16, layout BSH, BSND or BNSD, inner_precise 1, modes 0/0 or 1/1,
    no offsets, no log-sum-exp, no position bias, no query lengths.

    ## Why it is wrong
    The kernel was written for these shapes. Tiling rejects everything else.

    ## Use instead
    An ND int8 cache (3-D) for other models.

    ## Ops and versions
    FIA v1 and v2. Read from the CANN 8.5 snapshot; silent for a configured CANN of 9.0 or newer.

    ## Evidence
    G17, D09: decode checker (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV820"
    name = "nz-int8-cache-form"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("G17", "D09")
    families = ("fia",)
    bad = {
        "precision and heads": """
            cache = torch.zeros(64, 8, 4, 128, 32, dtype=torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                x.bfloat16().view(4, 1, 4096), cache, cache, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", block_table=table.int(), block_size=128, actual_seq_lengths_kv=lens,
                key_antiquant_scale=ks, value_antiquant_scale=vs,
                inner_precise=0,  # KV820
                num_heads=32,  # KV820
            )
        """,
    }
    ok = {
        "served": """
            cache = torch.zeros(64, 8, 4, 128, 32, dtype=torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                x.bfloat16().view(4, 1, 8192), cache, cache, num_heads=64, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", block_table=table.int(), block_size=128, actual_seq_lengths_kv=lens,
                key_antiquant_scale=ks, value_antiquant_scale=vs, inner_precise=1)
        """,
        "unknown cache": """
            torch_npu.npu_fused_infer_attention_score(
                x.bfloat16().view(4, 1, 4096), cache, cache, num_heads=32, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", block_table=table.int(), block_size=128, actual_seq_lengths_kv=lens)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the call under such a cache."""
        key = call.arg("key")
        case = (
            key.rank.equals(5)
            & key.dtype.equals("int8")
            & ~call.rope
            & call.arg("query").dtype.among(("float16", "bfloat16"))
        )
        if case.no or call.paged.no or call.target.cann_at_least("9.0").yes:
            yield NOT_APPLICABLE
            return
        if case.unknown:
            yield undecided(case)
            return
        heads, kv, dim = whole(call.heads), whole(call.kv_heads), whole(call.head_dim)
        if heads is not None and kv is not None:
            yield require(
                call.heads.holds(lambda value: (value.integer, kv) in HEADS),
                f"an int8 NZ cache does not serve {heads} query heads over {kv} KV heads",
                at=call.arg("q_heads"),
            )
        if dim is not None:
            yield require(
                call.head_dim.holds(lambda value: value.integer == 128),
                f"an int8 NZ cache serves head dim 128, not {dim}",
                at=call.arg("query"),
            )
        for role, allowed in (
            ("layout", ("BSH", "BSND", "BNSD")),
            ("inner_precise", (1,)),
            ("lse_flag", (False,)),
        ):
            arg = call.arg(role)
            shown = arg.constant.get("?")
            yield require(
                arg.constant.among(allowed),
                f"an int8 NZ cache takes {arg.name} {' or '.join(map(str, allowed))}, not {shown}",
                at=arg if arg.given.yes else call.place,
            )
        for role in EXCLUDED:
            arg = call.arg(role)
            yield require(arg.is_none, f"an int8 NZ cache does not go with {arg.name}", at=arg)
        yield require(
            call.arg("query").dtype.equals("bfloat16"),
            "an int8 NZ cache needs a bfloat16 query",
            at=call.arg("query"),
        )
