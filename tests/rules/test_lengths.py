"""Rules about sequence lengths on calls built by hand: what is known decides, what is unknown does not."""

from __future__ import annotations

import pytest
from support.calls import anything, call, either, outcome, tensor

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import Outcome, Rule, find_rule
from kvlint.contract.values import Content, Join, LengthForm, Number, Ramp, Sequence, Tensor

V1 = "npu_fused_infer_attention_score"
IFA = "npu_incre_flash_attention"
FUSION = "npu_fusion_attention"
INDEXER = "npu_lightning_indexer"
UPDATE = "npu_ring_attention_update"

VIOLATED, PROVED = Outcome.VIOLATED, Outcome.PROVED
UNDECIDED, NOT_APPLICABLE = Outcome.UNDECIDED, Outcome.NOT_APPLICABLE

Q = tensor(4, 8, 128, 64)
ONE = tensor(4, 8, 1, 64)
TABLE = tensor(4, 8, dtype="int32")
ANY = anything("lens")


def rule(code: str) -> Rule:
    found = find_rule(code)
    assert found is not None
    return found


def lengths(form: LengthForm, key: str = "lens") -> Sequence:
    return Sequence(None, content=Content(lengths=form), key=key)


INDEX, COUNT = Num.atom(("range", "loop"), "index"), Num.atom("n", "n")


def entries(number: Num) -> Sequence:
    return Sequence(None, element=Number(number), key=("entries", number))


ENDS = lengths(LengthForm.CUMULATIVE)
EACH = lengths(LengthForm.PER_SEQUENCE, "each")


def repeated(counts: str) -> Tensor:
    return tensor(None, key="rows", content=Content(repeated=counts))


def packed(q: object = ANY, kv: object = ANY, query: object = Q, **keywords: object) -> Call:
    return call(
        V1, query, Q, Q, input_layout="TND", actual_seq_lengths=q, actual_seq_lengths_kv=kv, **keywords
    )


def batched(kv: object = ANY, query: object = Q, **keywords: object) -> Call:
    return call(V1, query, Q, Q, input_layout="BNSD", actual_seq_lengths_kv=kv, **keywords)


def indexer(**keywords: object) -> Call:
    return call(INDEXER, Q, Q, Q, layout_query="TND", **keywords)


