"""KV306: running sums for the ATB flash operators."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    undecided,
    violated,
)
from kvlint.contract.values import LengthForm

from ._common import UNPAD, cumulative, one_entry

OPERATORS = (
    *UNPAD,
    "_npu_flash_attention_v2",
    "_npu_flash_attention_qlens",
    "_npu_flash_attention_prefix_v2",
)


class UnpadCumulativeLengths(RunRule):
    """An ATB flash operator gets running sums; its `seq_len` counts each sequence on its own.

    ## What it does
    Reports `seq_len` made from `cu_seqlens`, `cumsum` or `accumulate` in the `_npu_flash_attention*`
    operators.

    ## Why it is wrong
    Packed tokens take running sums in FIA and npu_fusion_attention, but lengths per sequence here. On Atlas
    A2 and A3 nobody checks the sum: too large reads past the end of query and key.

    ## Use instead
    `torch.diff(cu_seqlens).cpu().to(torch.int32)`.

    ## Ops and versions
    `_npu_flash_attention`, `_unpad`, `_unpad_v2`, `_v2`, `_v3`, `_qlens`, `_prefix_v2`. All versions.

    ## Evidence
    ATB-12, ATB-09: operation checks and kernels of ascend-transformer-boost, a fix in vllm-ascend.
    """

    code = "KV306"
    name = "unpad-cumulative-lengths"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("ATB-12", "ATB-09")
    operators = OPERATORS
    bad = {
        "cu_seqlens": """
            def attend(q, k, v, cu_seqlens, out):
                lens = cu_seqlens.cpu().to(torch.int32)
                torch_npu._npu_flash_attention_unpad(
                    query=q, key=k, value=v,
                    seq_len=lens,  # KV306
                    scale_value=0.1, num_heads=8, num_kv_heads=8, out=out,
                )
        """,
        "cumsum, positional": """
            ops = torch.ops.atb
            ops._npu_flash_attention(q, k, v, mask, lens.cumsum(0).int(), 0.1, 8, 8, out)  # KV306
        """,
    }
    ok = {
        "difference": """
            def attend(q, k, v, cu_seqlens, out):
                lens = torch.diff(cu_seqlens).cpu().to(torch.int32)
                torch_npu._npu_flash_attention_unpad(
                    query=q, key=k, value=v, seq_len=lens, scale_value=0.1, num_heads=8, num_kv_heads=8,
                    out=out,
                )
        """,
        "unknown form": """
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=mask, seq_len=meta.seq_lens, scale_value=0.1, num_heads=8,
                num_kv_heads=8, out=out,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the form of the lengths."""
        lengths = call.arg("q_lens")
        if one_entry(lengths):
            return NOT_APPLICABLE
        sums = cumulative(lengths)
        if sums.yes:
            return violated(
                f"{lengths.name} holds running sums, {call.operator.name} wants the length of each sequence",
                lengths,
                sums.notes,
                "Pass torch.diff(cu_seqlens).cpu().to(torch.int32).",
            )
        return PROVED if lengths.length_form.equals(LengthForm.PER_SEQUENCE).yes else undecided(sums)
