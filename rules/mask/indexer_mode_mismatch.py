"""KV234: sparse attention with another causal mode than its indexer."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import NO, YES

from ._common import sparse_mode

ATTENTION = ("npu_sparse_flash_attention", "npu_kv_quant_sparse_flash_attention")


class IndexerModeMismatch(RunRule):
    """Sparse attention and the indexer that picked its keys use different sparse modes.

    ## What it does
    Compares the literal `sparse_mode` of npu_sparse_flash_attention with that of the only lightning indexer
    call in the same function.

    ## Why it is wrong
    The indexer ranks the keys that its mode shows, and the attention masks the picked keys again by its own
    mode. Mode 0 in one and 3 in the other picks future keys and hides them afterwards, or attends to them.

    ## Use instead
    The same `sparse_mode` (3 for causal models) in both calls; 3 is the default of both.

    ## Ops and versions
    npu_sparse_flash_attention, npu_kv_quant_sparse_flash_attention with npu_lightning_indexer or
    npu_quant_lightning_indexer. All versions.

    ## Evidence
    SP-08: op-plugin documentation.
    """

    code = "KV234"
    name = "indexer-mode-mismatch"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("SP-08",)
    operators = ATTENTION
    bad = {
        "full attention over causal picks": """
            def attend(q, qi, w, kc, ki, qr, kr, ends, lens, table):
                picked, _ = torch_npu.npu_lightning_indexer(
                    qi, ki, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, block_table=table,
                    layout_query="TND", layout_key="PA_BSND", sparse_count=2048, sparse_mode=3,
                )
                return torch_npu.npu_sparse_flash_attention(
                    q, kc, kc, picked, 0.1, query_rope=qr, key_rope=kr, actual_seq_lengths_query=ends,
                    actual_seq_lengths_kv=lens, block_table=table, layout_query="TND", layout_kv="PA_BSND",
                    attention_mode=2,
                    sparse_mode=0,  # KV234
                )
        """,
        "indexer in a method of its own": """
            class Attention:
                def pick(self, q, k, w):
                    return torch_npu.npu_lightning_indexer(q, k, w, sparse_count=2048, sparse_mode=3)[0]

                def attend(self, q, qi, w, kc, ki, qr, kr):
                    return torch_npu.npu_sparse_flash_attention(
                        q, kc, kc, self.pick(qi, ki, w), 0.1, query_rope=qr, key_rope=kr, attention_mode=2,
                        sparse_mode=0,  # KV234
                    )
        """,
    }
    ok = {
        "indexers of several methods": """
            class Attention:
                def pick(self, q, k, w):
                    return torch_npu.npu_lightning_indexer(q, k, w, sparse_count=2048, sparse_mode=3)

                def pick_all(self, q, k, w):
                    return torch_npu.npu_lightning_indexer(q, k, w, sparse_count=2048, sparse_mode=0)

                def attend(self, q, kc, qr, kr, picked):
                    return torch_npu.npu_sparse_flash_attention(
                        q, kc, kc, picked, 0.1, query_rope=qr, key_rope=kr, attention_mode=2, sparse_mode=0)
        """,
        "same mode": """
            def attend(q, qi, w, kc, ki, qr, kr, ends, lens, table):
                picked, _ = torch_npu.npu_lightning_indexer(
                    qi, ki, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, block_table=table,
                    layout_query="TND", layout_key="PA_BSND", sparse_count=2048, sparse_mode=3,
                )
                return torch_npu.npu_sparse_flash_attention(
                    q, kc, kc, picked, 0.1, query_rope=qr, key_rope=kr, actual_seq_lengths_query=ends,
                    actual_seq_lengths_kv=lens, block_table=table, layout_query="TND", layout_kv="PA_BSND",
                    attention_mode=2, sparse_mode=3,
                )
        """,
        "indices from elsewhere": """
            torch_npu.npu_sparse_flash_attention(
                q, kc, kc, picked, 0.1, query_rope=qr, key_rope=kr, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, block_table=table, layout_query="TND", layout_kv="PA_BSND",
                attention_mode=2, sparse_mode=0,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the modes of the two calls."""
        if call.scope is None:
            return NOT_APPLICABLE
        # The indexer may have a method of its own.
        for around in (call.scope.calls, call.scope.peers):
            indexers = [other for other in around if other.operator.family == "indexer"]
            if indexers:
                break
        if len(indexers) != 1:
            return NOT_APPLICABLE
        mine = call.arg("sparse_mode").constant
        theirs = indexers[0].arg("sparse_mode").constant
        if not (mine.known and theirs.known):
            return undecided((mine if not mine.known else theirs).equals(0))
        mode = call.arg("sparse_mode")
        return require(
            YES if mine.value == theirs.value else NO,
            f"sparse_mode={sparse_mode(call)}, but the indexer picks keys with sparse_mode={theirs.value}",
            at=mode if mode.given.yes else call.place,
            notes=theirs.notes,
            fix="Use the same sparse_mode in both calls.",
        )
