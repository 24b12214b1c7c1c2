"""From a file with operator calls to findings: reads it, asks the rules, applies the suppressions.

Loaded only when a file is worth it; ``check.py`` decides that without importing this module.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from kvlint.contract.call import Call, Event, Scope, Target
from kvlint.contract.rule import Outcome, Rule, Verdict, all_rules, judge
from kvlint.contract.tri import Note, Place

from .config import ConfigError, Layer, Settings, show
from .discovery import Candidate
from .report.model import Finding, Obligation, Problem, Result, Spot, Step, Tally
from .roots import Roots
from .source.corpus import Corpora
from .source.reader import Analysis, Project, SourceError
from .suppress import Directive, Suppressions, codes_of, leftovers

_NEWLINE = re.compile(r"\r\n|\r|\n")


class Reader(Protocol):
    """What is needed of a project."""

    def read(self, path: str, source: bytes) -> Analysis:
        """Analyses one module."""


MakeReader = Callable[[Sequence[str], Target], Reader]


class Selector:
    """Which rules run for a file."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.codes: dict[str, str] = {}
        self.named = {rule.code: rule.name for rule in self.rules}
        for rule in self.rules:
            self.codes[rule.code] = self.codes[rule.name] = rule.code
        self._checked: set[str] = set()
        self._cache: dict[tuple[int, tuple[str, ...]], tuple[Rule, ...]] = {}

    def enabled(self, settings: Settings, path: str) -> tuple[Rule, ...]:
        """The rules for one file, by code."""
        ignored = tuple(settings.ignored_in(path))
        key = (id(settings), ignored)
        found = self._cache.get(key)
        if found is None:
            self.validate(settings)
            state = {rule.code: rule.default for rule in self.rules}
            for layer in settings.layers:
                if layer.select is not None:
                    state = dict.fromkeys(state, False)
                self._apply(state, (*(layer.select or ()), *layer.extend), layer.ignore)
            self._apply(state, (), ignored)
            found = self._cache[key] = tuple(rule for rule in self.rules if state[rule.code])
        return found

    def validate(self, settings: Settings) -> None:
        """Raises :class:`ConfigError` for a selector that means no rule."""
        for layer in settings.layers:
            self.validate_layer(layer)
        for _, rules in settings.per_file_ignores:
            for selector in rules:
                self._check(selector, settings.ignores_origin)

    def validate_layer(self, layer: Layer) -> None:
        """The same for one source of selections."""
        for selector in layer.selectors():
            self._check(selector, layer.origin)

    def _check(self, selector: str, origin: str) -> None:
        if selector in self._checked:
            return
        if not self._meaning(selector)[1]:
            from difflib import get_close_matches

            near = get_close_matches(selector.lower(), [rule.name for rule in self.rules], 1)
            hint = f', did you mean "{near[0]}"?' if near else ""
            raise ConfigError(f'{origin}: no rule is called "{selector}"{hint}')
        self._checked.add(selector)

    def _apply(self, state: dict[str, bool], on: Iterable[str], off: Iterable[str]) -> None:
        """Narrow selectors win over wide ones; at the same width, switching off wins."""
        steps = [(self._meaning(item), True) for item in on] + [(self._meaning(item), False) for item in off]
        for (_, codes), value in sorted(steps, key=lambda step: (step[0][0], not step[1])):
            for code in codes:
                state[code] = value

    def _meaning(self, selector: str) -> tuple[int, tuple[str, ...]]:
        """How narrow a selector is, and the codes it stands for."""
        exact = self.codes.get(selector.upper()) or self.codes.get(selector.lower())
        if exact:
            return 99, (exact,)
        prefix = selector.upper()
        if prefix == "ALL":
            return 0, tuple(rule.code for rule in self.rules)
        if not prefix.startswith("KV"):
            return 0, ()
        return len(prefix), tuple(rule.code for rule in self.rules if rule.code.startswith(prefix))


