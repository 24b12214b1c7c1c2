"""KV315: a packed paged call without a single key."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri

from ._common import keys_paged


class ZeroKvLengths(RunRule):
    """All key lengths of a packed paged call are 0.

    ## What it does
    Reports a literal list of zeros as key lengths of a TND call with a block table, as warm-up runs build
    it.

    ## Why it is wrong
    The prefill engine wants at least one key length above 0 and rejects the call.

    ## Use instead
    Give the dummy requests a key length of 1, and a block that is theirs.

    ## Ops and versions
    FIA v1 and v2, TND with a block table and head dim other than 512.

    ## Evidence
    D17: prefill tiling of ops-transformer (CANN 8.5 snapshot), `CheckPAWhenBaseApi`.
    """

    code = "KV315"
    name = "zero-kv-lengths"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("D17",)
    families = ("fia",)
    bad = {
        "warm-up": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=[1, 2],
                actual_seq_lengths_kv=[0, 0],  # KV315
                block_table=table, block_size=128,
            )
        """,
    }
    ok = {
        "one key": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=[1, 2], actual_seq_lengths_kv=[1, 0], block_table=table, block_size=128,
            )
        """,
        "batched decode": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                actual_seq_lengths_kv=[0, 0], block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges a literal list."""
        lengths = call.arg("kv_lens")
        if not lengths.integers.known or not lengths.integers.value:
            return NOT_APPLICABLE
        return require(
            Tri(any(lengths.integers.value), lengths.integers.notes),
            f"every entry of {lengths.name} is 0, which the prefill engine rejects",
            when=call.packed & keys_paged(call) & ~call.absorbed,
            at=lengths,
            fix="Give at least one request a key length of 1.",
        )
