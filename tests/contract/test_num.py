"""Symbolic numbers: they form a ring, and calculate the way integers do."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvlint.contract.num import Num

NAMES = ("a", "b", "c")


def atom(name: str, declared: bool = True) -> Num:
    return Num.atom(name, name, declared)


A, B = atom("a"), atom("b")


@st.composite
def polynomials(draw: st.DrawFn) -> tuple[Num, dict[tuple[int, ...], int]]:
    """A sum of products, built with Num and as a table from exponents to coefficients."""
    total = Num.of(0)
    table: dict[tuple[int, ...], int] = {}
    for _ in range(draw(st.integers(0, 3))):
        coefficient = draw(st.integers(-3, 3))
        exponents = tuple(draw(st.integers(0, 2)) for _ in NAMES)
        product = Num.of(coefficient)
        for name, exponent in zip(NAMES, exponents, strict=True):
            for _ in range(exponent):
                product = product * atom(name)
        total = total + product
        table[exponents] = table.get(exponents, 0) + coefficient
    return total, {key: value for key, value in table.items() if value}


nums = polynomials().map(lambda pair: pair[0])
points = st.fixed_dictionaries({name: st.integers(1, 7).map(Fraction) for name in NAMES})


def evaluate(num: Num, point: dict[str, Fraction]) -> Fraction:
    total = Fraction(0)
    for monomial, coefficient in num.terms.items():
        product = Fraction(coefficient)
        for part, exponent in monomial:
            assert exponent.denominator == 1 and isinstance(part.key, str)
            product *= point[part.key] ** int(exponent)
        total += product
    return total


@given(nums, nums, points)
def test_operations_calculate_what_they_say(x: Num, y: Num, point: dict[str, Fraction]) -> None:
    left, right = evaluate(x, point), evaluate(y, point)
    assert evaluate(x + y, point) == left + right
    assert evaluate(x - y, point) == left - right
    assert evaluate(x * y, point) == left * right
    assert evaluate(-x, point) == -left
    assert evaluate(x.power(3), point) == left**3


@given(nums, nums, nums)
def test_ring_laws(x: Num, y: Num, z: Num) -> None:
    zero, one = Num.of(0), Num.of(1)
    assert x + y == y + x and x * y == y * x
    assert (x + y) + z == x + (y + z)
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert x + zero == x and x * one == x and x * zero == zero
    assert x - x == zero


@given(polynomials(), polynomials())
def test_equal_exactly_when_the_terms_are(
    x: tuple[Num, dict[tuple[int, ...], int]], y: tuple[Num, dict[tuple[int, ...], int]]
) -> None:
    assert (x[0] == y[0]) == (x[1] == y[1])
    if x[0] == y[0]:
        assert hash(x[0]) == hash(y[0])


@given(nums, nums)
def test_division_undoes_multiplication(x: Num, y: Num) -> None:
    assume(len(y.terms) == 1)
    assert (x * y).divide(y) == x
    quotient = x.divide(y)
    assert quotient is not None and quotient * y == x


@given(nums)
def test_anything_but_zero_divided_by_itself_is_one(x: Num) -> None:
    assert x.divide(x) == (Num.of(1) if x.terms else None)


def test_division_by_zero_is_none() -> None:
    assert A.divide(A - A) is None


@given(st.integers(-3, 3), st.integers(-3, 3))
def test_powers_of_an_atom_add_up(m: int, n: int) -> None:
    assert A.power(m) * A.power(n) == A.power(m + n)


@pytest.mark.parametrize(
    "same",
    [
        (A.power(0.5) * A.power(0.5), A),
        (A.power(-0.5), Num.of(1).divide(A.power(0.5))),
        (A.power(Fraction(1, 2)), A.power(0.5)),
        ((A * B).power(0.5), A.power(0.5) * B.power(0.5)),
        ((A + B).power(0.5) * (A + B).power(0.5), (A + B).power(0.5).power(2)),
        ((A + B).power(2), A * A + Num.of(2) * A * B + B * B),
        (Num.of(64).power(-0.5), Num.of(0.125)),
        ((Num.of(4) * A).power(0.5), Num.of(2) * A.power(0.5)),
        (A.power(0), Num.of(1)),
    ],
)
def test_powers(same: tuple[Num, Num]) -> None:
    assert same[0] == same[1]


@pytest.mark.parametrize(
    "different", [(A.power(0.5), A), (A + B, A * B), (A, atom("b")), (Num.of(2) * A, A), (A.power(2), A)]
)
def test_different_numbers_are_not_equal(different: tuple[Num, Num]) -> None:
    assert different[0] != different[1]


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_a_constant_gives_its_value_back(value: int | float) -> None:
    assert Num.of(value).const == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_only_finite_constants(value: float) -> None:
    with pytest.raises(ValueError):
        Num.of(value)


def test_integer_is_for_whole_constants_only() -> None:
    assert Num.of(3.0).integer == 3
    assert Num.of(Fraction(6, 2)).integer == 3
    assert Num.of(2.5).integer is None
    assert A.integer is None


def test_impossible_powers_become_unknown_numbers() -> None:
    for impossible in (Num.of(0).power(-1), Num.of(-4).power(0.5), Num.of(10).power(100_000.5)):
        assert impossible.const is None
        assert impossible == impossible + Num.of(0)


def test_single_is_for_a_bare_atom() -> None:
    found = A.single
    assert found is not None and found.key == "a"
    for other in (Num.of(2) * A, A + B, A * B, A.power(2), Num.of(1)):
        assert other.single is None


def test_labels_read_like_source() -> None:
    assert A.label == "a"
    assert (A * B).label == "a*b"
    assert (A + Num.of(1)).label == "a + 1"
    assert (A - Num.of(1)).label == "a - 1"
    assert (Num.of(2) * A).label == "2*a"
    quotient = A.divide(B)
    assert quotient is not None and quotient.label == "a/b"
    assert A.power(-0.5).label == "1/a**0.5"
    assert Num.of(0).label == "0"


def test_declared_when_every_atom_is() -> None:
    derived = atom("d", declared=False)
    assert (A * B).declared and Num.of(3).declared
    assert not (A * derived).declared
    assert (A + B).power(0.5).declared


def test_identity_is_the_key_alone() -> None:
    assert Num.atom(("param", "n"), "n") == Num.atom(("param", "n"), "other name", declared=True)
    assert Num.atom(("param", "n"), "n") != Num.atom(("attr", "n"), "n")
