"""KV136: separate rope parts with arguments that fusion attention does not combine with them."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import tri


class FusionRopeForm(RunRule):
    """Separate rope parts with arguments that fusion attention does not combine with them.

    ## What it does
    Checks a call of npu_fusion_attention_v2 with query_rope and key_rope: layout TND, a mask, no position
    bias, no dropout.

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    Concatenate the rope part to query and key where one of these is needed.

    ## Ops and versions
    npu_fusion_attention_v2. Read from the CANN 8.5 snapshot; silent for a configured CANN of 9.0 or newer.

    ## Evidence
    FUS-17: tiling of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV136"
    name = "fusion-rope-form"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("FUS-17",)
    operators = ("npu_fusion_attention_v2",)
    bad = {
        "unpacked": """
            torch_npu.npu_fusion_attention_v2(
                q, k, v, 8,
                "BSND",  # KV136
                scale=0.1, query_rope=qr.half(), key_rope=kr.half(),
                atten_mask=mask, sparse_mode=3)
        """,
        "dropout": """
            torch_npu.npu_fusion_attention_v2(
                q, k, v, 8, "TND", scale=0.1, query_rope=qr.half(), key_rope=kr.half(),
                atten_mask=mask, sparse_mode=3,
                actual_seq_qlen=ends, actual_seq_kvlen=ends,
                keep_prob=0.9,  # KV136
            )
        """,
    }
    ok = {
        "packed with a mask": """
            torch_npu.npu_fusion_attention_v2(
                q, k, v, 8, "TND", scale=0.1, query_rope=qr.half(), key_rope=kr.half(),
                atten_mask=mask, sparse_mode=3,
                actual_seq_qlen=ends, actual_seq_kvlen=ends)
        """,
        "no rope parts": """
            torch_npu.npu_fusion_attention_v2(q, k, v, 8, "BSND", scale=0.1, keep_prob=0.9)
        """,
        "unknown layout": """
            torch_npu.npu_fusion_attention_v2(
                q, k, v, 8, layout, scale=0.1, query_rope=qr.half(), key_rope=kr.half(),
                atten_mask=mask, sparse_mode=3)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each limit."""
        split = call.rope
        if split.no or call.target.cann_at_least("9.0").yes:
            yield NOT_APPLICABLE
            return
        layout, mask = call.arg("layout"), call.arg("mask")
        yield require(
            layout.constant.equals("TND"),
            f"rope parts need TND, the layout is {layout.constant.get('?')!r}",
            when=split,
            at=layout,
        )
        yield require(mask.present, "rope parts need an atten_mask", when=split, at=mask)
        bias = call.arg("pse_shift")
        yield require(bias.is_none, "rope parts do not go with pse", when=split, at=bias)
        keep = call.arg("keep_prob")
        yield require(
            tri(True) if keep.given.no else keep.constant.holds(lambda value: value == 1),
            f"rope parts do not go with dropout (keep_prob {keep.constant.get('?')})",
            when=split,
            at=keep,
        )
