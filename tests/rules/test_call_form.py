"""Call-form rules on calls built by hand: what is known decides, what is unknown does not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from support.calls import anything, call, either, named, number, outcome, outcomes, size, tensor

from kvlint.contract.call import Call, Target, Use
from kvlint.contract.num import Num
from kvlint.contract.paths import Cond
from kvlint.contract.rule import Outcome, Rule, find_rule, judge
from kvlint.contract.values import Choice, Const, Unknown

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
PFA = "npu_prompt_flash_attention"
IFA = "npu_incre_flash_attention"
FUSION = "npu_fusion_attention"
FUSION2 = "npu_fusion_attention_v2"
SPARSE = "npu_sparse_flash_attention"
PAGED = "_npu_paged_attention"

VIOLATED, PROVED = Outcome.VIOLATED, Outcome.PROVED
UNDECIDED, NOT_APPLICABLE = Outcome.UNDECIDED, Outcome.NOT_APPLICABLE

HEADS, KV, DIM, RANKS = size("heads"), size("kv_heads"), size("dim"), size("ranks")
assert HEADS is not None and KV is not None and DIM is not None and RANKS is not None

Q = tensor(2, 32, 16, 128, dtype="float16")
K = tensor(2, 8, 16, 128, dtype="float16")
ONE = tensor(2, 32, 1, 128, dtype="float16")
FLAT = tensor(2, 16, 4096, dtype="float16")
CACHE = tensor(64, 128, 1024, dtype="float16")
TABLE = tensor(2, 8, dtype="int32")
NEW = Target(cann="9.1.0")
OLD = Target(cann="8.0.0")
X = anything()


def rule(code: str) -> Rule:
    found = find_rule(code)
    assert found is not None
    return found


def v1(*tensors: object, layout: str = "BNSD", target: Target | None = None, **keywords: object) -> Call:
    return call(V1, *(tensors or (Q, K, K)), input_layout=layout, target=target, **keywords)


def mla(scale: object, query: object = tensor(2, 1, 16, 512), **keywords: object) -> Call:
    rope = tensor(2, 1, 16, 64)
    value = keywords.pop("value", X)
    return v1(query, X, value, layout="BSND", query_rope=rope, key_rope=X, scale=scale, **keywords)


def folded(width: Num, heads: object) -> Call:
    count = named(heads) if isinstance(heads, str) else heads
    return v1(tensor(2, 16, width), X, X, layout="BSH", num_heads=count)


def root(value: Num) -> object:
    return number(value.power(-0.5))


def fallback(kind: str, missing: object) -> Choice:
    given = Unknown("scale", "scale", "it is a parameter", declared=True)
    cond = Cond(kind, "scale")
    return Choice(cond, Const(missing), given) if kind == "none" else Choice(cond, given, Const(missing))


def divided(left: Num, right: Num) -> Num:
    result = left.divide(right)
    assert result is not None
    return result


CASES: dict[str, tuple[str, Call, Outcome]] = {
    "scale omitted": ("KV101", v1(), VIOLATED),
    "scale given": ("KV101", v1(scale=X), PROVED),
    "scale on one path": ("KV101", v1(scale=either("c", 0.1)), VIOLATED),
    "scale may be in the keywords": ("KV101", v1(opaque=True), UNDECIDED),
    "scale of a required parameter": ("KV101", call(PAGED, *[X] * 9), NOT_APPLICABLE),
    "scale of a workspace query": (
        "KV101",
        call("_npu_paged_attention_get_workspace", *[X] * 9),
        NOT_APPLICABLE,
    ),
    "v1 name in v2": ("KV102", call(V2, Q, K, K, num_heads=8), VIOLATED),
    "v1 name in v2 on one path": ("KV102", call(V2, Q, K, K, num_heads=either("c", 8)), VIOLATED),
    "own names": ("KV102", call(V2, Q, K, K, num_query_heads=8), NOT_APPLICABLE),
    "heads omitted": ("KV103", v1(), VIOLATED),
    "heads omitted for one head": ("KV103", v1(tensor(2, 1, 16, 64), X, X), PROVED),
    "no heads": ("KV103", v1(num_heads=0), VIOLATED),
    "named heads": ("KV103", v1(num_heads=named("heads")), PROVED),
    "KV heads omitted, grouped": ("KV104", v1(num_heads=32), VIOLATED),
    "KV heads omitted, multi-head": ("KV104", v1(Q, Q, Q, num_heads=32), PROVED),
    "KV heads omitted, same name": (
        "KV104",
        v1(tensor(2, "heads", 16, 64), tensor(2, "heads", 16, 64), X, num_heads=named("heads")),
        PROVED,
    ),
    "KV heads omitted, two names": (
        "KV104",
        v1(X, tensor(2, "kv_heads", 16, 64), X, num_heads=named("heads")),
        VIOLATED,
    ),
    "KV heads omitted, query has the same name": (
        "KV104",
        v1(tensor(2, "local", 16, 64), tensor(2, "local", 16, 64), X, num_heads=named("heads")),
        PROVED,
    ),
    "KV heads omitted, one head of key": (
        "KV104",
        v1(X, tensor(2, 1, 16, 64), X, num_heads=named("heads")),
        VIOLATED,
    ),
    "KV heads omitted, unknown key": ("KV104", v1(Q, X, X, num_heads=32), UNDECIDED),
    "KV heads omitted, folded": (
        "KV104",
        v1(FLAT, tensor(2, 16, 1024), X, layout="BSH", num_heads=32),
        VIOLATED,
    ),
    "KV heads omitted, folded by names": (
        "KV104",
        v1(tensor(2, 16, HEADS * DIM), tensor(2, 16, KV * DIM), X, layout="BSH", num_heads=named("heads")),
        VIOLATED,
    ),
    "KV heads omitted, two names for one width": (
        "KV104",
        v1(tensor(2, 16, "hidden"), tensor(2, 16, "width"), X, layout="BSH", num_heads=named("heads")),
        UNDECIDED,
    ),
    "KV heads omitted, packed": ("KV104", v1(tensor(9, 32, 128), X, X, layout="TND"), NOT_APPLICABLE),
    "KV heads omitted, packed over a 3-D cache": (
        "KV104",
        v1(tensor(9, 32, 128), CACHE, CACHE, layout="TND", num_heads=32, block_table=TABLE),
        VIOLATED,
    ),
    "KV heads given as unknown": ("KV104", v1(num_heads=32, num_key_value_heads=X), NOT_APPLICABLE),
    "heads of another size": ("KV105", v1(num_heads=16), VIOLATED),
    "heads of the axis": ("KV105", v1(num_heads=32), PROVED),
    "heads split over ranks": (
        "KV105",
        v1(tensor(2, divided(HEADS, RANKS), 16, 64), X, X, num_heads=named("heads")),
        VIOLATED,
    ),
    "heads under another name": (
        "KV105",
        v1(tensor(2, "local", 16, 64), X, X, num_heads=named("heads")),
        UNDECIDED,
    ),
    "heads folded": ("KV105", v1(FLAT, X, X, layout="BSH", num_heads=3), NOT_APPLICABLE),
    "KV heads of another size": ("KV106", v1(num_heads=32, num_key_value_heads=32), VIOLATED),
    "KV heads of the axis": ("KV106", v1(num_heads=32, num_key_value_heads=8), PROVED),
    "KV heads of a cache": (
        "KV106",
        v1(num_heads=32, num_key_value_heads=4, block_table=TABLE),
        NOT_APPLICABLE,
    ),
    "falls back to one": ("KV107", v1(scale=fallback("none", 1.0)), VIOLATED),
    "or one": ("KV107", v1(scale=fallback("truth", 1)), VIOLATED),
    "falls back to another": ("KV107", v1(scale=fallback("none", 0.1)), NOT_APPLICABLE),
    "one by another test": ("KV107", v1(scale=either("normed", 1.0, X)), NOT_APPLICABLE),
    "scale of one head": ("KV108", v1(scale=128**-0.5, num_heads=32), PROVED),
    "scale of the heads twice": ("KV108", v1(scale=4**-0.5, num_heads=32), VIOLATED),
    "scale of a model": ("KV108", v1(scale=144**-0.5, num_heads=32), UNDECIDED),
    "scale of the hidden size": (
        "KV108",
        v1(tensor(2, 16, HEADS * DIM), X, X, layout="BSH", num_heads=named("heads"), scale=root(HEADS * DIM)),
        VIOLATED,
    ),
    "scale of a sum": (
        "KV108",
        v1(tensor(2, 8, 16, DIM + RANKS), X, X, num_heads=8, scale=root(DIM + RANKS)),
        PROVED,
    ),
    "scale with rope parts": ("KV108", mla(0.1), NOT_APPLICABLE),
    "absorbed and rope": ("KV109", mla(576**-0.5), VIOLATED),
    "absorbed": ("KV109", mla(512**-0.5), VIOLATED),
    "model of DeepSeek": ("KV109", mla(192**-0.5), UNDECIDED),
    "nope only": ("KV109", mla(128**-0.5, tensor(2, 16, 8, 128)), VIOLATED),
    "nope and rope, not absorbed": (
        "KV109",
        mla(root(DIM + Num.of(64)), tensor(2, 16, 8, "dim"), value=anything()),
        UNDECIDED,
    ),
    "sparse attention by the absorbed width": (
        "KV109",
        call(SPARSE, tensor(9, 16, 512), X, X, X, 576**-0.5),
        VIOLATED,
    ),
    "four positional": ("KV111", v1(Q, K, K, X), VIOLATED),
    "three positional": ("KV111", v1(), PROVED),
    "given twice": ("KV111", call(FUSION, Q, K, K, 8, "BNSD", head_num=8), VIOLATED),
    "head_num omitted": ("KV112", call(FUSION, Q, K, K, input_layout="BNSD"), VIOLATED),
    "head_num may be in the keywords": ("KV112", call(FUSION, Q, K, K, opaque=True), UNDECIDED),
    "float for an int": ("KV113", v1(num_heads=8.0), VIOLATED),
    "bool for an int": ("KV113", v1(sparse_mode=True), PROVED),
    "int for a bool": ("KV113", v1(softmax_lse_flag=1), PROVED),
    "int for a float": ("KV113", v1(scale=1), PROVED),
    "tensor for a float": ("KV113", v1(scale=tensor(1)), PROVED),
    "string for a float": ("KV113", v1(scale="0.1"), VIOLATED),
    "None for a float": ("KV113", v1(scale=None), VIOLATED),
    "None for a float on one path": ("KV113", v1(scale=either("c", None, 0.1)), UNDECIDED),
    "None for an optional tensor": ("KV113", v1(block_table=None), PROVED),
    "list for a tensor": ("KV113", v1(block_table=[0, 1]), VIOLATED),
    "list for key": ("KV113", v1(Q, [K], K), VIOLATED),
    "int for a list": ("KV113", v1(actual_seq_lengths_kv=16), VIOLATED),
    "floats for lengths": ("KV113", v1(actual_seq_lengths_kv=[16.0]), VIOLATED),
    "tensor for lengths": ("KV113", v1(actual_seq_lengths_kv=tensor(2, dtype="int64")), PROVED),
    "arithmetic for a tensor": ("KV113", v1(number(HEADS), K, K), UNDECIDED),
    "strided key": ("KV114", v1(Q, tensor(2, 8, 16, 128, strided=True), K), VIOLATED),
    "strided key on one path": (
        "KV114",
        v1(Q, either("c", tensor(strided=True), K), K),
        UNDECIDED,
    ),
    "strided query": ("KV114", v1(tensor(strided=True), K, K, query_rope=None), UNDECIDED),
    "lower case": ("KV115", v1(layout="bnsd"), VIOLATED),
    "training layout": ("KV115", v1(layout="SBH"), VIOLATED),
    "known layout": ("KV115", v1(layout="TND_NTD"), PROVED),
    "unknown layout": ("KV115", call(V1, Q, K, K, input_layout=X), UNDECIDED),
    "four axes for the default": ("KV116", call(V1, Q, X, X), VIOLATED),
    "layout by the same test as the shape": (
        "KV116",
        call(
            V1,
            either("packed", tensor(64, 8, 128), Q),
            either("packed", tensor(64, 8, 128), Q),
            either("packed", tensor(64, 8, 128), Q),
            input_layout=either("packed", "TND", "BNSD"),
        ),
        PROVED,
    ),
    "layout by another test than the shape": (
        "KV116",
        call(V1, either("packed", tensor(64, 8, 128), Q), X, X, input_layout=either("long", "TND", "BNSD")),
        UNDECIDED,
    ),
    "rank of a paged cache": ("KV116", v1(Q, CACHE, CACHE, block_table=TABLE), PROVED),
    "packed output first without MLA": ("KV117", v1(layout="TND_NTD"), VIOLATED),
    "packed output first, unknown rope": (
        "KV117",
        v1(X, X, X, layout="TND_NTD", query_rope=X),
        UNDECIDED,
    ),
    "one token transposed": ("KV117", v1(ONE, K, K, layout="BNSD_BSND"), VIOLATED),
    "packed heads first on an old stack": ("KV117", v1(layout="NTD", target=OLD), VIOLATED),
    "packed heads first on any stack": ("KV117", v1(layout="NTD"), NOT_APPLICABLE),
    "packed heads first on a new stack": ("KV117", v1(layout="NTD", target=NEW), PROVED),
    "uneven groups": ("KV118", v1(num_heads=8, num_key_value_heads=3), VIOLATED),
    "large groups": ("KV118", v1(num_heads=128, num_key_value_heads=1), VIOLATED),
    "large groups of MLA": ("KV118", mla(0.1, num_heads=128, num_key_value_heads=1), NOT_APPLICABLE),
    "groups of unknown heads": ("KV118", v1(num_heads=X, num_key_value_heads=3), UNDECIDED),
    "exchanged by name": (
        "KV119",
        call(PAGED, X, X, X, named("self.num_heads"), named("self.num_kv_heads"), X, X, X, X),
        VIOLATED,
    ),
    "one KV head": ("KV119", call(PAGED, X, X, X, 1, named("self.num_heads"), X, X, X, X), PROVED),
    "equal counts": (
        "KV119",
        call(PAGED, X, X, X, named("self.num_heads"), named("self.num_heads"), X, X, X, X),
        PROVED,
    ),
    "in order by name": (
        "KV119",
        call(PAGED, X, X, X, named("self.num_kv_heads"), named("self.num_heads"), X, X, X, X),
        UNDECIDED,
    ),
    "scale from before the padding": (
        "KV110",
        v1(replace(tensor(2, 8, 16, 128), padding=Num.of(48)), X, X, scale=80**-0.5),
        PROVED,
    ),
    "scale of the padded size": (
        "KV110",
        v1(replace(tensor(2, 8, 16, 128), padding=Num.of(48)), X, X, scale=128**-0.5),
        VIOLATED,
    ),
    "width of other heads": ("KV120", v1(FLAT, X, X, layout="BSH", num_heads=12), VIOLATED),
    "width written as a product": ("KV120", folded(HEADS * DIM, "heads"), PROVED),
    "width of several times the heads": ("KV120", folded(HEADS * size(2), "heads"), PROVED),
    "width of a quotient": ("KV120", folded(DIM, number(DIM * Num.of(Fraction(1, 128)))), UNDECIDED),
    "width of another name": ("KV120", folded(DIM, "heads"), UNDECIDED),
    "width of the heads": ("KV120", v1(FLAT, X, X, layout="BSH", num_heads=32), PROVED),
    "head dim 72": ("KV121", v1(tensor(2, 8, 16, 72), X, X, num_heads=8), VIOLATED),
    "head dim 72 in decode": ("KV121", v1(tensor(2, 8, 1, 72), X, X, num_heads=8), PROVED),
    "head dim over 512": ("KV121", v1(FLAT, X, X, layout="BSH", num_heads=4), VIOLATED),
    "packed head dim 80": ("KV122", v1(tensor(9, 8, 80), X, X, layout="TND"), VIOLATED),
    "packed head dim 80 on a new stack": (
        "KV122",
        v1(tensor(9, 8, 80), X, X, layout="TND", target=NEW),
        NOT_APPLICABLE,
    ),
    "packed head dims 192 and 128": (
        "KV122",
        v1(tensor(9, 8, 192), tensor(9, 8, 192), tensor(9, 8, 128), layout="TND"),
        PROVED,
    ),
    "narrow value": ("KV123", v1(Q, K, tensor(2, 8, 16, 64), num_heads=32, num_key_value_heads=8), VIOLATED),
    "head dims by name": (
        "KV123",
        v1(tensor(2, 8, 16, "dim"), X, tensor(2, 8, 16, "v_dim"), num_heads=8, num_key_value_heads=8),
        UNDECIDED,
    ),
    "value of another length": ("KV124", v1(Q, K, tensor(2, 8, 32, 128)), VIOLATED),
    "same tensor": ("KV124", v1(), NOT_APPLICABLE),
    "one tensor for key and value": ("KV125", v1(Q, X, X), UNDECIDED),
    "one tensor for all": ("KV125", v1(X, X, X), PROVED),
    "key of another float": ("KV125", v1(Q, tensor(2, 8, 16, 128, dtype="bfloat16"), X), VIOLATED),
    "int8 key": ("KV125", v1(Q, tensor(dtype="int8"), tensor(dtype="int8")), PROVED),
    "float32": ("KV126", v1(tensor(dtype="float32"), X, X), VIOLATED),
    "key for one sequence": ("KV127", v1(Q, tensor(1, 8, 16, 128), X), VIOLATED),
    "key of a cache": ("KV127", v1(Q, CACHE, CACHE, block_table=TABLE), NOT_APPLICABLE),
    "many sequences": ("KV128", v1(tensor(70000, 8, 1, 128), X, X), VIOLATED),
    "seven results": ("KV131", call(FUSION, Q, K, K, 8, "BNSD", use=Use(unpacked=7)), PROVED),
    "four results": ("KV131", call(FUSION, Q, K, K, 8, "BNSD", use=Use(unpacked=4)), VIOLATED),
    "one tensor in two names": ("KV131", call(PFA, Q, K, K, use=Use(unpacked=2)), VIOLATED),
    "not unpacked": ("KV131", v1(), NOT_APPLICABLE),
    "statement": ("KV132", call(PAGED, *[X] * 9, use=Use(dropped=True)), PROVED),
    "passed on": ("KV132", call(PAGED, *[X] * 9, use=Use(dropped=False)), UNDECIDED),
    "buffer like query": (
        "KV133",
        call(
            f"{V1}.out",
            tensor(9, 8, 192),
            tensor(9, 8, 192),
            tensor(9, 8, 128),
            input_layout="TND",
            out=[tensor(9, 8, 192), tensor(1)],
        ),
        VIOLATED,
    ),
    "buffer of the wrong dtype": (
        "KV133",
        call(f"{V1}.out", Q, Q, Q, input_layout="BNSD", out=[tensor(dtype="float32"), tensor(1)]),
        VIOLATED,
    ),
    "dropout as keep_prob": (
        "KV134",
        call(FUSION, Q, K, K, 8, "BNSD", keep_prob=named("self.attention_dropout")),
        VIOLATED,
    ),
    "keep_prob": ("KV134", call(FUSION, Q, K, K, 8, "BNSD", keep_prob=named("keep")), UNDECIDED),
    "keep_prob of zero": ("KV134", call(FUSION, Q, K, K, 8, "BNSD", keep_prob=0), VIOLATED),
    "pse_type without pse": ("KV135", call(FUSION2, Q, K, K, 8, "BNSD", pse_type=0), VIOLATED),
    "pse_type with pse": ("KV135", call(FUSION2, Q, K, K, 8, "BNSD", pse_type=0, pse=X), PROVED),
    "rope parts unpacked": (
        "KV136",
        call(FUSION2, Q, K, K, 8, "BNSD", query_rope=Q, key_rope=K, atten_mask=X),
        VIOLATED,
    ),
    "rope parts on a new stack": (
        "KV136",
        call(FUSION2, Q, K, K, 8, "BNSD", query_rope=Q, key_rope=K, target=NEW),
        NOT_APPLICABLE,
    ),
    "several tokens": ("KV137", call(IFA, Q, K, K, input_layout="BNSD"), VIOLATED),
    "one token": ("KV137", call(IFA, ONE, K, K, input_layout="BNSD"), PROVED),
    "split fuse on a server card": (
        "KV139",
        call(
            "_npu_paged_attention_splitfuse_v2",
            *[X] * 10,
            out=X,
            target=Target(soc="A2"),
        ),
        VIOLATED,
    ),
    "row correction in decode": ("KV141", v1(ONE, K, K, inner_precise=2), VIOLATED),
    "row correction in prefill": ("KV141", v1(inner_precise=2), PROVED),
    "row correction, unknown phase": ("KV141", v1(X, X, X, inner_precise=2), UNDECIDED),
    "bias in a packed layout": ("KV143", v1(layout="TND", pse_shift=tensor(1, 8, 9, 9)), VIOLATED),
    "bias that may be None": ("KV143", v1(layout="TND", pse_shift=X), UNDECIDED),
    "bias of few heads": ("KV144", v1(num_heads=32, pse_shift=tensor(1, 8, 16, 16)), VIOLATED),
    "half a prefix": ("KV145", v1(key_shared_prefix=K), VIOLATED),
    "prefix over pages": (
        "KV146",
        v1(key_shared_prefix=K, value_shared_prefix=K, block_table=TABLE),
        VIOLATED,
    ),
    "padding without lengths": ("KV147", v1(kv_padding_size=tensor(1, dtype="int64")), VIOLATED),
    "padding with lengths": (
        "KV147",
        v1(kv_padding_size=tensor(1, dtype="int64"), actual_seq_lengths_kv=[16, 16]),
        PROVED,
    ),
    "reserved": ("KV148", v1(key_rope_antiquant_scale=tensor(1)), VIOLATED),
    "rope parts on an old stack": ("KV149", v1(query_rope=Q, key_rope=K, target=OLD), VIOLATED),
    "rope parts on a new enough stack": ("KV149", v1(query_rope=Q, key_rope=K, target=NEW), PROVED),
    "no value on a new stack": (
        "KV149",
        call(SPARSE, Q, K, None, X, 0.1, target=Target(cann="9.2.0")),
        NOT_APPLICABLE,
    ),
}


@pytest.mark.parametrize(("code", "judged", "wanted"), CASES.values(), ids=CASES.keys())
def test_outcome(code: str, judged: Call, wanted: Outcome) -> None:
    found = rule(code)
    assert found.applies_to(judged.operator) or wanted is NOT_APPLICABLE
    assert outcome(found, judged) is wanted


def test_each_wrong_keyword_is_named_with_its_meaning_here() -> None:
    judged = call(V2, Q, K, K, num_heads=8, scale=0.1, actual_seq_lengths_kv=[1], block_tables=X)
    messages = [verdict.message for verdict in judge(rule("KV102"), judged)]
    for name in ("num_query_heads", "softmax_scale", "actual_seq_kvlen", "block_table"):
        assert any(message.endswith(f"here it is {name}") for message in messages), name


def test_keyword_of_another_release_is_not_judged_without_a_target() -> None:
    judged = call(FUSION, Q, K, K, 8, "BNSD", sink=X, target=Target(torch_npu="2.1.0"))
    assert outcome(rule("KV102"), judged) is VIOLATED
    assert outcome(rule("KV102"), call(FUSION, Q, K, K, 8, "BNSD", sink=X)) is NOT_APPLICABLE


def test_violation_says_on_which_path() -> None:
    (verdict,) = judge(rule("KV101"), v1(scale=either("scaled", 0.1)))
    assert [note.text for note in verdict.when] == ["not (scaled)"]


def test_every_argument_is_judged_apart() -> None:
    found = outcomes(rule("KV113"), v1(num_heads=8.0, scale="x"))
    assert found.count(VIOLATED) == 2
