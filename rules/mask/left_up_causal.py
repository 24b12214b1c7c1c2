"""KV230: advice about the top-left causal mode."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO

from ._common import mode_among


class LeftUpCausal(RunRule):
    """Sparse mode 2 is right only while the query is as long as the keys.

    ## What it does
    Points at every `sparse_mode=2`. Off by default: the mode is documented and right for plain prefill.

    ## Why it is wrong
    It is not wrong by itself. As soon as the keys hold cached tokens (chunked prefill, prefix cache, draft
    tokens) mode 2 hides the newest keys without an error, while mode 3 stays right.

    ## Use instead
    `sparse_mode=3` with the same mask: for equal lengths the result is the same.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, the npu_fusion_attention family.

    ## Evidence
    C10, 1.7, 1.9: op-plugin documentation.
    """

    code = "KV230"
    name = "left-up-causal"
    severity = Severity.ADVICE
    confidence = Confidence.HIGH
    contract = ("C10", "1.7", "1.9")
    families = ("fia", "pfa", "fusion")
    default = False
    bad = {
        "mode 2": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden,
                sparse_mode=2,  # KV230
            )
        """,
    }
    ok = {
        "mode 3": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden, sparse_mode=3)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Points at the mode."""
        mode = call.arg("sparse_mode")
        selected = mode_among(call, 2)
        if selected.no:
            return NOT_APPLICABLE
        return require(
            NO,
            "sparse_mode=2 is right only while query and key are equally long",
            when=selected,
            at=mode,
            fix="Use sparse_mode=3, which stays right with cached keys.",
        )
