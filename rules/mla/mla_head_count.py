"""KV505: head counts that absorbed MLA does not have."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant
from kvlint.contract.tri import NO

from ._common import absorbed


class MlaHeadCount(RunRule):
    """Absorbed MLA with more than one KV head, or a query head count that is not served.

    ## What it does
    For a call with rope parts and head dim 512: the KV head count must be 1, the query head count a power
    of two up to 128. A KV head count that is omitted means the query head count.

    ## Why it is wrong
    All query heads share the one latent head. Other counts are rejected; the meta kernel accepts them.

    ## Use instead
    `num_key_value_heads=1`. Pad query heads to the next power of two and cut the output.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    F05: MLA checker and decode checker (ops-transformer, CANN 8.5 snapshot); 24 heads are accepted by the
    meta kernel (executed).
    """

    code = "KV505"
    name = "mla-head-count"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("F05",)
    families = ("fia",)
    bad = {
        "not a power of two": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 24, 512), k, k,
                num_heads=24,  # KV505
                num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe, key_rope=k_pe,
                actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "KV heads of the model": """
            opts = {"num_key_value_heads": 128, "softmax_scale": 0.1, "input_layout": "TND"}  # KV505
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(-1, 128, 512), k, k, num_query_heads=128, query_rope=q_pe, key_rope=k_pe,
                actual_seq_qlen=ends, actual_seq_kvlen=lens, block_table=table, block_size=128, **opts)
        """,
    }
    ok = {
        "one KV head": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
        "explicit keys": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 24, 128), k, v, num_heads=24, num_key_value_heads=24, scale=0.1,
                input_layout="TND", query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends,
            )
        """,
        "counts by name": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, heads, 512), k, k, num_heads=heads, num_key_value_heads=kv_heads, scale=0.1,
                input_layout="TND", query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges both head counts."""
        when = absorbed(call)
        if when.no:
            yield NOT_APPLICABLE
            return
        heads_arg, kv_arg = call.arg("q_heads"), call.arg("kv_heads")
        heads, kv_heads = constant(call.heads), constant(call.kv_heads)
        yield require(
            heads.among((1, 2, 4, 8, 16, 32, 64, 128)),
            f"{heads_arg.name} is {heads.get(0)}, absorbed MLA takes a power of two up to 128",
            when=when,
            at=heads_arg,
        )
        single = kv_heads.equals(1)
        if kv_arg.given.no and not heads.equals(1).yes:
            single = NO
        yield require(
            single,
            f"{kv_arg.name} is {kv_heads.get('not passed (all query heads)')}, absorbed MLA has one",
            when=when,
            at=kv_arg if kv_arg.given.yes else call.place,
            fix=f"Pass {kv_arg.name}=1.",
        )
