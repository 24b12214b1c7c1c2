"""KV208: a sparse mode the operator does not have."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require

from ._common import sparse_mode

MODES = {
    "fia": (0, 1, 2, 3, 4, 9),
    "pfa": (0, 1, 2, 3, 4),
    "fusion": (0, 1, 2, 3, 4, 5, 6, 7, 8),
    "sparse": (0, 3),
    "indexer": (0, 3),
}
OTHER = ("npu_sparse_flash_attention", "npu_kv_quant_sparse_flash_attention")


class UnsupportedSparseMode(RunRule):
    """`sparse_mode` has a value the operator does not implement.

    ## What it does
    Compares `sparse_mode` with the modes of the operator.

    ## Why it is wrong
    Tiling rejects the value; the meta kernel accepts any (99 too). Modes 5 to 8 exist in the training
    operators only, and the sparse-attention operators know 0 and 3. The values 20 to 22 select internal
    paths of FIA that skip the normal checks.

    ## Use instead
    0 full attention or full mask, 1 full mask, 2 causal from the top left, 3 causal from the bottom right,
    4 band.

    ## Ops and versions
    FIA v1 and v2 (0 to 4; 9 in the newest releases), npu_prompt_flash_attention (0 to 4; 0 on Ascend 310P),
    the npu_fusion_attention family (0 to 8), npu_sparse_flash_attention,
    npu_kv_quant_sparse_flash_attention and the lightning indexers (0 and 3).

    ## Evidence
    C06, C25, FUS-05, SP-08: prefill tiling of ops-transformer (CANN 8.5 snapshot), op-plugin documentation;
    accepted by the meta kernel of torch_npu 2.13 (executed).
    """

    code = "KV208"
    name = "unsupported-sparse-mode"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C06", "C25", "FUS-05", "SP-08")
    families = ("fia", "pfa", "fusion", "indexer")
    operators = OTHER
    bad = {
        "mode of the training operator": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", atten_mask=hidden,
                sparse_mode=6,  # KV208
            )
        """,
        "typo in a dict": """
            def run(q, k, v):
                opts = dict(num_query_heads=8, softmax_scale=0.1, input_layout="BSND", atten_mask=hidden)
                opts["sparse_mode"] = 33  # KV208
                torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
        "band in the indexer": """
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, block_table=table,
                layout_query="TND", layout_key="PA_BSND", sparse_count=2048,
                sparse_mode=4,  # KV208
            )
        """,
    }
    ok = {
        "all modes that exist": """
            for mode in (2, 3):
                torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, scale=0.1, input_layout="BSND", atten_mask=hidden, sparse_mode=mode)
        """,
        "mode 6 in training": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BNSD", scale=0.1, atten_mask=hidden, sparse_mode=6, prefix=p
            )
        """,
        "from elsewhere": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", atten_mask=hidden,
                sparse_mode=meta.mode)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the value of the mode."""
        mode = call.arg("sparse_mode")
        known = MODES[call.operator.family]
        if call.operator.family == "pfa" and call.target.soc == "310P":
            known = (0,)
        return require(
            mode.constant.among(known),
            f"sparse_mode={sparse_mode(call)} does not exist in {call.operator.name}",
            when=mode.given,
            at=mode,
            fix=f"Use one of the modes {', '.join(map(str, known))}.",
        )
