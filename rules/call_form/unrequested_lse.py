"""KV130: the log-sum-exp is used although it was not requested."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class UnrequestedLse(RunRule):
    """The log-sum-exp is used although it was not requested.

    ## What it does
    Reports a computation with the second result of a call whose `softmax_lse_flag` / `return_softmax_lse` is
    False or omitted. A result that is only returned or handed on is left alone.

    ## Why it is wrong
    The result is then an empty tensor (shape (0,), in op-plugin 7.0 shape (1,)). Indexing raises, arithmetic
    gives an empty tensor or, with shape (1,), wrong numbers.

    ## Use instead
    Request it.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    A10: wrapper source, shape (0,) executed on torch_npu 2.13.
    """

    code = "KV130"
    name = "unrequested-lse"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("A10",)
    families = ("fia",)
    bad = {
        "merged": """
            def attend(q, k, v):
                out, lse = torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
                weight = torch.sigmoid(lse)  # KV130
                return out * weight
        """,
        "picked from the results": """
            def attend(q, k, v):
                found = torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
                return found[0] * torch.exp(found[1])  # KV130
        """,
        "in the caller": """
            class Attention:
                def local(self, q, k, v):
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")

                def forward(self, q, k, v):
                    found = self.local(q, k, v)
                    out, lse = found
                    return torch.cat([out.float(), lse], dim=-1)  # KV130
        """,
        "switched off": """
            def attend(q, k, v):
                opts = {"num_query_heads": 8, "num_key_value_heads": 8, "softmax_scale": 0.1}
                out, lse = torch_npu.npu_fused_infer_attention_score_v2(
                    q, k, v, input_layout="BSH", return_softmax_lse=False, **opts)
                return out, lse.transpose(1, 2)  # KV130
        """,
    }
    ok = {
        "collected": """
            def attend(q, k, v, rounds):
                found = []
                for _ in range(rounds):
                    found.append(torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD"))
                return found
        """,
        "requested": """
            def attend(q, k, v):
                out, lse = torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                    softmax_lse_flag=True)
                return out, lse.transpose(1, 2)
        """,
        "asked for its size only": """
            def attend(q, k, v):
                out, lse = torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
                return out if lse.numel() == 0 else None
        """,
        "left before": """
            class Attention:
                def forward(self, q, k, v):
                    out, lse = torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                        softmax_lse_flag=self.ranks > 1)
                    if self.ranks == 1:
                        return out
                    return out * torch.exp(lse)
        """,
        "requested in one of two calls": """
            class Attention:
                def local(self, q, k, v, merged):
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                        softmax_lse_flag=merged)

                def forward(self, q, k, v):
                    first, _ = self.local(q, k, v, False)
                    out, lse = self.local(q, k, v, True)
                    return first + out * torch.exp(lse)
        """,
        "only returned": """
            def attend(q, k, v):
                out, lse = torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
                return out, lse
        """,
        "requested by the caller": """
            def attend(q, k, v, with_lse):
                out, lse = torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                    softmax_lse_flag=with_lse)
                return out, lse.transpose(1, 2) if with_lse else None
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the flag where the result is computed with."""
        place = call.use.touched.get(1)
        flag = call.arg("lse_flag")
        if place is None or call.operator.overload:
            return NOT_APPLICABLE
        return require(
            ~flag.constant.holds(lambda value: not value),
            f"the log-sum-exp is empty, because {flag.name} is {'False' if flag.given.yes else 'not passed'}",
            at=place,
            fix=f"Pass {flag.name}=True.",
        )
