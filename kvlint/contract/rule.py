"""Rules: one obligation each, judged from facts alone."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from types import ModuleType
from typing import ClassVar

from .call import Arg, Call, Event, Scope, leaves
from .catalogue import Operator
from .paths import Assumptions, negated, witnessed
from .tri import Note, Place, Tri
from .values import Choice, Join, Value, is_none


class Severity(Enum):
    """Consequence of a violation, worst first (contract 0.2)."""

    SILENT = "silent"  # runs and computes wrong numbers
    DEVICE = "device-error"  # fault on the device, or undefined reads
    HOST = "host-error"  # rejected before the kernel runs
    IGNORED = "ignored"  # an argument without effect
    PERFORMANCE = "performance"
    ADVICE = "advice"  # right, but a known trap; off by default


class Confidence(Enum):
    """How well the obligation is established (contract 0.1, 1.9)."""

    HIGH = "high"  # executed, or source and documentation agree
    MEDIUM = "medium"  # source only or documentation only
    LOW = "low"  # newer releases may have relaxed it, or a heuristic


class Outcome(Enum):
    """The verdict on one obligation at one call."""

    PROVED = "proved"
    VIOLATED = "violated"
    UNDECIDED = "undecided"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome with its explanation.

    Attributes:
        message: one sentence that says what is wrong at this call (violations).
        fix: one sentence that says what to do instead; empty when the rule's own text says it.
        place: what to point at; the call itself when None.
        notes: provenance, most decisive first.
        when: tests that must hold for the violation, as the source writes them.
    """

    outcome: Outcome
    message: str = ""
    fix: str = ""
    place: Place | None = None
    notes: tuple[Note, ...] = ()
    when: tuple[Note, ...] = ()


PROVED = Verdict(Outcome.PROVED)
NOT_APPLICABLE = Verdict(Outcome.NOT_APPLICABLE)


def violated(
    message: str, at: Arg | Place | None = None, notes: Iterable[Note] = (), fix: str = ""
) -> Verdict:
    """A violation; ``at`` is the argument or place to point at."""
    place = at.place if isinstance(at, Arg) else at
    return Verdict(Outcome.VIOLATED, message, fix, place, tuple(notes))


def undecided(*why: Tri | Note) -> Verdict:
    """Undecided for the given reasons."""
    notes: list[Note] = []
    for item in why:
        notes.extend(item.notes if isinstance(item, Tri) else (item,))
    return Verdict(Outcome.UNDECIDED, notes=tuple(notes))


def require(
    holds: Tri,
    message: str,
    *,
    when: Tri | None = None,
    at: Arg | Place | None = None,
    notes: Iterable[Note] = (),
    fix: str = "",
) -> Verdict:
    """The usual verdict: under ``when``, ``holds`` must be true.

    ``when`` certainly false: not applicable. ``holds`` true: proved, whether or not ``when`` is known.
    ``when`` true and ``holds`` false: violated. Anything else: undecided with the reasons of what is
    unknown.
    """
    if when is not None and when.no:
        return NOT_APPLICABLE
    if holds.yes:
        return PROVED
    if holds.no and (when is None or when.yes):
        extra = when.notes if when is not None else ()
        return violated(message, at, (*holds.notes, *notes, *extra), fix)
    return undecided(*(part for part in (when, holds) if part is not None and part.unknown))


DOC_HEADINGS = ("What it does", "Why it is wrong", "Use instead", "Ops and versions", "Evidence")


