"""Judging: over which combinations of paths a rule is asked, and what it answers in the end."""

from __future__ import annotations

import pytest
from support.calls import anything, call, either, tensor, value_of

from kvlint.contract.call import Call
from kvlint.contract.paths import Cond
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Outcome,
    Rule,
    Severity,
    Verdict,
    judge,
    require,
    undecided,
    violated,
)
from kvlint.contract.tri import NO, YES, Note, Tri, unknown
from kvlint.contract.values import ABSENT, Choice, Join, Value

V1 = "npu_fused_infer_attention_score"
MASK = tensor(2048, 2048, dtype="bool")
OPEN = unknown("no idea")


class MaskForMode(Rule):
    """Mode 3 needs a mask."""

    code, name, severity, contract = "KV999", "mask-for-mode", Severity.HOST, ("C03",)
    families = ("fia",)

    def check(self, call: Call) -> Verdict:
        mask = call.arg("mask")
        return require(
            mask.present, "mode 3 has no mask", when=call.arg("sparse_mode").constant.equals(3), at=mask
        )


RULE = MaskForMode()


def made(**keywords: object) -> Call:
    return call(V1, *(anything(name) for name in "qkv"), **keywords)


def outcome(judged: Call) -> Outcome:
    (verdict,) = judge(RULE, judged)
    return verdict.outcome


class TestRequire:
    @pytest.mark.parametrize(
        ("when", "holds", "expected"),
        [
            (None, YES, Outcome.PROVED),
            (None, NO, Outcome.VIOLATED),
            (None, OPEN, Outcome.UNDECIDED),
            (YES, YES, Outcome.PROVED),
            (YES, NO, Outcome.VIOLATED),
            (YES, OPEN, Outcome.UNDECIDED),
            (NO, YES, Outcome.NOT_APPLICABLE),
            (NO, NO, Outcome.NOT_APPLICABLE),
            (NO, OPEN, Outcome.NOT_APPLICABLE),
            (OPEN, YES, Outcome.PROVED),
            (OPEN, NO, Outcome.UNDECIDED),
            (OPEN, OPEN, Outcome.UNDECIDED),
        ],
    )
    def test_verdict(self, when: Tri | None, holds: Tri, expected: Outcome) -> None:
        assert require(holds, "wrong", when=when).outcome is expected

    def test_undecided_gives_the_reasons_of_what_is_unknown(self) -> None:
        verdict = require(NO, "wrong", when=OPEN)
        assert [note.text for note in verdict.notes] == ["no idea"]


