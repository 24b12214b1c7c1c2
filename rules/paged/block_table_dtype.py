"""KV401: the block table is not int32."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require


class BlockTableDtype(RunRule):
    """The block table is not int32.

    ## What it does
    Checks the dtype of `block_table` (`block_tables` in some operators) where the source shows it.

    ## Why it is wrong
    The operators are registered for int32 block ids only. Prefill tiling rejects another dtype; the decode
    engine relies on the operator definition for it. The meta kernel accepts int64, so compiling under fake
    tensors does not find this. `torch.arange` and `torch.tensor([...])` give int64, `torch.zeros` float32.

    ## Use instead
    `block_table.to(torch.int32)` where the table is built. `npu_advance_step_flashattn` wants its own int64
    table: keep two.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention, the ATB operators with a block table, npu_paged_cache_load,
    the sparse-attention operators and lightning indexers. All versions.

    ## Evidence
    PG01, ATB-03, ATB-08, ATB-09: prefill tiling of ops-transformer (CANN 8.5 snapshot), operator
    definition, ATB operation checks, op-plugin documentation. The meta kernel of torch_npu 2.13 accepts
    int64 (executed).
    """

    code = "KV401"
    name = "block-table-dtype"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("PG01", "ATB-03", "ATB-08", "ATB-09")
    families = ("fia", "ifa", "atb", "sparse", "indexer")
    operators = ("npu_paged_cache_load",)
    bad = {
        "int64 by arange": """
            table = torch.arange(8).view(2, 4)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=lens,
                block_table=table,  # KV401
                block_size=128,
            )
        """,
        "cast by long() in a dict": """
            opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BSH"}
            opts["block_table"] = rows.long()  # KV401
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, actual_seq_kvlen=lens, block_size=128, **opts)
        """,
        "float zeros into the ATB operator": """
            table = torch.zeros(4, 16)
            torch_npu._npu_paged_attention(
                query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                block_table=table,  # KV401
                context_lens=lens, out=out,
            )
        """,
    }
    ok = {
        "int32": """
            table = torch.arange(8, dtype=torch.int32).view(2, 4)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
        "cast": """
            opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BSH"}
            opts["block_table"] = torch.arange(8).view(2, 4).to(torch.int32)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, actual_seq_kvlen=lens, block_size=128, **opts)
        """,
        "unknown dtype": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=lens,
                block_table=meta.block_table, block_size=128,
            )
        """,
        "the advance step takes int64": """
            table = torch.zeros(4, 16, dtype=torch.int64)
            torch_npu.npu_advance_step_flashattn(tokens, ids, positions, lens, slots, table, 4, 4, 128)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the dtype of the table."""
        table = call.arg("block_table")
        dtype = table.dtype.get("not int32")
        return require(
            table.dtype.equals("int32"),
            f"{table.name} is {dtype}, the operator reads int32 block ids only",
            when=table.present,
            at=table,
            fix=f"Convert {table.name} with .to(torch.int32) where it is built.",
        )
