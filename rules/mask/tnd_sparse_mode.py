"""KV209: sparse mode 1 or 2 with packed tokens."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require

from ._common import mode_among, sparse_mode


class TndSparseMode(RunRule):
    """Sparse mode 1 or 2 is used with the TND layout, which has only 0, 3 and 4.

    ## What it does
    Reports `sparse_mode` 1 or 2 together with `input_layout="TND"` or `"TND_NTD"`.

    ## Why it is wrong
    With packed tokens there is no full mask per request, and the top-left causal mode is not implemented.
    Tiling rejects both; the meta kernel accepts them.

    ## Use instead
    `sparse_mode=3` with the 2048 x 2048 mask for causal attention, 4 for a sliding window, 0 without a mask
    for full attention.

    ## Ops and versions
    FIA v1 and v2 (MLA with rope: 0, 3 and in newer releases 4 and 9), npu_prompt_flash_attention. The
    training operators have more modes in TND.

    ## Evidence
    C17, C19: prefill tiling and MLA checker of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation.
    """

    code = "KV209"
    name = "tnd-sparse-mode"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C17", "C19")
    families = ("fia", "pfa")
    bad = {
        "top-left causal": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=2,  # KV209
            )
        """,
        "full mask, layout from the same branch": """
            def run(q, k, v):
                if packed:
                    opts = dict(input_layout="TND", sparse_mode=1)  # KV209
                else:
                    opts = dict(input_layout="BSND", sparse_mode=1)
                torch.ops.npu.npu_fused_infer_attention_score_v2(
                    q, k, v, num_query_heads=8, softmax_scale=0.1, atten_mask=hidden, actual_seq_qlen=ends,
                    actual_seq_kvlen=ends, **opts)
        """,
    }
    ok = {
        "mode 3": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=3,
            )
        """,
        "mode by layout": """
            packed = meta.packed
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, atten_mask=hidden, actual_seq_qlen=ends,
                actual_seq_kvlen=ends, input_layout="TND" if packed else "BSND",
                sparse_mode=3 if packed else 1)
        """,
        "layout from elsewhere": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout=layout, atten_mask=hidden, sparse_mode=1)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the mode of a packed call."""
        mode = call.arg("sparse_mode")
        return require(
            ~mode_among(call, 1, 2),
            f"sparse_mode={sparse_mode(call)} does not exist with input_layout {call.layout.get('TND')}",
            when=call.query_layout.equals("TND"),
            at=mode,
            fix="Use sparse_mode=3 with the 2048 x 2048 causal mask.",
        )