class TestPaths:
    def test_a_branch_that_violates_is_reported_with_its_test(self) -> None:
        (verdict,) = judge(RULE, made(sparse_mode=3, atten_mask=either("causal", MASK, None)))
        assert verdict.outcome is Outcome.VIOLATED
        assert [note.text for note in verdict.when] == ["not (causal)"]

    def test_twin_choices_on_one_test_stay_together(self) -> None:
        right = made(sparse_mode=either("c", 3, 0), atten_mask=either("c", MASK, None))
        wrong = made(sparse_mode=either("c", 0, 3), atten_mask=either("c", MASK, None))
        assert outcome(right) is Outcome.PROVED
        assert outcome(wrong) is Outcome.VIOLATED

    def test_two_independent_tests_never_combine(self) -> None:
        judged = made(sparse_mode=either("a", 3, 0), atten_mask=either("b", MASK, None))
        assert outcome(judged) is Outcome.UNDECIDED

    def test_a_test_made_under_the_other_combines_with_it(self) -> None:
        first = Cond("truth", "a", label="a")
        second = Cond("truth", "b", label="b", under=((first, True),))
        judged = made(
            sparse_mode=Choice(first, value_of(3), value_of(0)),
            atten_mask=Choice(first, Choice(second, value_of(MASK), value_of(None)), value_of(MASK)),
        )
        (verdict,) = judge(RULE, judged)
        assert verdict.outcome is Outcome.VIOLATED
        assert {note.text for note in verdict.when} == {"a", "not (b)"}

    def test_a_test_of_another_method_alone_proves_nothing(self) -> None:
        remote = Cond("truth", "flag", label="flag", remote=True)
        judged = made(sparse_mode=3, atten_mask=Choice(remote, value_of(MASK), value_of(None)))
        assert outcome(judged) is Outcome.UNDECIDED

    def test_a_join_proves_nothing_by_one_option(self) -> None:
        judged = made(sparse_mode=3, atten_mask=Join((MASK, value_of(None))))
        assert outcome(judged) is Outcome.UNDECIDED

    def test_every_path_right_is_proved(self) -> None:
        judged = made(sparse_mode=either("c", 3, 0), atten_mask=either("c", MASK, anything()))
        assert outcome(judged) is Outcome.PROVED

    def test_no_path_applicable(self) -> None:
        judged = made(sparse_mode=either("c", 0, 4), atten_mask=None)
        assert outcome(judged) is Outcome.NOT_APPLICABLE

    def test_an_open_path_keeps_it_undecided(self) -> None:
        judged = made(sparse_mode=3, atten_mask=either("c", MASK, anything()))
        assert outcome(judged) is Outcome.UNDECIDED

    def test_a_keyword_that_is_passed_on_one_path(self) -> None:
        assert outcome(made(sparse_mode=either("c", 3), atten_mask=either("c", MASK))) is Outcome.PROVED
        assert outcome(made(sparse_mode=3, atten_mask=either("c", MASK, ABSENT))) is Outcome.VIOLATED

    def test_the_shortest_path_to_a_violation_is_kept(self) -> None:
        first = Cond("truth", "a", label="a")
        second = Cond("truth", "b", label="b", under=((first, True),))
        none: Value = value_of(None)
        judged = made(
            sparse_mode=Choice(first, value_of(3), value_of(0)),
            atten_mask=Choice(first, Choice(second, none, none), value_of(MASK)),
        )
        (verdict,) = judge(RULE, judged)
        assert [note.text for note in verdict.when] == ["a"]


@pytest.mark.parametrize(
    "mask", [MASK, None, either("c", MASK, None), Join((MASK, value_of(None))), either("c", MASK, anything())]
)
@pytest.mark.parametrize("mode", [3, either("c", 3, 0), either("d", 3, 0)])
def test_violations_are_the_same_without_proofs(mask: object, mode: object) -> None:
    judged = made(sparse_mode=mode, atten_mask=mask)
    with_proofs, without = (
        [verdict for verdict in judge(RULE, judged, proofs=proofs) if verdict.outcome is Outcome.VIOLATED]
        for proofs in (True, False)
    )
    assert with_proofs == without


def test_verdicts_without_paths_are_kept_as_they_are() -> None:
    class Several(MaskForMode):
        def check(self, call: Call) -> list[Verdict]:  # type: ignore[override]
            return [violated("one"), PROVED, violated("two"), NOT_APPLICABLE]

    found = judge(Several(), made())
    assert [verdict.message for verdict in found] == ["one", "", "two", ""]


def test_undecided_collects_reasons() -> None:
    found = undecided(unknown("first"), Note("second"))
    assert [note.text for note in found.notes] == ["first", "second"]


def test_the_documentation_is_split_at_its_headings() -> None:
    class Documented(MaskForMode):
        """One sentence.

        ## What it does
        Looks.

        Twice.

        ## Evidence
        None.
        """

    assert Documented.doc() == {
        "": "One sentence.",
        "What it does": "Looks.\n\nTwice.",
        "Evidence": "None.",
    }


def test_a_rule_applies_by_family_or_by_name() -> None:
    class ByName(MaskForMode):
        families = ()
        operators = ("scatter_update_",)

    fia, writer = made().operator, call("scatter_update_").operator
    assert RULE.applies_to(fia) and not RULE.applies_to(writer)
    assert ByName().applies_to(writer) and not ByName().applies_to(fia)
