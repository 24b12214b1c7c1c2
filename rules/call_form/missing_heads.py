"""KV103: the number of query heads is left to its default."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    Rule,
    Severity,
    Verdict,
    require,
    violated,
)

from ._common import whole


class MissingHeads(Rule):
    """The number of query heads is left to its default.

    ## What it does
    Reports a call without `num_heads` / `num_query_heads` / `head_num`, or with a count below one.

    ## Why it is wrong
    The default is 1 (0 in the ATB v2 operators). In BSH the whole hidden size becomes one head: where that
    width is legal (at most 512, multiple of 16) the result is wrong without an error, otherwise tiling
    rejects it. Layouts with a head axis are rejected. A count of 0 is rejected by the wrapper.

    ## Use instead
    Pass the number of query heads of this rank. One head is right only for a query with one head.

    ## Ops and versions
    FIA v1 and v2 with their workspace queries, npu_prompt_flash_attention, npu_incre_flash_attention, and the
    ATB operators with a default (_npu_paged_attention_v2, _npu_flash_attention_v2,
    _npu_flash_attention_prefix_v2). All versions.

    ## Evidence
    A05, B02, ATB-07: schemas, wrapper source, tiling of ops-transformer (CANN 8.5 snapshot); the omission is
    accepted, 0 is rejected (executed on torch_npu 2.13).
    """

    code = "KV103"
    name = "missing-heads"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("A05", "B02", "ATB-07")
    families = ("fia", "pfa", "ifa", "atb")
    bad = {
        "v2 without num_query_heads": """
            torch_npu.npu_fused_infer_attention_score_v2(  # KV103
                q, k, v, softmax_scale=0.1, input_layout="BSH")
        """,
        "dict for v1": """
            opts = dict(scale=0.1, input_layout="BSH")
            torch.ops.npu.npu_fused_infer_attention_score(q, k, v, **opts)  # KV103
        """,
        "zero heads": """
            torch_npu.npu_prompt_flash_attention(
                q, k, v, scale_value=0.1, input_layout="BSH",
                num_heads=0,  # KV103
            )
        """,
        "one branch only": """
            opts = {"scale_value": 0.1, "input_layout": "BSH"}
            if many:
                opts["num_heads"] = 8
            torch_npu.npu_incre_flash_attention(q, k, v, actual_seq_lengths=lens, **opts)  # KV103
        """,
    }
    ok = {
        "given": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, softmax_scale=0.1, input_layout="BSH", num_query_heads=heads)
        """,
        "given by a dict": """
            class Attention:
                def forward(self, q, k, v):
                    opts = {"num_heads": self.heads, "scale": self.scale, "input_layout": "BSH"}
                    return torch_npu.npu_fused_infer_attention_score(q, k, v, **opts)
        """,
        "a query with one head": """
            q = x.view(2, 1, 16, 64)
            torch_npu.npu_fused_infer_attention_score(q, q, q, scale=0.125, input_layout="BNSD")
        """,
        "the caller's own keywords": """
            def attend(q, k, v, **kwargs):
                return torch_npu.npu_fused_infer_attention_score(q, k, v, scale=0.1, **kwargs)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges whether a head count is passed."""
        heads = call.arg("q_heads")
        if not call.has("q_heads") or heads.param.required:
            return NOT_APPLICABLE
        told = whole(heads.number)
        if heads.given.yes and told is not None and told < 1:
            return violated(f"{heads.name} is {told}, which the operator rejects", heads, heads.number.notes)
        if heads.given.no and told == 1 and whole(call.query_heads_axis) == 1:
            return PROVED
        return require(
            heads.given,
            f"{heads.name} is not passed and defaults to {heads.param.default}, so the query is split into"
            f" {'one head' if told == 1 else 'no heads'}",
            at=call.place,
            fix=f"Pass {heads.name}.",
        )
