"""Quantisation and sink rules on calls built by hand: what is known decides, what is unknown does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.calls import anything, call, either, outcome, tensor

from kvlint.contract.call import Call, Target
from kvlint.contract.rule import Outcome, find_rule

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
PFA = "npu_prompt_flash_attention"
IFA = "npu_incre_flash_attention"
FUSION = "npu_fusion_attention"

VIOLATED, PROVED = Outcome.VIOLATED, Outcome.PROVED
UNDECIDED, NOT_APPLICABLE = Outcome.UNDECIDED, Outcome.NOT_APPLICABLE

HALF = tensor(2, 8, 16, 128, dtype="float16")
BRAIN = tensor(2, 8, 16, 128, dtype="bfloat16")
ONE = tensor(2, 8, 1, 128, dtype="float16")
INT8 = tensor(2, 8, 16, 128, dtype="int8")
INT4 = tensor(2, 8, 16, 16, dtype="int32")
PAGES = tensor(64, 128, 1024, dtype="int8")
NZ = tensor(64, 8, 4, 128, 32, dtype="int8")
TABLE = tensor(2, 8, dtype="int32")
FLOATING = replace(tensor(2, 8, 16, 80), dtypes=("float16", "bfloat16"))
SCALE = tensor(1, dtype="float32")
SINK = tensor(8, dtype="bfloat16")
NEW = Target(cann="9.0.0")
A3, A5 = Target(soc="A3"), Target(soc="950")
X = anything()


def v1(*tensors: object, layout: str = "BNSD", target: Target | None = None, **keywords: object) -> Call:
    return call(V1, *(tensors or (HALF, X, X)), input_layout=layout, num_heads=8, target=target, **keywords)


def v2(*tensors: object, layout: str = "BNSD", target: Target | None = None, **keywords: object) -> Call:
    return call(
        V2, *(tensors or (HALF, X, X)), input_layout=layout, num_query_heads=8, target=target, **keywords
    )


def split(*tensors: object, key: object = SCALE, value: object = SCALE, **keywords: object) -> Call:
    return v1(*tensors, key_antiquant_scale=key, value_antiquant_scale=value, **keywords)


CASES: dict[str, tuple[str, Call, Outcome]] = {
    "sink unpacked": ("KV801", v2(learnable_sink=SINK), VIOLATED),
    "sink packed": ("KV801", v2(layout="TND", learnable_sink=SINK), PROVED),
    "sink packed on the same path": (
        "KV801",
        call(V2, X, X, X, learnable_sink=either("p", SINK), input_layout=either("p", "TND", "BSH")),
        PROVED,
    ),
    "sink that may be None": ("KV801", v2(learnable_sink=X), UNDECIDED),
    "float32 sink": ("KV802", v2(layout="TND", learnable_sink=tensor(8, dtype="float32")), VIOLATED),
    "float32 sink in training": (
        "KV802",
        call(FUSION, HALF, X, X, 8, "BNSD", sink=tensor(8, dtype="float32")),
        PROVED,
    ),
    "sink of other heads": ("KV802", v2(learnable_sink=tensor(64, dtype="bfloat16")), VIOLATED),
    "sink for head dim 96": (
        "KV802",
        v2(tensor(9, 8, 96), X, X, layout="TND", learnable_sink=SINK),
        VIOLATED,
    ),
    "sink and bias": ("KV803", v2(learnable_sink=SINK, pse_shift=tensor(1, 8, 16, 16)), VIOLATED),
    "sink and a bias that may be None": ("KV803", v2(learnable_sink=SINK, pse_shift=X), UNDECIDED),
    "int8 query without scales": ("KV804", v1(INT8, INT8, INT8), VIOLATED),
    "int8 query with scales": (
        "KV804",
        v1(INT8, INT8, INT8, dequant_scale1=SCALE, quant_scale1=SCALE, dequant_scale2=SCALE),
        PROVED,
    ),
    "int8 query with scales that may be None": (
        "KV804",
        v1(INT8, INT8, INT8, dequant_scale1=X, quant_scale1=X, dequant_scale2=X),
        UNDECIDED,
    ),
    "int8 query in v2": ("KV804", v2(INT8, INT8, INT8), VIOLATED),
    "unknown query": ("KV804", v1(X, X, X), UNDECIDED),
    "scales on a float query": ("KV805", v1(dequant_scale1=SCALE), VIOLATED),
    "scales on an int8 query": ("KV805", v1(INT8, X, X, dequant_scale1=SCALE), NOT_APPLICABLE),
    "int8 keys without a scale": ("KV806", v1(HALF, INT8, INT8), VIOLATED),
    "int8 keys with scales": ("KV806", split(HALF, INT8, INT8), PROVED),
    "int8 keys with a scale that may be None": ("KV806", split(HALF, INT8, INT8, key=X, value=X), UNDECIDED),
    "unknown keys with scales": ("KV806", split(HALF, X, X), PROVED),
    "unknown keys without a scale": ("KV806", v1(HALF, X, X), UNDECIDED),
    "merged scale under bfloat16": ("KV806", v1(BRAIN, INT8, INT8, antiquant_scale=SCALE), VIOLATED),
    "merged scale under float16": ("KV806", v1(HALF, INT8, INT8, antiquant_scale=SCALE), PROVED),
    "scale for float keys": ("KV807", split(HALF, HALF, HALF), VIOLATED),
    "scale that may be None for float keys": ("KV807", split(HALF, HALF, HALF, key=X, value=X), UNDECIDED),
    "scale of key alone": ("KV808", v1(key_antiquant_scale=SCALE), VIOLATED),
    "scales on the same path": (
        "KV808",
        split(key=either("q", SCALE), value=either("q", SCALE)),
        PROVED,
    ),
    "scales on other paths": (
        "KV808",
        split(key=either("q", SCALE), value=either("r", SCALE)),
        UNDECIDED,
    ),
    "one mode": ("KV809", split(ONE, PAGES, PAGES, key_antiquant_mode=1), VIOLATED),
    "mode pair of channel and token": (
        "KV809",
        split(ONE, INT8, INT8, value_antiquant_mode=1, target=A3),
        PROVED,
    ),
    "paged modes without pages": (
        "KV809",
        split(ONE, INT8, INT8, key_antiquant_mode=4, value_antiquant_mode=4),
        VIOLATED,
    ),
    "int8 output packed": ("KV810", v1(tensor(9, 8, 128), X, X, layout="TND", quant_scale2=SCALE), VIOLATED),
    "int8 output packed on a new stack": (
        "KV810",
        v1(tensor(9, 8, 128), X, X, layout="TND", quant_scale2=SCALE, target=NEW),
        NOT_APPLICABLE,
    ),
    "merged and split": ("KV811", split(antiquant_scale=SCALE), VIOLATED),
    "merged only": ("KV811", v1(antiquant_scale=SCALE), PROVED),
    "merged of one": (
        "KV812",
        call(IFA, ONE, X, X, input_layout="BNSD", antiquant_scale=tensor(1, 1024)),
        VIOLATED,
    ),
    "merged of two": (
        "KV812",
        call(IFA, ONE, X, X, input_layout="BNSD", antiquant_scale=tensor(2, 1024)),
        PROVED,
    ),
    "int4 keys and int8 output": ("KV813", split(HALF, INT4, INT4, quant_scale2=SCALE), VIOLATED),
    "unknown keys and int8 output": ("KV813", v1(HALF, X, X, quant_scale2=SCALE), UNDECIDED),
    "unknown keys": ("KV813", v1(HALF, X, X), PROVED),
    "unknown keys, keywords passed on": ("KV813", v1(HALF, X, X, opaque=True), UNDECIDED),
    "int4 keys": ("KV813", split(HALF, INT4, INT4), PROVED),
    "query mode 1": ("KV814", v2(query_quant_mode=1), VIOLATED),
    "query mode 3 without a scale": ("KV814", v2(query_quant_mode=3), VIOLATED),
    "query mode 3": ("KV814", v2(query_quant_mode=3, dequant_scale_query=SCALE), PROVED),
    "probability scale": ("KV815", v2(quant_scale_p=SCALE), VIOLATED),
    "probability scale on 950": ("KV815", v2(quant_scale_p=SCALE, target=A5), NOT_APPLICABLE),
    "half output scale": ("KV816", v1(quant_scale2=tensor(1, dtype="float16")), VIOLATED),
    "bfloat16 output scale": (
        "KV816",
        v1(BRAIN, X, X, quant_scale2=tensor(1, dtype="bfloat16")),
        PROVED,
    ),
    "bfloat16 output scale under float16": (
        "KV816",
        v1(quant_scale2=tensor(1, dtype="bfloat16")),
        VIOLATED,
    ),
    "output scale per head": ("KV816", v1(quant_scale2=tensor(8, dtype="float32")), VIOLATED),
    "output offset alone": ("KV816", v1(quant_offset2=SCALE), VIOLATED),
    "int8 output, heads first": ("KV817", v1(layout="BNSD_NBSD", quant_scale2=SCALE), VIOLATED),
    "int8 output, head dim 80": ("KV817", v1(tensor(2, 8, 16, 80), X, X, quant_scale2=SCALE), VIOLATED),
    "int8 output": ("KV817", v1(quant_scale2=SCALE), PROVED),
    "head dim 80 over int8": ("KV818", v1(tensor(2, 8, 16, 80), INT8, X), VIOLATED),
    "head dim 80 over unknown keys": ("KV818", v1(tensor(2, 8, 16, 80), X, X), UNDECIDED),
    "head dim 96 over unknown keys": ("KV818", v1(tensor(2, 8, 16, 96), X, X), UNDECIDED),
    "head dim 128 over unknown keys": ("KV818", v1(HALF, X, X), PROVED),
    "head dim 80 over some float": ("KV818", v1(tensor(2, 8, 16, 80), FLOATING, X), NOT_APPLICABLE),
    "head dim 80 over float": ("KV818", v1(tensor(2, 8, 16, 80), HALF, X), NOT_APPLICABLE),
    "channel scale in float32": ("KV819", split(ONE, INT8, INT8), VIOLATED),
    "channel scale in half": (
        "KV819",
        split(ONE, INT8, INT8, key=tensor(1, 1024, dtype="float16"), value=tensor(1, 1024, dtype="float16")),
        PROVED,
    ),
    "scale form in prefill": ("KV819", split(HALF, INT8, INT8), NOT_APPLICABLE),
    "NZ pages of another model": (
        "KV820",
        split(BRAIN, NZ, NZ, num_key_value_heads=8, block_table=TABLE, block_size=128, inner_precise=1),
        VIOLATED,
    ),
    "unknown keys without pages": ("KV820", v1(BRAIN, X, X), NOT_APPLICABLE),
    "unknown keys that may be pages": ("KV820", v1(BRAIN, X, X, block_table=X), UNDECIDED),
    "NZ pages on a new stack": (
        "KV820",
        split(BRAIN, NZ, NZ, num_key_value_heads=8, block_table=TABLE, target=NEW),
        NOT_APPLICABLE,
    ),
    "prefill over int8 pages": (
        "KV821",
        split(tensor(1, 8, 512, 128, dtype="bfloat16"), PAGES, PAGES, block_table=TABLE),
        VIOLATED,
    ),
    "decode over int8 pages": ("KV821", split(ONE, PAGES, PAGES, block_table=TABLE), NOT_APPLICABLE),
}


@pytest.mark.parametrize(("code", "judged", "wanted"), CASES.values(), ids=CASES.keys())
def test_outcome(code: str, judged: Call, wanted: Outcome) -> None:
    found = find_rule(code)
    assert found is not None
    assert found.applies_to(judged.operator)
    assert outcome(found, judged) is wanted
