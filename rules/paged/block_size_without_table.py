"""KV409: a block size without a block table."""

from __future__ import annotations

from kvlint.contract.call import Call, leaves
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.values import Absent, Const


class BlockSizeWithoutTable(RunRule):
    """block_size is passed, but there is never a block table.

    ## What it does
    Reports a non-zero `block_size` in a call whose `block_table` is absent or None on every path. Off by
    default: code that builds one argument set for paged and plain calls does this on purpose.

    ## Why it is wrong
    The argument has no effect: keys and values are read as contiguous tensors. Where a paged cache was
    meant, the table was forgotten.

    ## Use instead
    Pass the `block_table`, or drop `block_size`.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions.

    ## Evidence
    PG20: wrapper and tiling (op-plugin, ops-transformer, CANN 8.5 snapshot).
    """

    code = "KV409"
    name = "block-size-without-table"
    severity = Severity.IGNORED
    confidence = Confidence.MEDIUM
    contract = ("PG20",)
    families = ("fia", "ifa")
    default = False
    bad = {
        "table forgotten": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH",
                block_size=128,  # KV409
            )
        """,
    }
    ok = {
        "with the table": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_size=128, block_table=table,
                actual_seq_lengths_kv=lens,
            )
        """,
        "table on some path": """
            table = rows if paged else None
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_size=128, block_table=table,
                actual_seq_lengths_kv=lens,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the block size of a call that is never paged."""
        table, size = call.arg("block_table"), call.arg("block_size")
        options = [value for _, value in leaves(table.value, {})]
        if not all(isinstance(value, Absent) or value == Const(None) for value in options):
            return NOT_APPLICABLE
        return require(
            size.constant.equals(0),
            f"{size.name} has no effect without {table.name}",
            when=table.is_none & size.given,
            at=size,
            fix=f"Pass {table.name}, or drop {size.name}.",
        )
