"""KV140: an option string of npu_ring_mla that it does not know, or that lacks its tensors."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require

from ._common import meant

OPTIONS = {
    "kernel_type": ("kernel_type_high_precision",),
    "mask_type": ("no_mask", "mask_type_triu"),
    "input_layout": ("type_bsnd",),
    "calc_type": ("calc_type_default", "calc_type_first_ring"),
}


class UnknownRingOption(RunRule):
    """An option string of npu_ring_mla that it does not know, or that lacks its tensors.

    ## What it does
    Checks the constant strings, and that `calc_type_default` (a later ring step) comes with `pre_out` and
    `prev_lse`.

    ## Why it is wrong
    The operation rejects the call. `kernel_type_default` passes the wrapper but not the library. Without a
    calc_type every call is a first step, which forgets the result so far.

    ## Use instead
    The strings in the message.

    ## Ops and versions
    npu_ring_mla.

    ## Evidence
    ATB-06: wrapper source of op-plugin, ATB operation checks.
    """

    code = "KV140"
    name = "unknown-ring-option"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("ATB-06",)
    operators = ("npu_ring_mla",)
    bad = {
        "kernel of the wrapper": """
            torch_npu.atb.npu_ring_mla(
                q, qr, k, kr, v, mask, lens, 16, 16, qk_scale=0.1,
                kernel_type="kernel_type_default",  # KV140
            )
        """,
        "later step without the result so far": """
            torch_npu.atb.npu_ring_mla(
                q, qr, k, kr, v, mask, lens, 16, 16, qk_scale=0.1, mask_type="no_mask",
                calc_type="calc_type_default",  # KV140
            )
        """,
        "later step that starts again": """
            def step(q, qr, k, kr, v, mask, lens, out, lse, first):
                torch_npu.atb.npu_ring_mla(
                    q, qr, k, kr, v, mask, lens, 16, 16, qk_scale=0.1,
                    pre_out=None if first else out, prev_lse=None if first else lse,
                    calc_type="calc_type_first_ring",  # KV140
                    output=out, softmax_lse=lse)
        """,
    }
    ok = {
        "first step": """
            torch_npu.atb.npu_ring_mla(
                q, qr, k, kr, v, mask, lens, 16, 16, qk_scale=0.1, mask_type="mask_type_triu",
                calc_type="calc_type_first_ring", kernel_type="kernel_type_high_precision")
        """,
        "later step": """
            torch_npu.atb.npu_ring_mla(
                q, qr, k, kr, v, mask, lens, 16, 16, pre_out=out, prev_lse=lse, qk_scale=0.1,
                mask_type="no_mask", calc_type="calc_type_default")
        """,
        "unknown": """
            torch_npu.atb.npu_ring_mla(
                q, qr, k, kr, v, mask, lens, 16, 16, pre_out=out, prev_lse=lse, qk_scale=0.1, calc_type=step)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the strings and the tensors of a later step."""
        for name, allowed in OPTIONS.items():
            arg = call.named(name)
            yield require(
                arg.constant.among((None, *allowed)),
                f"{name}={arg.constant.get('?')!r} is none of {', '.join(allowed)}",
                at=arg,
            )
        step = call.named("calc_type")
        for name in ("pre_out", "prev_lse"):
            given = call.named(name)
            yield require(
                meant(given),
                f"calc_type_default continues a ring, but {name} is not passed",
                when=step.constant.equals("calc_type_default"),
                at=step,
                fix=f"Pass {name}, or calc_type_first_ring.",
            )
            yield require(
                ~meant(given),
                f"{name} is passed, but calc_type_first_ring starts a ring and leaves it out",
                when=step.constant.equals("calc_type_first_ring"),
                at=step if step.given.yes else given,
                fix='Pass calc_type="calc_type_default" to go on from it.',
            )
