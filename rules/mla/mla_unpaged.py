"""KV510: absorbed MLA on contiguous keys."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import absorbed


class MlaUnpaged(RunRule):
    """Absorbed MLA is called on contiguous keys, which CANN 8.5 and older reject.

    ## What it does
    Reports a call with rope parts and head dim 512 that certainly has no block table, unless it is the
    sliding window (sparse_mode 4) or the configured CANN is 9.0 or newer. Off by default: newer
    documentation allows the form.

    ## Why it is wrong
    The MLA checker of the CANN 8.5 snapshot demands a paged cache, although an example in the op-plugin
    documentation is contiguous.

    ## Use instead
    A block table, or a newer CANN.

    ## Ops and versions
    FIA v1 and v2 up to CANN 8.5.

    ## Evidence
    F06, X15: feature checks (ops-transformer, CANN 8.5 snapshot) against the op-plugin documentation.
    """

    code = "KV510"
    name = "mla-unpaged"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("F06", "X15")
    families = ("fia",)
    default = False
    bad = {
        "contiguous keys": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512),  # KV510
                k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe,
                key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=ends,
            )
        """,
    }
    ok = {
        "paged": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the block table."""
        if call.target.cann_at_least("9.0").yes:
            return NOT_APPLICABLE
        table = call.arg("block_table")
        return require(
            table.meant,
            f"absorbed MLA without {table.name} is rejected by CANN 8.5 and older",
            when=absorbed(call) & ~call.arg("sparse_mode").constant.equals(4),
            at=call.arg("query"),
            fix="Pass a paged cache with its block table.",
        )