class Rule:
    """Base of all rules. A subclass is one obligation (or one family of the same kind).

    The docstring has the headings of :data:`DOC_HEADINGS` and is what ``kvlint rule`` prints.
    ``bad`` and ``ok`` map an example's name to source text; in ``bad`` every line that must be
    reported ends with a ``# KVnnn`` comment. They run as tests.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    confidence: ClassVar[Confidence] = Confidence.HIGH
    contract: ClassVar[tuple[str, ...]]
    families: ClassVar[tuple[str, ...]] = ()
    operators: ClassVar[tuple[str, ...]] = ()
    default: ClassVar[bool] = True
    bad: ClassVar[dict[str, str]] = {}
    ok: ClassVar[dict[str, str]] = {}

    def applies_to(self, operator: Operator) -> bool:
        """Whether the obligation exists for an operator: by family, or by name."""
        return operator.family in self.families or operator.name in self.operators

    def check(self, call: Call) -> Iterable[Verdict] | Verdict:
        """Judges one call. Several verdicts when several arguments are judged apart."""
        return NOT_APPLICABLE

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Judges something the code around the calls does."""
        return NOT_APPLICABLE

    events: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def doc(cls) -> dict[str, str]:
        """The docstring by heading; the text before the first heading under ``""``."""
        sections: dict[str, str] = {}
        heading = ""
        for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
            match = re.fullmatch(r"## (.+)", line)
            if match:
                heading = match.group(1)
                sections[heading] = ""
            else:
                sections[heading] = sections.get(heading, "") + line + "\n"
        return {key: text.strip() for key, text in sections.items()}


def judge(rule: Rule, call: Call) -> list[Verdict]:
    """The rule's verdicts over every path.

    First without assumptions; what stays undecided is asked again on each path one argument's value
    depends on. A path that violates is one the source itself spells out: choices of several
    arguments are combined only when they hang on the same tests (:func:`~.paths.witnessed`), and a test
    of another method (``Cond.remote``) never makes a path of its own.
    """
    verdicts = _verdicts(rule.check(call))
    if all(v.outcome is not Outcome.UNDECIDED for v in verdicts):
        return verdicts
    views = _views(call)
    found: dict[tuple[str, object], Verdict] = {}
    settled = True
    applicable = False
    for world, view, possible in views:
        for verdict in _verdicts(rule.check(view)):
            if verdict.outcome is Outcome.VIOLATED and possible:
                key = (verdict.message, id(verdict.place))
                when = _conditions(call.assumed, world)
                if key not in found or len(when) < len(found[key].when):
                    found[key] = replace(verdict, when=when)
            elif verdict.outcome is Outcome.PROVED:
                applicable = True
            elif verdict.outcome is not Outcome.NOT_APPLICABLE:
                settled = False
    if found:
        return list(found.values())
    if settled and views:
        return [PROVED if applicable else NOT_APPLICABLE]
    return _by_options(rule, call, verdicts)


# How many alternatives are judged one by one before an obligation stays undecided.
MAX_OPTIONS = 24


def _by_options(rule: Rule, call: Call, verdicts: list[Verdict]) -> list[Verdict]:
    """The verdicts when every alternative of the arguments the rule asks about is judged alone.

    An obligation that holds for each is proved. One that fails for some is not violated: nothing shows
    that the alternative gets here together with the others. Only None is no alternative: what starts as None
    and becomes one thing is that thing when it is used.
    """
    if not any(isinstance(value, (Choice, Join)) for value in call.binding.values.values()):
        return verdicts
    used = {name: option for name, v in call.binding.values.items() if (option := _sole(v)) is not None}
    if used:
        reported = [v for v in _verdicts(rule.check(call.with_values(used))) if v.outcome is Outcome.VIOLATED]
        if reported:
            return reported
    found = _options_judged(rule, call.with_values({}), [MAX_OPTIONS])
    if len(found) != len(verdicts):
        return verdicts
    result = []
    for before, after in zip(verdicts, found, strict=True):
        if before.outcome is not Outcome.UNDECIDED or after.outcome is Outcome.VIOLATED:
            result.append(before)
        else:
            result.append(after)
    return result


def _sole(value: Value) -> Value | None:
    """The one thing that a value becomes when it starts as None."""
    if not isinstance(value, Join):
        return None
    rest = [o for o in value.options if not is_none(o)]
    return rest[0] if len(rest) == 1 < len(value.options) else None


