"""KV212: the compressed mask is not the plain causal triangle."""

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
from kvlint.contract.values import Content

from ._common import COMPRESSED, mode_among, sparse_mode


class WrongCompressedMask(RunRule):
    """The mask of sparse mode 2, 3 or 4 holds something else than the plain causal triangle.

    ## What it does
    Reports a window mask (a union of two triangles), a triangle with another offset than 1, and a mask of
    zeros in the modes 2, 3 and 4.

    ## Why it is wrong
    These modes read one fixed pattern, ones strictly above the diagonal, and shift it by the lengths. The
    window of mode 4 comes from `pre_tokens` and `next_tokens`, not from the mask: the triangle is read a
    second time, inverted and shifted, for the lower edge. Any other content gives silently wrong
    visibility; zeros give full attention.

    ## Use instead
    `torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)`; a mask of your own goes with
    `sparse_mode=1` or 0.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_fusion_attention (modes 2, 3, 4). All versions.

    ## Evidence
    C05, 1.7, FUS-05: kernels of ops-transformer (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV212"
    name = "wrong-compressed-mask"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("C05", "1.7", "FUS-05")
    families = ("fia", "pfa", "fusion")
    bad = {
        "window drawn into the mask": """
            full = torch.ones(2048, 2048, dtype=torch.bool)
            window = torch.triu(full, diagonal=1) | torch.tril(full, diagonal=-512)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=4, pre_tokens=511, next_tokens=0,
                atten_mask=window,  # KV212
            )
        """,
        "offset 2": """
            def run(q, k, v):
                opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BSND", "sparse_mode": 3}
                opts["atten_mask"] = torch.ones(2048, 2048).triu(2).bool()  # KV212
                torch.ops.npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
        "zeros": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSND", scale=0.1, sparse_mode=3,
                atten_mask=torch.zeros(2048, 2048, dtype=torch.bool),  # KV212
            )
        """,
    }
    ok = {
        "plain triangle, window by the token limits": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=4, pre_tokens=511, next_tokens=0, atten_mask=hidden,
            )
        """,
        "window mask in mode 1": """
            n = q.shape[2]
            full = torch.ones(n, n, dtype=torch.bool, device=q.device)
            window = torch.triu(full, diagonal=1) | torch.tril(full, diagonal=-512)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, sparse_mode=1, atten_mask=window)
        """,
        "unknown content": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSND", scale=0.1, sparse_mode=3, atten_mask=self.hidden
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges what the mask holds."""
        mask = call.arg("mask")
        when = mask.present & mode_among(call, *COMPRESSED)
        if when.no or call.single_token.yes:
            return NOT_APPLICABLE
        content = mask.content
        faults = content.map(_fault)
        if when.unknown or faults.values is None or None in faults.values:
            return undecided(when) if when.unknown else undecided(content.holds(lambda held: held.band))
        if faults.values == ("",):
            return PROVED
        if "" in faults.values:
            return undecided(content.holds(lambda held: held.band))
        return violated(
            f"sparse_mode={sparse_mode(call)} reads a triangle that starts at diagonal 1, "
            f"{mask.name} {faults.values[0]}",
            mask,
            content.notes,
            "Pass torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1); "
            "the window belongs into pre_tokens and next_tokens.",
        )


def _fault(content: Content) -> str | None:
    """What is wrong with the content, "" when it is right, None when that cannot be told."""
    if content.band:
        return "holds a window of two triangles"
    if content.fill is not None and not content.fill:
        return "is zero everywhere, which hides nothing"
    if content.triangle is None or not content.triangle.upper:
        return None
    offset = content.triangle.diagonal
    if offset.integer is None:
        # One name may well be 1; a sum of names is an offset made for a full mask.
        return f"starts at diagonal {offset.label}" if len(offset.terms) > 1 else None
    if offset.integer <= 0:
        return None  # another rule reports the hidden diagonal
    return "" if offset.integer == 1 else f"starts at diagonal {offset.integer}"
