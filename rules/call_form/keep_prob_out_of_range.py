"""KV134: keep_prob is not a probability of keeping."""

from __future__ import annotations

import re

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

DROPPED = re.compile(r"(^|_)(dropout|drop|pdrop)(_p|_prob|_rate|_ratio)?$|^p_?drop(out)?$")


class KeepProbOutOfRange(RunRule):
    """keep_prob is not a probability of keeping.

    ## What it does
    Reports a constant outside (0, 1], and a dropout probability that is passed as it is, by the name of the
    value (`dropout_p`, `attention_dropout`).

    ## Why it is wrong
    The operator takes the share that is *kept*. The wrapper rejects a constant outside the range, so dropout
    0.0 fails loudly; dropout 0.1 keeps a tenth of the weights without an error. There is no training flag:
    evaluation must pass 1.0.

    ## Use instead
    `keep_prob=1.0 - dropout_p`.

    ## Ops and versions
    npu_fusion_attention v1 to v3. All versions.

    ## Evidence
    FUS-14: wrapper source and op-plugin documentation.
    """

    code = "KV134"
    name = "keep-prob-out-of-range"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("FUS-14",)
    families = ("fusion",)
    bad = {
        "zero": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSH", scale=0.1,
                keep_prob=0.0,  # KV134
            )
        """,
        "dropout passed on": """
            def attend(q, k, v, dropout_p):
                return torch_npu.npu_fusion_attention(
                    q, k, v, 8, "BSH", scale=0.1,
                    keep_prob=dropout_p,  # KV134
                )[0]
        """,
        "attribute": """
            class Attention:
                def forward(self, q, k, v):
                    return torch_npu.npu_fusion_attention(
                        q, k, v, 8, "BSH", scale=0.1,
                        keep_prob=self.config.attention_dropout,  # KV134
                    )[0]
        """,
    }
    ok = {
        "kept share": """
            def attend(q, k, v, dropout_p):
                return torch_npu.npu_fusion_attention(
                    q, k, v, 8, "BSH", scale=0.1, keep_prob=1.0 - dropout_p)[0]
        """,
        "all": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1, keep_prob=1)
        """,
        "unknown": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1, keep_prob=keep)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the constant, then the name."""
        keep = call.arg("keep_prob")
        if not call.has("keep_prob") or keep.given.no:
            return NOT_APPLICABLE
        number = keep.number
        if not number.known:
            return undecided(*number.notes)
        value, atom = number.value.const, number.value.single
        if value is not None:
            if 0 < value <= 1:
                return PROVED
            return violated(
                f"{keep.name} is {value}, which is not in (0, 1]",
                keep,
                number.notes,
                fix="Pass the share that is kept, 1.0 without dropout.",
            )
        label = atom.label.split(".")[-1].lower() if atom is not None and atom.declared else ""
        if DROPPED.search(label):
            return violated(
                f"{keep.name} gets the dropout probability {label}, but it is the share that is kept",
                keep,
                number.notes,
                fix=f"Pass {keep.name}=1.0 - {label}.",
            )
        counted = _minus_count(number.value)
        if counted is not None:
            return violated(
                f"{keep.name} is {number.value.label}, but {counted} counts tokens, so it is not in (0, 1]",
                keep,
                number.notes,
                fix="Check the order of the positional arguments that lead here.",
            )
        return undecided(*number.notes)


def _minus_count(number: Num) -> str | None:
    """The label of ``n`` in ``1 - n`` when ``n`` counts something; None for any other form."""
    rest = Num.of(1) - number
    atom = rest.single
    return atom.label if atom is not None and atom.count else None
