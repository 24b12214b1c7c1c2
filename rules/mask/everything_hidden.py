"""KV233: a mask that hides every key."""

from __future__ import annotations

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
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
from kvlint.contract.tri import NO, Note, Tri, tri
from kvlint.contract.values import Absent, Const, Tensor, Triangle, Value


class EverythingHidden(RunRule):
    """The mask is non-zero everywhere, so no token sees any key.

    ## What it does
    Reports a mask of ones (`torch.ones(...)` without `triu`, `torch.full(..., True)`).

    ## Why it is wrong
    Non-zero means hidden. A mask of ones, the "attend to all" mask of Hugging Face, hides everything; the
    rows then have nothing to attend to and their result is undefined.

    ## Use instead
    No mask for full attention, `torch.triu(torch.ones(...), diagonal=1)` for causal attention.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, the npu_fusion_attention family.

    ## Evidence
    C02, 1.7, FUS-09: kernels of ops-transformer, op-plugin documentation.
    """

    code = "KV233"
    name = "everything-hidden"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("C02", "1.7", "FUS-09")
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "ones without a triangle": """
            hidden = torch.ones(2048, 2048, dtype=torch.bool)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3,
                atten_mask=hidden,  # KV233
            )
        """,
        "attend-to-all mask": """
            torch.ops.npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH",
                atten_mask=torch.ones(s, s, dtype=torch.bool, device=q.device),  # KV233
            )
        """,
    }
    ok = {
        "triangle": """
            hidden = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=hidden,
            )
        """,
        "ones that are opened below": """
            hidden = torch.ones(s, s, dtype=torch.bool, device=q.device)
            for lo, hi in spans:
                hidden[lo:hi, lo:hi] = False
            torch.ops.npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", atten_mask=hidden)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges a constant mask."""
        mask = call.arg("mask")
        if mask.is_none.yes:
            return NOT_APPLICABLE
        constant = mask.test(lambda value: _hides_all(mask, value))
        if constant.no:
            return PROVED
        square = mask.shape.holds(lambda shape: len(shape) > 1 and None is not shape[-1] == shape[-2])
        if call.operator.family in ("fia", "ifa") and not (square.yes or call.prefill_engine.yes):
            # A row mask of one-token decode is not judged.
            return undecided(constant if constant.unknown else Tri(None, mask.shape.notes))
        return require(
            ~constant,
            f"{mask.name} is non-zero everywhere: every key is hidden from every token",
            when=mask.present,
            at=mask,
            fix="Drop the mask for full attention, or build the triangle with torch.triu(..., diagonal=1).",
        )


def _hides_all(mask: Arg, value: Value) -> Tri:
    """Whether a mask is non-zero everywhere; one that is not there hides nothing."""
    if isinstance(value, Const) and value.value is None:
        return NO
    if isinstance(value, Absent) and mask.call.opaque is None and mask.param.default is None:
        return NO
    content = value.content if isinstance(value, Tensor) else None
    if isinstance(value, Tensor) and content is not None:
        if content.fill is not None:
            return tri(bool(content.fill), Note(f"{mask.name}: {content.fill!r}", value.place))
        if content.triangle is not None and _has_zero(content.triangle, value.shape or ()):
            return NO
    return Tri(None, mask.fill.notes)


def _has_zero(triangle: Triangle, shape: tuple[Num | None, ...]) -> bool:
    """Whether an element is outside the triangle: the first, or the one in the far corner."""
    offset = triangle.diagonal.integer
    if offset is None:
        return False
    if triangle.covers_diagonal is False:
        return True
    far = shape[-2 if triangle.upper else -1] if len(shape) > 1 else None
    size = far.integer if far is not None else None
    return size is not None and size > abs(offset) + 1
