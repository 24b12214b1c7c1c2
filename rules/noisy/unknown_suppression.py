"""KV902: a suppression comment that names no rule."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class UnknownSuppression(Rule):
    """A suppression comment names no rule, so it does nothing.

    ## What it does
    Reports `# kvlint: ignore[...]` with a code or name that no rule has, `# kvlint: ignore` without brackets,
    other words in the place of `ignore`, and `# noqa: KV...` with an unknown code.

    ## Why it is wrong
    The comment looks as if the finding had been judged, but nothing is hidden; once the name is corrected,
    something might be.

    ## Use instead
    `# kvlint: ignore[CODE] reason` with the code or the name that the finding shows.

    ## Ops and versions
    None: it is about comments.

    ## Evidence
    0.2: an argument without effect. The list of rules of this kvlint.
    """

    code = "KV902"
    name = "unknown-suppression"
    severity = Severity.IGNORED
    confidence = Confidence.HIGH
    contract = ("0.2",)
    events = ("unknown-suppression",)
    bad = {
        "no such code": """
            x = 1  # kvlint: ignore[KV999]  # KV902
        """,
        "no brackets": """
            x = 1  # kvlint: ignore  # KV902
        """,
        "another linter's word": """
            x = 1  # kvlint: disable=KV101  # KV902
        """,
        "noqa with no such code": """
            x = 1  # noqa: KV999  # KV902
        """,
    }
    ok = {
        "other linters' codes": """
            x = 1  # noqa: E501
        """,
        "a sentence": """
            # kvlint: see the notes on suppression
            x = 1
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the comment; that it is unknown was found out by who read it."""
        return violated(event.detail["what"], event.place, fix="Write a code or a name that a rule has.")
