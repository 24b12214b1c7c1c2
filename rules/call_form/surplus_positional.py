"""KV111: more positional arguments than the operator takes, or one given twice."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.catalogue import Operator
from kvlint.contract.rule import PROVED, Confidence, Rule, Severity, Verdict, violated

from ._common import schemas


class SurplusPositional(Rule):
    """More positional arguments than the operator takes, or one given twice.

    ## What it does
    Counts the positional arguments against the schema, and reports an argument that is given both by position
    and by name.

    ## Why it is wrong
    The call raises. FIA takes query, key and value by position only, so a call ported from an operator that
    takes its mask or head count by position fails.

    ## Use instead
    Pass everything after the tensors by name.

    ## Ops and versions
    All operators. All versions.

    ## Evidence
    A02, MP-01: schemas; a fourth positional argument raises (executed on torch_npu 2.13).
    """

    code = "KV111"
    name = "surplus-positional"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("A02",)
    families = ("fia", "pfa", "ifa", "fusion", "atb", "sparse", "indexer", "merge", "cache_read", "rotary")
    bad = {
        "mask by position": """
            torch_npu.npu_fused_infer_attention_score(  # KV111
                q, k, v, mask, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "given twice": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", head_num=8, scale=0.1)  # KV111
        """,
    }
    ok = {
        "tensors by position": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "all by name": """
            torch_npu.npu_fusion_attention(query=q, key=k, value=v, head_num=8, input_layout="BSH", scale=0.1)
        """,
        "unpacked": """
            torch_npu.npu_fused_infer_attention_score(
                *qkv, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges how the arguments met the schema."""
        operator, binding = call.operator, call.binding
        slots = _slots(operator)
        surplus = binding.surplus and slots + binding.surplus > max(map(_slots, schemas(call)))
        if surplus:
            yield violated(
                f"{operator.name} takes {slots} positional arguments, {slots + binding.surplus} are given",
                call.place,
                fix="Pass the others by name.",
            )
        for name in binding.duplicate:
            yield violated(
                f"{name} is given by position and by name, so the call raises",
                call.place,
                fix=f"Pass {name} once.",
            )
        if not surplus and not binding.duplicate:
            yield PROVED


def _slots(operator: Operator) -> int:
    return sum(param.position is not None for param in operator.params)
