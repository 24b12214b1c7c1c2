"""KV220: a mask in mode 0 with packed tokens."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require

from ._common import mode_among


class TndMaskWithoutMode(RunRule):
    """A mask is passed with the TND layout while sparse_mode is 0.

    ## What it does
    Reports a call with `input_layout="TND"` or `"TND_NTD"` and an `atten_mask` that is certainly there,
    whose `sparse_mode` is 0 or left out.

    ## Why it is wrong
    Mode 0 with packed tokens knows no mask: tiling rejects the call, and the meta kernel accepts it. The
    mode is usually forgotten: the default is 0, not "causal".

    ## Use instead
    `sparse_mode=3` with the 2048 x 2048 causal mask, or no mask for full attention.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention. The training operators accept a full mask in TND.

    ## Evidence
    C17, C19: prefill tiling and MLA checker of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation.
    """

    code = "KV220"
    name = "tnd-mask-without-mode"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C17", "C19")
    families = ("fia", "pfa")
    bad = {
        "mode forgotten": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends,
                atten_mask=hidden,  # KV220
            )
        """,
        "mode 0 in a dict": """
            def run(q, k, v):
                opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "TND", "sparse_mode": 0}
                opts["atten_mask"] = pad.to(torch.bool)  # KV220
                self.fa_ops = torch.ops.npu
                self.fa_ops.npu_fused_infer_attention_score_v2(
                    q, k, v, actual_seq_qlen=ends, actual_seq_kvlen=ends, **opts)
        """,
    }
    ok = {
        "mode 3": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=3,
            )
        """,
        "mask that may be None": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=meta.mask, sparse_mode=0,
            )
        """,
        "mode and mask by the same test": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", actual_seq_qlen=ends,
                actual_seq_kvlen=ends, atten_mask=hidden if causal else None, sparse_mode=3 if causal else 0,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the mask of a packed call in mode 0."""
        mask = call.arg("mask")
        return require(
            ~mask.present,
            f"{mask.name} is passed with input_layout {call.layout.get('TND')} but sparse_mode is 0, "
            "which takes no mask there",
            when=call.query_layout.equals("TND") & mode_among(call, 0),
            at=mask,
            fix="Pass sparse_mode=3 with the causal mask, or no mask.",
        )
