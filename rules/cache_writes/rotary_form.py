"""KV627: shapes and modes the rotary helpers do not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require
from kvlint.contract.sizes import constant


class RotaryForm(Rule):
    """A rotary helper gets a shape or mode it does not take.

    ## What it does
    Checks what is visible: npu_interleave_rope takes 4-D tensors that are 64 wide, with one head in cos and
    sin; npu_rotary_mul takes an even width below 896; `rotary_mode` is 'half' or 'interleave'.

    ## Why it is wrong
    The device rejects the call. The meta kernels accept any width and any mode string.

    ## Use instead
    `npu_rotary_mul(x, cos, sin, rotary_mode="interleave")` for other widths than 64.

    ## Ops and versions
    npu_interleave_rope, npu_rotary_mul (rotary_mode since 7.0.0), npu_apply_rotary_pos_emb.

    ## Evidence
    3.9: op-plugin documentation; the meta kernels accept them (executed).
    """

    code = "KV627"
    name = "rotary-form"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("3.9",)
    operators = ("npu_interleave_rope", "npu_rotary_mul", "npu_apply_rotary_pos_emb")
    bad = {
        "128 wide": """
            torch_npu.npu_interleave_rope(
                q.view(2, 8, 16, 128),  # KV627
                cos, sin)
        """,
        "mode of another library": """
            out = torch_npu.npu_rotary_mul(
                query, cos, sin,
                rotary_mode="neox")  # KV627
        """,
    }
    ok = {
        "64 wide": """
            out = torch_npu.npu_interleave_rope(q.view(2, 8, 16, 64), cos, sin)
        """,
        "half": """
            out = torch_npu.npu_rotary_mul(query, cos, sin, rotary_mode="half")
        """,
        "unknown": """
            out = torch_npu.npu_rotary_mul(query, cos, sin, rotary_mode=mode)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges shapes and the mode."""
        mode = call.named("rotary_mode")
        if call.operator.param("rotary_mode") is not None:
            yield require(
                mode.constant.among(("half", "interleave")),
                f"rotary_mode={mode.constant.get('')!r} is neither 'half' nor 'interleave'",
                when=mode.given,
                at=mode,
            )
        if call.operator.name == "npu_interleave_rope":
            for name in ("x", "cos", "sin"):
                tensor = call.named(name)
                yield require(
                    tensor.rank.equals(4), f"{name} has {tensor.rank.get(0)} axes, it must have 4", at=tensor
                )
                width = constant(tensor.dim(-1))
                yield require(width.equals(64), f"{name} is {width.get(0)} wide, it must be 64", at=tensor)
        elif call.operator.name == "npu_rotary_mul":
            tensor = call.named("input" if call.operator.param("input") else "self")
            width = constant(tensor.dim(-1))
            yield require(
                width.holds(lambda size: size % 2 == 0 and size < 896),
                f"{tensor.name} is {width.get(0)} wide, it must be even and below 896",
                at=tensor,
            )
        else:
            yield NOT_APPLICABLE
