"""KV121: a head dim that the operator does not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Fact, Tri

from ._common import decode_engine, whole


class UnsupportedHeadDim(RunRule):
    """A head dim that the operator does not take.

    ## What it does
    For a constant head dim (for BSH the width divided by the told heads), checks that it is at most 512, and
    a multiple of 16 where the prefill engine serves the call. npu_fusion_attention takes up to 768.

    ## Why it is wrong
    Tiling rejects the call. A head dim that looks unfamiliar in the message usually means a wrong head count.

    ## Use instead
    Pad query, key and value to the next multiple of 16 (keep the original head dim for the scale).

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention. All versions.

    ## Evidence
    B02, B08, B09, FUS-10: tiling of ops-transformer (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV121"
    name = "unsupported-head-dim"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B02", "B08", "B09", "FUS-10")
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "not a multiple of 16": """
            q = x.view(2, 8, 16, 72)
            torch_npu.npu_fused_infer_attention_score(
                q,  # KV121
                q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "one head by a wrong count": """
            q = x.view(2, 16, 4096)
            opts = {"num_query_heads": 4, "num_key_value_heads": 4, "softmax_scale": 0.1}
            torch_npu.npu_fused_infer_attention_score_v2(
                q,  # KV121
                q, q, input_layout="BSH", **opts)
        """,
    }
    ok = {
        "a multiple of 16": """
            q = x.view(2, 8, 16, 80)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "training takes more": """
            q = x.view(2, 16, 8, 576)
            torch_npu.npu_fusion_attention(q, q, q, 8, "BSND", scale=0.1)
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the head dim of query."""
        query, dim = call.arg("query"), call.head_dim
        if call.arg("q_heads").given.no or call.operator.name == "npu_quant_fusion_attention":
            yield NOT_APPLICABLE
            return
        limit = 768 if call.operator.family == "fusion" else 512
        size = whole(dim)
        known = Tri(None, dim.notes) if size is None else Tri(True, dim.notes)
        yield require(
            known & dim.holds(lambda value: value.integer is None or value.integer <= limit),
            f"the head dim is {size}, the operator takes at most {limit}",
            at=query,
        )
        if call.operator.family == "fusion":
            return
        yield require(
            known & _multiple(dim, 16),
            f"the head dim is {size}, prefill takes multiples of 16",
            when=~decode_engine(call),
            at=query,
            fix="Pad the head dim, and keep the scale of the original one.",
        )


def _multiple(dim: Fact[Num], step: int) -> Tri:
    return dim.holds(lambda value: value.integer is None or value.integer % step == 0)
