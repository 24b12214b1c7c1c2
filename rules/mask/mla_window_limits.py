"""KV226: sliding-window MLA outside its limits."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    undecided,
    violated,
)
from kvlint.contract.sizes import constant
from kvlint.contract.tri import Fact, Tri

from ._common import absorbed, mode_among


class MlaWindowLimits(RunRule):
    """Absorbed MLA in the band mode with limits the operator does not take.

    ## What it does
    For separate rope, head dim 512 and `sparse_mode=4`: `next_tokens` must be 0 (the default is not),
    `pre_tokens` 1 to 2048, and in layouts with a batch axis the layout BSND with 128 query heads per key
    head.

    ## Why it is wrong
    The sliding-window path of the MLA kernel exists for these values only. Tiling rejects others.

    ## Use instead
    `input_layout="BSND", sparse_mode=4, pre_tokens=window - 1, next_tokens=0` with the 2048 x 2048 mask.

    ## Ops and versions
    FIA v1 and v2 up to the CANN 8.5 snapshot; silent for a configured CANN from 9.0 on.

    ## Evidence
    C22: MLA checker of ops-transformer (CANN 8.5 snapshot). Newer documentation also lists TND.
    """

    code = "KV226"
    name = "mla-window-limits"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("C22",)
    families = ("fia",)
    bad = {
        "tokens ahead left at their default": """
            torch_npu.npu_fused_infer_attention_score_v2(  # KV226
                q.view(b, 1, 128, 512), kc, kc, query_rope=qr, key_rope=kr, num_query_heads=128,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BSND", block_table=table,
                block_size=128, actual_seq_kvlen=lens, atten_mask=hidden, sparse_mode=4, pre_tokens=511,
            )
        """,
    }
    ok = {
        "window": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(b, 1, 128, 512), kc, kc, query_rope=qr, key_rope=kr, num_query_heads=128,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BSND", block_table=table,
                block_size=128, actual_seq_kvlen=lens, atten_mask=hidden, sparse_mode=4, pre_tokens=511,
                next_tokens=0,
            )
        """,
        "unknown limits": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(b, 1, 128, 512), kc, kc, query_rope=qr, key_rope=kr, num_query_heads=128,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BSND", block_table=table,
                block_size=128, actual_seq_kvlen=lens, atten_mask=hidden, sparse_mode=4, pre_tokens=w,
                next_tokens=ahead,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the limits."""
        when = absorbed(call) & ~call.packed & mode_among(call, 4)
        if when.no or call.target.cann_at_least("9.0").yes:
            return NOT_APPLICABLE
        pre, ahead = call.arg("pre_tokens"), call.arg("next_tokens")
        ratio = _ratio(call)
        checks = (
            (ahead, ahead.constant.equals(0), f"{ahead.name} is {ahead.constant.get('?')}, it must be 0"),
            (
                pre,
                pre.constant.holds(lambda value: isinstance(value, int) and 1 <= value <= 2048),
                f"{pre.name} is {pre.constant.get('?')}, it must be 1 to 2048",
            ),
            (
                call.arg("layout"),
                call.layout.equals("BSND"),
                f"the layout is {call.layout.get('?')}, it must be BSND",
            ),
            (
                call.arg("q_heads"),
                ratio.equals(128),
                f"{ratio.get('?')} query heads share a key head, it must be 128",
            ),
        )
        if when.yes:
            for arg, holds, text in checks:
                if holds.no:
                    return violated(
                        f"absorbed MLA in sparse_mode 4: {text}",
                        arg if arg.given.yes else call.place,
                        holds.notes,
                        "Use BSND, 128 query heads per key head, pre_tokens=window - 1 and next_tokens=0.",
                    )
        unknown: list[Tri] = [holds for _, holds, _ in checks if holds.unknown]
        return undecided(*([when] if when.unknown else []), *unknown) if when.unknown or unknown else PROVED


def _ratio(call: Call) -> Fact[int]:
    heads, shared = call.heads, call.kv_heads
    if not (heads.known and shared.known):
        return Fact(None, heads.notes if not heads.known else shared.notes)
    quotient: Num | None = heads.value.divide(shared.value)
    return constant(Fact.of(quotient)) if quotient is not None else Fact.unknown("no key heads", call.place)
