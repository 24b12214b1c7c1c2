"""KV105: the told number of query heads is not the size of the query's head axis."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    require,
    violated,
)

from ._common import on_sequence_axis, rescaled


class HeadsDifferFromQuery(RunRule):
    """The told number of query heads is not the size of the query's head axis.

    ## What it does
    Compares `num_heads` / `num_query_heads` / `head_num` with the head axis of query in layouts that have
    one. Reported are different constants, and a size that is the other one times a factor with a name, such
    as `heads // ranks` against `heads`. Reported is also a query whose sequence axis has that very number:
    heads and tokens are in the order of another layout.

    ## Why it is wrong
    Tiling rejects the call. The usual causes are a global head count after the tensors were split over ranks,
    which works as long as one rank is tested, and a missing or surplus transpose.

    ## Use instead
    Pass the number of heads this rank holds, for example `query.shape[1]` for BNSD.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention. All versions.

    ## Evidence
    B01: prefill tiling and decode checker of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV105"
    name = "heads-differ-from-query"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B01",)
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "constants": """
            q = x.view(2, 16, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_key_value_heads=8, scale=0.1, input_layout="BSND",
                num_heads=16,  # KV105
            )
        """,
        "global count after a split over ranks": """
            class Attention:
                def __init__(self, heads, ranks, dim):
                    self.heads, self.ranks, self.dim = heads, ranks, dim

                def forward(self, x, k, v):
                    q = x.view(x.shape[0], self.heads // self.ranks, -1, self.dim)
                    return torch_npu.npu_fused_infer_attention_score_v2(
                        q, k, v, num_key_value_heads=self.heads, softmax_scale=self.dim**-0.5,
                        input_layout="BNSD",
                        num_query_heads=self.heads,  # KV105
                    )
        """,
        "fusion attention": """
            q = x.view(64, 8, 128)
            torch_npu.npu_fusion_attention(
                q, q, q,
                16,  # KV105
                "TND", scale=0.1, actual_seq_qlen=ends, actual_seq_kvlen=ends)
        """,
        "tokens before heads in BNSD": """
            class Attention:
                def forward(self, x, k, v):
                    q = x.view(x.shape[0], -1, self.heads, self.dim)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=self.heads, num_key_value_heads=1, scale=0.1,  # KV105
                        input_layout="BNSD")
        """,
    }
    ok = {
        "tokens before heads, transposed": """
            class Attention:
                def forward(self, x, k, v):
                    q = x.view(x.shape[0], -1, self.heads, self.dim).transpose(1, 2).contiguous()
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=self.heads, num_key_value_heads=1, scale=0.1,
                        input_layout="BNSD")
        """,
        "constants": """
            q = x.view(2, 16, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSND")
        """,
        "count of this rank": """
            def attend(x, k, v, heads, ranks, dim):
                q = x.view(x.shape[0], heads // ranks, -1, dim)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=heads // ranks, num_key_value_heads=1, scale=dim**-0.5,
                    input_layout="BNSD")
        """,
        "two names that may be one number": """
            class Attention:
                def forward(self, x, k, v):
                    q = x.view(2, 16, self.local_heads, 128)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=self.config.heads, num_key_value_heads=self.kv, scale=0.1,
                        input_layout="BSND")
        """,
        "folded layout": """
            q = x.view(2, 16, 1024)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the argument with the axis."""
        heads = call.arg("q_heads")
        if heads.given.no or call.query_layout.among(("BSH", "SBH")).yes:
            return NOT_APPLICABLE
        axis, told = call.query_heads_axis, call.heads
        seen = axis.value.label if axis.known else "?"
        shown = told.value.label if told.known else "?"
        if heads.given.yes and on_sequence_axis(told, axis, call.query_length):
            return violated(
                f"the {shown} heads of query are on its sequence axis in {call.query_layout.get('?')}",
                call.arg("query"),
                axis.notes,
                fix="Transpose query, or name the layout it has.",
            )
        return require(
            ~rescaled(axis, told),
            f"{heads.name} is {shown}, but query has {seen} heads in {call.query_layout.get('its layout')}",
            when=heads.given,
            at=heads,
            fix=f"Pass {heads.name}={seen}.",
        )
