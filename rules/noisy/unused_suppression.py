"""KV901: a suppression comment that hides nothing."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class UnusedSuppression(Rule):
    """A suppression comment hides nothing.

    ## What it does
    Reports a code or name in `# kvlint: ignore[...]`, `# kvlint: ignore-file[...]` or `# noqa: KV...` whose
    rule ran and found nothing that the comment applies to. A bare `# noqa` is never reported.

    ## Why it is wrong
    The comment outlives the fault it was written for, and hides the next one at the same place.

    ## Use instead
    Remove the code, or the whole comment when it is the only one.

    ## Ops and versions
    None: it is about comments.

    ## Evidence
    0.2: an argument without effect. What the rules of this run found in the same file is compared with the
    comment.
    """

    code = "KV901"
    name = "unused-suppression"
    severity = Severity.IGNORED
    confidence = Confidence.HIGH
    contract = ("0.2",)
    events = ("unused-suppression",)
    bad = {
        "fault that was corrected": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSH",
                scale=0.1,  # kvlint: ignore[missing-scale]  # KV901
            )
        """,
        "whole file": """
            # kvlint: ignore-file[KV201]  # KV901
            x = 1
        """,
        "noqa with a code": """
            x = 1  # noqa: KV101  # KV901
        """,
    }
    ok = {
        "hides a finding": """
            torch_npu.npu_fused_infer_attention_score(  # kvlint: ignore[KV101] v is scaled by the caller
                q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSH")
        """,
        "text that mentions one": """
            # Write "# kvlint: ignore[KV101]" behind the call.
            x = "# kvlint: ignore[KV101]"
        """,
        "bare noqa": """
            x = 1  # noqa
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the comment; that it is unused was found out by who applied it."""
        return violated(event.detail["what"], event.place, fix="Remove it from the comment.")
