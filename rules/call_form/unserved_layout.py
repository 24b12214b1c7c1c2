"""KV117: a layout that the engine behind the call does not serve."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri

from ._common import whole


class UnservedLayout(RunRule):
    """A layout that the engine behind the call does not serve.

    ## What it does
    Reports `TND_NTD` without absorbed MLA (rope parts and head dim 512), `NTD_TND` with head dim 512,
    `BNSD_BSND` with one query token, and the `_NBSD` forms for more than one query token without absorbed
    MLA. With a configured CANN before 9.0 also `NTD`, `BSH_BNSD` and `BSND_BNSD`.

    ## Why it is wrong
    Wrapper and meta kernel accept every layout string. The operator then picks its prefill or decode engine
    by layout, query length and head dim, and each engine knows only some of them; tiling rejects the rest.

    ## Use instead
    The plain layout, and a transpose of the output.

    ## Ops and versions
    FIA v1 and v2. The reading is that of the CANN 8.5 snapshot; a newer release may serve more.

    ## Evidence
    B19, B20, B22, B25: prefill tiling and dispatch of ops-transformer (CANN 8.5 snapshot), FIA v2
    documentation of op-plugin for the `_NBSD` forms.
    """

    code = "KV117"
    name = "unserved-layout"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("B19", "B20", "B22", "B25")
    families = ("fia",)
    bad = {
        "heads-first output without MLA": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=mask, sparse_mode=3,
                input_layout="TND_NTD",  # KV117
            )
        """,
        "one token": """
            q = x.view(4, 8, 1, 128)
            opts = {"num_query_heads": 8, "num_key_value_heads": 8, "softmax_scale": 0.1}
            opts["input_layout"] = "BNSD_BSND"  # KV117
            torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
        "prefill with heads first": """
            q = x.view(4, 128, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSND_NBSD",  # KV117
            )
        """,
    }
    ok = {
        "absorbed MLA": """
            q = x.view(64, 16, 512)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, query_rope=qr, key_rope=kr, num_heads=16, num_key_value_heads=1,
                scale=192**-0.5, input_layout="TND_NTD", block_table=table, block_size=128,
                actual_seq_lengths=ends, actual_seq_lengths_kv=lens, atten_mask=mask, sparse_mode=3)
        """,
        "many tokens": """
            q = x.view(4, 8, 16, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD_BSND")
        """,
        "unknown query": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD_BSND")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the layout string under the dispatch of contract 1.6."""
        layout = call.layout.get("")
        served, why = _served(call, layout)
        if served is None:
            yield NOT_APPLICABLE
            return
        yield require(
            served,
            f"input_layout={layout!r} {why}; tiling rejects the call",
            at=call.arg("layout"),
            fix=f"Use {layout.split('_')[0]!r} and transpose the output.",
        )


def _served(call: Call, layout: str) -> tuple[Tri | None, str]:
    if layout == "TND_NTD":
        return call.absorbed, "needs absorbed MLA: rope parts and head dim 512"
    if layout == "NTD_TND":
        size = whole(call.head_dim)
        return (None if size is None else call.head_dim.holds(lambda dim: dim.integer != 512)), (
            "is not for head dim 512"
        )
    if layout == "BNSD_BSND":
        return ~call.single_token, "needs more than one query token"
    if layout.endswith("_NBSD"):
        return call.decode_engine, "is for decode: one query token, or up to 16 with absorbed MLA"
    if layout in ("NTD", "BSH_BNSD", "BSND_BNSD") and call.target.cann is not None:
        return call.target.cann_at_least("9.0"), f"is not served by CANN {call.target.cann}"
    return None, ""
