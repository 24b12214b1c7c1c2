"""Three-valued truth: Kleene's tables, and facts that are one value, a few, or unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlint.contract.tri import NO, YES, Fact, Note, Tri, all_of, any_of, tri, unknown

STATES = (True, False, None)
# Kleene's order: no < unknown < yes.
RANK = {False: 0, None: 1, True: 2}
OF_RANK = {rank: state for state, rank in RANK.items()}

tris = st.builds(
    Tri, st.sampled_from(STATES), st.lists(st.sampled_from("abc").map(Note), max_size=2).map(tuple)
)


@given(tris, tris)
def test_and_is_the_minimum_and_or_the_maximum(a: Tri, b: Tri) -> None:
    assert (a & b).state is OF_RANK[min(RANK[a.state], RANK[b.state])]
    assert (a | b).state is OF_RANK[max(RANK[a.state], RANK[b.state])]


@given(tris)
def test_not_swaps_yes_and_no(a: Tri) -> None:
    assert (~a).state is OF_RANK[2 - RANK[a.state]]
    assert (~a).notes == a.notes


@given(tris)
def test_exactly_one_question_answers_yes(a: Tri) -> None:
    assert [a.yes, a.no, a.unknown].count(True) == 1


@given(tris, tris)
def test_an_unknown_result_is_explained_only_by_what_is_unknown(a: Tri, b: Tri) -> None:
    for result in (a & b, a | b):
        if result.unknown:
            assert result.notes == tuple(n for part in (a, b) if part.unknown for n in part.notes)


@given(tris, tris)
def test_a_known_result_carries_notes_of_its_parts_only(a: Tri, b: Tri) -> None:
    for result in (a & b, a | b):
        assert set(result.notes) <= {*a.notes, *b.notes}


@given(st.lists(tris, max_size=4))
def test_all_and_any_fold(parts: list[Tri]) -> None:
    ranks = [RANK[part.state] for part in parts]
    assert all_of(parts).state is OF_RANK[min(ranks, default=2)]
    assert any_of(parts).state is OF_RANK[max(ranks, default=0)]


def test_one_false_part_decides_without_the_notes_of_the_unknown_one() -> None:
    result = unknown("why not") & tri(False, Note("because"))
    assert result.no
    assert [note.text for note in result.notes] == ["because"]


@pytest.mark.parametrize("value", [YES, NO, unknown("reason")])
def test_a_tri_cannot_be_used_as_a_bool(value: Tri) -> None:
    with pytest.raises(TypeError):
        bool(value)


small = st.integers(-3, 3)
possible = st.lists(small, min_size=1, max_size=3, unique=True).map(tuple)


@given(possible, small)
def test_holds_is_known_only_when_every_possible_value_agrees(values: tuple[int, ...], limit: int) -> None:
    results = {value < limit for value in values}
    expected = results.pop() if len(results) == 1 else None
    assert Fact(values).holds(lambda value: value < limit).state is expected


@given(possible, small)
def test_equals_is_holds_of_equality(values: tuple[int, ...], other: int) -> None:
    fact = Fact(values)
    assert fact.equals(other).state is fact.holds(lambda value: value == other).state
    assert fact.among([other]).state is fact.equals(other).state


@given(possible)
def test_map_keeps_the_possible_results_without_repeats(values: tuple[int, ...]) -> None:
    mapped = Fact(values).map(abs)
    assert mapped.values is not None
    assert sorted(mapped.values) == sorted({abs(value) for value in values})


def test_a_fact_of_one_value_is_known() -> None:
    fact = Fact.of(3)
    assert fact.known and fact.value == 3 and fact.get(None) == 3


@pytest.mark.parametrize("fact", [Fact((1, 2)), Fact.unknown("no idea"), Fact(())])
def test_several_or_no_values_have_no_value(fact: Fact[int]) -> None:
    assert not fact.known
    assert fact.get("default") == "default"
    with pytest.raises(ValueError):
        _ = fact.value


def test_every_question_about_an_unknown_fact_gives_its_reason() -> None:
    fact: Fact[int] = Fact.unknown("it is a parameter")
    for answer in (fact.equals(1), fact.among([1, 2]), fact.map(abs).equals(1)):
        assert answer.unknown
        assert [note.text for note in answer.notes] == ["it is a parameter"]
