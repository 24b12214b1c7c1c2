"""KV442: selected indices that are not int32."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require


class SparseIndexDtype(RunRule):
    """The selected indices of sparse attention are not int32.

    ## What it does
    Checks the dtype of `sparse_indices` where it is visible. `torch.topk` gives int64.

    ## Why it is wrong
    The operator reads int32 and rejects others on the device. The meta kernel accepts int64.

    ## Use instead
    The int32 result of npu_lightning_indexer, or `.to(torch.int32)`. Valid entries come first.

    ## Ops and versions
    npu_sparse_flash_attention, npu_kv_quant_sparse_flash_attention (7.3.0 and newer).

    ## Evidence
    SP-05: op-plugin documentation; int64 is accepted by the meta kernel (executed).
    """

    code = "KV442"
    name = "sparse-index-dtype"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("SP-05",)
    operators = ("npu_sparse_flash_attention", "npu_kv_quant_sparse_flash_attention")
    bad = {
        "cast to long": """
            torch_npu.npu_sparse_flash_attention(
                q, kv, kv,
                picked.long(),  # KV442
                0.1, block_table=table, actual_seq_lengths_query=ends, actual_seq_lengths_kv=lens,
                query_rope=q_pe, key_rope=k_pe, layout_query="TND", layout_kv="PA_BSND", attention_mode=2)
        """,
    }
    ok = {
        "of an indexer that is not visible": """
            class Attention:
                def forward(self, q, kv, x, table, ends, lens, q_pe, k_pe):
                    _, picked = self.indexer.topk(x, 2048)
                    return torch_npu.npu_sparse_flash_attention(
                        q, kv, kv, picked, 0.1, block_table=table, actual_seq_lengths_query=ends,
                        actual_seq_lengths_kv=lens, query_rope=q_pe, key_rope=k_pe, layout_query="TND",
                        layout_kv="PA_BSND", attention_mode=2)
        """,
        "int32": """
            torch_npu.npu_sparse_flash_attention(
                q, kv, kv, picked.to(torch.int32), 0.1, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=q_pe, key_rope=k_pe, layout_query="TND",
                layout_kv="PA_BSND", attention_mode=2)
        """,
        "unknown": """
            torch_npu.npu_sparse_flash_attention(
                q, kv, kv, picked, 0.1, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=q_pe, key_rope=k_pe, layout_query="TND",
                layout_kv="PA_BSND", attention_mode=2)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the dtype of the indices."""
        indices = call.arg("sparse_indices")
        return require(
            indices.dtype.equals("int32"),
            f"{indices.name} is {indices.dtype.get('?')}, the operator reads int32",
            at=indices,
            fix="Convert it with .to(torch.int32).",
        )
