"""KV233: a mask that hides every key."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import Tri


class EverythingHidden(RunRule):
    """The mask is non-zero everywhere, so no token sees any key.

    ## What it does
    Reports a mask of ones (`torch.ones(...)` without `triu`, `torch.full(..., True)`).

    ## Why it is wrong
    Non-zero means hidden. A mask of ones, the "attend to all" mask of Hugging Face, hides everything; the
    rows then have nothing to attend to and their result is undefined.

    ## Use instead
    No mask for full attention, `torch.triu(torch.ones(...), diagonal=1)` for causal attention.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, the npu_fusion_attention family.

    ## Evidence
    C02, 1.7, FUS-09: kernels of ops-transformer, op-plugin documentation.
    """

    code = "KV233"
    name = "everything-hidden"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("C02", "1.7", "FUS-09")
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "ones without a triangle": """
            hidden = torch.ones(2048, 2048, dtype=torch.bool)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3,
                atten_mask=hidden,  # KV233
            )
        """,
        "attend-to-all mask": """
            torch.ops.npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH",
                atten_mask=torch.ones(s, s, dtype=torch.bool, device=q.device),  # KV233
            )
        """,
    }
    ok = {
        "triangle": """
            hidden = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=hidden,
            )
        """,
        "ones that are opened below": """
            hidden = torch.ones(s, s, dtype=torch.bool, device=q.device)
            for lo, hi in spans:
                hidden[lo:hi, lo:hi] = False
            torch.ops.npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", atten_mask=hidden)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges a constant mask."""
        mask = call.arg("mask")
        constant = mask.fill.holds(bool)
        square = mask.shape.holds(lambda shape: len(shape) > 1 and None is not shape[-1] == shape[-2])
        if call.operator.family in ("fia", "ifa") and not (square.yes or call.prefill_engine.yes):
            # A row mask of one-token decode is not judged.
            return undecided(constant if constant.unknown else Tri(None, mask.shape.notes))
        return require(
            ~constant if not constant.no else Tri(True, constant.notes),
            f"{mask.name} is non-zero everywhere: every key is hidden from every token",
            when=mask.present,
            at=mask,
            fix="Drop the mask for full attention, or build the triangle with torch.triu(..., diagonal=1).",
        )