CASES: dict[str, tuple[str, Call, Outcome]] = {
    "packed without lengths": ("KV301", call(V1, Q, Q, Q, input_layout="TND"), VIOLATED),
    "packed with one None": ("KV301", packed(kv=None), VIOLATED),
    "packed with None on a path": ("KV301", packed(kv=either("c", ENDS, None)), VIOLATED),
    "packed with lengths": ("KV301", packed(ENDS, ENDS), PROVED),
    "packed, keywords passed on": ("KV301", call(V1, Q, Q, Q, input_layout="TND", opaque=True), UNDECIDED),
    "batched without lengths": ("KV301", call(V1, Q, Q, Q, input_layout="BNSD"), NOT_APPLICABLE),
    "lengths instead of ends": ("KV302", packed(EACH, ENDS), VIOLATED),
    "ends": ("KV302", packed(ENDS, ENDS), PROVED),
    "key lengths of a paged call": ("KV302", packed(ENDS, EACH, block_table=TABLE), PROVED),
    "one sequence": ("KV302", packed([128], [128]), NOT_APPLICABLE),
    "unknown form": ("KV302", packed(), UNDECIDED),
    "n, 2n, 3n ...": ("KV302", packed(entries(INDEX * COUNT + COUNT), ENDS), PROVED),
    "0, n, 2n ...": ("KV302", packed(entries(INDEX * COUNT), ENDS), UNDECIDED),
    "n + 1, 2n + 1 ...": ("KV302", packed(entries(INDEX * COUNT + Num.of(1)), ENDS), UNDECIDED),
    "1, 2, 3 ...": (
        "KV302",
        packed(tensor(4, content=Content(ramp=Ramp(0, 1, Num.of(1)))), ENDS),
        PROVED,
    ),
    "0, 1, 2 ...": (
        "KV302",
        packed(tensor(4, content=Content(ramp=Ramp(0, 1, Num.of(0)))), ENDS),
        UNDECIDED,
    ),
    "ends as paged key lengths": ("KV303", packed(ENDS, ENDS, block_table=TABLE), VIOLATED),
    "ends with a table passed on": ("KV303", packed(ANY, ENDS, block_table=anything("table")), VIOLATED),
    "ends as unpaged key lengths": ("KV303", packed(ENDS, ENDS), NOT_APPLICABLE),
    "one list for both": ("KV303", packed(ANY, ANY, block_table=TABLE), VIOLATED),
    "paged key lengths": ("KV303", packed(ENDS, EACH, block_table=TABLE), PROVED),
    "paged key lengths of unknown form": (
        "KV303",
        packed(ENDS, anything("kv"), block_table=TABLE),
        UNDECIDED,
    ),
    "paged keys of the indexer": (
        "KV303",
        indexer(layout_key="PA_BSND", actual_seq_lengths_key=ENDS, block_table=TABLE),
        VIOLATED,
    ),
    "packed keys of the indexer": (
        "KV303",
        indexer(layout_key="TND", actual_seq_lengths_key=ENDS),
        NOT_APPLICABLE,
    ),
    "paged without lengths": ("KV304", call(V1, Q, Q, Q, block_table=TABLE), VIOLATED),
    "paged with None": ("KV304", batched(None, block_table=TABLE), VIOLATED),
    "paged with lengths": ("KV304", batched(EACH, block_table=TABLE), PROVED),
    "table and lengths in step": (
        "KV304",
        batched(either("paged", EACH, None), block_table=either("paged", TABLE, None)),
        PROVED,
    ),
    "paged indexer without lengths": (
        "KV305",
        indexer(layout_key="PA_BSND", actual_seq_lengths_query=tensor(4), block_table=TABLE),
        VIOLATED,
    ),
    "ends for the unpad operator": ("KV306", call("_npu_flash_attention_unpad", Q, Q, Q, ENDS), VIOLATED),
    "lengths for the unpad operator": ("KV306", call("_npu_flash_attention_unpad", Q, Q, Q, EACH), PROVED),
    "ends with a batch axis": ("KV307", batched(ENDS), VIOLATED),
    "lengths with a batch axis": ("KV307", batched(EACH), PROVED),
    "query ends of one token": (
        "KV307",
        batched(EACH, ONE, actual_seq_lengths=ENDS),
        PROVED,
    ),
    "int64 for ATB": (
        "KV308",
        call("_npu_flash_attention_unpad", Q, Q, Q, tensor(4, dtype="int64", device="cpu")),
        VIOLATED,
    ),
    "device lengths for ATB": (
        "KV308",
        call("_npu_flash_attention_unpad", Q, Q, Q, tensor(4, dtype="int32", device="npu")),
        VIOLATED,
    ),
    "host int32 for ATB": (
        "KV308",
        call("_npu_flash_attention_unpad", Q, Q, Q, tensor(4, dtype="int32", device="cpu")),
        PROVED,
    ),
    "int64 for the indexer": (
        "KV309",
        indexer(actual_seq_lengths_query=tensor(4, dtype="int64")),
        VIOLATED,
    ),
    "decreasing ends": ("KV312", packed([7, 3], [7, 10]), VIOLATED),
    "zero tail in training": (
        "KV312",
        call(FUSION, Q, Q, Q, 8, "TND", actual_seq_qlen=[7, 10, 0], actual_seq_kvlen=[7, 10, 0]),
        PROVED,
    ),
    "zero tail in inference": ("KV312", packed([7, 10, 0], [7, 10, 10]), VIOLATED),
    "ends before the tokens": ("KV313", packed([5, 5], [5, 10], tensor(10, 8, 64)), VIOLATED),
    "ends at the tokens": ("KV313", packed([5, 10], ANY, tensor(10, 8, 64)), PROVED),
    "different counts": ("KV314", packed([0, 7, 10], [7, 10]), VIOLATED),
    "equal counts": ("KV314", packed([7, 10], [7, 10]), PROVED),
    "too few for the batch": ("KV314", batched([7, 9]), VIOLATED),
    "one for the batch": ("KV314", batched([7]), PROVED),
    "no key at all": ("KV315", packed([1, 2], [0, 0], block_table=TABLE), VIOLATED),
    "longer than the axis": ("KV316", batched([129, 1, 1, 1]), VIOLATED),
    "past the table": ("KV316", batched([1025], block_table=TABLE, block_size=128), VIOLATED),
    "within the table": ("KV316", batched([1024], block_table=TABLE, block_size=128), PROVED),
    "negative": ("KV316", batched([-1]), VIOLATED),
    "rows repeated, lengths not": (
        "KV317",
        call(IFA, ONE, Q, Q, block_table=repeated("q"), actual_seq_lengths=anything()),
        UNDECIDED,
    ),
    "query longer than keys": ("KV321", packed([70, 150], [7, 15], sparse_mode=3), VIOLATED),
    "keys longer than query": ("KV321", packed([7, 15], [70, 150], sparse_mode=3), PROVED),
    "no leading 0": (
        "KV351",
        call(
            UPDATE,
            *[tensor(128, 8, 8, dtype="float32")] * 6,
            actual_seq_qlen=tensor(2, dtype="int64", content=Content(values=(64, 128))),
            input_layout="TND",
        ),
        VIOLATED,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outcome(name: str) -> None:
    code, judged, expected = CASES[name]
    assert outcome(rule(code), judged) is expected


def sums(key: object, *others: object) -> Call:
    """Query ends summed from a list, over one of several lists of key lengths."""
    ends = Tensor((("cumsum",), key), shape=(None,))
    options = tuple(Tensor(item, shape=(None,)) for item in (key, *others))
    kv = options[0] if len(options) == 1 else Join(options)
    return indexer(actual_seq_lengths_query=ends, actual_seq_lengths_key=kv, block_table=TABLE)


def test_query_ends_summed_from_one_of_several_lists() -> None:
    total, other = ("+", "cached", "new"), ("+", "cached", "more")
    assert outcome(rule("KV332"), sums(total)) is VIOLATED
    assert outcome(rule("KV332"), sums(total, other)) is UNDECIDED
    # The key lengths may be a sum that is made elsewhere.
    assert outcome(rule("KV332"), sums("lens")) is UNDECIDED
    assert outcome(rule("KV332"), sums("new", "more")) is UNDECIDED
    apart = indexer(
        actual_seq_lengths_query=Tensor((("cumsum",), "new"), shape=(None,)),
        actual_seq_lengths_key=Tensor("more", shape=(None,)),
        block_table=TABLE,
    )
    assert outcome(rule("KV332"), apart) is PROVED
    assert outcome(rule("KV332"), indexer(actual_seq_lengths_query=ANY, opaque=True)) is UNDECIDED


def test_the_advice_about_mla_query_lengths_is_off() -> None:
    assert not rule("KV320").default


@pytest.mark.parametrize("code", ["KV301", "KV302", "KV303", "KV304", "KV307", "KV314", "KV316"])
def test_a_call_with_nothing_known_is_not_reported(code: str) -> None:
    judged = call(V1, anything(), anything(), anything(), opaque=True)
    assert outcome(rule(code), judged) is not VIOLATED
