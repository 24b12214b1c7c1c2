"""KV444: sparse attention without its rope parts."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require


class SparseWithoutRope(RunRule):
    """npu_sparse_flash_attention is called without rope parts.

    ## What it does
    Reports a call without `query_rope` and `key_rope`. Off by default: the documentation does not say that
    they are mandatory.

    ## Why it is wrong
    attention_mode 2, the only one served, concatenates the 64 wide rope parts to query and key. Models
    without them would not need the operator.

    ## Use instead
    Pass both rope parts.

    ## Ops and versions
    npu_sparse_flash_attention (7.3.0 and newer).

    ## Evidence
    SP-16: op-plugin documentation.
    """

    code = "KV444"
    name = "sparse-without-rope"
    severity = Severity.ADVICE
    confidence = Confidence.LOW
    contract = ("SP-16",)
    operators = ("npu_sparse_flash_attention",)
    default = False
    bad = {
        "none": """
            torch_npu.npu_sparse_flash_attention(  # KV444
                q, kv, kv, indices, 0.1, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, layout_query="TND", layout_kv="PA_BSND", attention_mode=2)
        """,
    }
    ok = {
        "both": """
            torch_npu.npu_sparse_flash_attention(
                q, kv, kv, indices, 0.1, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=q_pe, key_rope=k_pe, layout_query="TND",
                layout_kv="PA_BSND", attention_mode=2)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges whether the rope parts are passed."""
        return require(
            call.arg("query_rope").meant | call.arg("key_rope").meant,
            "query_rope and key_rope are not passed, which attention_mode 2 concatenates",
            at=call.place,
        )
