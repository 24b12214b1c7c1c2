"""KV238: a sparse mode that int8 attention over an NZ cache does not have."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided

from ._common import constant_length, mode_among, sparse_mode


class NzCacheSparseMode(RunRule):
    """Grouped attention over an int8 NZ cache with a sparse mode it does not have.

    ## What it does
    For a 5-D int8 key without separate rope: one query token takes `sparse_mode` 0 without a mask, two to
    sixteen take 3 with the 2048 x 2048 mask.

    ## Why it is wrong
    This decode path exists for these combinations only; tiling rejects others.

    ## Use instead
    `sparse_mode=0, atten_mask=None` for one token, `sparse_mode=3` with the causal mask for several.

    ## Ops and versions
    FIA v1 and v2 with BSH, BSND or BNSD. All versions.

    ## Evidence
    C23: decode checker of ops-transformer (CANN 8.5 snapshot), `CheckGqaSeqSize`.
    """

    code = "KV238"
    name = "nz-cache-sparse-mode"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("C23",)
    families = ("fia",)
    bad = {
        "causal mode for one token": """
            cache = torch.zeros(64, 8, 4, 128, 32, dtype=torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 64, 1, 128), cache, cache, num_heads=64, num_key_value_heads=8, scale=0.1,
                input_layout="BNSD", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                key_antiquant_scale=ks, value_antiquant_scale=vs, inner_precise=1,
                atten_mask=hidden,
                sparse_mode=3,  # KV206, KV238
            )
        """,
    }
    ok = {
        "one token": """
            cache = torch.zeros(64, 8, 4, 128, 32, dtype=torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 64, 1, 128), cache, cache, num_heads=64, num_key_value_heads=8, scale=0.1,
                input_layout="BNSD", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                key_antiquant_scale=ks, value_antiquant_scale=vs, inner_precise=1,
            )
        """,
        "unknown cache": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 64, 2, 128), kc, vc, num_heads=64, num_key_value_heads=8, scale=0.1,
                input_layout="BNSD", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                key_antiquant_scale=ks, value_antiquant_scale=vs,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the mode by the number of tokens."""
        key, mode = call.arg("key"), call.arg("sparse_mode")
        when = key.rank.equals(5) & key.dtype.equals("int8") & ~call.rope & ~call.packed
        if when.no or call.paged.no:
            return NOT_APPLICABLE
        tokens = constant_length(call.query_length)
        if tokens is None:
            return undecided(call.single_token, *((when,) if when.unknown else ()))
        if tokens > 16:
            return NOT_APPLICABLE
        wanted = 0 if tokens == 1 else 3
        return require(
            mode_among(call, wanted),
            f"sparse_mode={sparse_mode(call)} with {tokens} query token{'s' * (tokens > 1)} and an int8 NZ "
            f"cache: only {wanted} is taken",
            when=when,
            at=mode if mode.given.yes else call.place,
            fix="Use mode 0 without a mask for one token, mode 3 with the causal mask for several.",
        )
