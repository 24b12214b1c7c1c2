"""KV107: the scale falls back to 1.0 when the caller gives none."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.paths import Cond
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, violated
from kvlint.contract.tri import Note
from kvlint.contract.values import Choice, Const, Unknown, Value


class UnscaledFallback(RunRule):
    """The scale falls back to 1.0 when the caller gives none.

    ## What it does
    Reports a scale that is chosen between a value that may be None and the constant 1.0, as in
    `1.0 if softmax_scale is None else softmax_scale` or `softmax_scale or 1.0`. A plain 1.0 is left alone:
    some models scale their queries before.

    ## Why it is wrong
    Other attention interfaces (flash_attn, scaled_dot_product_attention) take None as 1/sqrt(head_dim). The
    operator takes 1.0 as it is, so every caller that relies on the usual default gets unscaled scores and
    wrong output without an error.

    ## Use instead
    Fall back to `query.shape[-1] ** -0.5`.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention, ATB and sparse
    attention operators. All versions.

    ## Evidence
    A03, FUS-12: op-plugin documentation; public fixes of flash_attn look-alikes.
    """

    code = "KV107"
    name = "unscaled-fallback"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("A03", "FUS-12")
    families = ("fia", "pfa", "ifa", "fusion", "atb", "sparse")
    bad = {
        "conditional expression": """
            def flash(q, k, v, softmax_scale=None):
                scale = 1.0 if softmax_scale is None else softmax_scale
                return torch_npu.npu_fusion_attention(
                    q, k, v, 8, "BSND",
                    scale=scale,  # KV107
                )[0]
        """,
        "if statement": """
            def flash(q, k, v, softmax_scale=None):
                if softmax_scale is None:
                    softmax_scale = 1.0
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSND",
                    scale=softmax_scale,  # KV107
                )[0]
        """,
        "or": """
            def flash(q, k, v, factor=None):
                opts = {"num_query_heads": 8, "num_key_value_heads": 8, "input_layout": "BSND"}
                opts["softmax_scale"] = factor or 1.0  # KV107
                return torch.ops.npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)[0]
        """,
    }
    ok = {
        "falls back to the head dim": """
            def flash(q, k, v, softmax_scale=None):
                if softmax_scale is None:
                    softmax_scale = q.shape[-1] ** -0.5
                return torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=softmax_scale)[0]
        """,
        "one by another test": """
            def attend(q, k, v, normed, dim):
                return torch_npu.npu_fusion_attention(
                    q, k, v, 8, "BSND", scale=1.0 if normed else dim**-0.5)[0]
        """,
        "one as it is": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=1.0)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Looks for 1.0 as the other choice of a value tested for None."""
        scale = call.arg("scale")
        for cond, fallback in _fallbacks(scale.value):
            known = call.assumed.get(cond)
            if fallback != known and known is not None:
                continue
            return violated(
                f"{scale.name} falls back to 1.0 when none is given, which leaves the scores unscaled",
                scale,
                (Note(f"the test is: {cond.label or scale.name}", cond.place),),
                fix="Fall back to 1/sqrt(head_dim).",
            )
        return NOT_APPLICABLE


def _fallbacks(value: Value) -> Iterator[tuple[Cond, bool]]:
    """Tests of a value for None that choose 1.0 instead of the value, with the outcome that does."""
    if not isinstance(value, Choice):
        return
    missing = value.yes if value.cond.kind == "none" else value.no
    given = value.no if value.cond.kind == "none" else value.yes
    if (
        value.cond.kind in ("none", "truth")
        and isinstance(missing, Const)
        and type(missing.value) in (int, float)
        and missing.value == 1
        and isinstance(given, Unknown)
        and given.key == value.cond.key
    ):
        yield value.cond, value.cond.kind == "none"
    yield from _fallbacks(value.yes)
    yield from _fallbacks(value.no)