class Session:
    """Checks files one after another into a result."""

    def __init__(
        self,
        result: Result,
        cwd: str,
        *,
        rules: Sequence[Rule] | None = None,
        project: MakeReader | None = None,
        keep: frozenset[str] = frozenset(),
        corpora: Corpora | None = None,
        roots: Roots | None = None,
        debug: bool = False,
    ) -> None:
        """``keep``: outcomes whose obligations are kept in the result, and counted.

        ``corpora``: the trees of files that belong together; ``roots``: where imports start.
        """
        self.result = result
        self.cwd = cwd
        self.selector = Selector(all_rules() if rules is None else rules)
        self.keep = keep
        self.debug = debug
        self.roots = roots or Roots()
        searched = corpora or Corpora()
        self._make: MakeReader = project or (lambda roots, target: Project(roots, target, searched))
        self._readers: dict[tuple[tuple[str, ...], Target], Reader] = {}
        self._targets: dict[int, Target] = {}

    def validate(self, settings: Settings) -> None:
        """Raises :class:`ConfigError` for settings that name unknown rules or releases."""
        self.selector.validate(settings)
        self._target(settings)

    def check(self, item: Candidate, source: bytes, relevant: bool) -> None:
        """Checks one file. Raises :class:`ConfigError` when its settings are wrong."""
        rules = self.selector.enabled(item.settings, item.path)
        target = self._target(item.settings)
        try:
            _File(self, item, source, rules, target).run(relevant)
        except SourceError as error:
            self.result.problems.append(Problem("syntax", item.shown, error.line, str(error)))
        except Exception as error:  # the other files go on
            self.crashed(item.shown, error)

    def crashed(self, shown: str, error: Exception, doing: str = "") -> None:
        """Notes an internal error, once per file."""
        if self.debug:
            raise error
        if not any(p.kind == "internal" and p.path == shown for p in self.result.problems):
            text = (str(error).splitlines() or [""])[0]
            about = f"{type(error).__name__}: {text}" if text else type(error).__name__
            self.result.problems.append(
                Problem("internal", shown, 0, f"internal error{doing}: {about} (KVLINT_DEBUG=1 shows where)")
            )

    def reader(self, path: str, settings: Settings, target: Target) -> Reader:
        """The reader for a file."""
        key = (self.roots.of(path, settings), target)
        found = self._readers.get(key)
        if found is None:
            found = self._readers[key] = self._make(key[0], target)
        return found

    def _target(self, settings: Settings) -> Target:
        found = self._targets.get(id(settings))
        if found is None:
            release = settings.torch_npu
            if release is not None:
                release = known_release(release)
            found = self._targets[id(settings)] = Target(release, settings.cann, settings.soc)
        return found


def known_release(text: str) -> str:
    """The catalogue's release for a version. Raises :class:`ConfigError` when there is none."""
    from kvlint.contract.catalogue import resolve_release

    try:
        return resolve_release(text)
    except ValueError as error:
        raise ConfigError(f"torch-npu: {error}") from None


