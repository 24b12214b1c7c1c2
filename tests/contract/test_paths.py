"""Path conditions: what a set of tests implies, checked against every small value."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from kvlint.contract.paths import Assumptions, Cond, Facts, consistent, decide, extended, witnessed

VALUES: tuple[object, ...] = (None, *range(-4, 5))
NUMBERS = range(-4, 5)


def cond(kind: str, const: object = None, key: str = "x") -> Cond:
    assert isinstance(const, (int, str, type(None)))
    return Cond(kind, key, const)


def true_of(test: Cond, value: object) -> bool:
    """What the test says of a value; comparing None raises, so no path goes through there."""
    if test.kind == "truth":
        return bool(value)
    if test.kind == "none":
        return value is None
    if test.kind == "eq":
        return value == test.const
    assert isinstance(value, int) and isinstance(test.const, int)
    return value < test.const if test.kind == "lt" else value <= test.const


constants = st.integers(-3, 3)
ordered = st.builds(cond, st.sampled_from(["lt", "le", "eq"]), constants)
plain = st.one_of(
    st.just(cond("truth")), st.just(cond("none")), st.builds(cond, st.just("eq"), constants), ordered
)


def allowed(assumed: Assumptions, values: list[object]) -> list[object]:
    return [value for value in values if all(true_of(c, value) == holds for c, holds in assumed.items())]


def values_for(*tests: Cond) -> list[object]:
    return list(NUMBERS if any(test.kind in ("lt", "le") for test in tests) else VALUES)


@given(st.dictionaries(plain, st.booleans(), max_size=3), plain)
def test_decide_never_contradicts_a_value(assumed: Assumptions, test: Cond) -> None:
    possible = allowed(assumed, values_for(test, *assumed))
    assume(possible)
    known = decide(test, assumed)
    if known is not None:
        assert {true_of(test, value) for value in possible} == {known}


@given(ordered, st.booleans(), ordered)
def test_interval_reasoning_on_one_fact_is_complete(fact: Cond, holds: bool, test: Cond) -> None:
    """On wide number ranges an order fact decides whatever it implies (integers between aside)."""
    assume(not (fact.kind == "eq" and not holds))
    dense = [n / 2 for n in range(-16, 17)]

    def says(one: Cond, value: float) -> bool:
        assert isinstance(one.const, int)
        return {"lt": value < one.const, "le": value <= one.const, "eq": value == one.const}[one.kind]

    results = {says(test, value) for value in dense if says(fact, value) == holds}
    expected = results.pop() if len(results) == 1 else None
    assert decide(test, {fact: holds}) is expected


whole = st.builds(
    lambda kind, const: Cond(kind, "x", const, whole=True), st.sampled_from(["lt", "le", "eq"]), constants
)


@given(st.dictionaries(whole, st.booleans(), max_size=4), whole)
def test_what_is_left_of_an_integer_decides_every_test(assumed: Assumptions, test: Cond) -> None:
    """Also what no fact tells alone: ``x <= 1`` and ``x != 1`` leave ``x < 1``."""
    possible = [n for n in range(-12, 13) if all(true_of(c, n) == holds for c, holds in assumed.items())]
    assume(possible)
    results = {true_of(test, value) for value in possible}
    assert decide(test, assumed) is (results.pop() if len(results) == 1 else None)


def test_a_value_between_bounds_of_any_number() -> None:
    low, high = cond("le", 1), cond("lt", 2)
    assert decide(cond("eq", 1), {low: True, cond("lt", 1): False}) is True
    assert decide(cond("lt", 1), {low: True, cond("eq", 1): False}) is True
    # 1.5 is left, unless it is an integer.
    assert decide(cond("eq", 1), {high: True, cond("lt", 1): False}) is None
    assert decide(Cond("eq", "x", 1, whole=True), {high: True, cond("lt", 1): False}) is True


def test_what_is_neither_zero_nor_one_may_be_none() -> None:
    assert decide(cond("truth"), {cond("eq", 0): False, cond("eq", 1): False}) is None


def test_a_bound_whose_end_was_left_before_is_no_path() -> None:
    """``if x == 1: return`` and later ``x > 1``: ``x`` is not below 1, the author knows."""
    one = cond("eq", 1)
    above = Cond("le", "x", 1, under=((one, False),))
    assert not witnessed([(one, False)], {above: True})
    assert witnessed([(one, False)], {above: False})
    far = Cond("le", "x", 8, under=((one, False),))
    assert witnessed([(one, False)], {far: True})


@given(st.lists(st.tuples(plain, st.booleans()), max_size=4))
def test_consistent_never_drops_a_path_that_a_value_takes(path: list[tuple[Cond, bool]]) -> None:
    tests = [test for test, _ in path]
    for value in values_for(*tests):
        if all(true_of(test, value) == holds for test, holds in path):
            assert consistent({}, path) is not None, value


@given(plain, st.booleans())
def test_a_test_and_its_opposite_contradict(test: Cond, holds: bool) -> None:
    assert consistent({test: holds}, [(test, not holds)]) is None
    assert consistent({test: holds}, [(test, holds)]) == {test: holds}


def test_implications_by_name() -> None:
    none, truth, three = cond("none"), cond("truth"), cond("eq", 3)
    assert decide(truth, {none: True}) is False
    assert decide(truth, {none: False}) is None
    assert decide(none, {truth: True}) is False
    assert decide(none, {truth: False}) is None
    assert decide(none, {three: True}) is False
    assert decide(three, {cond("eq", 4): True}) is False
    assert decide(three, {cond("eq", 4): False}) is None
    assert decide(three, {truth: False}) is False
    assert decide(none, {cond("isinstance", "list"): True}) is False


def test_other_values_say_nothing() -> None:
    assert decide(cond("none", key="x"), {cond("none", key="y"): True}) is None


def test_opaque_tests_only_decide_themselves() -> None:
    opaque = cond("opaque")
    assert decide(opaque, {cond("none"): True}) is None
    assert decide(cond("none"), {opaque: True}) is None
    assert decide(opaque, {opaque: True}) is True


def test_true_and_one_are_different_constants() -> None:
    assert Cond("eq", "x", True) != Cond("eq", "x", 1)
    assert len({Cond("eq", "x", True), Cond("eq", "x", 1), Cond("eq", "x", 1)}) == 2


def test_label_place_and_origin_are_no_part_of_a_tests_identity() -> None:
    here = Cond("none", "x", label="x is None", remote=True, under=((cond("truth", key="y"), True),))
    assert here == cond("none") and hash(here) == hash(cond("none"))


P, Q = cond("truth", key="p"), cond("truth", key="q")
BOTH = Cond("all", ((P, True), (Q, False)))


def test_all_holds_when_every_part_does() -> None:
    assert decide(BOTH, {P: True, Q: False}) is True
    assert decide(BOTH, {P: True, Q: True}) is False
    assert decide(BOTH, {P: False}) is False
    assert decide(BOTH, {P: True}) is None
    assert decide(BOTH, {}) is None


def test_assuming_all_assumes_its_parts() -> None:
    known = consistent({}, [(BOTH, True)])
    assert known is not None and known[P] is True and known[Q] is False
    assert consistent({P: False}, [(BOTH, True)]) is None


def test_assuming_that_not_all_hold_says_nothing_of_a_part() -> None:
    known = consistent({}, [(BOTH, False)])
    assert known is not None
    assert decide(P, known) is None and decide(Q, known) is None


def test_one_test_alone_witnesses_itself() -> None:
    assert witnessed([], {P: True})
    assert witnessed([], {})


def test_two_tests_in_a_row_witness_no_path() -> None:
    assert not witnessed([], {P: True, Q: True})
    assert not witnessed([(P, True)], {Q: True})


def test_a_test_made_under_another_witnesses_both() -> None:
    inner = Cond("truth", "q", under=((P, True),))
    assert witnessed([], {P: True, inner: True})
    assert witnessed([(P, True)], {inner: True})
    assert not witnessed([], {P: False, inner: True})
    assert not witnessed([(P, False)], {inner: True})


@given(st.lists(st.tuples(plain, st.booleans()), max_size=5), plain)
def test_more_facts_leave_what_was_assumed_before_alone(more: list[tuple[Cond, bool]], test: Cond) -> None:
    facts = Facts()
    for one, holds in more:
        before, answer = dict(facts.items()), decide(test, facts)
        added = extended(facts, one, holds)
        assert facts == before and decide(test, facts) == answer
        if added is not None:
            assert list(added)[: len(before)] == list(before) and decide(one, added) == holds
            assert decide(test, added) == decide(test, dict(added.items()))
            facts = added
