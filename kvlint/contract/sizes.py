"""Questions about symbolic sizes that several rules ask."""

from __future__ import annotations

from .num import Num
from .tri import NO, YES, Fact, Note, Tri, tri


def constant(fact: Fact[Num]) -> Fact[int]:
    """The size as an integer, when every possible value is one."""
    if fact.values is None:
        return Fact(None, fact.notes)
    found: list[int] = []
    for value in fact.values:
        number = value.integer
        if number is None:
            return Fact(None, (*fact.notes, Note(f"{value.label} is not a constant")))
        found.append(number)
    return Fact(tuple(dict.fromkeys(found)), fact.notes)


def equal(left: Fact[Num], right: Fact[Num]) -> Tri:
    """Whether two sizes are equal: yes for the same expression, no for a constant difference."""
    if left.values is None or right.values is None:
        return Tri(None, left.notes if left.values is None else right.notes)
    notes = (*left.notes, *right.notes)
    states: set[bool] = set()
    for mine in left.values:
        for theirs in right.values:
            difference = (mine - theirs).const
            if difference is None:
                return Tri(None, (*notes, Note(f"{mine.label} and {theirs.label} may be equal")))
            states.add(difference == 0)
    return tri(states.pop(), *notes) if len(states) == 1 else Tri(None, notes)


def kept_apart(left: Fact[Num], right: Fact[Num]) -> Tri:
    """Whether the author keeps two sizes apart: both are chosen quantities, and they are not the same.

    Weaker than "differ": ``heads`` and ``block_size`` could be equal by accident. Use it where code
    that is right only by that accident is still wrong code.
    """
    if not (left.known and right.known):
        return Tri(None, left.notes if not left.known else right.notes)
    notes = (*left.notes, *right.notes)
    if left.value == right.value:
        return NO
    if left.value.declared and right.value.declared:
        return Tri(True, notes)
    same = equal(left, right)
    return YES & ~same if not same.unknown else Tri(None, same.notes)
