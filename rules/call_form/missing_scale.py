"""KV101: the softmax scale is left to its default."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class MissingScale(RunRule):
    """The softmax scale is left to its default.

    ## What it does
    Reports a call that passes no scale (`scale`, `softmax_scale`, `scale_value`, `qk_scale`) to an operator
    that has a default for it. Keywords that come from a dict built in the same function are seen.

    ## Why it is wrong
    The operator does not derive 1/sqrt(head_dim). The default is 1.0, which leaves the scores unscaled, so
    softmax saturates and the output is wrong without any error. A *wrong* keyword is rejected loudly, an
    *omitted* one is not. `npu_block_sparse_attention` defaults to 0.0: every key gets the same weight.

    ## Use instead
    Pass 1/sqrt(head_dim), for MLA of the un-absorbed head (128 + 64 = 192 for DeepSeek). Where 1.0 is
    intended, because queries are scaled before, write 1.0.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention v1 to v3,
    npu_block_sparse_attention, and the ATB operators whose scale has a default (_npu_paged_attention_v2,
    _npu_flash_attention_v2, _npu_flash_attention_prefix_v2, npu_ring_mla). All versions.

    ## Evidence
    A03, FUS-12, ATB-07, BSA-01: op-plugin documentation and schemas of every release; the call without a
    scale is accepted (executed on the meta kernel of torch_npu 2.13).
    """

    code = "KV101"
    name = "missing-scale"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("A03", "FUS-12", "ATB-07", "BSA-01")
    families = ("fia", "pfa", "ifa", "fusion", "atb", "sparse")
    bad = {
        "v2 without softmax_scale": """
            torch_npu.npu_fused_infer_attention_score_v2(  # KV101
                q, k, v, num_query_heads=8, num_key_value_heads=8, input_layout="BSH")
        """,
        "dict without a scale": """
            opts = {"num_heads": 8, "num_key_value_heads": 8, "input_layout": "BSH"}
            opts["atten_mask"] = mask
            torch.ops.npu.npu_fused_infer_attention_score(q, k, v, **opts)  # KV101
        """,
        "only one branch passes it": """
            opts = {"num_heads": 8, "num_key_value_heads": 8, "input_layout": "BSH"}
            if scaled:
                opts["scale"] = 0.125
            torch_npu.npu_fused_infer_attention_score(q, k, v, **opts)  # KV101
        """,
        "prompt and incremental attention": """
            torch_npu.npu_prompt_flash_attention(q, k, v, num_heads=8, input_layout="BSH")  # KV101
            torch_npu.npu_incre_flash_attention(  # KV101
                q, k, v, num_heads=8, input_layout="BSH", actual_seq_lengths=lens)
        """,
        "fusion attention with positional arguments": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", None, None, mask)  # KV101
        """,
        "held namespace": """
            class Attention:
                def __init__(self, graph):
                    self.fa_ops = torchair.ops if graph else torch.ops.npu

                def forward(self, q, k, v):
                    out, _ = self.fa_ops.npu_fused_infer_attention_score(  # KV101
                        q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSH")
                    return out
        """,
    }
    ok = {
        "keyword": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, input_layout="BSH", softmax_scale=0.125)
        """,
        "given by a dict": """
            opts = {"softmax_scale": 0.125, "num_query_heads": 8}
            opts.update(num_key_value_heads=8, input_layout="BSH")
            torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
        "both branches pass it": """
            opts = {"num_heads": 8, "num_key_value_heads": 8, "input_layout": "BSH"}
            if short:
                opts["scale"] = 0.125
            else:
                opts["scale"] = 0.25
            torch_npu.npu_fused_infer_attention_score(q, k, v, **opts)
        """,
        "positional in fusion attention": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", None, None, None, 0.125)
        """,
        "one that is intended": """
            torch_npu.npu_fused_infer_attention_score(
                q * 0.125, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSH", scale=1.0)
        """,
        "the caller's own keywords": """
            def attend(q, k, v, **kwargs):
                return torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=8, **kwargs)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges whether a scale is passed."""
        scale = call.arg("scale")
        default = scale.param.default
        if not call.has("scale") or scale.param.required or default is None:
            return NOT_APPLICABLE
        effect = "every key gets the same weight" if default == 0 else "the scores are not scaled"
        return require(
            scale.given,
            f"{scale.name} is not passed and defaults to {default}, so {effect}",
            at=call.place,
            fix=f"Pass {scale.name}=1/sqrt(head_dim), for MLA of the un-absorbed head.",
        )
