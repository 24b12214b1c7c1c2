"""KV131: the result is unpacked into another number of names than there are results."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require
from kvlint.contract.tri import tri

from ._common import schemas


class WrongResultCount(Rule):
    """The result is unpacked into another number of names than there are results.

    ## What it does
    Compares the number of names the result is unpacked into with the number of results in the schema.

    ## Why it is wrong
    Unpacking a tuple of another size raises. A single tensor (npu_prompt_flash_attention,
    npu_incre_flash_attention) is split along its first axis instead: with a batch of that size it goes on
    with one sequence under each name.

    ## Use instead
    FIA returns two values (output and log-sum-exp), npu_fusion_attention v1 and v2 seven, v3 six,
    npu_sparse_flash_attention three, npu_prompt_flash_attention and npu_incre_flash_attention one tensor,
    npu_kv_rmsnorm_rope_cache four and its v2 two.

    ## Ops and versions
    All operators, for every release that has the operator.

    ## Evidence
    A10, FUS-13, KR-18, 2.1: schemas of every release.
    """

    code = "KV131"
    name = "wrong-result-count"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("A10", "FUS-13", "KR-18", "2.1")
    families = (
        "fia", "pfa", "ifa", "fusion", "atb", "sparse", "indexer", "merge", "cache_write", "cache_read",
        "prolog", "rotary", "misc",
    )  # fmt: skip
    bad = {
        "one tensor unpacked": """
            out, lse = torch_npu.npu_prompt_flash_attention(  # KV131
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH")
        """,
        "four results of fusion attention": """
            out, top, total, _ = torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1)  # KV131
        """,
        "unpacked in the caller": """
            def attend(q, k, v):
                return torch_npu.npu_fused_infer_attention_score(  # KV131
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")

            def forward(q, k, v):
                out, top, total = attend(q, k, v)
                return out
        """,
        "unpacked later": """
            def attend(q, k, v):
                found = torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1)  # KV131
                out, top = found
                return out
        """,
        "four results of the second cache writer": """
            kc, ckv, rope, latent = torch_npu.npu_kv_rmsnorm_rope_cache_v2(  # KV131
                kv, gamma, cos, sin, index.long(), kc, ckv, cache_mode="PA", is_output_kv=True, epsilon=1e-6)
        """,
        "three results of FIA": """
            out, top, total = torch.ops.npu.npu_fused_infer_attention_score_v2(  # KV131
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH")
        """,
    }
    ok = {
        "two": """
            out, _ = torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "one of several results is returned": """
            def attend(q, k, v):
                return torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1)[0]

            def forward(q, k, v):
                first, second = attend(q, k, v)
                return first
        """,
        "starred": """
            out, *rest = torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1)
        """,
        "one tensor": """
            out = torch_npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH")
        """,
        "indexed": """
            out = torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1)[0]
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the two counts."""
        names, results = call.use.unpacked, call.operator.returns
        if names is None:
            return NOT_APPLICABLE
        fits = any(names == schema.returns and names != 1 for schema in schemas(call))
        what = "one tensor" if results == 1 else f"{results} results" if results else "nothing"
        return require(
            tri(fits),
            f"{call.operator.name} returns {what}, which is unpacked into {names} names",
            at=call.place,
        )
