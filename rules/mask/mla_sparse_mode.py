"""KV225: a sparse mode that absorbed MLA does not have."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    require,
    undecided,
)

from ._common import absorbed, constant_length, mode_among, sparse_mode


class MlaSparseMode(RunRule):
    """Absorbed MLA (separate rope, head dim 512) with a sparse mode it does not have.

    ## What it does
    For BSH, BSND and BNSD: one query token takes `sparse_mode` 0 without a mask or 4; two to sixteen take 3
    with the mask or 4.

    ## Why it is wrong
    One token has nothing to hide, and several need the causal mode: mode 0 lets a draft token see its
    successors. The MLA checker rejects other combinations; the meta kernel accepts them.

    ## Use instead
    `sparse_mode=0, atten_mask=None` for one token, `sparse_mode=3` with the 2048 x 2048 mask for several.

    ## Ops and versions
    FIA v1 and v2 up to the CANN 8.5 snapshot; silent for a configured CANN from 9.0 on.

    ## Evidence
    C20, C21: MLA checker of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV225"
    name = "mla-sparse-mode"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("C20", "C21")
    families = ("fia",)
    bad = {
        "causal mode for one token": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(b, 1, 8, 512), kc, kc, query_rope=qr, key_rope=kr, num_query_heads=8,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BSND", block_table=table,
                block_size=128, actual_seq_kvlen=lens, atten_mask=hidden,
                sparse_mode=3,  # KV225
            )
        """,
        "full mode for draft tokens": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 8, 2, 512), kc, kc, query_rope=qr, key_rope=kr, num_heads=8,
                num_key_value_heads=1, scale=0.1, input_layout="BNSD", block_table=table, block_size=128,
                actual_seq_lengths_kv=lens,
                sparse_mode=0,  # KV225
            )
        """,
    }
    ok = {
        "one token": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(b, 1, 8, 512), kc, kc, query_rope=qr, key_rope=kr, num_query_heads=8,
                num_key_value_heads=1, softmax_scale=0.1, input_layout="BSND", block_table=table,
                block_size=128, actual_seq_kvlen=lens, sparse_mode=0,
            )
        """,
        "draft tokens": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 8, 2, 512), kc, kc, query_rope=qr, key_rope=kr, num_heads=8,
                num_key_value_heads=1, scale=0.1, input_layout="BNSD", block_table=table, block_size=128,
                actual_seq_lengths_kv=lens, sparse_mode=3, atten_mask=hidden,
            )
        """,
        "unknown number of tokens": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 8, n, 512), kc, kc, query_rope=qr, key_rope=kr, num_heads=8,
                num_key_value_heads=1, scale=0.1, input_layout="BNSD", block_table=table, block_size=128,
                actual_seq_lengths_kv=lens, sparse_mode=3, atten_mask=hidden,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the mode by the number of tokens."""
        mask, mode = call.arg("mask"), call.arg("sparse_mode")
        tokens = constant_length(call.query_length)
        when = absorbed(call) & ~call.packed
        if when.no or call.target.cann_at_least("9.0").yes or (tokens is not None and tokens > 16):
            return NOT_APPLICABLE
        if tokens is None and mode_among(call, 4).yes:
            return PROVED
        if tokens is None:
            return undecided(call.single_token, *((when,) if when.unknown else ()))
        allowed = (0, 4) if tokens == 1 else (3, 4)
        legal = mode_among(call, *allowed)
        if tokens == 1 and mode_among(call, 0).yes:
            return require(
                mask.is_none,
                f"{mask.name} is passed for one query token, where absorbed MLA takes none in mode 0",
                when=when,
                at=mask,
                fix=f"Pass {mask.name}=None for one-token decode.",
            )
        return require(
            legal,
            f"sparse_mode={sparse_mode(call)} with {tokens} query token{'s' * (tokens > 1)}: "
            f"absorbed MLA takes {' or '.join(map(str, allowed))}",
            when=when,
            at=mode if mode.given.yes else call.place,
            fix="Use mode 0 without a mask for one token, mode 3 with the causal mask for several.",
        )