class _File:
    """The check of one file."""

    def __init__(
        self, session: Session, item: Candidate, source: bytes, rules: Sequence[Rule], target: Target
    ) -> None:
        self.session = session
        self.item = item
        self.rules = rules
        self.target = target
        self.cells: list[tuple[int, int]] | None = None
        if item.path.endswith(".ipynb"):
            from .notebook import NotebookError, read

            try:
                text, self.cells = read(source)
            except NotebookError as error:
                raise SourceError(str(error)) from None
            source = text.encode("utf-8", "surrogatepass")
        self.source = source
        self._text: str | None = None
        self._lines: list[str] | None = None
        self.found: dict[tuple[object, ...], tuple[Finding, tuple[int, int, tuple[int, int] | None]]] = {}
        self.contexts: dict[tuple[int, str, int], list[tuple[bool, Verdict, str, Place | None]]] = {}
        """Obligation -> its verdict in each context; True for one that no other stands for."""

    def run(self, relevant: bool) -> None:
        """Reads, judges, suppresses, and adds to the result."""
        if relevant:
            reader = self.session.reader(self.item.path, self.item.settings, self.target)
            analysis = reader.read(self.item.path, self.source)
            sites: set[int] = set()
            for scope in analysis.scopes:
                for call in scope.calls:
                    sites.add(id(getattr(call.place, "node", call.place)))
                    self._judge_call(call)
                for event in scope.events:
                    self._judge_event(event, scope)
            self.session.result.relevant += bool(sites)
            self.session.result.calls += len(sites)
            self._count()
        self._finish()

    @property
    def text(self) -> str:
        """The decoded source."""
        if self._text is None:
            try:
                encoding, _ = tokenize.detect_encoding(io.BytesIO(self.source).readline)
                self._text = self.source.decode(encoding)
            except (SyntaxError, UnicodeDecodeError, LookupError) as error:
                raise SourceError(f"cannot be decoded: {str(error).splitlines()[0]}") from None
        return self._text

    def line(self, number: int) -> str:
        """One source line without its end; empty when there is no such line."""
        if self._lines is None:
            self._lines = _NEWLINE.split(self.text)
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    def _judge_call(self, call: Call) -> None:
        for rule in self.rules:
            if not rule.applies_to(call.operator):
                continue
            try:
                verdicts = judge(rule, call, proofs=bool(self.session.keep))
            except Exception as error:  # this rule is lost for this call, the others are not
                self.session.crashed(self.item.shown, error, f" in {rule.code}")
                continue
            site = id(getattr(call.place, "node", call.place))
            for index, verdict in enumerate(verdicts):
                if self.session.keep:
                    context = (not call.covered(), verdict, call.operator.name, call.place)
                    self.contexts.setdefault((site, rule.code, index), []).append(context)
                self._record(rule, verdict, call.place, call.operator.name, call.trail, call.place)

    def _judge_event(self, event: Event, scope: Scope) -> None:
        for rule in self.rules:
            if event.kind not in rule.events:
                continue
            try:
                verdict = rule.check_event(event, scope)
            except Exception as error:
                self.session.crashed(self.item.shown, error, f" in {rule.code}")
                continue
            if self.session.keep:
                site = (id(event), rule.code, 0)
                self.contexts.setdefault(site, []).append((True, verdict, "", event.place))
            self._record(rule, verdict, event.place, "", (), None)

    def _record(
        self,
        rule: Rule,
        verdict: Verdict,
        default: Place | None,
        operator: str,
        trail: Iterable[Note],
        call: Place | None,
    ) -> None:
        if verdict.outcome is not Outcome.VIOLATED:
            return
        place, notes = verdict.place or default, verdict.notes
        if place is not None and place.path != self.item.path and default is not None:
            # The argument was written in another file; the report stays with the file that is checked.
            notes, place = (Note("the argument is given here", place), *notes), default
        lines = (place.line, place.end_line) if place is not None else (1, 1)
        finding = Finding(
            rule.code,
            rule.name,
            rule.severity.value,
            rule.confidence.value,
            verdict.message,
            verdict.fix or _first_paragraph(rule.doc().get("Use instead", "")),
            self.spot(place),
            operator=operator,
            steps=self._steps(notes),
            when=self._steps(verdict.when),
            via=self._steps(trail),
            excerpt=self.line(lines[0]),
        )
        around = (call.line, call.end_line) if call is not None else None
        # One site can be judged in several contexts; the same words at the same place are one finding.
        self.found.setdefault((rule.code, finding.spot.key, finding.message), (finding, (*lines, around)))

    def _count(self) -> None:
        """Counts every obligation once, and keeps those that the user wants to see.

        A function whose callers are all visible is judged by what they pass.
        """
        result, keep = self.session.result, self.session.keep
        for (_, code, _), contexts in self.contexts.items():
            name = self.session.selector.named[code]
            open_ones = [context for context in contexts if context[0]] or contexts
            wanted = [context for context in contexts if context[1].outcome is Outcome.VIOLATED]
            for outcome in (Outcome.UNDECIDED, Outcome.PROVED):
                wanted = wanted or [context for context in open_ones if context[1].outcome is outcome]
            if not wanted:
                continue
            _, verdict, operator, default = wanted[0]
            tally = result.tallies.get(code)
            if tally is None:
                tally = result.tallies[code] = Tally(code, name)
            outcome_name = verdict.outcome.value
            setattr(tally, outcome_name, getattr(tally, outcome_name) + 1)
            if outcome_name in keep:
                spot = self.spot(verdict.place or default)
                steps = self._steps(verdict.notes)
                result.obligations.append(Obligation(code, name, outcome_name, operator, spot, steps))

    def spot(self, place: Place | None) -> Spot:
        """A place as reports show it."""
        if place is None:
            return Spot(self.item.shown, 1, 1, 1, 1)
        if place.path != self.item.path:
            shown = show(place.path, self.session.cwd)
            return Spot(shown, place.line, place.column, place.end_line, place.end_column)
        return self._own(place.line, place.column, place.end_line, place.end_column)

    def _own(self, line: int, column: int, end_line: int, end_column: int) -> Spot:
        if self.cells is None or not 0 < line <= len(self.cells):
            return Spot(self.item.shown, line, column, end_line, end_column)
        cell, first = self.cells[line - 1]
        last = self.cells[min(end_line, len(self.cells)) - 1][1]
        return Spot(self.item.shown, first, column, last, end_column, cell)

    def _steps(self, notes: Iterable[Note]) -> tuple[Step, ...]:
        steps: dict[tuple[object, ...], Step] = {}
        for note in notes:
            spot = self.spot(note.place) if note.place is not None else None
            steps.setdefault((note.text, spot.key if spot else None), Step(note.text, spot))
        return tuple(steps.values())

    def _finish(self) -> None:
        result = self.session.result
        suppressions = Suppressions(self.text)
        if not suppressions.directives:
            result.findings.extend(finding for finding, _ in self.found.values())
            return
        codes = self.session.selector.codes
        for finding, (first, last, call) in self.found.values():
            if self._hidden(suppressions, codes, finding.code, first, last, call):
                result.suppressed += 1
            else:
                result.findings.append(finding)
        for finding, directive in list(self._about_comments(suppressions, codes)):
            if self._hidden(suppressions, codes, finding.code, directive.line, directive.line, None):
                result.suppressed += 1
            else:
                result.findings.append(finding)

    def _hidden(
        self,
        suppressions: Suppressions,
        codes: Mapping[str, str],
        code: str,
        first: int,
        last: int,
        call: tuple[int, int] | None,
    ) -> bool:
        """Whether a comment hides the finding. Every comment that does so counts as used."""
        hidden = False
        for directive in suppressions.matching(first, last, call):
            for entry in directive.entries:
                if code in (codes_of(entry, directive.kind, codes) or ()):
                    entry.used = hidden = True
        return hidden

    def _about_comments(
        self, suppressions: Suppressions, codes: Mapping[str, str]
    ) -> Iterator[tuple[Finding, Directive]]:
        active = {rule.code for rule in self.rules}
        for kind, directive, entry, text in leftovers(suppressions, codes, active):
            event_kind = f"{kind}-suppression"
            column = entry.column if entry else directive.column
            end = entry.end_column if entry else directive.end_column
            place = _Comment(self.item.path, directive.line, column, end)
            event = Event(event_kind, place, {"what": text})
            for rule in self.rules:
                if event_kind in rule.events:
                    verdict = rule.check_event(event, _NO_SCOPE)
                    yield (
                        Finding(
                            rule.code,
                            rule.name,
                            rule.severity.value,
                            rule.confidence.value,
                            verdict.message,
                            verdict.fix,
                            self.spot(place),
                            excerpt=self.line(directive.line),
                        ),
                        directive,
                    )


_NO_SCOPE = Scope("", (), ())


class _Comment:
    """The place of a piece of a comment."""

    __slots__ = ("column", "end_column", "end_line", "line", "path")

    def __init__(self, path: str, line: int, column: int, end_column: int) -> None:
        self.path = path
        self.line = self.end_line = line
        self.column = column
        self.end_column = end_column


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", 1)[0].split())
