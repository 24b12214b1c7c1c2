"""KV402: the block table is not two-dimensional."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require


class BlockTableRank(RunRule):
    """The block table is not two-dimensional.

    ## What it does
    Checks the number of axes of `block_table` where the source shows it.

    ## Why it is wrong
    The table has one row per sequence and one column per block of it: (batch, blocks per sequence). Prefill
    tiling rejects another rank; the decode engine takes axis 1 for the row length. The meta kernel accepts
    a 1-D table.

    ## Use instead
    A (batch, max_blocks) table; `.unsqueeze(0)` for a single sequence.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention, the ATB operators with a block table, npu_paged_cache_load,
    the sparse-attention operators and lightning indexers. All versions.

    ## Evidence
    PG02: prefill tiling of ops-transformer (CANN 8.5 snapshot); the meta kernel of torch_npu 2.13 accepts a
    1-D table (executed).
    """

    code = "KV402"
    name = "block-table-rank"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("PG02",)
    families = ("fia", "ifa", "atb", "sparse", "indexer")
    operators = ("npu_paged_cache_load",)
    bad = {
        "one row without a batch axis": """
            table = torch.arange(16, dtype=torch.int32)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=lens,
                block_table=table,  # KV402
                block_size=128,
            )
        """,
        "flattened": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH", actual_seq_lengths=lens,
                block_table=table.view(-1),  # KV402
                block_size=128,
            )
        """,
    }
    ok = {
        "two axes": """
            table = torch.arange(16, dtype=torch.int32).unsqueeze(0)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
        "unknown": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH", actual_seq_lengths=lens,
                block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the rank of the table."""
        table = call.arg("block_table")
        return require(
            table.rank.equals(2),
            f"{table.name} has {table.rank.get(0)} axes, it must be (batch, blocks per sequence)",
            when=table.present,
            at=table,
            fix=f"Give {table.name} one row per sequence.",
        )
