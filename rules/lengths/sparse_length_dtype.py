"""KV309: lengths of a sparse-attention call that are not int32."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require

from ._common import SPARSE


class SparseLengthDtype(RunRule):
    """A sparse-attention operator or indexer gets length tensors that are not int32.

    ## What it does
    Checks the dtype of `actual_seq_lengths_query` and `actual_seq_lengths_kv` (`_key`).

    ## Why it is wrong
    The operators are registered for int32 lengths. `cumsum` of an int32 tensor gives int64, as do
    `torch.tensor([...])` and `torch.arange`. Tiling rejects them, the meta kernel accepts them.

    ## Use instead
    `lens.cumsum(0).to(torch.int32)`.

    ## Ops and versions
    npu_lightning_indexer, npu_quant_lightning_indexer, npu_sparse_flash_attention,
    npu_kv_quant_sparse_flash_attention. All versions.

    ## Evidence
    SP-12: op-plugin documentation; int64 accepted by the meta kernel of torch_npu 2.13 (executed).
    """

    code = "KV309"
    name = "sparse-length-dtype"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("SP-12",)
    operators = SPARSE
    bad = {
        "cumsum gives int64": """
            ends = torch.cumsum(q_lens.to(torch.int32), dim=0)
            torch_npu.npu_lightning_indexer(
                q, k, w,
                actual_seq_lengths_query=ends,  # KV309
                actual_seq_lengths_key=kv_lens, block_table=table, layout_query="TND",
                layout_key="PA_BSND", sparse_count=2048, sparse_mode=3,
            )
        """,
        "long lengths": """
            lens = kv_lens.long()
            torch_npu.npu_sparse_flash_attention(
                q, kc, kc, picked, 0.1, query_rope=qr, key_rope=kr, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens,  # KV309
                block_table=table, layout_query="TND", layout_kv="PA_BSND", attention_mode=2,
            )
        """,
    }
    ok = {
        "int32": """
            ends = torch.cumsum(q_lens, dim=0).to(torch.int32)
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=kv_lens, block_table=table,
                layout_query="TND", layout_key="PA_BSND", sparse_count=2048, sparse_mode=3,
            )
        """,
        "cumsum in int32": """
            ends = torch.cumsum(q_lens, dim=0, dtype=torch.int32)
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=kv_lens, block_table=table,
                layout_query="TND", layout_key="PA_BSND", sparse_count=2048, sparse_mode=3,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query and key lengths apart."""
        for role in ("q_lens", "kv_lens"):
            lengths = call.arg(role)
            shown = " or ".join(lengths.dtype.values or ())
            yield require(
                lengths.dtype.equals("int32"),
                f"{lengths.name} is {shown}, {call.operator.name} reads int32",
                when=lengths.is_tensor,
                at=lengths,
                fix=f"Convert {lengths.name} with .to(torch.int32).",
            )
