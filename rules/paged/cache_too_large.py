"""KV417: a cache with more elements than the operator can address."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import Tri, tri

from ._common import paged

_MOST = 2**31 - 1


class CacheTooLarge(RunRule):
    """The paged cache has more elements than the operator can address.

    ## What it does
    Multiplies the constant axes of the key and value caches next to a block table and compares with
    2147483647.

    ## Why it is wrong
    Offsets into the cache are 32-bit. A larger pool is read at wrapped-around addresses.

    ## Use instead
    Split the pool by layer, or into several pools.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    PG18: op-plugin documentation of FIA v2.
    """

    code = "KV417"
    name = "cache-too-large"
    severity = Severity.DEVICE
    confidence = Confidence.MEDIUM
    contract = ("PG18",)
    families = ("fia",)
    bad = {
        "all layers in one tensor": """
            pool = torch.zeros(65536, 128, 1024, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q,
                pool,  # KV417
                v, num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=128,
                actual_seq_lengths_kv=lens,
            )
        """,
    }
    ok = {
        "smaller": """
            pool = torch.zeros(1024, 128, 1024, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q, pool, pool, num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=128,
                actual_seq_lengths_kv=lens,
            )
        """,
        "unknown": """
            pool = torch.zeros(blocks, 128, 1024, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q, pool, pool, num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=128,
                actual_seq_lengths_kv=lens,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the number of elements."""
        is_paged = paged(call)
        if is_paged.no:
            yield NOT_APPLICABLE
            return
        for role in ("key", "value"):
            cache = call.arg(role)
            shape = cache.shape.get(None)
            sizes = [] if shape is None else [None if dim is None else dim.integer for dim in shape]
            known = [size for size in sizes if size is not None]
            if shape is None or len(known) < len(sizes):
                yield undecided(Tri(None, cache.shape.notes))
                continue
            count = prod(known)
            yield require(
                tri(count <= _MOST, *cache.shape.notes),
                f"{cache.name} has {count} elements, more than 32-bit offsets reach",
                when=is_paged,
                at=cache,
            )
