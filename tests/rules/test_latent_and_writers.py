"""Rules about split rope parts and cache writers on calls built by hand."""

from __future__ import annotations

import pytest
from support.calls import anything, call, either, named, outcome, tensor

from kvlint.contract.call import Call, Use
from kvlint.contract.catalogue import Operator, operators
from kvlint.contract.rule import Outcome, Rule, all_rules, find_rule
from kvlint.contract.tri import Note
from kvlint.contract.values import Content, Tensor

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
RMSNORM = "npu_kv_rmsnorm_rope_cache"
PROLOG = "npu_mla_prolog_v3"

VIOLATED, PROVED = Outcome.VIOLATED, Outcome.PROVED
UNDECIDED, NOT_APPLICABLE = Outcome.UNDECIDED, Outcome.NOT_APPLICABLE

ANY = anything("value")
TABLE = tensor(4, 16, dtype="int32")
Q512 = tensor("tokens", 16, 512)
DROPPED = Use(dropped=True, read={})


def rule(code: str) -> Rule:
    found = find_rule(code)
    assert found is not None
    return found


def mla(query: object = Q512, key: object = ANY, value: object = None, **keywords: object) -> Call:
    keywords = {
        "query_rope": ANY,
        "key_rope": ANY,
        "input_layout": "TND",
        "num_heads": 16,
        "num_key_value_heads": 1,
        "block_table": TABLE,
        "block_size": 128,
        **keywords,
    }
    return call(V1, query, key, key if value is None else value, scale=0.1, **keywords)


def v2(**keywords: object) -> Call:
    keywords = {"query_rope": ANY, "key_rope": ANY, "input_layout": "BSND", "block_table": TABLE, **keywords}
    return call(V2, tensor(4, 1, 32, 512, dtype="int8"), ANY, ANY, num_query_heads=32, **keywords)


def rmsnorm(
    index: object = ANY, rope: object = ANY, nope: object = ANY, kv: object = ANY, **keywords: object
) -> Call:
    keywords = {"cache_mode": "PA", **keywords}
    return call(RMSNORM, kv, ANY, keywords.pop("cos", ANY), ANY, index, rope, nope, **keywords)


def prolog(tokens: object = ANY, latent: object = ANY, rope: object = ANY, **keywords: object) -> Call:
    keywords = {"cache_index": ANY, **keywords}
    head = (tokens, ANY, ANY, ANY, ANY, ANY, ANY, keywords.pop("sin", ANY), ANY, latent, rope)
    return call(PROLOG, *head, **keywords)


def scatter_pa(key: object = ANY, cache: object = ANY, slots: object = ANY, **keywords: object) -> Call:
    return call("npu_scatter_pa_kv_cache", key, key, cache, cache, slots, **keywords)


def reshape(key: object = ANY, cache: object = ANY, slots: object = ANY) -> Call:
    return call("_npu_reshape_and_cache", key, key, cache, cache, slots)


def labelled(label: str) -> Tensor:
    return Tensor(key=label, label=label)


def copied(*shape: int) -> Tensor:
    return Tensor(key="copy", shape=tensor(*shape).shape, copied=Note("cache.clone() is a copy"))


def slots(kind: str, block: int | None = None, dtype: str = "int64") -> Tensor:
    size = tensor(block).shape if block is not None else None
    return tensor(8, dtype=dtype, content=Content(slots=kind, slot_block=size[0] if size else None))


