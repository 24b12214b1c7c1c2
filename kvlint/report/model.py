"""What a run found, in plain values: the reporters see nothing of rules, trees or files."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Spot:
    """A place for the reader of a report. ``path`` is as shown, ``cell`` the notebook cell or 0."""

    __slots__ = ("cell", "column", "end_column", "end_line", "line", "path")

    def __init__(
        self, path: str, line: int, column: int, end_line: int, end_column: int, cell: int = 0
    ) -> None:
        self.path = path
        self.line = line
        self.column = column
        self.end_line = end_line
        self.end_column = end_column
        self.cell = cell

    @property
    def where(self) -> str:
        """``path:line``, or ``path:cell N:line`` in a notebook."""
        return f"{self.path}:cell {self.cell}:{self.line}" if self.cell else f"{self.path}:{self.line}"

    @property
    def key(self) -> tuple[str, int, int, int, int, int]:
        """For sorting and comparing."""
        return (self.path, self.cell, self.line, self.column, self.end_line, self.end_column)


class Step:
    """One line of provenance: what is known, and where that was decided (None when nowhere)."""

    __slots__ = ("spot", "text")

    def __init__(self, text: str, spot: Spot | None) -> None:
        self.text = text
        self.spot = spot


class Obligation:
    """One verdict about one call.

    Attributes:
        outcome: "proved", "violated" or "undecided".
        steps: for an undecided one, where knowledge ended.
    """

    __slots__ = ("code", "name", "operator", "outcome", "spot", "steps")

    def __init__(
        self, code: str, name: str, outcome: str, operator: str, spot: Spot, steps: tuple[Step, ...]
    ) -> None:
        self.code = code
        self.name = name
        self.outcome = outcome
        self.operator = operator
        self.spot = spot
        self.steps = steps


class Finding:
    """A violation.

    Attributes:
        when: tests that must hold for it, as the source writes them.
        via: the calls through which the function is entered, for a fault in its arguments.
        excerpt: the source line that ``spot`` begins on.
        operator: the operator that is called; "" for findings about comments.
    """

    __slots__ = (
        "code", "confidence", "excerpt", "fix", "message", "name", "operator", "severity", "spot", "steps",
        "via", "when",
    )  # fmt: skip

    def __init__(
        self,
        code: str,
        name: str,
        severity: str,
        confidence: str,
        message: str,
        fix: str,
        spot: Spot,
        *,
        operator: str = "",
        steps: tuple[Step, ...] = (),
        when: tuple[Step, ...] = (),
        via: tuple[Step, ...] = (),
        excerpt: str = "",
    ) -> None:
        self.code = code
        self.name = name
        self.severity = severity
        self.confidence = confidence
        self.message = message
        self.fix = fix
        self.spot = spot
        self.operator = operator
        self.steps = steps
        self.when = when
        self.via = via
        self.excerpt = excerpt


class Problem:
    """A file that was not checked, or not to the end. ``kind``: "syntax", "read" or "internal"."""

    __slots__ = ("kind", "line", "message", "path")

    def __init__(self, kind: str, path: str, line: int, message: str) -> None:
        self.kind = kind
        self.path = path
        self.line = line
        self.message = message


class Tally:
    """How many obligations of one rule ended how."""

    __slots__ = ("code", "name", "proved", "undecided", "violated")

    def __init__(self, code: str, name: str) -> None:
        self.code = code
        self.name = name
        self.proved = 0
        self.violated = 0
        self.undecided = 0

    @property
    def total(self) -> int:
        """All that applied."""
        return self.proved + self.violated + self.undecided


class Result:
    """Everything a run has to report.

    Attributes:
        files: number of files looked at.
        relevant: number of files with operator calls.
        calls: number of operator calls.
        suppressed: number of findings hidden by comments.
        tallies: by code; only rules with an obligation that applied somewhere.
        obligations: those that were asked for.
    """

    def __init__(self) -> None:
        self.files = 0
        self.relevant = 0
        self.calls = 0
        self.suppressed = 0
        self.findings: list[Finding] = []
        self.problems: list[Problem] = []
        self.tallies: dict[str, Tally] = {}
        self.obligations: list[Obligation] = []

    def add(self, other: Result) -> None:
        """Adds what was found in further files; their number is counted elsewhere."""
        self.relevant += other.relevant
        self.calls += other.calls
        self.suppressed += other.suppressed
        self.findings += other.findings
        self.problems += other.problems
        self.obligations += other.obligations
        for code, tally in other.tallies.items():
            mine = self.tallies.setdefault(code, Tally(code, tally.name))
            mine.proved += tally.proved
            mine.violated += tally.violated
            mine.undecided += tally.undecided

    def counts(self) -> Mapping[str, int]:
        """Number of findings by severity."""
        found: dict[str, int] = {}
        for finding in self.findings:
            found[finding.severity] = found.get(finding.severity, 0) + 1
        return found

    def total(self) -> Tally:
        """The tallies of all rules added up."""
        total = Tally("", "")
        for tally in self.tallies.values():
            total.proved += tally.proved
            total.violated += tally.violated
            total.undecided += tally.undecided
        return total
