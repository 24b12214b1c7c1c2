"""Rules about masks on calls built by hand: what is known decides, what is unknown does not."""

from __future__ import annotations

import pytest
from support.calls import anything, call, either, named, outcome, tensor

from kvlint.contract.call import Call, Target
from kvlint.contract.num import Num
from kvlint.contract.rule import Outcome, Rule, find_rule
from kvlint.contract.values import Content, Polarity, Tensor, Triangle

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
PFA = "npu_prompt_flash_attention"
IFA = "npu_incre_flash_attention"
FUSION = "npu_fusion_attention"

VIOLATED, PROVED = Outcome.VIOLATED, Outcome.PROVED
UNDECIDED, NOT_APPLICABLE = Outcome.UNDECIDED, Outcome.NOT_APPLICABLE

Q = tensor(4, 8, 128, 64, dtype="float16")
ONE = tensor(4, 8, 1, 64, dtype="float16")
ANY = anything("q")


def rule(code: str) -> Rule:
    found = find_rule(code)
    assert found is not None
    return found


def triangle(upper: bool, offset: int | Num, *shape: int | str, dtype: str = "bool") -> Tensor:
    diagonal = offset if isinstance(offset, Num) else Num.of(offset)
    return tensor(*shape, dtype=dtype, content=Content(triangle=Triangle(upper, diagonal)))


CAUSAL = triangle(True, 1, 2048, 2048)
MASK = anything("mask")
FULL = triangle(True, 1, 128, 128)
WINDOW = Num.atom("window", "window", declared=True)
KEPT = tensor(2048, 2048, dtype="bool", content=Content(polarity=Polarity.KEEP))
ONES = tensor(2048, 2048, dtype="bool", content=Content(fill=True))
ZEROS = tensor(2048, 2048, dtype="bool", content=Content(fill=False))
BAND = tensor(2048, 2048, dtype="bool", content=Content(band=True))
ADDED = tensor(128, 128, dtype="bfloat16", content=Content(additive=True))


def fia(query: object = Q, layout: str = "BNSD", **keywords: object) -> Call:
    return call(V1, query, Q, Q, input_layout=layout, num_heads=8, scale=0.1, **keywords)


def fusion(query: object = Q, layout: str = "BNSD", **keywords: object) -> Call:
    return call(FUSION, query, Q, Q, 8, layout, scale=0.1, **keywords)