CASES: dict[str, tuple[str, Call, Outcome]] = {
    "query rope alone": ("KV501", mla(key_rope=None), VIOLATED),
    "query rope alone, passed on": ("KV501", mla(query_rope=named("q_pe"), key_rope=None), VIOLATED),
    "both": ("KV501", mla(), PROVED),
    "neither": ("KV501", mla(query_rope=None, key_rope=None), NOT_APPLICABLE),
    "both on one path": ("KV501", mla(query_rope=either("c", ANY), key_rope=either("c", ANY)), PROVED),
    "two different tests": ("KV501", mla(query_rope=ANY, key_rope=either("c", ANY)), VIOLATED),
    "rope by unknown keywords": ("KV501", call(V1, ANY, ANY, ANY, query_rope=ANY, opaque=True), UNDECIDED),
    "32 wide": ("KV502", mla(query_rope=tensor("t", 16, 32)), VIOLATED),
    "64 wide": ("KV502", mla(query_rope=tensor("t", 16, 64), key_rope=tensor(9, 128, 64)), PROVED),
    "64 wide per head": (
        "KV502",
        mla(query_rope=tensor(4, 1, 1024), key_rope=tensor(9, 128, 64), input_layout="BSH"),
        PROVED,
    ),
    "NZ rope cache": (
        "KV502",
        mla(query_rope=tensor("t", 16, 64), key_rope=tensor(9, 1, 4, 128, 16)),
        PROVED,
    ),
    "width by name": ("KV502", mla(query_rope=tensor("t", 16, "dim")), UNDECIDED),
    "rope of another rank": (
        "KV503",
        mla(key=tensor(9, 1, 32, 128, 16), key_rope=tensor(9, 128, 64)),
        VIOLATED,
    ),
    "int8 keys with a float rope part": (
        "KV503",
        mla(
            key=tensor(9, 1, 16, 128, 32),
            key_rope=tensor(9, 1, 4, 128, 16),
            query_rope=tensor("tokens", 16, 64),
        ),
        PROVED,
    ),
    "head dim 192": ("KV504", mla(tensor("t", 16, 192)), VIOLATED),
    "head dim by name": ("KV504", mla(tensor("t", 16, "rank")), UNDECIDED),
    "24 heads": ("KV505", mla(tensor("t", 24, 512), num_heads=24), VIOLATED),
    "KV heads omitted": (
        "KV505",
        call(V1, Q512, ANY, ANY, query_rope=ANY, key_rope=ANY, input_layout="TND", num_heads=16),
        VIOLATED,
    ),
    "one head in all": (
        "KV505",
        call(
            V1, tensor("t", 1, 512), ANY, ANY, query_rope=ANY, key_rope=ANY, input_layout="TND", num_heads=1
        ),
        PROVED,
    ),
    "KV heads of explicit keys": ("KV505", mla(tensor("t", 16, 128), num_key_value_heads=16), NOT_APPLICABLE),
    "value is the key": ("KV506", mla(), PROVED),
    "value of 128": ("KV506", mla(value=tensor(9, 128, 128)), VIOLATED),
    "value by another name": ("KV506", mla(value=anything("v")), UNDECIDED),
    "NSD": ("KV507", mla(input_layout="NSD"), VIOLATED),
    "BNSD_BSND with 128": ("KV507", mla(tensor(4, 16, 8, 128), input_layout="BNSD_BSND"), PROVED),
    "BNSD_BSND with 512": ("KV507", mla(tensor(4, 16, 8, 512), input_layout="BNSD_BSND"), VIOLATED),
    "position bias": ("KV508", mla(pse_shift=tensor(1, 16, 8, 8)), VIOLATED),
    "position bias passed on": ("KV508", mla(pse_shift=named("bias")), UNDECIDED),
    "17 tokens": ("KV509", mla(tensor(4, 17, 16, 512), input_layout="BSND"), VIOLATED),
    "17 tokens in a window": (
        "KV509",
        mla(tensor(4, 17, 16, 512), input_layout="BSND", sparse_mode=4),
        NOT_APPLICABLE,
    ),
    "contiguous keys": ("KV510", mla(block_table=None), VIOLATED),
    "log-sum-exp": ("KV511", mla(softmax_lse_flag=True), VIOLATED),
    "float32 rope": ("KV512", mla(query_rope=tensor("t", 16, 64, dtype="float32")), VIOLATED),
    "float32 rope, nothing else": ("KV512", call(V1, ANY, ANY, ANY, query_rope=ANY, key_rope=ANY), UNDECIDED),
    "int8 without its mode": ("KV513", v2(), VIOLATED),
    "int8 complete": (
        "KV513",
        v2(query_quant_mode=3, dequant_scale_key=ANY, dequant_scale_value=ANY),
        UNDECIDED,
    ),
    "parts exchanged": (
        "KV514",
        mla(key=labelled("rope_cache"), key_rope=labelled("self.nope_cache")),
        VIOLATED,
    ),
    "parts in place": (
        "KV514",
        mla(key=labelled("nope_cache"), key_rope=labelled("rope_cache")),
        NOT_APPLICABLE,
    ),
    "result dropped": ("KV601", call("scatter_update", ANY, ANY, ANY, 1, use=DROPPED), VIOLATED),
    "result used": ("KV601", call("scatter_update", ANY, ANY, ANY, 1, use=Use(dropped=False)), UNDECIDED),
    "write to a copy": (
        "KV602",
        call("scatter_update_", copied(4, 8, 16), ANY, ANY, 1, use=DROPPED),
        VIOLATED,
    ),
    "copy that is the result": (
        "KV602",
        call("scatter_update_", copied(4, 8, 16), ANY, ANY, 1, use=Use(dropped=False)),
        UNDECIDED,
    ),
    "write to a parameter": ("KV602", call("scatter_update_", ANY, ANY, ANY, 1, use=DROPPED), UNDECIDED),
    "int64 for reshape_and_cache": ("KV603", reshape(slots=slots("token")), VIOLATED),
    "int32 for rmsnorm": ("KV603", rmsnorm(tensor(8, dtype="int32")), VIOLATED),
    "int64 for rmsnorm": ("KV603", rmsnorm(tensor(8, dtype="int64")), PROVED),
    "int32 for the prolog": ("KV603", prolog(cache_index=tensor(8, dtype="int32")), VIOLATED),
    "float for scatter": (
        "KV603",
        call("scatter_update_", ANY, tensor(8, dtype="float32"), ANY, 1),
        VIOLATED,
    ),
    "token slots by block": ("KV604", rmsnorm(slots("token"), cache_mode="PA_BLK_NZ"), VIOLATED),
    "block slots by block": ("KV604", rmsnorm(slots("block"), cache_mode="PA_BLK_NZ"), UNDECIDED),
    "token slots by token": ("KV604", rmsnorm(slots("token")), NOT_APPLICABLE),
    "token slots, mode on one path": (
        "KV604",
        rmsnorm(slots("token"), cache_mode=either("nz", "PA_BLK_NZ", "PA")),
        VIOLATED,
    ),
    "unknown mode": ("KV605", rmsnorm(cache_mode="PA_BSND"), VIOLATED),
    "prolog mode": ("KV605", prolog(cache_mode="PA_BSND"), PROVED),
    "ND cache, NZ mode": ("KV606", scatter_pa(cache=tensor(64, 128, 8, 128)), VIOLATED),
    "ND cache by name": ("KV606", scatter_pa(cache=tensor("blocks", "block", "heads", "dim")), VIOLATED),
    "tile by name": ("KV606", scatter_pa(cache=tensor("blocks", "tiles", "block", "tile")), UNDECIDED),
    "NZ cache": ("KV606", scatter_pa(cache=tensor(64, 64, 128, 16)), UNDECIDED),
    "ND cache, Norm": ("KV606", scatter_pa(cache=tensor(64, 128, 8, 128), cache_mode="Norm"), NOT_APPLICABLE),
    "rows without heads": ("KV607", scatter_pa(tensor(8, 128)), VIOLATED),
    "pairs": ("KV607", scatter_pa(tensor(8, 1, 128), slots=slots("pairs")), VIOLATED),
    "caches exchanged": ("KV608", rmsnorm(rope=tensor(9, 128, 1, 512), nope=tensor(9, 128, 1, 64)), VIOLATED),
    "caches in place": ("KV608", rmsnorm(rope=tensor(9, 128, 1, 64), nope=tensor(9, 128, 1, 512)), PROVED),
    "caches exchanged by name": (
        "KV608",
        rmsnorm(rope=labelled("ckv_cache"), nope=labelled("k_pe_cache")),
        VIOLATED,
    ),
    "caches exchanged, with v": (
        "KV608",
        rmsnorm(rope=tensor(9, 128, 1, 512), nope=tensor(9, 128, 1, 64), v=tensor(4, 1, 1, 128)),
        NOT_APPLICABLE,
    ),
    "prolog caches exchanged": (
        "KV608",
        prolog(latent=tensor(9, 128, 1, 64), rope=tensor(9, 128, 1, 512)),
        VIOLATED,
    ),
    "sizes along another axis": (
        "KV610",
        call("scatter_update_", tensor(8, 4096, 64), ANY, tensor(8, 1, 64), 2),
        VIOLATED,
    ),
    "axis of heads": (
        "KV610",
        call("scatter_update_", tensor("batch", "max_len", "kv_heads", "dim"), ANY, ANY, -2),
        VIOLATED,
    ),
    "axis of the length": (
        "KV610",
        call("scatter_update_", tensor("batch", "kv_heads", "max_len", "dim"), ANY, ANY, -2),
        UNDECIDED,
    ),
    "ranks differ": ("KV611", call("scatter_update_", tensor(8, 4096, 64), ANY, tensor(8, 64), 1), VIOLATED),
    "flat indices": ("KV611", call("npu_scatter_nd_update_", ANY, tensor(8), ANY), VIOLATED),
    "coordinates": (
        "KV611",
        call("npu_scatter_nd_update_", tensor(64, 8, 16), tensor(4, 2), tensor(4, 16)),
        UNDECIDED,
    ),
    "flat slots with Norm": ("KV612", rmsnorm(tensor(8), cache_mode="Norm"), VIOLATED),
    "result not filled": (
        "KV613",
        call(RMSNORM, ANY, ANY, ANY, ANY, ANY, ANY, ANY, cache_mode="PA", use=Use(touched={2: None})),  # type: ignore[dict-item]
        VIOLATED,
    ),
    "result asked for": (
        "KV613",
        call(
            RMSNORM,
            ANY,
            ANY,
            ANY,
            ANY,
            ANY,
            ANY,
            ANY,
            cache_mode="PA",
            is_output_kv=True,
            use=Use(touched={2: None}),
        ),  # type: ignore[dict-item]
        PROVED,
    ),
    "quant scatter alone": ("KV614", call("npu_quant_scatter_", ANY, ANY, ANY, ANY), VIOLATED),
    "quant scatter on axis 0": (
        "KV615",
        call("npu_quant_scatter_", tensor(4, 8, 64), ANY, ANY, ANY, axis=0),
        VIOLATED,
    ),
    "Norm with pages": ("KV617", rmsnorm(rope=tensor(9, 128, 1, 64), cache_mode="Norm"), VIOLATED),
    "Norm with rows": ("KV617", rmsnorm(rope=tensor(9, 1, 128, 64), cache_mode="Norm"), NOT_APPLICABLE),
    "PA with rows": ("KV617", rmsnorm(rope=tensor(9, 1, 128, 64)), VIOLATED),
    "blocks of 256 in a cache of 128": (
        "KV618",
        reshape(cache=tensor(64, 128, 8, 64), slots=slots("token", 256, "int32")),
        VIOLATED,
    ),
    "kv of 640": ("KV619", rmsnorm(kv=tensor(4, 1, 1, 640)), VIOLATED),
    "kv of 640 with v": ("KV619", rmsnorm(kv=tensor(4, 1, 1, 192), v=tensor(4, 1, 1, 128)), UNDECIDED),
    "rows of another width": ("KV620", reshape(tensor(4, 8, 64), tensor(9, 128, 8, 128)), VIOLATED),
    "more slots than rows": ("KV620", reshape(tensor(4, 8, 64), slots=tensor(8, dtype="int32")), VIOLATED),
    "prolog without slots": ("KV622", prolog(cache_index=None), VIOLATED),
    "prolog with slots in BSND": ("KV622", prolog(cache_index=tensor(4), cache_mode="BSND"), VIOLATED),
    "hidden size 5000": ("KV623", prolog(tensor(4, 5000)), VIOLATED),
    "int8 cache under float weights": ("KV623", prolog(kv_cache_quant_mode=1), VIOLATED),
    "mode of Ascend 950": ("KV623", prolog(weight_quant_mode=3), UNDECIDED),
    "swapped memory": ("KV624", reshape(cache=tensor(9, 128, 8, 64, device="host-swapped")), VIOLATED),
    "neox": ("KV627", call("npu_rotary_mul", ANY, ANY, ANY, rotary_mode="neox"), VIOLATED),
    "128 wide rope": ("KV627", call("npu_interleave_rope", tensor(1, 8, 1, 128), ANY, ANY), VIOLATED),
}


@pytest.mark.parametrize(("code", "judged", "expected"), CASES.values(), ids=CASES.keys())
def test_case(code: str, judged: Call, expected: Outcome) -> None:
    assert outcome(rule(code), judged) is expected


# These judge the call itself, or what it leaves out.
ABOUT_THE_CALL = {"KV621"}


@pytest.mark.parametrize(
    "operator", [pytest.param(operator, id=operator.full_name) for operator in operators()]
)
def test_a_call_with_nothing_known_is_not_reported(operator: Operator) -> None:
    required = [
        anything(param.name) for param in operator.params if param.required and param.position is not None
    ]
    keywords = {
        param.name: anything(param.name)
        for param in operator.params
        if param.required and param.position is None
    }
    judged = call(operator.full_name, *required, opaque=True, **keywords)
    found = [
        item.code
        for item in all_rules()
        if item.code[:3] in ("KV4", "KV5", "KV6")
        and item.code not in ABOUT_THE_CALL
        and item.applies_to(operator)
        and outcome(item, judged) is VIOLATED
    ]
    assert found == []
