"""KV237: rows of a full mask that see nothing."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    require,
    undecided,
)
from kvlint.contract.tri import Tri

from ._common import constant_dim, mode_among


class FullyHiddenRows(RunRule):
    """A full mask leaves rows without any key, and inner_precise does not correct them.

    ## What it does
    Reports a bottom-right causal mask with more queries than keys (constants) in `sparse_mode` 0 or 1 while
    `inner_precise` is 0 or 1.

    ## Why it is wrong
    A row that attends to nothing gives the average of all values, or NaN, unless the operator is told to
    look for such rows.

    ## Use instead
    `inner_precise=2` (high precision) or 3 (high performance), which give zeros for these rows; in prefill
    only. Or `sparse_mode=3`, where the operator knows the rows by itself.

    ## Ops and versions
    FIA v1 and v2 with several query tokens. All versions.

    ## Evidence
    H01, H03, H22: op-plugin documentation, prefill tiling of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV237"
    name = "fully-hidden-rows"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("H01", "H03", "H22")
    families = ("fia",)
    bad = {
        "more queries than keys": """
            hidden = torch.ones(128, 64, dtype=torch.bool).triu(diagonal=64 - 128 + 1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BNSD", sparse_mode=1,
                atten_mask=hidden,  # KV237
            )
        """,
    }
    ok = {
        "rows corrected": """
            hidden = torch.ones(128, 64, dtype=torch.bool).triu(diagonal=64 - 128 + 1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BNSD", sparse_mode=1, atten_mask=hidden,
                inner_precise=2,
            )
        """,
        "more keys than queries": """
            hidden = torch.ones(64, 128, dtype=torch.bool).triu(diagonal=128 - 64 + 1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BNSD", sparse_mode=1, atten_mask=hidden)
        """,
        "unknown sizes": """
            hidden = torch.ones(n, m, dtype=torch.bool).triu(diagonal=m - n + 1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BNSD", sparse_mode=1, atten_mask=hidden)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the first row of the mask."""
        mask, precise = call.arg("mask"), call.arg("inner_precise")
        full = mode_among(call, 0, 1)
        if full.no or mask.is_none.yes or call.single_token.yes:
            return NOT_APPLICABLE
        rows, columns = constant_dim(mask, -2), constant_dim(mask, -1)
        if rows is None or columns is None or not mask.triangle.known:
            return undecided(Tri(None, mask.triangle.notes or mask.shape.notes))
        triangle = mask.triangle.value
        offset = triangle.diagonal.integer
        if not triangle.upper or offset is None or offset > 0 or rows <= columns:
            return PROVED
        return require(
            precise.constant.among((2, 3)),
            f"the first {1 - offset} rows of {mask.name} hide every key, and inner_precise="
            f"{precise.constant.get('?')} does not correct them",
            when=full & mask.present,
            at=mask,
            notes=mask.triangle.notes,
            fix="Pass inner_precise=2, or use sparse_mode=3 with the compressed mask.",
        )
