"""KV441: a sparse operator gets a paged cache it does not read."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant

from .sparse_layout_without_paging import SPARSE


class SparseCacheAxes(RunRule):
    """A sparse operator gets a paged cache whose axes are not (blocks, block, 1, dim).

    ## What it does
    With `PA_BSND`, checks visible shapes of the cache: 4-D, one KV head on axis 2, blocks that are a
    multiple of 16 of at most 1024, and a `sparse_block_size` that is a power of two up to 128 and divides
    the block.

    ## Why it is wrong
    The order is the opposite of FIA's (blocks, heads, block, dim): the same tensor cannot be handed to both
    families without a view. With one head (blocks, 1, block, dim) would be read as blocks of one row.

    ## Use instead
    `cache.view(blocks, block, 1, dim)`.

    ## Ops and versions
    npu_sparse_flash_attention, npu_kv_quant_sparse_flash_attention, npu_lightning_indexer,
    npu_quant_lightning_indexer (7.3.0 and newer).

    ## Evidence
    SP-02, 1.5: op-plugin documentation.
    """

    code = "KV441"
    name = "sparse-cache-axes"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("SP-02", "1.5")
    operators = SPARSE
    bad = {
        "the order of FIA": """
            kv = pool.view(-1, 1, 128, 512)
            torch_npu.npu_sparse_flash_attention(
                q,
                kv,  # KV441
                kv, indices, 0.1, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=q_pe, key_rope=k_pe, layout_query="TND",
                layout_kv="PA_BSND", attention_mode=2)
        """,
        "three axes": """
            torch_npu.npu_lightning_indexer(
                q,
                pool.view(-1, 128, 128),  # KV441
                w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, layout_query="TND",
                layout_key="PA_BSND", block_table=table)
        """,
    }
    ok = {
        "block before heads": """
            kv = pool.view(-1, 128, 1, 512)
            torch_npu.npu_sparse_flash_attention(
                q, kv, kv, indices, 0.1, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=q_pe, key_rope=k_pe, layout_query="TND",
                layout_kv="PA_BSND", attention_mode=2)
        """,
        "unknown": """
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, layout_query="TND",
                layout_key="PA_BSND", block_table=table)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the key cache."""
        by_blocks = call.arg("layout_kv").constant.equals("PA_BSND")
        if by_blocks.no:
            yield NOT_APPLICABLE
            return
        key = call.arg("key")
        yield require(
            key.rank.equals(4),
            f"{key.name} has {key.rank.get(0)} axes, PA_BSND reads (blocks, block, 1, dim)",
            when=by_blocks,
            at=key,
        )
        heads, block = constant(key.dim(2)), constant(key.dim(1))
        four = by_blocks & key.rank.equals(4)
        yield require(
            heads.equals(1),
            f"axis 2 of {key.name} is {heads.get(0)}, PA_BSND reads (blocks, block, 1, dim)",
            when=four,
            at=key,
            fix=f"Pass {key.name}.view(blocks, block, 1, dim).",
        )
        yield require(
            block.holds(lambda size: size % 16 == 0 and 16 <= size <= 1024),
            f"the blocks of {key.name} hold {block.get(0)} rows, a multiple of 16 up to 1024 is served",
            when=four & heads.equals(1),
            at=key,
        )
        if call.operator.param("sparse_block_size") is None:
            return
        size_arg = call.named("sparse_block_size")
        size = size_arg.constant
        yield require(
            size.among((1, 2, 4, 8, 16, 32, 64, 128)),
            f"{size_arg.name} is {size.get('?')}, a power of two up to 128 is served",
            when=size_arg.given,
            at=size_arg,
        )
        chunk = size.get(None)
        if isinstance(chunk, int) and chunk > 0:
            yield require(
                block.holds(lambda rows: rows % chunk == 0),
                f"{size_arg.name}={chunk} does not divide the block of {block.get(0)} rows",
                when=four & heads.equals(1),
                at=size_arg,
            )
