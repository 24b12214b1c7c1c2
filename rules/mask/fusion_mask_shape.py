"""KV214: a mask shape that the training operator does not take."""

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
from kvlint.contract.tri import Fact, Tri

from ._common import COMPRESSED, mode_among

Shape = tuple[Num | None, ...]


class FusionMaskShape(RunRule):
    """The mask of npu_fusion_attention is not (S1, S2), (1|B, 1|N, S1, S2).

    ## What it does
    Checks rank and axes of `atten_mask` in the npu_fusion_attention family: 3-D masks, a query axis of size
    1 (a padding mask (B, 1, 1, S2) or (B, N, 1, S2) that was not expanded), a batch or head axis that is
    neither 1 nor the number of the call, and anything but 2-D in the TND layout.

    ## Why it is wrong
    The operator does not broadcast the query axis. Tiling rejects the shape.

    ## Use instead
    `mask.expand(-1, -1, q_len, -1).contiguous()`; `mask.unsqueeze(1)` for a 3-D mask.

    ## Ops and versions
    npu_fusion_attention, _v2 and _v3. All versions.

    ## Evidence
    FUS-04: op-plugin documentation of npu_fusion_attention.
    """

    code = "KV214"
    name = "fusion-mask-shape"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("FUS-04",)
    families = ("fusion",)
    bad = {
        "padding mask not expanded": """
            hidden = pad.bool().view(b, 1, 1, s)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden)  # KV214
        """,
        "expanded to the heads only": """
            def run(q, k, v):
                opts = {"scale": 0.1}
                opts["atten_mask"] = pad.bool().view(b, 1, 1, s).repeat(1, heads, 1, 1)  # KV214
                torch.ops.npu.npu_fusion_attention_v2(q, k, v, heads, "BSND", **opts)
        """,
        "three axes": """
            hidden = torch.zeros(2, 128, 128, dtype=torch.bool)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=hidden)  # KV214
        """,
    }
    ok = {
        "expanded": """
            hidden = pad.bool().view(b, 1, 1, s).expand(b, 1, q.shape[1], s).contiguous()
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden)
        """,
        "two axes": """
            hidden = torch.zeros(128, 128, dtype=torch.bool)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=hidden)
        """,
        "one learned query": """
            q = q.view(b, 1, 8, 64)
            hidden = pad.bool().view(b, 1, 1, s)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden)
        """,
        "unknown": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=batch.mask)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges rank and axes."""
        mask = call.arg("mask")
        if mask.is_none.yes or mode_among(call, *COMPRESSED, 5, 6, 7, 8).yes:
            return NOT_APPLICABLE
        shapes: Fact[Shape] = mask.shape
        faults = shapes.map(lambda shape: _fault(call, shape))
        if faults.values is None or None in faults.values or mask.is_none.unknown:
            return undecided(Tri(None, shapes.notes), *((mask.is_none,) if mask.is_none.unknown else ()))
        if faults.values == ("",):
            return PROVED
        if "" in faults.values or not mode_among(call, 0, 1).yes:
            return undecided(Tri(None, shapes.notes))
        return violated(
            f"{mask.name} {faults.values[0]}; the operator takes (S1, S2) or (1|B, 1|N, S1, S2)",
            mask,
            shapes.notes,
            "Expand the mask to (B, 1, S1, S2), or to (S1, S2) if it is the same for all.",
        )


def _fault(call: Call, shape: Shape) -> str | None:
    """What is wrong with the shape, "" when it is right, None when that cannot be told."""
    if len(shape) not in (2, 4):
        return f"has {len(shape)} axes"
    if call.packed.yes:
        return "" if len(shape) == 2 else f"has {len(shape)} axes with packed tokens"
    rows = shape[-2].integer if shape[-2] is not None else None
    queries = call.query_length.value.integer if call.query_length.known else None
    if rows == 1 and queries != 1:
        return "has a query axis of size 1, which is not broadcast"
    if len(shape) == 4:
        for axis, expected in ((0, call.batch), (1, call.heads)):
            size = shape[axis].integer if shape[axis] is not None else None  # type: ignore[union-attr]
            wanted = expected.value.integer if expected.known else None
            if size is not None and wanted is not None and size not in (1, wanted):
                return f"has size {size} on axis {axis}, not 1 or {wanted}"
    return "" if rows is not None else None
