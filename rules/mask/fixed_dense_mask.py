"""KV217: a full mask of the compressed mask's size."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO

from ._common import SIDE, constant_dim, constant_length, mode_among, sparse_mode


class FixedDenseMask(RunRule):
    """A full mask (mode 0 or 1) is always 2048 x 2048, whatever the sequence length.

    ## What it does
    Reports a 2048 x 2048 mask in `sparse_mode` 0 or 1 of the npu_fusion_attention family where the query
    length is not that constant.

    ## Why it is wrong
    2048 x 2048 is the size of the compressed mask of the modes 2, 3 and 4. In the modes 0 and 1 the mask
    must have the size of the sequence: any other prompt length is rejected.

    ## Use instead
    `sparse_mode=3` (or 2) with this mask, or a mask built for the actual length.

    ## Ops and versions
    npu_fusion_attention, _v2 and _v3. FIA accepts a mask that is larger than needed and is judged by
    `small-dense-mask`.

    ## Evidence
    FUS-04, FUS-05: op-plugin documentation of npu_fusion_attention.
    """

    code = "KV217"
    name = "fixed-dense-mask"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("FUS-04", "FUS-05")
    families = ("fusion",)
    bad = {
        "mode forgotten": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden)  # KV217
        """,
        "fixed size from a builder": """
            class Masks:
                def get(self, n):
                    return torch.ones(n, n, dtype=torch.bool).triu(1)

            class Pooler:
                def __init__(self):
                    self.masks = Masks()

                def forward(self, q, k, v):
                    mask = self.masks.get(2048)
                    return torch_npu.npu_fusion_attention(
                        q, k, v, 8, "BSND", scale=0.1, sparse_mode=1,
                        atten_mask=mask,  # KV217
                    )
        """,
    }
    ok = {
        "compressed mode": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden, sparse_mode=3)
        """,
        "size of the query": """
            n = q.shape[1]
            hidden = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden, sparse_mode=1)
        """,
        "fixed training length": """
            q = q.view(b, 2048, 8, 64)
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the size of a full mask."""
        mask = call.arg("mask")
        if (constant_dim(mask, -2), constant_dim(mask, -1)) != (SIDE, SIDE):
            return NOT_APPLICABLE
        if constant_length(call.query_length) == SIDE:
            return NOT_APPLICABLE
        full = mode_among(call, 0, 1)
        return require(
            NO,
            f"{mask.name} is always {SIDE} x {SIDE}, "
            f"but in sparse_mode {sparse_mode(call)} it must have the size of the sequences",
            when=mask.present & full & ~call.packed,
            at=mask,
            notes=mask.shape.notes,
            fix="Use sparse_mode=3 with this compressed mask, or build the mask for the actual length.",
        )