CASES: dict[str, tuple[str, Call, Outcome]] = {
    "mode 3 alone": ("KV201", fia(sparse_mode=3), VIOLATED),
    "mode 3, None": ("KV201", fia(sparse_mode=3, atten_mask=None), VIOLATED),
    "mode 3, mask": ("KV201", fia(sparse_mode=3, atten_mask=CAUSAL), PROVED),
    "mode 3, unknown mask": ("KV201", fia(sparse_mode=3, atten_mask=MASK), UNDECIDED),
    "mode 3, mask on one path": ("KV201", fia(sparse_mode=3, atten_mask=either("c", CAUSAL, None)), VIOLATED),
    "mode and mask in step": (
        "KV201",
        fia(sparse_mode=either("c", 3, 0), atten_mask=either("c", CAUSAL, None)),
        PROVED,
    ),
    "mode 3, keywords passed on": ("KV201", fia(sparse_mode=3, opaque=True), UNDECIDED),
    "unknown mode": ("KV201", fia(sparse_mode=named("mode")), UNDECIDED),
    "mode 3 in one-token decode": ("KV201", fia(ONE, sparse_mode=3), NOT_APPLICABLE),
    "float mask": ("KV202", fia(atten_mask=tensor(128, 128, dtype="float16")), VIOLATED),
    "int8 mask": ("KV202", fia(atten_mask=tensor(128, 128, dtype="int8")), PROVED),
    "mask of unknown dtype": ("KV202", fia(atten_mask=tensor(128, 128)), UNDECIDED),
    "no mask": ("KV202", fia(), NOT_APPLICABLE),
    "int8 mask on 310P": (
        "KV202",
        fia(atten_mask=tensor(128, 128, dtype="int8"), target=Target(soc="310P")),
        VIOLATED,
    ),
    "keep-mask": ("KV203", fia(atten_mask=KEPT), VIOLATED),
    "lower triangle": ("KV203", fia(atten_mask=triangle(False, 0, 128, 128)), VIOLATED),
    "upper triangle": ("KV203", fia(atten_mask=FULL), PROVED),
    "far past hidden": ("KV203", fia(atten_mask=triangle(False, -WINDOW, 128, 128)), PROVED),
    "strictly lower, full": ("KV203", fia(atten_mask=triangle(False, -1, 128, 128)), PROVED),
    "strictly lower, compressed": (
        "KV203",
        fia(sparse_mode=3, atten_mask=triangle(False, -1, 2048, 2048)),
        VIOLATED,
    ),
    "mask of unknown form": ("KV203", fia(atten_mask=MASK), UNDECIDED),
    "4096 in mode 3": ("KV204", fia(sparse_mode=3, atten_mask=triangle(True, 1, 4096, 4096)), VIOLATED),
    "2048 in mode 3": ("KV204", fia(sparse_mode=3, atten_mask=CAUSAL), PROVED),
    "2048 with a leading 1": ("KV204", fia(sparse_mode=4, atten_mask=tensor(1, 2048, 2048)), PROVED),
    "one per batch in mode 3": ("KV204", fia(sparse_mode=3, atten_mask=tensor(4, 2048, 2048)), VIOLATED),
    "named side in mode 3": ("KV204", fia(sparse_mode=3, atten_mask=tensor("n", "n")), UNDECIDED),
    "two named sides in mode 3": ("KV204", fia(sparse_mode=3, atten_mask=tensor("n", "m")), VIOLATED),
    "side of the query in mode 3": (
        "KV204",
        fia(tensor(4, 8, "s", 64), sparse_mode=3, atten_mask=tensor("s", "s")),
        VIOLATED,
    ),
    "row masks of decode in mode 2": ("KV204", fia(ANY, sparse_mode=2, atten_mask=tensor("b", 1)), UNDECIDED),
    "full size in mode 1": ("KV204", fia(sparse_mode=1, atten_mask=FULL), NOT_APPLICABLE),
    "diagonal hidden": ("KV205", fia(sparse_mode=3, atten_mask=triangle(True, 0, 2048, 2048)), VIOLATED),
    "diagonal hidden, full": ("KV205", fia(atten_mask=triangle(True, 0, 128, 128)), VIOLATED),
    "diagonal of a rectangle": ("KV205", fia(atten_mask=triangle(True, 0, 64, 128)), UNDECIDED),
    "diagonal shown": ("KV205", fia(atten_mask=FULL), PROVED),
    "one token, mode 3": ("KV206", fia(ONE, sparse_mode=3, atten_mask=CAUSAL), VIOLATED),
    "one token, mode 3, mask passed on": ("KV206", fia(ONE, sparse_mode=3, atten_mask=MASK), VIOLATED),
    "one token, mode 0": ("KV206", fia(ONE), NOT_APPLICABLE),
    "one token, packed": ("KV206", fia(ONE, "TND", sparse_mode=3, atten_mask=CAUSAL), NOT_APPLICABLE),
    "unknown number of tokens": ("KV206", fia(ANY, sparse_mode=3, atten_mask=CAUSAL), UNDECIDED),
    "limit without a mask": ("KV207", fia(ANY, next_tokens=0), VIOLATED),
    "limit with a mask": ("KV207", fia(ANY, next_tokens=0, atten_mask=MASK), NOT_APPLICABLE),
    "limit in paged decode": ("KV207", fia(ANY, next_tokens=0, block_table=MASK), UNDECIDED),
    "limit in one-token decode": ("KV207", fia(ONE, next_tokens=0), NOT_APPLICABLE),
    "default limit of PFA": ("KV207", call(PFA, ANY, Q, Q), NOT_APPLICABLE),
    "mode 6": ("KV208", fia(sparse_mode=6), VIOLATED),
    "mode 6 in training": ("KV208", fusion(sparse_mode=6), PROVED),
    "mode 2 packed": ("KV209", fia(layout="TND", sparse_mode=2, atten_mask=CAUSAL), VIOLATED),
    "mode 3 packed": ("KV209", fia(layout="TND", sparse_mode=3, atten_mask=CAUSAL), PROVED),
    "longer keys in mode 2": (
        "KV210",
        call(V1, Q, tensor(4, 8, 200, 64), Q, input_layout="BNSD", sparse_mode=2, atten_mask=CAUSAL),
        VIOLATED,
    ),
    "equal lengths in mode 2": ("KV210", fia(sparse_mode=2, atten_mask=CAUSAL), PROVED),
    "unknown lengths in mode 2": ("KV210", fia(ANY, sparse_mode=2, atten_mask=CAUSAL), UNDECIDED),
    "training mode without a mask": ("KV211", fusion(sparse_mode=2), VIOLATED),
    "band in mode 4": ("KV212", fia(sparse_mode=4, atten_mask=BAND), VIOLATED),
    "band in mode 1": ("KV212", fia(sparse_mode=1, atten_mask=BAND), NOT_APPLICABLE),
    "zeros in mode 3": ("KV212", fia(sparse_mode=3, atten_mask=ZEROS), VIOLATED),
    "triangle in mode 3": ("KV212", fia(sparse_mode=3, atten_mask=CAUSAL), PROVED),
    "padding mask in training": ("KV214", fusion(atten_mask=tensor(4, 1, 1, 128)), VIOLATED),
    "expanded mask in training": ("KV214", fusion(atten_mask=tensor(4, 1, 128, 128)), PROVED),
    "2048 in mode 1 of training": ("KV217", fusion(ANY, sparse_mode=1, atten_mask=CAUSAL), VIOLATED),
    "window in mode 3": ("KV218", fia(sparse_mode=3, atten_mask=CAUSAL, pre_tokens=511), VIOLATED),
    "unknown limit in mode 4": ("KV218", fia(sparse_mode=4, atten_mask=CAUSAL, pre_tokens=MASK), PROVED),
    "unknown limit in mode 3": ("KV218", fia(sparse_mode=3, atten_mask=CAUSAL, pre_tokens=MASK), UNDECIDED),
    "window in mode 4": ("KV218", fia(sparse_mode=4, atten_mask=CAUSAL, pre_tokens=511), PROVED),
    "no limit in mode 3": ("KV218", fia(sparse_mode=3, atten_mask=CAUSAL, pre_tokens=65535), NOT_APPLICABLE),
    "named window in mode 3": (
        "KV218",
        fia(sparse_mode=3, atten_mask=CAUSAL, pre_tokens=named("self.sliding_window")),
        VIOLATED,
    ),
    "named number in mode 3": (
        "KV218",
        fia(sparse_mode=3, atten_mask=CAUSAL, pre_tokens=named("limit")),
        UNDECIDED,
    ),
    "window in paged BSH": (
        "KV218",
        fia(tensor(4, 1, 512), "BSH", pre_tokens=511, block_table=tensor(4, 8)),
        PROVED,
    ),
    "mask in packed mode 0": ("KV220", fia(layout="TND", atten_mask=FULL), VIOLATED),
    "unknown mask in packed mode 0": ("KV220", fia(layout="TND", atten_mask=MASK), UNDECIDED),
    "empty band": (
        "KV221",
        fia(sparse_mode=4, atten_mask=CAUSAL, pre_tokens=-1, next_tokens=-1),
        VIOLATED,
    ),
    "band": ("KV221", fia(sparse_mode=4, atten_mask=CAUSAL, pre_tokens=8, next_tokens=-2), PROVED),
    "default limit cuts cached keys": (
        "KV222",
        call(PFA, Q, Q, Q, input_layout="BNSD", atten_mask=triangle(True, 73, 128, 200)),
        VIOLATED,
    ),
    "default limit beside a causal mask": (
        "KV222",
        call(PFA, Q, Q, Q, input_layout="BNSD", atten_mask=FULL),
        UNDECIDED,
    ),
    "small mask": ("KV223", fia(atten_mask=tensor(64, 64)), VIOLATED),
    "large mask": ("KV223", fia(atten_mask=tensor(256, 256)), PROVED),
    "one row for four": (
        "KV224",
        call(IFA, ONE, Q, Q, input_layout="BNSD", atten_mask=tensor(1, 1, 1, 128)),
        VIOLATED,
    ),
    "four rows for four": (
        "KV224",
        call(IFA, ONE, Q, Q, input_layout="BNSD", atten_mask=tensor(4, 1, 1, 128)),
        PROVED,
    ),
    "added mask in bf16": ("KV232", call("_npu_flash_attention", Q, Q, Q, ADDED), VIOLATED),
    "triangle": ("KV233", fia(sparse_mode=3, atten_mask=CAUSAL), PROVED),
    "triangle with its diagonal": ("KV233", fia(atten_mask=triangle(True, 0, 128, 128)), PROVED),
    "triangle of any size": ("KV233", fia(atten_mask=triangle(True, 0, "s", "s")), UNDECIDED),
    "wide lower triangle": ("KV233", fia(atten_mask=triangle(False, 127, 128, 128)), UNDECIDED),
    "some lower triangle": ("KV233", fia(atten_mask=triangle(False, 3, 128, 128)), PROVED),
    "triangle or none": ("KV233", fia(atten_mask=either("c", FULL, None)), PROVED),
    "ones or none": ("KV233", fia(atten_mask=either("c", ONES, None)), VIOLATED),
    "no mask, no triangle": ("KV233", fia(atten_mask=None), NOT_APPLICABLE),
    "triangle in one-token decode": ("KV233", fia(ONE, atten_mask=FULL), PROVED),
    "ones": ("KV233", fia(sparse_mode=3, atten_mask=ONES), VIOLATED),
    "row of ones in decode": (
        "KV233",
        fia(ANY, sparse_mode=2, atten_mask=tensor("b", "s", content=Content(fill=True))),
        UNDECIDED,
    ),
    "hidden rows": ("KV237", fia(atten_mask=triangle(True, -63, 128, 64)), VIOLATED),
    "hidden rows, corrected": (
        "KV237",
        fia(atten_mask=triangle(True, -63, 128, 64), inner_precise=2),
        PROVED,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outcome(name: str) -> None:
    code, judged, expected = CASES[name]
    assert outcome(rule(code), judged) is expected


@pytest.mark.parametrize(
    ("tokens", "mode", "mask", "expected"),
    [
        (1, 0, None, PROVED),
        (1, 0, CAUSAL, VIOLATED),
        (1, 3, CAUSAL, VIOLATED),
        (2, 3, CAUSAL, PROVED),
        (2, 0, None, VIOLATED),
        ("n", 0, None, UNDECIDED),
        (32, 0, None, NOT_APPLICABLE),
    ],
)
def test_absorbed_mla_takes_a_mode_by_the_number_of_tokens(
    tokens: int | str, mode: int, mask: Tensor | None, expected: Outcome
) -> None:
    judged = call(
        V2,
        tensor(4, tokens, 8, 512),
        Q,
        Q,
        query_rope=tensor(4, tokens, 8, 64),
        key_rope=Q,
        input_layout="BSND",
        num_query_heads=8,
        sparse_mode=mode,
        atten_mask=mask,
    )
    assert outcome(rule("KV225"), judged) is expected


def test_limits_of_an_old_stack_are_silent_for_a_new_one() -> None:
    judged = call(
        V2,
        tensor(4, 2, 8, 512),
        Q,
        Q,
        query_rope=Q,
        key_rope=Q,
        input_layout="BSND",
        num_query_heads=8,
        target=Target(cann="9.1.0"),
    )
    assert outcome(rule("KV225"), judged) is NOT_APPLICABLE


@pytest.mark.parametrize("code", ["KV201", "KV202", "KV203", "KV204", "KV210", "KV212", "KV218"])
def test_a_call_with_nothing_known_is_not_reported(code: str) -> None:
    judged = call(V1, anything(), anything(), anything(), opaque=True)
    assert outcome(rule(code), judged) is not VIOLATED
