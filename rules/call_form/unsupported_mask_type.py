"""KV139: a mask_type or kernel_type that the ATB operator does not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, violated

from ._common import meant

MASK_TYPES: dict[str, tuple[int, ...]] = {
    "_npu_flash_attention_v2": (1, 2, 4, 5, 6),
    "_npu_flash_attention_v3": (3, 5),
    "_npu_flash_attention_prefix_v2": (3, 4, 5),
    "_npu_paged_attention_v2": (0, 2),
    "_npu_paged_attention_splitfuse_v2": (3, 5),
}
KERNEL_TYPES: dict[str, tuple[int, ...]] = {
    "_npu_flash_attention_prefix_v2": (1,),
    "_npu_flash_attention_unpad_v2": (0, 2),
}


class UnsupportedMaskType(RunRule):
    """A mask_type or kernel_type that the ATB operator does not take.

    ## What it does
    Checks the constant against the values that the wrapper forwards, and that a mask is passed where the type
    reads one.

    ## Why it is wrong
    The integers mean other things in each family (self attention: 0 none, 1 norm, 2 alibi, 3 compressed norm,
    4 to 6 compressed alibi; paged attention: 3 speculative, 4 mask free, 5 compressed norm). Most values are
    documented but not forwarded, and fail. The default of _npu_flash_attention_v2 is 2 (alibi), which needs a
    mask.

    ## Use instead
    1 with a norm mask for _npu_flash_attention_v2, 3 for _npu_flash_attention_v3 and
    _npu_flash_attention_prefix_v2, 0 or 2 for _npu_paged_attention_v2.

    ## Ops and versions
    _npu_flash_attention_v2, _v3 and _prefix_v2, _npu_flash_attention_unpad_v2, _npu_paged_attention_v2,
    _npu_paged_attention_splitfuse_v2 (Atlas inference cards only).

    ## Evidence
    ATB-09, ATB-10, ATB-11: wrapper source of op-plugin, ATB operation checks.
    """

    code = "KV139"
    name = "unsupported-mask-type"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("ATB-09", "ATB-10", "ATB-11")
    operators = tuple(dict.fromkeys((*MASK_TYPES, *KERNEL_TYPES)))
    bad = {
        "no mask by type 0": """
            torch_npu.atb._npu_flash_attention_v2(
                q, k, v, lens, num_heads=8, num_kv_heads=8, scale_value=0.1, out=out,
                mask_type=0,  # KV139
            )
        """,
        "the default needs a mask": """
            torch_npu.atb._npu_flash_attention_v2(  # KV139
                q, k, v, lens, num_heads=8, num_kv_heads=8, scale_value=0.1, out=out)
        """,
        "compressed mask in paged attention": """
            torch_npu.atb._npu_paged_attention_v2(
                q, kc, table, lens, value_cache=vc, mask=mask, num_kv_heads=8, num_heads=8, scale_value=0.1,
                out=out,
                mask_type=5,  # KV139
            )
        """,
    }
    ok = {
        "norm mask": """
            torch_npu.atb._npu_flash_attention_v2(
                q, k, v, lens, mask=mask, num_heads=8, num_kv_heads=8, scale_value=0.1, mask_type=1, out=out)
        """,
        "paged without a mask": """
            torch_npu.atb._npu_paged_attention_v2(
                q, kc, table, lens, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1, out=out)
        """,
        "unknown type": """
            torch_npu.atb._npu_flash_attention_v2(
                q, k, v, lens, mask=mask, num_heads=8, num_kv_heads=8, scale_value=0.1, mask_type=kind,
                out=out)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the two types and the mask."""
        name = call.operator.name
        if name == "_npu_paged_attention_splitfuse_v2" and call.target.soc_in("A2", "A3").yes:
            yield violated(f"{name} runs on inference cards only, not on {call.target.soc}", call.place)
        for parameter, allowed in (
            ("mask_type", MASK_TYPES.get(name)),
            ("kernel_type", KERNEL_TYPES.get(name)),
        ):
            arg = call.named(parameter)
            if allowed is None or not arg.param.type:
                yield NOT_APPLICABLE
                continue
            given = arg.given.yes
            yield require(
                arg.constant.among(allowed),
                f"{parameter} {arg.constant.get('?')} is not taken, only {', '.join(map(str, allowed))}",
                at=arg if given else call.place,
            )
        kind, mask = call.named("mask_type"), call.arg("mask")
        if call.has("mask") and kind.param.type and not mask.param.required:
            yield require(
                meant(mask),
                f"mask_type {kind.constant.get('?')} reads a mask, but none is passed",
                when=kind.constant.among([t for t in MASK_TYPES.get(name, ()) if t]),
                at=kind if kind.given.yes else call.place,
                fix="Pass the mask, or the mask_type of a call without one.",
            )
