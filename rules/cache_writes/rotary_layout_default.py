"""KV626: npu_apply_rotary_pos_emb relies on a default layout that changed."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require


class RotaryLayoutDefault(Rule):
    """npu_apply_rotary_pos_emb relies on a default layout that changed between releases.

    ## What it does
    Reports a call without `layout`. Silent when a torch_npu release is configured: then the default is
    known.

    ## Why it is wrong
    The default was 'BSH' and is 'BSND' since op-plugin 26.1.0. Code written for one reads the axes of the
    other on a different wheel.

    ## Use instead
    Pass `layout` explicitly.

    ## Ops and versions
    npu_apply_rotary_pos_emb. All versions.

    ## Evidence
    3.9: schemas of the released torch_npu wheels.
    """

    code = "KV626"
    name = "rotary-layout-default"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("3.9",)
    operators = ("npu_apply_rotary_pos_emb",)
    default = False
    bad = {
        "layout omitted": """
            q, k = torch_npu.npu_apply_rotary_pos_emb(query, key, cos, sin)  # KV626
        """,
    }
    ok = {
        "layout given": """
            q, k = torch_npu.npu_apply_rotary_pos_emb(query, key, cos, sin, layout="BSND")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges whether the layout is passed."""
        if call.target.torch_npu is not None:
            return NOT_APPLICABLE
        layout = call.arg("layout")
        return require(
            layout.given,
            "layout is left to its default, which was BSH before op-plugin 26.1.0 and is BSND since",
            at=call.place,
            fix='Pass layout="BSND" (or the one that is meant).',
        )
