"""KV110: the scale is computed from a padded head dim."""

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

from ._common import inverse_square
from .scale_not_head_dim import close


class PaddedScale(RunRule):
    """The scale is computed from a padded head dim.

    ## What it does
    Where the last axis of query was zero-padded to a size the operator takes, reports a scale that is
    1/sqrt(size with the padding).

    ## Why it is wrong
    The padding adds nothing to the scores, so the scale must stay that of the original head dim. With the
    padded one the softmax is too flat: no error, blurred output.

    ## Use instead
    Keep the head dim from before the padding for the scale.

    ## Ops and versions
    Every attention operator with a scale. All versions.

    ## Evidence
    A03: scale is 1/sqrt(D) of the model's head; public fix in vllm-ascend for vision towers.
    """

    code = "KV110"
    name = "padded-scale"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("A03",)
    families = ("fia", "pfa", "ifa", "fusion", "atb")
    bad = {
        "constants": """
            q = torch.nn.functional.pad(x.view(64, 16, 80), (0, 48))
            torch_npu._npu_flash_attention_unpad(
                query=q, key=k, value=v, seq_len=lens, num_heads=16, num_kv_heads=16, out=out,
                scale_value=q.shape[-1] ** -0.5,  # KV110
            )
        """,
        "padding by name": """
            def attend(x, k, v, heads, dim, pad, ends):
                q = torch.nn.functional.pad(x.view(-1, heads, dim), (0, pad))
                width = dim + pad
                return torch_npu.npu_fusion_attention(
                    q, k, v, heads, "TND", actual_seq_qlen=ends, actual_seq_kvlen=ends,
                    scale=1 / math.sqrt(width),  # KV110
                )
        """,
    }
    ok = {
        "original head dim": """
            q = torch.nn.functional.pad(x.view(64, 16, 80), (0, 48))
            torch_npu._npu_flash_attention_unpad(
                query=q, key=k, value=v, seq_len=lens, num_heads=16, num_kv_heads=16, out=out,
                scale_value=80 ** -0.5)
        """,
        "not padded": """
            q = x.view(64, 16, 128)
            torch_npu._npu_flash_attention_unpad(
                query=q, key=k, value=v, seq_len=lens, num_heads=16, num_kv_heads=16, out=out,
                scale_value=128 ** -0.5)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the scale with the padded size."""
        scale, query = call.arg("scale"), call.arg("query")
        padding, factor = query.padding, scale.number
        if scale.given.no or (padding.known and padding.value.const == 0):
            return NOT_APPLICABLE
        if not (padding.known and factor.known):
            return undecided(*padding.notes, *factor.notes)
        base = inverse_square(factor.value)
        dim = query.dim(-1)
        same_size = dim.known and close(base, dim.value)
        if same_size or _contains(base, padding.value):
            size = f"{base.const:.0f}" if base.const is not None else base.label
            return violated(
                f"{scale.name} is 1/sqrt({size}), which counts the {padding.value.label} elements of padding",
                scale,
                (*factor.notes, *padding.notes),
                fix="Take the head dim from before the padding.",
            )
        if dim.known and close(base, dim.value - padding.value):
            return PROVED
        return undecided(*dim.notes)


def _contains(base: Num, part: Num) -> bool:
    """Whether every symbolic term of ``part`` is a term of ``base``."""
    return part.const is None and all(base.terms.get(m) == c for m, c in part.terms.items() if m)
