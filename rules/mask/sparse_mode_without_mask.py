"""KV201: a sparse mode that needs a mask, and no mask."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import mode_among, sparse_mode


class SparseModeWithoutMask(RunRule):
    """A sparse mode that needs a mask is given without one.

    ## What it does
    Reports `sparse_mode` 1, 2, 3, 4 or 9 in a call whose `atten_mask` is omitted or None on the same path.

    ## Why it is wrong
    The mode only says how the mask is to be read; the operator does not build one. The prefill engine
    rejects the call. In a decode call (one query token, no separate rope) the mode silently has no effect.
    The meta kernel accepts it, so compiling under fake tensors does not find this.

    ## Use instead
    `atten_mask=torch.triu(torch.ones(2048, 2048, dtype=torch.bool, device=...), diagonal=1)` with the modes
    2, 3 and 4, a full mask with mode 1; or `sparse_mode=0` where every key is to be seen.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention. All versions. Mode 9 exists in the newest FIA only. A call
    that visibly has one query token in a layout with a batch axis is not reported: it computes what it
    should.

    ## Evidence
    C03, C14, C19, C21, C25: prefill tiling and MLA checker of ops-transformer (CANN 8.5 snapshot); accepted
    by the meta kernel of torch_npu 2.13 (executed).
    """

    code = "KV201"
    name = "sparse-mode-without-mask"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C03", "C14", "C19", "C21", "C25")
    families = ("fia", "pfa")
    bad = {
        "mask left out": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3,  # KV201
            )
        """,
        "mask None on one branch": """
            hidden = None
            if causal:
                hidden = meta.mask
            self.fa_ops = torch.ops.npu
            self.fa_ops.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", actual_seq_qlen=ends,
                actual_seq_kvlen=ends, atten_mask=hidden, sparse_mode=4,  # KV201
            )
        """,
        "dict that gets its mask only sometimes": """
            def run(q, k, v):
                opts = dict(num_heads=8, scale_value=0.1, input_layout="BSH")
                opts["sparse_mode"] = 2  # KV201
                if masked:
                    opts["atten_mask"] = tri
                torch_npu.npu_prompt_flash_attention(q, k, v, **opts)
        """,
    }
    ok = {
        "mask given": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=meta.mask,
            )
        """,
        "mode and mask by the same test": """
            mode = 3 if n > 1 else 0
            hidden = meta.mask if n > 1 else None
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", actual_seq_qlen=ends,
                actual_seq_kvlen=ends, atten_mask=hidden, sparse_mode=mode,
            )
        """,
        "mode and mask in one dict update": """
            opts = dict(num_heads=8, scale_value=0.1, input_layout="BSH")
            if masked:
                opts.update(sparse_mode=3, atten_mask=tri)
            torch_npu.npu_prompt_flash_attention(q, k, v, **opts)
        """,
        "mask from a builder on one line": """
            def causal(n): return torch.ones(n, n, dtype=torch.bool).triu(1)

            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=causal(2048),
            )
        """,
        "mode from elsewhere": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=meta.mode,
            )
        """,
        "one query token": """
            q = q.view(b, 1, 1024)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=lens,
                sparse_mode=3,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges mode and mask of one path together."""
        mask, mode = call.arg("mask"), call.arg("sparse_mode")
        if (call.single_token & ~call.rope).yes:
            return NOT_APPLICABLE
        return require(
            mask.present,
            f"sparse_mode={sparse_mode(call)} needs {mask.name}, which is "
            f"{'not passed' if mask.given.no else 'None'}",
            when=mode_among(call, 1, 2, 3, 4, 9),
            at=mode,
            fix=f"Pass the mask that sparse_mode={sparse_mode(call)} reads, "
            "or use sparse_mode=0 for full attention.",
        )
