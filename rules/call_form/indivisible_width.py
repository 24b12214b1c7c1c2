"""KV120: the folded head axis cannot be split into the told number of heads."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.num import Num
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

from ._common import paged, whole


class IndivisibleWidth(RunRule):
    """The folded head axis cannot be split into the told number of heads.

    ## What it does
    In BSH and SBH, checks that constant widths of query and of an unpaged key are multiples of the head
    counts.

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    The head counts of this rank.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention. All versions.

    ## Evidence
    B03: tiling of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV120"
    name = "indivisible-width"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B03",)
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "query": """
            q = x.view(2, 16, 1024)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_key_value_heads=12, scale=0.1, input_layout="BSH",
                num_heads=12,  # KV120
            )
        """,
        "key": """
            k = y.view(2, 16, 1024)
            torch_npu.npu_prompt_flash_attention(
                q, k, k, num_heads=12, scale_value=0.1, input_layout="BSH",
                num_key_value_heads=12,  # KV120
            )
        """,
    }
    ok = {
        "fits": """
            q = x.view(2, 16, 1024)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "unknown width": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=12, num_key_value_heads=12, scale=0.1, input_layout="BSH")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query and key."""
        folded = call.query_layout.among(("BSH", "SBH"))
        if folded.no:
            yield NOT_APPLICABLE
            return
        for role, count, counts in (
            ("query", call.arg("q_heads"), call.heads),
            ("key", call.arg("kv_heads"), call.kv_heads),
        ):
            if count.given.no or (role == "key" and paged(call).yes):
                continue
            width, number = call.arg(role).dim(-1), counts
            size, heads = whole(width), whole(number)
            if folded.yes and width.known and number.known and _is_multiple(width.value, number.value):
                yield PROVED
            elif size is None or heads is None or heads < 1 or not folded.yes:
                yield undecided(folded, *width.notes, *number.notes)
            elif size % heads:
                yield violated(
                    f"{role} is {size} wide, which is no multiple of {count.name}={heads}",
                    count,
                    (*width.notes, *number.notes),
                )
            else:
                yield PROVED


def _is_multiple(size: Num, count: Num) -> bool:
    """Whether a size is written as a product with the count, without a division that may leave a rest."""
    quotient = size.divide(count) if size.const is None else None
    return quotient is not None and all(map(_without_division, (size, count, quotient)))


def _without_division(number: Num) -> bool:
    powers = (power for monomial in number.terms for _, power in monomial)
    return (
        bool(number.terms)
        and all(coefficient == int(coefficient) for coefficient in number.terms.values())
        and all(power > 0 and power == int(power) for power in powers)
    )
