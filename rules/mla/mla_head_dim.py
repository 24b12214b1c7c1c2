"""KV504: a head dim that split rope parts do not go with."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant

from ._common import with_rope


class MlaHeadDim(RunRule):
    """Rope parts are passed on their own with a head dim other than 512 or 128.

    ## What it does
    With `query_rope` and `key_rope`, checks the head dim of query where it is visible: 512 (absorbed MLA)
    or 128 (explicit keys).

    ## Why it is wrong
    The operator serves these two. Another width is rejected; 192 or 576 mean that the rope part is already
    in query.

    ## Use instead
    Split the last 64 columns off, or pass query and key whole without the rope arguments.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    F04, F14: MLA checker and prefill tiling (ops-transformer, CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV504"
    name = "mla-head-dim"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("F04", "F14")
    families = ("fia",)
    bad = {
        "rope part left in query": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 8, 192),  # KV504
                k, v, num_heads=8, num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe,
                key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table,
                block_size=128,
            )
        """,
    }
    ok = {
        "absorbed": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 8, 512), k, k, num_heads=8, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
        "no rope parts": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 8, 192), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends,
            )
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 8, rank), k, k, num_heads=8, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the head dim."""
        dim, query = constant(call.head_dim), call.arg("query")
        return require(
            # More than 512 is unsupported-head-dim.
            dim.holds(lambda size: size in (512, 128) or size > 512),
            f"{query.name} is {dim.get(0)} wide per head, with rope parts it must be 512 or 128",
            when=with_rope(call),
            at=query,
            fix="Split the 64 rotary columns off, or drop the rope arguments.",
        )
