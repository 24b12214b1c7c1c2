"""KV816: a post-quantisation scale with the wrong dtype or size."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import Fact, tri

from ._common import whole


class PostQuantForm(RunRule):
    """A post-quantisation scale with the wrong dtype or size.

    ## What it does
    Checks `quant_scale2` / `quant_scale_out` and its offset: float32, or bfloat16 where query is bfloat16;
    the same dtype and shape for both; an offset only with a scale; for constant sizes one
    element or heads times the head dim.

    ## Why it is wrong
    Tiling rejects the call. Note what the scale does: it makes the output int8, without another sign of it.

    ## Use instead
    A float32 scale of one element or (heads, head_dim).

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions.

    ## Evidence
    G03, G05, G06: decode tiling and checker (CANN 8.5 snapshot); int8 output executed on torch_npu 2.13.
    """

    code = "KV816"
    name = "post-quant-form"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("G03", "G05", "G06")
    families = ("fia", "pfa", "ifa")
    bad = {
        "float16": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                quant_scale2=s.half(),  # KV816
            )
        """,
        "one per head": """
            torch_npu.npu_fused_infer_attention_score_v2(
                x.view(2, 16, 8, 128), k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1,
                input_layout="BSND",
                quant_scale_out=torch.ones(8),  # KV816
            )
        """,
        "offset alone": """
            torch_npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                quant_offset2=s.float(),  # KV816
            )
        """,
    }
    ok = {
        "one element": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                quant_scale2=torch.ones(1))
        """,
        "per channel": """
            torch_npu.npu_fused_infer_attention_score(
                x.view(2, 16, 8, 128), k, v, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSND", quant_scale2=torch.ones(8, 128))
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH", quant_scale2=s)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges scale and offset."""
        scale, offset = call.arg("out_quant_scale"), call.arg("out_quant_offset")
        yield require(
            ~scale.is_none, f"{offset.name} is passed without {scale.name}", when=offset.present, at=offset
        )
        if scale.is_none.yes:
            yield NOT_APPLICABLE
            return
        query = call.arg("query").dtype
        allowed = ("float32", "bfloat16") if not query.equals("bfloat16").no else ("float32",)
        yield require(
            scale.dtype.among(allowed),
            f"{scale.name} is {scale.dtype.get('?')}, not {' or '.join(allowed)}",
            when=scale.present,
            at=scale,
        )
        mine, theirs = scale.dtype, offset.dtype
        if mine.known and theirs.known:
            yield require(
                tri(mine.value == theirs.value, *theirs.notes),
                f"{offset.name} is {theirs.value}, but {scale.name} is {mine.value}",
                at=offset,
            )
        size, dim, heads = _elements(scale.shape), whole(call.head_dim), whole(call.heads)
        if size is None or dim is None or heads is None:
            yield undecided(*scale.shape.notes, *call.head_dim.notes)
            return
        yield require(
            tri(size in (1, dim * heads), *scale.shape.notes),
            f"{scale.name} has {size} elements, not 1 or {heads} * {dim}",
            when=scale.present,
            at=scale,
        )


def _elements(shape: Fact[tuple[Num | None, ...]]) -> int | None:
    if not shape.known:
        return None
    total = 1
    for size in shape.value:
        number = size.integer if size is not None else None
        if number is None:
            return None
        total *= number
    return total
