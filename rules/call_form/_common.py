"""What the rules about the form of a call share."""

from __future__ import annotations

from kvlint.contract.call import Arg, Call
from kvlint.contract.catalogue import Operator, variants
from kvlint.contract.num import Num
from kvlint.contract.paths import Cond, decide
from kvlint.contract.tri import NO, YES, Fact, Note, Tri, tri
from kvlint.contract.values import Absent, Const, Unknown, Value

INFERENCE = ("fia", "pfa", "ifa")
"""The inference operators that share one tiling code and most obligations."""


RANKS = {"BSH": 3, "SBH": 3, "TND": 3, "NTD": 3, "NSD": 3, "BSND": 4, "BNSD": 4}
"""Number of axes of an unpaged tensor in each layout (contract 1.4)."""


def meant(arg: Arg) -> Tri:
    """Whether the author means to pass something other than None.

    A value that is only passed on, and may be None for other callers, counts: what else the call says is
    there for the callers that give it.
    """
    if not arg.present.unknown or arg.given.unknown:
        return arg.present

    def question(value: Value) -> Tri:
        if not isinstance(value, Unknown):
            return NO if isinstance(value, (Absent, Const)) else YES
        assumed = arg.call.assumed
        if decide(Cond("none", value.key), assumed) or decide(Cond("truth", value.key), assumed) is False:
            return NO
        return tri(True, Note(f"{arg.name} is {value.label}", value.place))

    return arg.test(question)


def paged(call: Call) -> Tri:
    """Whether the call reads its keys through a block table, as its author means it."""
    return meant(call.arg("block_table"))


def rope(call: Call) -> Tri:
    """Whether the author means to pass the rope parts of MLA separately."""
    return meant(call.arg("query_rope")) | meant(call.arg("key_rope"))


def decode_engine(call: Call) -> Tri:
    """Whether the decode engine serves the call (contract 1.6); PFA and IFA have one engine each."""
    if call.operator.family == "ifa":
        return YES
    if call.operator.family == "fia":
        return call.decode_engine
    return NO


def differ(left: Fact[Num], right: Fact[Num]) -> Tri:
    """Whether two sizes certainly differ: by a constant. Names prove nothing, one may be an alias."""
    if not (left.known and right.known):
        return Tri(None, left.notes if not left.known else right.notes)
    notes = (*left.notes, *right.notes)
    difference = (left.value - right.value).const
    if difference is None and left.value.atoms() == right.value.atoms():
        # Twice a size is another size, whatever it is.
        factor = left.value.divide(right.value) or right.value.divide(left.value)
        if factor is not None and factor.const is not None:
            return Tri(True, notes)
    if difference is None:
        note = Note(f"{left.value.label} and {right.value.label} may be equal")
        return Tri(None, (*notes, note))
    return Tri(difference != 0, notes)


def rescaled(left: Fact[Num], right: Fact[Num]) -> Tri:
    """Like :func:`differ`, and yes for a size that is the other one times a factor the author named.

    For counts of heads, where ``heads`` and ``heads // ranks`` are told apart on purpose.
    """
    certain = differ(left, right)
    if not (certain.unknown and left.known and right.known):
        return certain
    mine, theirs = left.value, right.value
    nested = mine.atoms() < theirs.atoms() or theirs.atoms() < mine.atoms()
    factor = mine.divide(theirs)
    if not nested or not (mine.atoms() & theirs.atoms()) or factor is None:
        return certain
    if len(factor.terms) == 1 and factor.declared:
        return Tri(True, (*left.notes, *right.notes, Note(f"they differ by the factor {factor.label}")))
    return certain


def on_sequence_axis(heads: Fact[Num], head_axis: Fact[Num], sequence_axis: Fact[Num]) -> bool:
    """Whether a named number of heads is the size of the sequence axis, and not that of the head axis.

    They could be equal by accident; code that is right only then is still wrong code.
    """
    if not (heads.known and sequence_axis.known) or heads.value.const is not None:
        return False
    return sequence_axis.value == heads.value and not (head_axis.known and head_axis.value == heads.value)


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
    rank, in_blocks = arg.rank, paged(call)
    if not rank.known:
        return Fact(None, rank.notes)
    if in_blocks.unknown or not call.query_layout.known:
        return Fact(None, (*in_blocks.notes, *call.layout.notes))
    if in_blocks.no and rank.value != RANKS.get(call.query_layout.value):
        return Fact.unknown(f"{arg.name} does not have the axes of the layout", arg.place)
    folded = call.query_layout.among(("BSH", "SBH")) if in_blocks.no else tri(rank.value == 3)
    last = arg.dim(-1)
    if in_blocks.yes and rank.value == 5:
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


def inverse_square(factor: Num) -> Num:
    """``factor ** -2``; the root of a sum is an atom that remembers the sum."""
    base = factor.power(-2)
    atom = base.single
    if atom is not None and isinstance(atom.key, tuple) and len(atom.key) == 2 and atom.key[0] == "sum":
        inner = atom.key[1]
        return inner if isinstance(inner, Num) else base
    return base
