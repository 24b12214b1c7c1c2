"""KV211: a training call whose sparse mode has no mask to act on."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import mode_among, one_token_path, sparse_mode


class InertSparseMode(RunRule):
    """`npu_fusion_attention` gets a causal sparse mode and no mask, so it computes full attention.

    ## What it does
    Reports `sparse_mode` 1 to 8 in a call of the npu_fusion_attention family whose `atten_mask` is omitted
    or None on the same path.

    ## Why it is wrong
    Without `atten_mask` this operator ignores the mode and the token limits without a message: tokens
    attend to the future. (FIA rejects the same call.)

    ## Use instead
    Pass the mask the mode reads: 2048 x 2048 `torch.triu(torch.ones(...), diagonal=1)` for 2, 3 and 4.

    ## Ops and versions
    npu_fusion_attention, _v2 and _v3. All versions.

    ## Evidence
    FUS-05: op-plugin documentation of npu_fusion_attention.
    """

    code = "KV211"
    name = "inert-sparse-mode"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("FUS-05",)
    families = ("fusion",)
    bad = {
        "mask left out": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, sparse_mode=3)  # KV211
        """,
        "mask only on one branch": """
            def run(q, k, v):
                opts = {"scale": 0.1, "sparse_mode": 2}  # KV211
                if packed:
                    opts["atten_mask"] = hidden
                torch_npu.npu_fusion_attention_v2(q, k, v, 8, "BNSD", **opts)
        """,
        "band without a mask": """
            ops = torch.ops.npu
            ops.npu_fusion_attention(
                q, k, v, 8, "BSND", scale=0.1, atten_mask=None, pre_tockens=65536, next_tockens=1,
                sparse_mode=4,  # KV211
            )
        """,
    }
    ok = {
        "mask given": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, sparse_mode=3, atten_mask=hidden)
        """,
        "both by the same test": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden if causal else None,
                sparse_mode=3 if causal else 0)
        """,
        "mask dropped for one query token": """
            hidden = self.hidden if meta.max_query_len > 1 else None
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "TND", scale=0.1, actual_seq_qlen=ends, actual_seq_kvlen=kv_ends,
                sparse_mode=3, atten_mask=hidden,
            )
        """,
        "full attention": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1)
        """,
        "mask that may be None": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, sparse_mode=3, atten_mask=meta.mask)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges mode and mask of one path together."""
        mask, mode = call.arg("mask"), call.arg("sparse_mode")
        if one_token_path(call):
            return NOT_APPLICABLE
        return require(
            mask.present,
            f"sparse_mode={sparse_mode(call)} has no effect without {mask.name}: full attention is computed",
            when=mode.given & mode_among(call, 1, 2, 3, 4, 5, 6, 7, 8),
            at=mode,
            fix=f"Pass the mask that sparse_mode={sparse_mode(call)} reads, or drop sparse_mode.",
        )
