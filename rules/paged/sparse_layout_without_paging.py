"""KV440: a sparse operator with a block table whose key layout is not paged."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri, tri

from ._common import paged

SPARSE = (
    "npu_sparse_flash_attention",
    "npu_kv_quant_sparse_flash_attention",
    "npu_lightning_indexer",
    "npu_quant_lightning_indexer",
)


class SparseLayoutWithoutPaging(RunRule):
    """A sparse operator gets a block table, but layout_kv does not say PA_BSND, or the layouts do not match.

    ## What it does
    Compares `layout_kv` (`layout_key`) with the block table: a table needs `PA_BSND`, `PA_BSND` needs a
    table. Without paging both layouts must be the same.

    ## Why it is wrong
    The layout argument, not the table, selects paging. Its default BSND reads the pool as one contiguous
    sequence per batch entry: rejected where the shapes do not fit, silent wrong numbers where they do.

    ## Use instead
    `layout_kv="PA_BSND"` (in the indexers `layout_key="PA_BSND"`).

    ## Ops and versions
    npu_sparse_flash_attention, npu_kv_quant_sparse_flash_attention, npu_lightning_indexer,
    npu_quant_lightning_indexer (7.3.0 and newer).

    ## Evidence
    SP-03, SP-04: op-plugin documentation.
    """

    code = "KV440"
    name = "sparse-layout-without-paging"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("SP-03", "SP-04")
    operators = SPARSE
    bad = {
        "default layout with a table": """
            torch_npu.npu_sparse_flash_attention(  # KV440
                q, kv, kv, indices, 0.1, block_table=table.to(torch.int32), actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=q_pe, key_rope=k_pe, layout_query="TND",
                attention_mode=2)
        """,
        "paged layout without a table": """
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, layout_query="TND",
                layout_key="PA_BSND")  # KV440
        """,
        "two layouts": """
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=ends, layout_query="TND",
                layout_key="BSND")  # KV440
        """,
    }
    ok = {
        "paged": """
            torch_npu.npu_sparse_flash_attention(
                q, kv, kv, indices, 0.1, block_table=table.to(torch.int32), actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=q_pe, key_rope=k_pe, layout_query="TND",
                layout_kv="PA_BSND", attention_mode=2)
        """,
        "layout chosen with the table": """
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, layout_query="TND",
                layout_key="PA_BSND" if table is not None else "TND", block_table=table)
        """,
        "not paged": """
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=ends, layout_query="TND",
                layout_key="TND")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges layouts and table together."""
        layout, table = call.arg("layout_kv"), call.arg("block_table")
        at = layout if layout.given.yes else call.place
        by_blocks = layout.constant.equals("PA_BSND")
        is_paged = table.present if not by_blocks.no else paged(call)
        yield require(
            by_blocks,
            f"{table.name} is given, but {layout.name} is {layout.constant.get('')!r}: the pool is read as "
            "contiguous sequences",
            when=is_paged,
            at=at,
            fix=f'Pass {layout.name}="PA_BSND".',
        )
        yield require(
            table.meant,
            f"{layout.name} is 'PA_BSND' but {table.name} is not passed",
            when=by_blocks,
            at=at,
        )
        queries = call.arg("layout_q")
        if layout.constant.known and queries.constant.known and table.is_none.yes:
            yield require(
                tri(layout.constant.value == queries.constant.value),
                f"{layout.name} is {layout.constant.value!r} and {queries.name} {queries.constant.value!r}, "
                "without paging they must be the same",
                when=~by_blocks,
                at=at,
            )
        else:
            yield NOT_APPLICABLE if table.is_none.no else require(Tri(None, layout.constant.notes), "")
