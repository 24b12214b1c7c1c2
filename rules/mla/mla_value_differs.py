"""KV506: absorbed MLA whose value is not its key."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    undecided,
    violated,
)
from kvlint.contract.sizes import constant
from kvlint.contract.tri import Tri

from ._common import absorbed

_LATENT = ("npu_sparse_flash_attention",)


class MlaValueDiffers(RunRule):
    """Absorbed MLA gets a value that is not the latent key.

    ## What it does
    For absorbed MLA (rope parts and head dim 512, or npu_sparse_flash_attention) reports a value that is
    visibly another tensor: the rope cache, or one whose head dim is not 512.

    ## Why it is wrong
    The latent vectors are key and value at once, and the engine reads the value through the key's geometry.
    Another width is rejected; another tensor of the same width gives silent wrong numbers.

    ## Use instead
    Pass the nope cache twice: `op(q, kv, kv, query_rope=..., key_rope=...)`.

    ## Ops and versions
    FIA v1 and v2, npu_sparse_flash_attention. All versions.

    ## Evidence
    F07, F19, SP-09: feature checks (ops-transformer, CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV506"
    name = "mla-value-differs"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("F07", "F19", "SP-09")
    families = ("fia",)
    operators = _LATENT
    bad = {
        "the rope cache as value": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), kv_pool,
                pe_pool,  # KV506
                num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe,
                key_rope=pe_pool, actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table,
                block_size=128,
            )
        """,
        "another width": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(-1, 16, 512), kv_pool.view(-1, 128, 512),
                v_pool.view(-1, 128, 128),  # KV506
                num_query_heads=16, num_key_value_heads=1, softmax_scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=k_pe, actual_seq_qlen=ends, actual_seq_kvlen=lens,
                block_table=table, block_size=128,
            )
        """,
    }
    ok = {
        "the key twice": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), kv_pool, kv_pool, num_heads=16, num_key_value_heads=1, scale=0.1,
                input_layout="TND", query_rope=q_pe, key_rope=pe_pool, actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "two names": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), k_cache, v_cache, num_heads=16, num_key_value_heads=1, scale=0.1,
                input_layout="TND", query_rope=q_pe, key_rope=pe_pool, actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "explicit keys": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 128), k, v.view(-1, 16, 128), num_heads=16, num_key_value_heads=16, scale=0.1,
                input_layout="TND", query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the value."""
        key, value, rope = call.arg("key"), call.arg("value"), call.arg("key_rope")
        latent = absorbed(call) if call.operator.name not in _LATENT else call.arg("key").is_tensor
        if latent.no:
            return NOT_APPLICABLE
        if key.same_as(value).yes:
            return PROVED
        fix = f"Pass {key.name} as {value.name} too."
        if value.same_as(rope).yes and not key.same_as(rope).yes:
            what = f"{value.name} is the rope cache, it must be the latent {key.name}"
            return violated(what, value, fix=fix)
        width = constant(value.dim(-1))
        wrong = ~width.equals(512)
        nz = value.rank.holds(lambda rank: rank > 4)
        if (latent & wrong & ~nz).yes:
            return violated(
                f"{value.name} is {width.get(0)} wide, absorbed MLA reads the 512 wide {key.name} as value",
                value,
                (*latent.notes, *width.notes),
                fix,
            )
        return undecided(latent, wrong, Tri(None, width.notes))
