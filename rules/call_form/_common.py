"""What the rules about the form of a call share."""

from __future__ import annotations

from kvlint.contract.call import Arg, Call
from kvlint.contract.catalogue import Operator, variants
from kvlint.contract.num import Num
from kvlint.contract.rule import Rule
from kvlint.contract.tri import NO, YES, Fact, Note, Tri, tri

INFERENCE = ("fia", "pfa", "ifa")
"""The inference operators that share one tiling code and most obligations."""


class RunRule(Rule):
    """A rule about a call that computes; queries that repeat its arguments are not judged again."""

    def applies_to(self, operator: Operator) -> bool:
        """Whether the obligation exists for an operator."""
        return super().applies_to(operator) and not repeats_arguments(operator)


def repeats_arguments(operator: Operator) -> bool:
    """Whether this is a workspace or shape query with the arguments of the real call."""
    return operator.name.split(".")[0].endswith(("_get_max_workspace", "_infer_output", "_get_workspace"))


def decode_engine(call: Call) -> Tri:
    """Whether the decode engine serves the call (contract 1.6); PFA and IFA have one engine each."""
    if call.operator.family == "ifa":
        return YES
    if call.operator.family == "fia":
        return call.decode_engine
    return NO


def differ(left: Fact[Num], right: Fact[Num]) -> Tri:
    """Whether two sizes certainly differ.

    Yes for different constants, and for a size that is the other one times a factor the author named
    (``heads`` and ``heads // ranks``). Two unrelated names prove nothing: one may be an alias.
    """
    if not (left.known and right.known):
        return Tri(None, left.notes if not left.known else right.notes)
    mine, theirs = left.value, right.value
    notes = (*left.notes, *right.notes)
    if mine == theirs:
        return Tri(False, notes)
    if (mine - theirs).const is not None:
        return Tri(True, notes)
    factor = mine.divide(theirs)
    nested = mine.atoms() < theirs.atoms() or theirs.atoms() < mine.atoms()
    if factor is not None and len(factor.terms) == 1 and factor.declared and nested and _shared(mine, theirs):
        return Tri(True, (*notes, Note(f"they differ by the factor {factor.label}")))
    return Tri(None, (*notes, Note(f"{mine.label} and {theirs.label} may be equal")))


def _shared(left: Num, right: Num) -> bool:
    return bool(left.atoms() & right.atoms())


def schemas(call: Call) -> tuple[Operator, ...]:
    """The schemas the call may meet: that of the configured release, or every one there ever was."""
    operator = call.operator
    if call.target.torch_npu is not None:
        return (operator,)
    return variants(operator.name, operator.overload) or (operator,)


def whole(fact: Fact[Num]) -> int | None:
    """The size when it is one integer constant."""
    return fact.value.integer if fact.known else None


def head_dim(call: Call, arg: Arg) -> Fact[Num]:
    """D of an unpaged or paged key or value (contract 1.4): folded layouts are divided by the KV heads."""
    rank = arg.rank
    if not rank.known:
        return Fact(None, rank.notes)
    if call.paged.unknown or call.layout.values is None:
        return Fact(None, (*call.paged.notes, *call.layout.notes))
    folded = call.query_layout.among(("BSH", "SBH")) if call.paged.no else tri(rank.value == 3)
    last = arg.dim(-1)
    if call.paged.yes and rank.value == 5:
        inner = arg.dim(2)
        if not (inner.known and last.known):
            return Fact(None, (*inner.notes, *last.notes))
        return Fact.of(inner.value * last.value, *last.notes)
    if folded.no:
        return last
    heads = call.kv_heads
    if folded.unknown or not (last.known and heads.known):
        return Fact(None, (*folded.notes, *last.notes, *heads.notes))
    quotient = last.value.divide(heads.value)
    if quotient is None:
        return Fact.unknown("the number of KV heads is 0", arg.place)
    return Fact.of(quotient, *last.notes)
