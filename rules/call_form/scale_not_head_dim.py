"""KV108: the scale is the inverse root of a size that is not the head dim."""

from __future__ import annotations

import math

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
from kvlint.contract.tri import Note, Tri

from ._common import rope


class ScaleNotHeadDim(RunRule):
    """The scale is the inverse root of a size that is not the head dim.

    ## What it does
    Compares the scale with 1/sqrt(D), where D follows from the shape of query and the layout. Reported is a
    scale that is off by the square root of exactly the number of heads: the head dim was divided by the heads
    although it already was one head, or the hidden size was taken for it. Reported as well is sqrt(D) or D
    itself, the factor that scores are divided by. Other factors are left alone, since models choose their
    own (query_pre_attn_scalar, mscale, multipliers).

    ## Why it is wrong
    The softmax gets too sharp or too flat. Nothing checks it.

    ## Use instead
    `query.shape[-1] ** -0.5` in BNSD, BSND and TND, `(query.shape[-1] // heads) ** -0.5` in BSH.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention. All versions.

    ## Evidence
    A03: op-plugin documentation of every operator (scale is 1/sqrt(D)); public fixes.
    """

    code = "KV108"
    name = "scale-not-head-dim"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("A03", "FUS-12")
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "head dim divided by heads again": """
            def attend(q, k, v, heads):
                return torch_npu.npu_fused_infer_attention_score(
                    q.view(2, heads, 16, 128), k, v, num_heads=heads, num_key_value_heads=heads,
                    input_layout="BNSD",
                    scale=(128 // heads) ** -0.5,  # KV108
                )[0]
        """,
        "hidden size in BSH": """
            def attend(x, k, v, heads, dim):
                q = x.view(2, 16, heads * dim)
                opts = {"num_query_heads": heads, "num_key_value_heads": heads, "input_layout": "BSH"}
                opts["softmax_scale"] = 1.0 / math.sqrt(q.shape[-1])  # KV108
                return torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)[0]
        """,
        "square root instead of its inverse": """
            class Attention:
                def __init__(self, dim):
                    self.dim = dim
                    self.factor = math.sqrt(dim)

                def forward(self, x, k, v):
                    q = x.view(2, 16, 8, self.dim)
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSND",
                        next_tokens=2147483647,
                        scale_value=self.factor,  # KV108
                    )
        """,
        "head dim as a factor": """
            q = x.view(2, 16, 32, 128)
            torch_npu.npu_fusion_attention(
                q, k, v, 32, "BSND",
                scale=q.shape[-1],  # KV108
            )
        """,
        "constants": """
            q = x.view(2, 16, 32, 128)
            torch_npu.npu_fusion_attention(
                q, k, v, 32, "BSND",
                scale=1 / math.sqrt(128 // 32),  # KV108
            )
        """,
    }
    ok = {
        "head dim": """
            def attend(x, k, v, heads, dim):
                q = x.view(2, 16, heads * dim)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=heads, num_key_value_heads=heads, input_layout="BSH",
                    scale=(q.shape[-1] // heads) ** -0.5)[0]
        """,
        "a factor of the model": """
            q = x.view(2, 16, 32, 128)
            torch_npu.npu_fusion_attention(q, k, v, 32, "BSND", scale=144**-0.5)
        """,
        "a multiplier above one": """
            q = x.view(2, 16, 32, 128)
            torch_npu.npu_fusion_attention(q, k, v, 32, "BSND", scale=2.5)
        """,
        "already scaled": """
            q = x.view(2, 16, 32, 128) / math.sqrt(128)
            torch_npu.npu_fusion_attention(q, k, v, 32, "BSND", scale=1.0)
        """,
        "unknown query": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD",
                scale=(dim // heads) ** -0.5)
        """,
        "configured": """
            class Attention:
                def forward(self, x, k, v):
                    q = x.view(2, 16, self.heads, self.dim)
                    return torch_npu.npu_fusion_attention(q, k, v, self.heads, "BSND", scale=self.scale)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the scale with 1/sqrt of D, of D / heads and of D * heads."""
        scale = call.arg("scale")
        if scale.given.no or rope(call).yes:
            return NOT_APPLICABLE
        factor, dim = scale.number, call.head_dim
        if not (factor.known and dim.known):
            return undecided(*factor.notes, *dim.notes)
        if close(factor.value, dim.value.power(-0.5)):
            return PROVED
        for size, text in ((dim.value.power(0.5), f"sqrt({dim.value.label})"), (dim.value, dim.value.label)):
            if dim.value.integer != 1 and close(factor.value, size):
                return violated(
                    f"{scale.name} is {text}, which scores are divided by: the operator multiplies",
                    scale,
                    (*factor.notes, *dim.notes),
                    fix=f"Pass {scale.name}=1/sqrt({dim.value.label}).",
                )
        for count in (call.heads, call.kv_heads):
            if not count.known or count.value.integer == 1:
                continue
            for size in _wrong_sizes(dim.value, count.value):
                if close(factor.value, size.power(-0.5)):
                    return violated(
                        f"{scale.name} is 1/sqrt({size.label}), but one head of query has"
                        f" {dim.value.label} elements",
                        scale,
                        (*factor.notes, *dim.notes),
                        fix=f"Pass {scale.name}=1/sqrt({dim.value.label}).",
                    )
        return undecided(Tri(None, (Note(f"{scale.name} may be meant to differ from 1/sqrt(head_dim)"),)))


def _wrong_sizes(dim: Num, count: Num) -> tuple[Num, ...]:
    divided = dim.divide(count)
    # A constant 1/heads too much can be a multiplier of the model (1/D where D equals heads).
    hidden = () if count.const is not None else (dim * count,)
    return hidden if divided is None else (divided, *hidden)


def close(left: Num, right: Num) -> bool:
    """Whether two numbers are the same up to rounding."""
    if left.const is not None and right.const is not None:
        return math.isclose(left.const, right.const, rel_tol=1e-4)
    return left == right
