"""KV509: more query tokens than absorbed MLA serves."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant

from ._common import absorbed

_MOST_BYTES = 1048576


class MlaQueryLength(RunRule):
    """Absorbed MLA gets more query tokens than it serves.

    ## What it does
    For rope parts with head dim 512, checks visible sizes of query: at most 16 tokens per sequence in
    layouts with a batch axis (the sliding window, sparse_mode 4, has no such limit), and at most 1048576
    bytes divided by the element size tokens in packed layouts (524288 for fp16 and bf16).

    ## Why it is wrong
    Longer queries go to the prefill engine, which does not know head dim 512, and are rejected.

    ## Use instead
    The unabsorbed form (head dim 128 or 192) for prefill.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    F09, F10: decode tiling and MLA checker (ops-transformer, CANN 8.5 snapshot).
    """

    code = "KV509"
    name = "mla-query-length"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("F09", "F10")
    families = ("fia",)
    bad = {
        "a prompt": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(2, 1024, 16, 512),  # KV509
                k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="BSND", query_rope=q_pe,
                key_rope=k_pe, actual_seq_lengths_kv=lens, block_table=table, block_size=128, sparse_mode=3,
                atten_mask=mask,
            )
        """,
    }
    ok = {
        "drafted tokens": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(2, 4, 16, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1,
                input_layout="BSND", query_rope=q_pe, key_rope=k_pe, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128, sparse_mode=3, atten_mask=mask,
            )
        """,
        "explicit keys": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(2, 1024, 16, 128), k, v, num_heads=16, num_key_value_heads=16, scale=0.1,
                input_layout="BSND", query_rope=q_pe, key_rope=k_pe, sparse_mode=3, atten_mask=mask,
            )
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(2, -1, 16, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1,
                input_layout="BSND", query_rope=q_pe, key_rope=k_pe, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128, sparse_mode=3, atten_mask=mask,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the number of query tokens."""
        latent, query = absorbed(call), call.arg("query")
        tokens = constant(call.query_length)
        if call.packed.yes:
            limit = _MOST_BYTES if query.dtype.equals("int8").yes else _MOST_BYTES // 2
            when, what = latent & ~query.dtype.equals("int8"), f"tokens, at most {limit} are served"
            if query.dtype.equals("int8").yes:
                when = latent
        elif call.packed.no:
            limit, what = 16, "tokens per sequence, absorbed MLA takes at most 16"
            when = latent & ~call.arg("sparse_mode").constant.equals(4)
        else:
            return NOT_APPLICABLE
        return require(
            tokens.holds(lambda count: count <= limit),
            f"{query.name} has {tokens.get(0)} {what}",
            when=when,
            at=query,
            fix="Use the unabsorbed form for prefill.",
        )
