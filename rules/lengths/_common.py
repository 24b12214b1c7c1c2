"""What the rules about sequence lengths share."""

from __future__ import annotations

from collections.abc import Hashable

from kvlint.contract.call import Arg, Call
from kvlint.contract.keys import is_input, origin, within
from kvlint.contract.num import Num
from kvlint.contract.paths import Cond, decide, may_be_one
from kvlint.contract.tri import NO, Note, Tri, tri
from kvlint.contract.values import Absent, Const, LengthForm, Number, Sequence, Tensor, Unknown, Value

# Operators whose lengths are int32 tensors, packed or paged by two layout arguments.
SPARSE = (
    "npu_lightning_indexer",
    "npu_quant_lightning_indexer",
    "npu_sparse_flash_attention",
    "npu_kv_quant_sparse_flash_attention",
)

# Operators whose host list counts each sequence on its own.
UNPAD = (
    "_npu_flash_attention",
    "_npu_flash_attention_unpad",
    "_npu_flash_attention_unpad_v2",
    "_npu_flash_attention_v3",
)


def cumulative(lengths: Arg) -> Tri:
    """Whether the entries are running sums."""
    return lengths.length_form.equals(LengthForm.CUMULATIVE)


def counts_up(lengths: Arg) -> bool:
    """Whether the entries are n, 2n, 3n ...: the running sums of as many tokens for every sequence.

    It proves that running sums are right; who wants one length per sequence may count up on purpose.
    """

    def rises(value: Value) -> bool:
        if not isinstance(value, (Tensor, Sequence)):
            return False
        ramp = value.content.ramp
        if ramp is not None and (ramp.row, ramp.column, ramp.offset.integer) == (0, 1, 1):
            return True
        element = value.element if isinstance(value, Sequence) else None
        return isinstance(element, Number) and _is_multiple_of_position(element.num)

    return bool(lengths.options) and all(map(rises, lengths.options))


def _is_multiple_of_position(number: Num) -> bool:
    """Whether a number is ``(i + 1) * n`` for the position ``i`` in a loop."""
    if len(number.terms) != 2 or len(set(number.terms.values())) != 1:
        return False
    first, second = sorted((dict(monomial) for monomial in number.terms), key=len)
    rest = [atom for atom in second if second[atom] != first.get(atom)]
    return (
        len(second) == len(first) + 1
        and len(rest) == 1
        and second[rest[0]] == 1
        and isinstance(rest[0].key, tuple)
        and rest[0].key[:1] in (("index",), ("range",))
    )


def query_packed(call: Call) -> Tri:
    """Whether the query tokens of all sequences lie on one axis."""
    if call.has("layout_q"):
        return call.arg("layout_q").constant.equals("TND")
    return call.packed


def keys_packed(call: Call) -> Tri:
    """Whether the keys of all sequences lie on one axis, without a block table."""
    if call.has("layout_kv"):
        return call.arg("layout_kv").constant.equals("TND") & ~call.paged
    return call.packed & ~call.paged


def keys_paged(call: Call) -> Tri:
    """Whether the keys are read through a block table, as the author means it.

    A table that is passed on and may be None for some callers counts: what is passed with it must be
    right when it is not.
    """
    table = call.arg("block_table")

    def question(value: Value) -> Tri:
        if not isinstance(value, Unknown):
            return tri(not (isinstance(value, Absent) or (isinstance(value, Const) and value.value is None)))
        none = decide(Cond("none", value.key), call.assumed)
        if none or decide(Cond("truth", value.key), call.assumed) is False:
            return NO
        return tri(True, Note(f"{table.name} is {value.label}", value.place))

    given = table.test(question) if call.opaque is None or table.given.yes else table.given
    if call.has("layout_kv"):
        return call.arg("layout_kv").constant.equals("PA_BSND") | given
    return given


def one_entry(lengths: Arg) -> bool:
    """Whether there is a single sequence, for which a running sum and a length are the same."""
    count = lengths.length
    if count.known and count.value.integer is not None:
        return count.value.integer == 1
    values = [value for value in lengths.options if isinstance(value, (Unknown, Tensor, Sequence))]
    keys = [(value.key, origin(value.key)) for value in values]
    if not keys or len(keys) < len(lengths.options):
        return False
    return all(any(_tested_as_one(key, lengths.call) for key in pair) for pair in keys)


def _tested_as_one(key: Hashable, call: Call) -> bool:
    """Whether a test on this path says that a list or the first axis of a tensor has one entry."""
    counts = (Num.atom(("len", key), ""), Num.atom(("dim", key, 0), ""))
    return any(decide(Cond("eq", count, 1), call.assumed) for count in counts)


def is_sum_of(tokens: Num, lengths: Arg) -> bool:
    """Whether a number of tokens is the sum over the very entries that are passed."""
    if len(lengths.options) != 1:
        return False
    value, atom = lengths.options[0], tokens.single
    if atom is None or not isinstance(value, (Unknown, Tensor, Sequence)) or not isinstance(atom.key, tuple):
        return False
    call = lengths.call
    if within(value.key, call.rewritten):
        # The entries that are summed up need not be those that are passed.
        return False
    if may_be_one(call.assumed.items()):
        return False
    key = atom.key
    if len(key) == 2 and key[0] == "item" and isinstance(key[1], tuple) and key[1][:1] == (("sum",),):
        # lengths.sum().item()
        return origin(key[1][1]) == origin(value.key)
    return len(key) == 2 and key[0] == "sum of" and key[1] == origin(value.key)


def bare_input(value: Value) -> bool:
    """Whether a value is a parameter, attribute or metadata field as it came, at most cast or copied."""
    return isinstance(value, (Unknown, Tensor, Sequence)) and is_input(origin(value.key))


def repeated_input(value: Value) -> bool:
    """Whether a value is an input whose entries are repeated, and nothing else was done to it."""
    if not isinstance(value, (Unknown, Tensor, Sequence)):
        return False
    key = origin(value.key)
    if not (isinstance(key, tuple) and len(key) == 2):
        return False
    step, base = key
    return isinstance(step, tuple) and step[:1] == ("repeat_interleave",) and is_input(origin(base))


WRITERS = ("scatter_update_", "npu_scatter_nd_update_")
"""Writers that take an offset along the sequence axis, or a row."""


def writes(writer: Call, cache: Arg) -> bool:
    """Whether a call writes the very tensor that attention reads."""
    if writer.operator.name not in WRITERS:
        return False
    written: Tri = writer.arg("data").same_as(cache)
    return written.yes


def counted(arg: Arg) -> Num | None:
    """The number (of one request or of all) that lengths or offsets stand for, under casts and copies."""
    if len(arg.options) != 1:
        return None
    value = arg.options[0]
    if isinstance(value, Sequence) and value.items is not None and len(set(value.items)) == 1:
        value = value.items[0]
    if isinstance(value, Number):
        return value.num
    key = origin(value.key) if isinstance(value, (Unknown, Tensor, Sequence)) else None
    if key is None:
        return None
    if isinstance(key, tuple) and len(key) == 2 and key[0] == "number" and isinstance(key[1], Num):
        return key[1]
    return Num.atom(key, arg.name)


def past_offset(lengths: Arg, offsets: Arg) -> int | None:
    """By how many rows the lengths go past the offsets of a write; None when that is not visible."""
    reach, start = counted(lengths), counted(offsets)
    return None if reach is None or start is None else (reach - start).integer
