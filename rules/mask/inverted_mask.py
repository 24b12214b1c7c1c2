"""KV203: the mask marks what is to be kept."""

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
from kvlint.contract.values import Polarity, Triangle

from ._common import COMPRESSED, mode_among


class InvertedMask(RunRule):
    """The mask is non-zero where keys are to be seen; the operator hides these.

    ## What it does
    Follows how the mask is built (`tril`, `triu`, `~`, `== 0`, casts of additive masks) and reports one
    that is non-zero at the visible keys: a lower triangle with its diagonal, or a keep-mask.

    ## Why it is wrong
    Everywhere in these operators a non-zero element means "hidden", the opposite of a bool mask of
    `scaled_dot_product_attention` and of a padding mask of Hugging Face. The call runs, and every token
    attends to the future only (or to the padding only). The vendor documentation itself calls the mask
    "lower triangular" and one of its examples passes `tril(ones)`.

    ## Use instead
    `torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1)`, which is `~torch.tril(...)`. From a
    keep-mask: `~keep`. From an additive mask: `mask != 0`, not `~mask.bool()`.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, the npu_fusion_attention family;
    the ATB operators too, whose float masks also hide where they are not 0. All versions.

    ## Evidence
    C02, C05, 1.7, FUS-04, IFA-03, ATB-05: kernels of ops-transformer (SelectWithBytesMask), op-plugin
    documentation of npu_incre_flash_attention and npu_fusion_attention, masks of cann-recipes-infer and
    vllm-ascend.
    """

    code = "KV203"
    name = "inverted-mask"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("C02", "C05", "1.7", "FUS-04", "IFA-03", "ATB-05")
    families = ("fia", "pfa", "ifa", "fusion", "atb")
    bad = {
        "tril of ones": """
            keep = torch.tril(torch.ones(2048, 2048, dtype=torch.bool))
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3,
                atten_mask=keep,  # KV203
            )
        """,
        "triu inverted": """
            class Attention:
                def __init__(self):
                    self.mask = ~torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)

                def forward(self, q, k, v, ends):
                    opts = dict(num_query_heads=8, softmax_scale=0.1, input_layout="TND", sparse_mode=3)
                    return torch_npu.npu_fused_infer_attention_score_v2(
                        q, k, v, actual_seq_qlen=ends, actual_seq_kvlen=ends,
                        atten_mask=self.mask,  # KV203
                        **opts,
                    )
        """,
        "triangle of the run-time length, as SDPA takes it": """
            n = q.shape[2]
            mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=mask)  # KV203
        """,
        "additive mask cast to bool and inverted": """
            bias = torch.zeros(s, s).masked_fill(pad, float("-inf"))
            torch.ops.npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSND",
                atten_mask=~bias.to(torch.bool),  # KV203
            )
        """,
    }
    ok = {
        "upper triangle": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=hidden,
            )
        """,
        "tril inverted": """
            hidden = ~torch.tril(torch.ones(2048, 2048, dtype=torch.bool))
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=hidden,
            )
        """,
        "tril compared with 0": """
            n = q.shape[2]
            keep = torch.ones(n, n, device=q.device).tril()
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=keep == 0)
        """,
        "far past hidden, everything else seen": """
            n = q.shape[2]
            far = torch.ones(n, n, dtype=torch.bool, device=q.device).tril(diagonal=-window)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=far)
        """,
        "mask from elsewhere, inverted here": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=~mask)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges polarity and triangle of the mask."""
        mask = call.arg("mask")
        if mask.is_none.yes:
            return NOT_APPLICABLE
        fix = (
            "Pass the mask inverted, True where a key is hidden: "
            "torch.triu(torch.ones(...), diagonal=1) if it is causal."
        )
        if mask.polarity.equals(Polarity.KEEP).yes:
            return violated(
                f"{mask.name} is non-zero where keys are kept, the operator hides exactly these",
                mask,
                mask.polarity.notes,
                fix,
            )
        triangle = mask.triangle
        compressed = mode_among(call, *COMPRESSED).yes and call.operator.family != "atb"
        kept = triangle.holds(lambda shape: _keeps_past(shape, compressed))
        if kept.yes:
            return violated(
                f"{mask.name} is a lower triangle: it hides each token's own past and shows the future",
                mask,
                triangle.notes,
                fix,
            )
        if kept.no or mask.polarity.equals(Polarity.HIDE).yes:
            return PROVED
        return undecided(mask.is_none, kept) if mask.is_none.unknown else undecided(kept)


def _keeps_past(triangle: Triangle, compressed: bool) -> bool:
    if triangle.upper:
        return False
    if compressed:
        return True
    offset = triangle.diagonal.integer
    if offset is not None:
        return offset >= 0
    # kv - q is the bottom-right diagonal; -window is a legal way to hide the far past.
    return sum(c for monomial, c in triangle.diagonal.terms.items() if monomial) >= 0
