"""KV129: a folded query wider than 65535."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri

from ._common import decode_engine, whole


class WideHiddenSize(RunRule):
    """A folded query wider than 65535.

    ## What it does
    Reports a constant hidden size over 65535 in BSH and BSND prefill.

    ## Why it is wrong
    Tiling goes on and logs that the result may be imprecise, because a stride no longer fits 16 bits.

    ## Use instead
    BNSD.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention. Off by default.

    ## Evidence
    B14: prefill tiling (CANN 8.5 snapshot).
    """

    code = "KV129"
    name = "wide-hidden-size"
    severity = Severity.SILENT
    confidence = Confidence.LOW
    default = False
    contract = ("B14",)
    families = ("fia", "pfa")
    bad = {
        "folded": """
            q = x.view(2, 16, 131072)
            torch_npu.npu_fused_infer_attention_score(
                q,  # KV129
                k, v, num_heads=256, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
    }
    ok = {
        "narrow": """
            q = x.view(2, 16, 16384)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=128, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=128, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the width."""
        query, dim, heads = call.arg("query"), call.head_dim, call.heads
        size, count = whole(dim), whole(heads)
        known = None if size is None or count is None else size * count <= 65535
        return require(
            Tri(known, (*dim.notes, *heads.notes)),
            f"query is {(size or 0) * (count or 0)} wide, over 65535 results may be imprecise",
            when=call.query_layout.among(("BSH", "BSND")) & ~decode_engine(call),
            at=query,
        )
