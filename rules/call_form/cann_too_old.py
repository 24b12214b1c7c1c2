"""KV149: an argument that the configured CANN does not serve."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class CannTooOld(RunRule):
    """An argument that the configured CANN does not serve.

    ## What it does
    With a configured CANN version, reports rope parts for FIA v1 before 8.1.RC1, and `value=None` for
    npu_sparse_flash_attention before 9.2.0. Without one, only the latter, since most
    stacks reject it.

    ## Why it is wrong
    The wrapper checks the CANN version and rejects the call.

    ## Use instead
    A newer CANN; for sparse attention pass key as value.

    ## Ops and versions
    FIA v1, npu_sparse_flash_attention.

    ## Evidence
    A11, SP-15: wrapper source of op-plugin; value=None raises with that text (executed on torch_npu 2.13).
    """

    code = "KV149"
    name = "cann-too-old"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("A11", "SP-15")
    operators = ("npu_fused_infer_attention_score", "npu_sparse_flash_attention")
    bad = {
        "no value": """
            torch_npu.npu_sparse_flash_attention(
                q, cache,
                None,  # KV149
                picks, scale, block_table=table, actual_seq_lengths_query=ends, actual_seq_lengths_kv=lens,
                query_rope=qr, key_rope=kr, layout_query="TND", layout_kv="PA_BSND", sparse_mode=3,
                attention_mode=2)
        """,
    }
    ok = {
        "key as value": """
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picks, scale, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=qr, key_rope=kr, layout_query="TND",
                layout_kv="PA_BSND", sparse_mode=3, attention_mode=2)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the arguments with a version of their own."""
        target = call.target
        if call.operator.family == "sparse":
            value = call.arg("value")
            if value.is_none.no or target.cann_at_least("9.2.0").yes:
                yield NOT_APPLICABLE
            else:
                yield require(
                    value.present,
                    f"value is None, which needs CANN 9.2.0{f', not {target.cann}' if target.cann else ''}",
                    at=value,
                    fix="Pass key as value.",
                )
            return
        if target.cann is None or call.rope.no:
            yield NOT_APPLICABLE
            return
        yield require(
            target.cann_at_least("8.1.RC1"),
            f"query_rope and key_rope need CANN 8.1.RC1, not {target.cann}",
            when=call.rope,
            at=call.arg("query_rope"),
        )
