"""Rules about paged caches on calls built by hand: what is known decides, what is unknown does not."""

from __future__ import annotations

import pytest
from support.calls import anything, call, either, named, outcome, tensor

from kvlint.contract.call import Call, Target
from kvlint.contract.rule import Outcome, Rule, find_rule
from kvlint.contract.values import Content, LengthForm

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
IFA = "npu_incre_flash_attention"
SFA = "npu_sparse_flash_attention"
INDEXER = "npu_lightning_indexer"

VIOLATED, PROVED = Outcome.VIOLATED, Outcome.PROVED
UNDECIDED, NOT_APPLICABLE = Outcome.UNDECIDED, Outcome.NOT_APPLICABLE

ANY = anything("q")
TABLE = tensor(4, 16, dtype="int32")
MASK = tensor(2048, 2048, dtype="bool")
NEW_CANN = Target(cann="9.0.0")
LENGTHS = anything("lens")


def rule(code: str) -> Rule:
    found = find_rule(code)
    assert found is not None
    return found


def fia(
    key: object = ANY, value: object = None, query: object = ANY, layout: object = "BSH", **keywords: object
) -> Call:
    keywords = {"block_table": TABLE, "block_size": 128, "num_key_value_heads": 8, **keywords}
    value = key if value is None else value
    return call(V1, query, key, value, input_layout=layout, num_heads=32, scale=0.1, **keywords)


def bare(**keywords: object) -> Call:
    return call(V1, ANY, ANY, ANY, num_heads=32, scale=0.1, **keywords)


def atb(**keywords: object) -> Call:
    keywords = {
        "key_cache": ANY,
        "value_cache": ANY,
        "block_table": TABLE,
        "context_lens": LENGTHS,
        **keywords,
    }
    return call(
        "_npu_paged_attention",
        query=ANY,
        num_kv_heads=8,
        num_heads=32,
        scale_value=0.1,
        out=anything("out"),
        **keywords,
    )


def sparse(**keywords: object) -> Call:
    keywords = {"layout_query": "TND", "attention_mode": 2, **keywords}
    return call(SFA, ANY, keywords.pop("key", ANY), ANY, keywords.pop("indices", ANY), 0.1, **keywords)


def indexer(**keywords: object) -> Call:
    return call(INDEXER, ANY, ANY, ANY, **{"layout_query": "TND", "layout_key": "PA_BSND", **keywords})


def load(lengths: object = LENGTHS, **keywords: object) -> Call:
    return call("npu_paged_cache_load", ANY, ANY, keywords.pop("table", TABLE), lengths, **keywords)


SUMS = tensor(5, dtype="int32", content=Content(lengths=LengthForm.CUMULATIVE))
PLAIN = tensor(4, dtype="int32", content=Content(lengths=LengthForm.PER_SEQUENCE))
BATCHED = tensor(4, 8, 1, 128)

