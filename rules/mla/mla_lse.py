"""KV511: the log-sum-exp of absorbed MLA."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import absorbed


class MlaLse(RunRule):
    """Absorbed MLA is asked for the log-sum-exp, which CANN 8.5 and older do not give.

    ## What it does
    Reports `softmax_lse_flag` (`return_softmax_lse`) in a call with rope parts and head dim 512. Off by
    default: newer releases serve it and shipped models use it.

    ## Why it is wrong
    The MLA checker of the CANN 8.5 snapshot rejects the flag.

    ## Use instead
    A newer CANN, or merging without the log-sum-exp.

    ## Ops and versions
    FIA v1 and v2 up to CANN 8.5.

    ## Evidence
    F13, X16: feature checks (ops-transformer, CANN 8.5 snapshot) and the op-plugin documentation of FIA v1;
    dropped from the documentation of v2.
    """

    code = "KV511"
    name = "mla-lse"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("F13", "X16")
    families = ("fia",)
    default = False
    bad = {
        "flag set": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
                softmax_lse_flag=True,  # KV511
            )
        """,
    }
    ok = {
        "not set": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the flag."""
        if call.target.cann_at_least("9.0").yes:
            return NOT_APPLICABLE
        flag = call.arg("lse_flag")
        return require(
            ~flag.constant.among((True, 1)),
            f"{flag.name} is rejected for absorbed MLA by CANN 8.5 and older",
            when=absorbed(call) & flag.given,
            at=flag,
        )
