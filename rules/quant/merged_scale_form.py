"""KV812: a merged scale whose first axis is not key and value."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided

from ._common import decode_engine, whole


class MergedScaleForm(RunRule):
    """A merged scale whose first axis is not key and value.

    ## What it does
    Checks that a constant first axis of `antiquant_scale` and `antiquant_offset` is 2, and that
    `antiquant_mode` is 0 or 1, and 0 in prefill.

    ## Why it is wrong
    Tiling rejects the call. The merged form holds the scale of key at index 0 and that of value at index 1:
    (2, N, 1, D), (2, N, D), (2, H), (2,) or per token (2, B, S).

    ## Use instead
    `torch.stack((key_scale, value_scale))`.

    ## Ops and versions
    FIA v1, npu_incre_flash_attention.

    ## Evidence
    G13, G16, IFA-05: op-plugin documentation, decode tiling (CANN 8.5 snapshot).
    """

    code = "KV812"
    name = "merged-scale-form"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("G13", "G16", "IFA-05")
    families = ("fia", "ifa")
    bad = {
        "one scale": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=lens,
                antiquant_scale=s.view(1, 1024),  # KV812
            )
        """,
        "mode": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                antiquant_scale=s.view(2, 1024), actual_seq_lengths_kv=lens,
                antiquant_mode=2,  # KV812
            )
        """,
    }
    ok = {
        "both": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=lens, antiquant_scale=s.view(2, 1024))
        """,
        "unknown shape": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=lens, antiquant_scale=scales)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the first axes and the mode."""
        merged = call.arg("merged_quant_scale")
        if not call.has("merged_quant_scale") or merged.is_none.yes:
            yield NOT_APPLICABLE
            return
        for role in ("merged_quant_scale", "merged_quant_offset"):
            arg = call.arg(role)
            if arg.is_none.yes:
                continue
            size = whole(arg.dim(0))
            if size is None:
                yield undecided(*arg.shape.notes)
                continue
            yield require(
                arg.dim(0).holds(lambda value: value.integer == 2),
                f"the first axis of {arg.name} is {size}, not 2 (key and value)",
                at=arg,
            )
        mode = call.arg("merged_quant_mode")
        if not call.has("merged_quant_mode") or mode.given.no:
            return
        shown = mode.constant.get("?")
        yield require(
            mode.constant.among((0, 1)), f"{mode.name} is {shown}, not 0 or 1", when=merged.present, at=mode
        )
        yield require(
            mode.constant.equals(0),
            f"{mode.name} is {shown}, prefill takes 0",
            when=merged.present & ~decode_engine(call) & mode.constant.equals(1),
            at=mode,
        )
