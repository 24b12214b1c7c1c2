"""``match`` statements: each case is a path, as the arms of ``if`` and ``elif`` are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import libcst as cst

from kvlint.contract.paths import Cond, Facts
from kvlint.contract.values import Sequence, Unknown, Value

from .algebra import conjoined
from .calls import Calls
from .chunk import Site
from .state import Frame, State
from .syntax import assigned_names, body_of, text_of
from .torchlib import key_of

Tested = bool | tuple[Cond, bool]
Arm = tuple[Cond, bool, State, State | None]
"""Test, the value it must have, the state before it, the state its arm leaves."""


class Patterns(Calls):
    """``match`` statements."""

    def join_arms(self, arms: list[Arm], last: State | None) -> State | None:
        """The state after a chain of arms; ``last`` is what the final one leaves."""
        for cond, holds, before, after in reversed(arms):
            if after is None or last is None:
                last = after if last is None else last
                continue
            merged = self.merge(cond, after, last) if holds else self.merge(cond, last, after)
            merged.path = before.path
            shared = [(c, v) for c, v in after.assumed.items() if last.assumed.get(c) == v]
            # What was answered under the same assumptions before need not be worked out again.
            known = len(shared) == len(before.assumed) and all(c in before.assumed for c, _ in shared)
            merged.assumed = before.assumed if known else Facts.of(shared)
            last = merged
        return last

    def _match(self, node: cst.Match, frame: Frame) -> State | None:
        subject = self.force(self.expr(node.subject, frame))
        arms: list[Arm] = []
        for case in node.cases:
            before = frame.state
            test = self._case_test(case, subject, node, frame)
            frame.state = before
            if test is False:
                continue
            if test is True:
                self._capture(case.pattern, subject, frame)
                return self.join_arms(arms, self.block(body_of(case), frame, frame.state))
            cond, holds = test
            first, second = before.assume(cond, holds), before.assume(cond, not holds)
            after: State | None = None
            if first is not None:
                frame.state = first
                self._capture(case.pattern, subject, frame)
                after = self.block(body_of(case), frame, frame.state)
            arms.append((cond, holds, before, after))
            if second is None:
                return self.join_arms(arms, None)
            frame.state = second
        return self.join_arms(arms, frame.state)

    def _case_test(self, case: cst.MatchCase, subject: Value, node: cst.Match, frame: Frame) -> Tested:
        """Whether a case is taken: its pattern and its guard."""
        test = self._pattern(case.pattern, subject, node.subject, frame)
        if test is False or case.guard is None:
            return test
        before = frame.state
        entered = before.copy() if test is True else before.assume(*test)
        if entered is None:
            return False
        frame.state = entered
        self._capture(case.pattern, subject, frame)
        guard = self.condition(case.guard, frame)
        frame.state = before
        return self._all((test, guard), case.guard, frame)

    def _all(self, tests: Iterable[Tested], node: cst.CSTNode, frame: Frame) -> Tested:
        parts: list[tuple[Cond, bool]] = []
        for test in tests:
            if test is False:
                return False
            if not isinstance(test, bool):
                parts.append(test)
        if len(parts) < 2:
            return parts[0] if parts else True
        return conjoined(tuple(parts), node, frame)

    def _pattern(
        self, pattern: cst.MatchPattern, subject: Value, asked: cst.BaseExpression, frame: Frame
    ) -> Tested:
        """Whether a pattern fits a value; ``asked`` is how the source writes the value."""
        if isinstance(pattern, cst.MatchAs):
            return True if pattern.pattern is None else self._pattern(pattern.pattern, subject, asked, frame)
        if isinstance(pattern, cst.MatchOr):
            return self._either_pattern(pattern, subject, asked, frame)
        if isinstance(pattern, cst.MatchSingleton):
            return self._equal(subject, cst.Is(), pattern.value, asked, frame)
        if isinstance(pattern, cst.MatchValue):
            return self._equal(subject, cst.Equal(), pattern.value, asked, frame)
        if isinstance(pattern, (cst.MatchList, cst.MatchTuple)):
            found = self._items_pattern(pattern, subject, asked, frame)
            if found is not None:
                return found
        elif isinstance(pattern, cst.MatchClass) and not pattern.patterns and not pattern.kwds:
            call = cst.Call(cst.Name("isinstance"), [cst.Arg(asked), cst.Arg(pattern.cls)])
            kind = self.expr(pattern.cls, frame)
            site = Site(frame.chunk, pattern)
            return self.truth(
                self.lift(lambda v: self._isinstance(v, kind, site, call, frame), [subject], frame),
                call,
                frame,
            )
        text = text_of(pattern)
        label = f"{text_of(asked)} matches {text}"
        key = ("match", key_of(subject), text)
        return Cond("opaque", key, label=label, place=Site(frame.chunk, pattern)), True

    def _equal(
        self,
        subject: Value,
        operator: cst.BaseCompOp,
        expected: cst.BaseExpression,
        asked: cst.BaseExpression,
        frame: Frame,
    ) -> Tested:
        """The test that ``subject == expected`` would be."""
        written = cst.Comparison(asked, [cst.ComparisonTarget(operator, expected)])
        site = Site(frame.chunk, expected)
        result = self._compare(subject, operator, self.expr(expected, frame), site, written, frame)
        return self.truth(result, written, frame)

    def _either_pattern(
        self, pattern: cst.MatchOr, subject: Value, asked: cst.BaseExpression, frame: Frame
    ) -> Tested:
        refuted: list[tuple[Cond, bool]] = []
        for element in pattern.patterns:
            test = self._pattern(element.pattern, subject, asked, frame)
            if test is True:
                return True
            if test is not False:
                refuted.append((test[0], not test[1]))
        if not refuted:
            return False
        if len(refuted) == 1:
            return refuted[0][0], not refuted[0][1]
        # One of them fits when not all are refuted.
        label = f"{text_of(asked)} is none of {text_of(pattern)}"
        return Cond("all", tuple(refuted), label=label, place=Site(frame.chunk, pattern)), False

    def _items_pattern(
        self, pattern: cst.MatchList | cst.MatchTuple, subject: Value, asked: cst.BaseExpression, frame: Frame
    ) -> Tested | None:
        """A sequence pattern on a list or tuple whose items are visible."""
        content = self.deref(subject, frame)
        if not isinstance(content, Sequence) or content.items is None:
            return None
        if any(isinstance(element, cst.MatchStar) for element in pattern.patterns):
            return None
        if len(pattern.patterns) != len(content.items):
            return False
        written: list[Any] = [asked] * len(content.items)
        if isinstance(asked, (cst.Tuple, cst.List)) and len(asked.elements) == len(written):
            written = [element.value for element in asked.elements]
        tests: list[Tested] = []
        for element, item, text in zip(pattern.patterns, content.items, written, strict=True):
            assert isinstance(element, cst.MatchSequenceElement)
            tests.append(self._pattern(element.value, self.force(item), text, frame))
        return self._all(tests, pattern, frame)

    def _capture(self, pattern: cst.MatchPattern, subject: Value, frame: Frame) -> None:
        """Binds the names of a pattern that fits."""
        names: dict[str, Value] = {
            name: self._captured(name, subject, frame) for name in assigned_names(pattern)
        }
        whole = pattern.name.value if isinstance(pattern, cst.MatchAs) and pattern.name is not None else None
        if whole is not None:
            names[whole] = subject
        content = self.deref(subject, frame)
        if isinstance(pattern, (cst.MatchList, cst.MatchTuple)) and isinstance(content, Sequence):
            items = content.items or ()
            if len(items) == len(pattern.patterns):
                for element, item in zip(pattern.patterns, items, strict=True):
                    inner = element.value if isinstance(element, cst.MatchSequenceElement) else None
                    if isinstance(inner, cst.MatchAs) and inner.name is not None:
                        names[inner.name.value] = item
        frame.state.vars.update(names)

    def _captured(self, name: str, subject: Value, frame: Frame) -> Unknown:
        return Unknown(("match", key_of(subject), name), name, "it is bound by a match pattern")