def _options_judged(rule: Rule, call: Call, budget: list[int]) -> list[Verdict]:
    """One verdict for each that the rule gives; an undecided one is that of the alternative it hangs on."""
    budget[0] -= 1
    verdicts = _verdicts(rule.check(call))
    if budget[0] <= 0 or all(v.outcome is not Outcome.UNDECIDED for v in verdicts):
        return verdicts
    arg = next((a for a in call.asked() if len(a.alternatives) > 1), None)
    if arg is None:
        return verdicts
    joint: list[Verdict] | None = None
    for assumed, value in arg.alternatives:
        found = _options_judged(rule, call.with_values({arg.name: value}, assumed), budget)
        if joint is None:
            joint = found
        elif len(joint) != len(found):
            return verdicts
        else:
            joint = [_weaker(a, b) for a, b in zip(joint, found, strict=True)]
        if all(v.outcome in (Outcome.UNDECIDED, Outcome.VIOLATED) for v in joint):
            break
    return joint or verdicts


def _weaker(a: Verdict, b: Verdict) -> Verdict:
    """What holds of two alternatives."""
    for outcome in (Outcome.UNDECIDED, Outcome.VIOLATED, Outcome.PROVED):
        for verdict in (a, b):
            if verdict.outcome is outcome:
                return verdict
    return a


def _verdicts(result: Iterable[Verdict] | Verdict) -> list[Verdict]:
    return [result] if isinstance(result, Verdict) else list(result)


def _views(call: Call) -> list[tuple[Assumptions, Call, bool]]:
    """The call on each of its paths; made once per call, so that the rules share what is worked out."""
    found: list[tuple[Assumptions, Call, bool]] | None = vars(call).get("_views")
    if found is None:
        found = vars(call)["_views"] = [
            (
                world,
                call.under(world),
                witnessed(call.path, {c: h for c, h in world.items() if c not in call.assumed}),
            )
            for world in _worlds(call)
        ]
    return found


def _worlds(call: Call) -> list[Assumptions]:
    worlds: list[Assumptions] = []
    extra = (keyword.value for keyword in call.binding.unexpected)
    for value in (*call.binding.values.values(), *extra):
        options = leaves(value, call.assumed)
        if len(options) > 1:
            for world, _ in options:
                # The parts of a test that was made elsewhere were made there, too.
                away = {part for cond in world if cond.remote for part, _ in ((cond, True), *cond.parts)}
                local = {c: holds for c, holds in world.items() if c not in away or c in call.assumed}
                if local not in worlds and local != call.assumed:
                    worlds.append(local)
    return worlds


def _conditions(base: Assumptions, world: Assumptions) -> tuple[Note, ...]:
    notes = []
    for cond, holds in world.items():
        if cond in base or not cond.label:
            continue
        notes.append(Note(cond.label if holds else negated(cond.label), cond.place))
    return tuple(notes)


class RunRule(Rule):
    """A rule about a call that runs; queries that repeat its arguments are not judged again."""

    def applies_to(self, operator: Operator) -> bool:
        """Whether the obligation exists for an operator."""
        return super().applies_to(operator) and not operator.repeats_arguments


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of the ``kvlint.rules`` package, by code."""
    package = importlib.import_module("kvlint.rules")
    found: list[Rule] = []
    for module in _walk(package.__path__, package.__name__ + "."):
        for item in vars(module).values():
            if (
                inspect.isclass(item)
                and issubclass(item, Rule)
                and item.__module__ == module.__name__
                and "code" in vars(item)
            ):
                found.append(item())
    return tuple(sorted(found, key=lambda rule: rule.code))


def _walk(path: Iterable[str], prefix: str) -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(path, prefix):
        module = importlib.import_module(info.name)
        yield module
        if info.ispkg:
            yield from _walk(module.__path__, info.name + ".")


def find_rule(text: str) -> Rule | None:
    """The rule with a code or name."""
    wanted = text.strip()
    return next((r for r in all_rules() if wanted.upper() == r.code or wanted.lower() == r.name), None)
