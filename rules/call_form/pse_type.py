"""KV135: pse_type does not fit the position bias."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import differ, meant


class PseType(RunRule):
    """pse_type does not fit the position bias.

    ## What it does
    Checks that `pse_type` is 0 to 3, that a value other than 1 comes with a `pse` tensor, and that 2 and 3
    (alibi built inside) are used with equal query and key lengths.

    ## Why it is wrong
    Tiling rejects the call. The types differ in order: 0 scales, then adds the bias; 1 (the default) adds it
    to the raw scores and scales the sum; 2 and 3 build an alibi bias from slopes.

    ## Use instead
    Leave `pse_type` at 1 without a bias.

    ## Ops and versions
    npu_fusion_attention_v2.

    ## Evidence
    FUS-16: op-plugin documentation, tiling of ops-transformer.
    """

    code = "KV135"
    name = "pse-type"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("FUS-16",)
    operators = ("npu_fusion_attention_v2",)
    bad = {
        "out of range": """
            torch_npu.npu_fusion_attention_v2(
                q, k, v, 8, "BSH", scale=0.1, pse=bias,
                pse_type=4,  # KV135
            )
        """,
        "without a bias": """
            opts = {"scale": 0.1, "pse": None}
            torch_npu.npu_fusion_attention_v2(
                q, k, v, 8, "BSH",
                pse_type=0,  # KV135
                **opts)
        """,
    }
    ok = {
        "with a bias": """
            torch_npu.npu_fusion_attention_v2(q, k, v, 8, "BSH", scale=0.1, pse=bias, pse_type=0)
        """,
        "default without one": """
            torch_npu.npu_fusion_attention_v2(q, k, v, 8, "BSH", scale=0.1)
        """,
        "unknown": """
            torch_npu.npu_fusion_attention_v2(q, k, v, 8, "BSH", scale=0.1, pse=bias, pse_type=kind)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the range, the presence of a bias and the lengths."""
        kind, bias = call.named("pse_type"), call.arg("pse_shift")
        shown = kind.constant.get("?")
        if kind.given.no:
            yield NOT_APPLICABLE
            return
        yield require(kind.constant.among((0, 1, 2, 3)), f"pse_type is {shown}, not 0 to 3", at=kind)
        yield require(
            meant(bias),
            f"pse_type is {shown}, but no pse is passed",
            when=kind.constant.among((0, 2, 3)),
            at=kind,
        )
        yield require(
            ~differ(call.query_length, call.key_length),
            f"pse_type {shown} needs equal query and key lengths",
            when=kind.constant.among((2, 3)) & ~call.packed,
            at=kind,
        )
