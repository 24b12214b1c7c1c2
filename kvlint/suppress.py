"""Suppression comments: ``# kvlint: ignore[...]``, ``# kvlint: ignore-file[...]`` and ``# noqa``.

Only real comments count (``tokenize`` tells them from text in strings), and a ``kvlint:`` directive only
at the start of a comment or after other directives: a sentence that mentions one does not act.
"""

from __future__ import annotations

import io
import re
import tokenize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_DIRECTIVE = re.compile(r"#\s*kvlint:\s*(?P<word>[A-Za-z][\w-]*)(?P<space>\s*)(?P<next>.?)")
# Other tools' comments that may stand before ours in one comment.
_PRAGMA = re.compile(
    r"#+\s*(?:kvlint\s*:|noqa\b|type\s*:|ruff\s*:|flake8\s*:|fmt\s*:|isort\s*:|mypy\s*:|pylint\s*:|pyright\s*:"
    r"|pyre-|pragma\b|nosec\b|nosemgrep\b|yapf\s*:|lint-|codespell\s*:|KV\d)"
)
# As flake8 reads it: anywhere in the comment, codes optional.
_NOQA = re.compile(r"#\s*noqa(?![\w-])(?::\s?(?P<codes>[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.I)
_NOQA_CODE = re.compile(r"[A-Z]+[0-9]+", re.I)
_ENTRY = re.compile(r"[^,\s][^,]*")
_NEWLINE = re.compile(r"\r\n|\r|\n")


class Entry:
    """One code or name in a suppression.

    ``text`` is "" for a bare ``noqa``. ``used`` becomes true when it hides a finding.
    """

    __slots__ = ("column", "end_column", "text", "used")

    def __init__(self, text: str, column: int, end_column: int) -> None:
        self.text = text
        self.column = column
        self.end_column = end_column
        self.used = False


class Directive:
    """One suppression comment.

    Attributes:
        kind: "ignore", "ignore-file" or "noqa".
        line: 1-based line it stands on.
        covers: line span it applies to.
        inside: the comment stands alone between the lines of one statement.
        alone: no code stands before it on its line.
        entries: what it switches off.
        fault: why it cannot act, or "".
    """

    __slots__ = ("alone", "column", "covers", "end_column", "entries", "fault", "inside", "kind", "line")

    def __init__(
        self, kind: str, line: int, column: int, end_column: int, entries: list[Entry], fault: str = ""
    ) -> None:
        self.kind = kind
        self.line = line
        self.column = column
        self.end_column = end_column
        self.entries = entries
        self.fault = fault
        self.alone = False
        self.inside = False
        self.covers = (line, line)


class Suppressions:
    """The suppression comments of one file."""

    def __init__(self, text: str) -> None:
        self.directives: list[Directive] = []
        # First and last line of every statement that has more than one.
        self._statements: dict[int, tuple[int, int]] = {}
        if "kvlint" in text or "noqa" in text.lower():
            self._scan(text)

    def _scan(self, text: str) -> None:
        comments: list[tuple[int, int, str, bool, bool]] = []
        own_lines: set[int] = set()
        start = 0
        try:
            for token in tokenize.generate_tokens(io.StringIO(_NEWLINE.sub("\n", text)).readline):
                kind = token.type
                if kind == tokenize.COMMENT:
                    line, column = token.start
                    alone = not token.line[:column].strip()
                    if alone:
                        own_lines.add(line)
                    comments.append((line, column, token.string, alone, start != 0))
                elif kind == tokenize.NEWLINE:
                    if start and token.start[0] != start:
                        span = (start, token.start[0])
                        for number in range(start, token.start[0] + 1):
                            self._statements[number] = span
                    start = 0
                elif start == 0 and kind not in (
                    tokenize.NL,
                    tokenize.INDENT,
                    tokenize.DEDENT,
                    tokenize.ENDMARKER,
                ):
                    start = token.start[0]
        except (tokenize.TokenError, SyntaxError):
            pass  # what was read up to here counts; the reader reports the file if it does not parse
        for line, column, string, alone, inside in comments:
            for directive in _directives(string, line, column):
                directive.alone, directive.inside = alone, alone and inside
                if alone:
                    below = line + 1
                    while below in own_lines:
                        below += 1
                    directive.covers = (below, below) if inside else self.statement(below)
                self.directives.append(directive)

    def statement(self, line: int) -> tuple[int, int]:
        """First and last line of the statement that a line belongs to."""
        return self._statements.get(line, (line, line))

    def matching(self, first: int, last: int, call: tuple[int, int] | None = None) -> Iterator[Directive]:
        """The directives that apply to a finding on the lines ``first`` to ``last``.

        A comment behind code applies when it stands on one of these lines, or on the first or last line
        of the call or of the statement. A comment on its own line applies to the statement below it, or,
        between the lines of a statement, to what begins on or spans the next line.
        """
        edges = {*(call or ()), *self.statement(first)}
        for directive in self.directives:
            if directive.fault:
                continue
            low, high = directive.covers
            if directive.kind == "ignore-file":
                yield directive
            elif directive.inside:
                if first <= low <= last or (call is not None and call[0] == low):
                    yield directive
            elif directive.alone:
                if directive.kind != "noqa" and low <= first <= high:
                    yield directive
            elif first <= directive.line <= last or directive.line in edges:
                yield directive


def _directives(comment: str, line: int, column: int) -> Iterator[Directive]:
    """The directives of one comment token that begins at the 0-based ``column``."""
    position = 0
    while True:
        match = _DIRECTIVE.match(comment, position)
        if match is not None:
            directive = _ours(comment, match, line, column)
            if directive is not None:
                yield directive
        elif not _PRAGMA.match(comment, position):
            break
        position = comment.find("#", position + 1)
        if position < 0:
            break
    for match in _NOQA.finditer(comment):
        begin = match.start("codes")
        if begin < 0:
            entries = [Entry("", column + match.start() + 1, column + match.end() + 1)]
        else:
            entries = [
                Entry(code.group().upper(), column + code.start() + 1, column + code.end() + 1)
                for code in _NOQA_CODE.finditer(comment, begin, match.end("codes"))
            ]
        yield Directive("noqa", line, column + match.start() + 1, column + match.end() + 1, entries)


def _ours(comment: str, match: re.Match[str], line: int, column: int) -> Directive | None:
    word, bracket = match.group("word"), match.group("next") == "["
    begin = column + match.start() + 1
    if word not in ("ignore", "ignore-file"):
        # "# kvlint: see the wiki" is prose; "# kvlint: disable=KV101" was meant to act.
        if not bracket and match.group("next") != "=":
            return None
        fault = f'"{word}" is no directive; write ignore[CODE] or ignore-file[CODE]'
        return Directive(word, line, begin, column + match.end("word") + 1, [], fault)
    close = comment.find("]", match.end())
    if not bracket or close < 0:
        fault = f"{word} names no rule, so it does nothing; write {word}[CODE]"
        return Directive(word, line, begin, column + match.end("word") + 1, [], fault)
    entries = []
    for item in _ENTRY.finditer(comment, match.end(), close):
        text = item.group().rstrip()
        entries.append(Entry(text, column + item.start() + 1, column + item.start() + len(text) + 1))
    fault = "" if entries else f"{word}[] names no rule, so it does nothing"
    return Directive(word, line, begin, column + close + 2, entries, fault)


def codes_of(entry: Entry, kind: str, codes: Mapping[str, str]) -> frozenset[str] | None:
    """The rule codes that an entry stands for; None when it is none of ours, empty when unknown.

    ``codes`` maps every code and every name to its code.
    """
    text = entry.text
    if kind == "noqa":
        if not text:
            return frozenset(codes.values())
        if not text.startswith("KV"):
            return None
        return frozenset(code for code in codes.values() if code.startswith(text))
    found = codes.get(text.upper()) or codes.get(text.lower())
    return frozenset([found]) if found else frozenset()


# The rules about the comments themselves; naming one in a comment is never "unused".
ABOUT_COMMENTS = frozenset({"KV901", "KV902"})


def leftovers(
    suppressions: Suppressions, codes: Mapping[str, str], active: Iterable[str]
) -> Iterator[tuple[str, Directive, Entry | None, str]]:
    """What is wrong with the comments themselves, after every finding has been matched.

    Yields ("unused" or "unknown", directive, entry, what to say). An entry is unused only when its rule
    ran: a run over a selection of rules knows nothing of the others.
    """
    running = frozenset(active)
    for directive in suppressions.directives:
        if directive.fault:
            yield "unknown", directive, None, directive.fault
            continue
        for entry in directive.entries:
            meant = codes_of(entry, directive.kind, codes)
            if meant is None or not entry.text:
                continue
            if not meant:
                yield "unknown", directive, entry, f'no rule is called "{entry.text}"'
            elif not entry.used and meant <= running and not meant & ABOUT_COMMENTS:
                yield "unused", directive, entry, f"{entry.text} hides nothing here"