CASES: dict[str, tuple[str, Call, Outcome]] = {
    "int64 table": ("KV401", bare(block_table=tensor(4, 16, dtype="int64"), block_size=128), VIOLATED),
    "int32 table": ("KV401", bare(block_table=TABLE, block_size=128), PROVED),
    "table of unknown dtype": ("KV401", bare(block_table=tensor(4, 16), block_size=128), UNDECIDED),
    "no table": ("KV401", bare(), NOT_APPLICABLE),
    "int64 table on one path": (
        "KV401",
        bare(block_table=either("c", tensor(4, 16, dtype="int64"), None), block_size=128),
        VIOLATED,
    ),
    "int64 table for ATB": ("KV401", atb(block_table=tensor(4, 16, dtype="int64")), VIOLATED),
    "int64 table for the indexer": ("KV401", indexer(block_table=tensor(4, 16, dtype="int64")), VIOLATED),
    "flat table": ("KV402", bare(block_table=tensor(16, dtype="int32"), block_size=128), VIOLATED),
    "table with rows": ("KV402", bare(block_table=TABLE, block_size=128), PROVED),
    "no block size": ("KV403", bare(block_table=TABLE), VIOLATED),
    "no block size, table passed on": ("KV403", bare(block_table=named("table")), VIOLATED),
    "no block size, table None": ("KV403", bare(block_table=None), NOT_APPLICABLE),
    "no block size, keywords passed on": ("KV403", bare(block_table=TABLE, opaque=True), UNDECIDED),
    "block size 0": ("KV403", bare(block_table=TABLE, block_size=0), VIOLATED),
    "block size 0, table passed on": ("KV403", bare(block_table=named("table"), block_size=0), UNDECIDED),
    "block size by name": ("KV403", bare(block_table=TABLE, block_size=named("bs")), PROVED),
    "table and block size in step": (
        "KV403",
        bare(block_table=either("c", TABLE, None), block_size=either("c", 128, 0)),
        PROVED,
    ),
    "block size on one of two paths": (
        "KV403",
        bare(block_table=TABLE, block_size=either("c", 128)),
        VIOLATED,
    ),
    "block of 100": ("KV404", fia(block_size=100), VIOLATED),
    "block of 2048": ("KV404", fia(block_size=2048), VIOLATED),
    "block of 128": ("KV404", fia(), PROVED),
    "block of 64, engine unknown": ("KV404", fia(block_size=64), UNDECIDED),
    "block of 64, causal mask": ("KV404", fia(block_size=64, sparse_mode=3, atten_mask=MASK), VIOLATED),
    "block of 64, mode 2 and a 2048 mask": (
        "KV404",
        fia(block_size=64, sparse_mode=2, atten_mask=MASK),
        VIOLATED,
    ),
    "block of 64, mode 2 and a row mask": (
        "KV404",
        fia(block_size=64, sparse_mode=2, atten_mask=tensor(4, 1, 1024, dtype="bool")),
        UNDECIDED,
    ),
    "block of 64, unknown mask": (
        "KV404",
        fia(block_size=64, sparse_mode=3, atten_mask=named("mask")),
        UNDECIDED,
    ),
    "block of 64, packed": ("KV404", fia(block_size=64, layout="TND"), PROVED),
    "block of 64, rope": (
        "KV404",
        fia(block_size=64, sparse_mode=3, atten_mask=MASK, query_rope=ANY, key_rope=ANY),
        UNDECIDED,
    ),
    "block of 1024 in decode": (
        "KV404",
        fia(query=tensor(4, 32, 1, 128), layout="BNSD", block_size=1024),
        VIOLATED,
    ),
    "block of 64 for a prompt": (
        "KV404",
        fia(query=tensor(4, 32, 64, 128), layout="BNSD", block_size=64),
        VIOLATED,
    ),
    "block of 16 with int8 keys": (
        "KV404",
        fia(
            tensor(64, 16, 1024, dtype="int8"),
            query=tensor(4, 32, 1, 128),
            layout="BNSD",
            block_size=16,
        ),
        VIOLATED,
    ),
    "block of 64, not paged": ("KV404", bare(block_size=64, block_table=None), NOT_APPLICABLE),
    "heads after block": ("KV405", fia(tensor(64, 128, 8, 64), layout="BNSD"), VIOLATED),
    "heads after block by name": (
        "KV405",
        fia(
            tensor("blocks", "bs", "heads", "dim"),
            block_size=named("bs"),
            num_key_value_heads=named("heads"),
        ),
        VIOLATED,
    ),
    "block after heads": ("KV405", fia(tensor(64, 8, 128, 64), layout="BNSD"), NOT_APPLICABLE),
    "three axes": ("KV405", fia(tensor(64, 128, 512)), NOT_APPLICABLE),
    "unknown axes": ("KV405", fia(), UNDECIDED),
    "as many heads as rows": ("KV405", fia(tensor(64, 8, 8, 64), block_size=8), NOT_APPLICABLE),
    "another block size": ("KV406", fia(tensor(64, 256, 512)), VIOLATED),
    "the block size": ("KV406", fia(tensor(64, 128, 512)), PROVED),
    "block size of another name": (
        "KV406",
        fia(tensor(64, "page", 512), block_size=named("block")),
        UNDECIDED,
    ),
    "block axis of NZ": ("KV406", fia(tensor(64, 8, 4, 128, 16), layout="TND"), PROVED),
    "another block axis of NZ": ("KV406", fia(tensor(64, 8, 4, 64, 16), layout="TND"), VIOLATED),
    "flat cache": ("KV407", fia(tensor(64, 512)), VIOLATED),
    "six axes": ("KV407", fia(tensor(4, 4, 4, 4, 4, 4)), VIOLATED),
    "four axes with BSH": ("KV407", fia(tensor(64, 8, 128, 64)), VIOLATED),
    "four axes with BSH and rope": (
        "KV407",
        fia(tensor(64, 1, 128, 512), query_rope=ANY, key_rope=ANY),
        UNDECIDED,
    ),
    "four axes with TND": ("KV407", fia(tensor(64, 8, 128, 64), layout="TND"), PROVED),
    "NZ for a prompt": (
        "KV407",
        fia(tensor(64, 8, 4, 128, 16), query=tensor(4, 32, 2048), layout="BSH"),
        VIOLATED,
    ),
    "NZ for a few tokens": (
        "KV407",
        fia(tensor(64, 8, 4, 128, 16), query=tensor(4, 4, 2048), layout="BSH"),
        PROVED,
    ),
    "block size without a table": ("KV409", bare(block_size=128), VIOLATED),
    "block size, table on one path": (
        "KV409",
        bare(block_size=128, block_table=either("c", TABLE, None)),
        NOT_APPLICABLE,
    ),
    "rows of the capacity": (
        "KV410",
        atb(block_table=tensor("max_reqs", 16), context_lens=tensor("live", dtype="int32")),
        VIOLATED,
    ),
    "rows of the batch": (
        "KV410",
        atb(block_table=tensor("live", 16), context_lens=tensor("live", dtype="int32")),
        PROVED,
    ),
    "rows of an unknown table": ("KV410", atb(block_table=anything("table")), UNDECIDED),
    "rows in decode": (
        "KV410",
        fia(query=BATCHED, layout="BNSD", block_table=tensor(9, 16), actual_seq_lengths_kv=[4] * 4),
        UNDECIDED,
    ),
    "rows in packed prefill": (
        "KV410",
        fia(layout="TND", block_table=tensor(9, 16), actual_seq_lengths_kv=[4] * 4),
        VIOLATED,
    ),
    "heads of another cache": (
        "KV411",
        fia(tensor(64, 4, 128, 64), layout="BNSD"),
        VIOLATED,
    ),
    "width that does not divide": ("KV411", fia(tensor(64, 128, 100)), VIOLATED),
    "too wide": ("KV411", fia(tensor(64, 128, 65536)), VIOLATED),
    "heads by another name": (
        "KV411",
        fia(tensor(64, "local", 128, 64), layout="BNSD", num_key_value_heads=named("heads")),
        UNDECIDED,
    ),
    "int8 query": ("KV412", fia(query=tensor(4, 1, 4096, dtype="int8")), VIOLATED),
    "int8 query with rope": (
        "KV412",
        fia(query=tensor(4, 1, 4096, dtype="int8"), query_rope=tensor(4, 1, 64), key_rope=tensor(4, 1, 64)),
        NOT_APPLICABLE,
    ),
    "int4 keys in BNSD": (
        "KV412",
        fia(tensor(64, 8, 128, 16, dtype="int32"), layout="BNSD"),
        VIOLATED,
    ),
    "FIA order for ATB": ("KV413", atb(key_cache=tensor(64, 8, 128, 64)), VIOLATED),
    "ATB order for ATB": ("KV413", atb(key_cache=tensor(64, 128, 8, 64)), UNDECIDED),
    "NZ for ATB": ("KV413", atb(key_cache=tensor(64, 8, 128, 16)), UNDECIDED),
    "blocks of 64 for a prefix": (
        "KV414",
        call(
            "_npu_flash_attention_qlens",
            query=ANY,
            key_cache=tensor(64, 64, 8, 128),
            value_cache=ANY,
            block_table=TABLE,
            mask=ANY,
            seq_len=LENGTHS,
            context_lens=LENGTHS,
            num_kv_heads=8,
            num_heads=8,
            scale_value=0.1,
            out=ANY,
        ),
        VIOLATED,
    ),
    "load without starts": ("KV415", load(), VIOLATED),
    "load of sums": ("KV415", load(SUMS, seq_starts=ANY), VIOLATED),
    "load of sums, flag set": ("KV415", load(SUMS, seq_starts=ANY, cumsum=True), PROVED),
    "load of lengths, flag set": ("KV415", load(PLAIN, seq_starts=ANY, cumsum=True), VIOLATED),
    "gather of sums": (
        "KV416",
        call("npu_gather_pa_kv_cache", ANY, ANY, TABLE, SUMS, ANY, ANY),
        VIOLATED,
    ),
    "gather of lengths": (
        "KV416",
        call("npu_gather_pa_kv_cache", ANY, ANY, TABLE, PLAIN, ANY, ANY),
        PROVED,
    ),
    "pool of 2**32": ("KV417", fia(tensor(65536, 128, 512)), VIOLATED),
    "pool of unknown size": ("KV417", fia(tensor("blocks", 128, 512)), UNDECIDED),
    "64 in TND": ("KV418", fia(layout="TND", block_size=64), VIOLATED),
    "64 in TND, new CANN": ("KV418", fia(layout="TND", block_size=64, target=NEW_CANN), NOT_APPLICABLE),
    "64 in BSH": ("KV418", fia(block_size=64), NOT_APPLICABLE),
    "paged, layout left": ("KV440", sparse(block_table=TABLE), VIOLATED),
    "paged layout": ("KV440", sparse(block_table=TABLE, layout_kv="PA_BSND"), PROVED),
    "paged layout, table passed on": (
        "KV440",
        indexer(block_table=named("table")),
        UNDECIDED,
    ),
    "FIA order for sparse attention": (
        "KV441",
        sparse(key=tensor(64, 1, 128, 512), layout_kv="PA_BSND", block_table=TABLE),
        VIOLATED,
    ),
    "sparse block that does not divide": (
        "KV441",
        sparse(
            key=tensor(64, 16, 1, 512),
            layout_kv="PA_BSND",
            block_table=TABLE,
            sparse_block_size=64,
        ),
        VIOLATED,
    ),
    "int64 indices": ("KV442", sparse(indices=tensor(4, 1, 2048, dtype="int64")), VIOLATED),
    "window of the indexer": ("KV443", indexer(next_tokens=0), VIOLATED),
    "3000 indices": ("KV443", indexer(sparse_count=3000), VIOLATED),
    "4096 indices": ("KV443", indexer(sparse_count=4096, block_table=TABLE), UNDECIDED),
    "no rope parts": ("KV444", sparse(), VIOLATED),
}


@pytest.mark.parametrize(("code", "judged", "expected"), CASES.values(), ids=CASES.keys())
def test_case(code: str, judged: Call, expected: Outcome) -> None:
    assert outcome(rule(code), judged) is expected


def test_workspace_queries_are_not_judged_again() -> None:
    query = call(f"_{V1}_get_max_workspace", ANY, ANY, ANY, block_table=TABLE)
    assert not rule("KV403").applies_to(query.operator)
    assert rule("KV403").applies_to(bare().operator)
