"""KV418: a block size that only newer CANN releases accept."""

from __future__ import annotations

from kvlint.contract.call import Call
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
from kvlint.contract.tri import Tri

from ._common import paged


class BlockSizeOfOlderCann(RunRule):
    """The block size is documented, but CANN 8.5 and older reject it.

    ## What it does
    Reports a constant `block_size` that the documentation allows and the tiling of the CANN 8.5 snapshot
    rejects: for packed layouts (TND family) one that is no multiple of 128, for absorbed MLA one other than
    16 or 128 (sliding window: 64 or 128). Silent when the configured CANN is 9.0 or newer.

    ## Why it is wrong
    The call works on the machine it was written on and is rejected on one with an older CANN.

    ## Use instead
    128, or configure the CANN version the code is meant for.

    ## Ops and versions
    FIA v1 and v2 up to CANN 8.5.

    ## Evidence
    PG06, PG07, X05, X06: ops-transformer tiling (CANN 8.5 snapshot) against the newer op-plugin
    documentation.
    """

    code = "KV418"
    name = "block-size-of-older-cann"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("PG06", "PG07", "X05", "X06")
    families = ("fia",)
    bad = {
        "64 in a packed layout": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", block_table=table,
                block_size=64,  # KV418
                actual_seq_qlen=ends, actual_seq_kvlen=lens,
            )
        """,
    }
    ok = {
        "128": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", block_table=table,
                block_size=128, actual_seq_qlen=ends, actual_seq_kvlen=lens,
            )
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", block_table=table,
                block_size=page, actual_seq_qlen=ends, actual_seq_kvlen=lens,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges a documented block size against the older tiling."""
        is_paged = paged(call)
        if is_paged.no or call.target.cann_at_least("9.0").yes:
            return NOT_APPLICABLE
        size = constant(call.arg("block_size").number)
        if not size.known or not is_paged.yes:
            return undecided(Tri(None, size.notes), is_paged)
        value = size.value
        if value <= 0 or value % 16 or value > 1024:
            return NOT_APPLICABLE  # block-size-range
        if call.absorbed.unknown:
            return undecided(call.absorbed)
        if call.absorbed.yes:
            sliding = call.arg("sparse_mode").constant.equals(4)
            legal: tuple[int, ...] = (64, 128) if sliding.yes else (16, 128) if sliding.no else (16, 64, 128)
            what = f"absorbed MLA takes {legal[0]} or {legal[1]}"
        elif call.packed.yes:
            legal, what = tuple(range(128, 1025, 128)), "packed layouts take multiples of 128"
        elif call.packed.no:
            return NOT_APPLICABLE
        else:
            return undecided(call.packed)
        if value in legal:
            return PROVED
        return violated(
            f"block_size={value} is rejected by CANN 8.5 and older, where {what}",
            call.arg("block_size"),
            call.absorbed.notes,
            "Use a cache with block_size=128, or configure the CANN version.",
        )
