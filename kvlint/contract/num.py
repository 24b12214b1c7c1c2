"""Symbolic numbers: constants, named quantities and their products, sums and powers.

Tensor dimensions and scales are compared with these. Floor division is read as exact division,
which is what shape arithmetic (``hidden // heads``) means by it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

from .keys import intern

# Larger powers are no size, scale or length; working them out could take forever.
MAX_EXPONENT = 64
MAX_BASE = 2**64
MAX_TEXT = 10**40


@dataclass(frozen=True, slots=True)
class Atom:
    """An indivisible unknown number.

    Attributes:
        key: identity; two atoms are the same number exactly when their keys are equal.
        label: how to name it in a message.
        declared: True for a quantity the author named and chose (parameter, attribute, config
            entry); False for one that only falls out of an expression (a dimension, a call result).
        count: True when it counts tokens or elements, so that it is a whole number of at least 1.
    """

    key: Hashable
    label: str = field(compare=False)
    declared: bool = field(default=False, compare=False)
    count: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", intern(self.key))


MAX_TERMS = 256

Monomial = tuple[tuple[Atom, Fraction], ...]


@final
class Num:
    """A sum of coefficient * product of atom**exponent. Immutable and hashable."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: dict[Monomial, Fraction | float]) -> None:
        self.terms: dict[Monomial, Fraction | float] = {m: c for m, c in terms.items() if c != 0}
        self._hash: int | None = None

    @classmethod
    def of(cls, value: int | float | Fraction) -> Num:
        """A constant. Raises ``ValueError`` for NaN and infinities."""
        if isinstance(value, float):
            if value != value or value in (float("inf"), float("-inf")):
                raise ValueError("not a finite number")
            if value.is_integer():
                value = int(value)
        return cls({(): value if isinstance(value, float) else Fraction(value)})

    @classmethod
    def atom(cls, key: Hashable, label: str, declared: bool = False, count: bool = False) -> Num:
        """An unknown number with an identity."""
        return cls({((Atom(key, label, declared, count), Fraction(1)),): Fraction(1)})

    @property
    def const(self) -> int | float | None:
        """The value when it is a constant."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and () in self.terms:
            value = self.terms[()]
            if isinstance(value, Fraction):
                return int(value) if value.denominator == 1 else float(value)
            return value
        return None

    @property
    def integer(self) -> int | None:
        """The value when it is a constant integer."""
        value = self.const
        return value if isinstance(value, int) else None

    def atoms(self) -> frozenset[Atom]:
        """Every atom that occurs."""
        return frozenset(atom for monomial in self.terms for atom, _ in monomial)

    @property
    def single(self) -> Atom | None:
        """The atom when the number is exactly one atom."""
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms.items()
            if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
                return monomial[0][0]
        return None

    def __add__(self, other: Num) -> Num:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + coefficient
        return Num(terms)

    def __neg__(self) -> Num:
        return Num({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Num) -> Num:
        return self + (-other)

    def __mul__(self, other: Num) -> Num:
        if len(self.terms) * len(other.terms) > MAX_TERMS:
            # Written out, a product of many sums is exponentially long.
            label = f"{_short(self.label)} * {_short(other.label)}"
            return Num.atom(("product", frozenset((self, other))), label, self.declared and other.declared)
        terms: dict[Monomial, Fraction | float] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = _product(left, right)
                terms[monomial] = terms.get(monomial, Fraction(0)) + a * b
        return Num(terms)

    def power(self, exponent: int | float | Fraction) -> Num:
        """``self ** exponent``; a sum raised to a non-natural power becomes an atom."""
        if isinstance(exponent, float):
            exponent = Fraction(exponent).limit_denominator(1000)
        exponent = Fraction(exponent)
        value = self.const
        if value is not None and abs(exponent) <= MAX_EXPONENT and abs(value) <= MAX_BASE:
            try:
                result = value**exponent if exponent.denominator == 1 else float(value) ** float(exponent)
                if not isinstance(result, complex):
                    return Num.of(result)
            except (OverflowError, ZeroDivisionError, ValueError):
                pass
        if value is not None:
            return Num.atom(("pow", self, exponent), f"{self.label} ** {exponent}")
        if exponent.denominator == 1 and 0 <= exponent <= 4:
            result_num = Num.of(1)
            for _ in range(int(exponent)):
                result_num = result_num * self
            return result_num
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms.items()
            scaled = Num.of(coefficient).power(exponent)
            return scaled * Num({tuple((a, e * exponent) for a, e in monomial): Fraction(1)})
        base = Num.atom(("sum", self), f"({self.label})", declared=self.declared)
        return base.power(exponent)

    def divide(self, other: Num) -> Num | None:
        """``self / other``, or None for a division by zero."""
        if not other.terms:
            return None
        if self == other:
            return Num.of(1)
        if len(other.terms) > 1:
            return self * other.power(-1)
        ((monomial, coefficient),) = other.terms.items()
        inverse = tuple((a, -e) for a, e in monomial)
        return Num({_product(m, inverse): c / coefficient for m, c in self.terms.items()})

    @property
    def declared(self) -> bool:
        """True when every atom is one the author named."""
        return all(atom.declared for atom in self.atoms())

    @property
    def label(self) -> str:
        """A readable form for messages."""
        if not self.terms:
            return "0"
        return " + ".join(_term_label(m, c) for m, c in self.terms.items()).replace("+ -", "- ")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Num) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"Num({self.label})"


def _product(left: Monomial, right: Monomial) -> Monomial:
    if not left:
        return right
    if not right:
        return left
    exponents: dict[Atom, Fraction] = dict(left)
    for atom, exponent in right:
        exponents[atom] = exponents.get(atom, Fraction(0)) + exponent
    kept = [(a, e) for a, e in exponents.items() if e != 0]
    kept.sort(key=lambda item: (item[0].label, hash(item[0])))
    return tuple(kept)


def _term_label(monomial: Monomial, coefficient: Fraction | float) -> str:
    over: list[str] = []
    under: list[str] = []
    for atom, exponent in monomial:
        shown = abs(exponent)
        text = atom.label if shown == 1 else f"{atom.label}**{_number(shown)}"
        (over if exponent > 0 else under).append(text)
    if coefficient != 1 or not over:
        text = _number(coefficient)
        if text == "-1" and over:
            over[0] = f"-{over[0]}"
        elif not (text == "1" and over):
            over.insert(0, text)
    return "*".join(over) + "".join(f"/{text}" for text in under)


def _short(label: str) -> str:
    return label if len(label) <= 40 else label[:37] + "..."


def _number(value: Fraction | float) -> str:
    if not -MAX_TEXT < value < MAX_TEXT:
        return "a huge number"
    if isinstance(value, Fraction) and value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):g}"
