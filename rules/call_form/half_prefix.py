"""KV145: only one half of the shared prefix is passed."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import differ, meant, whole


class HalfPrefix(RunRule):
    """Only one half of the shared prefix is passed.

    ## What it does
    Checks that `key_shared_prefix` and `value_shared_prefix` are passed together, that their batch is 1, and
    that they have the axes, heads and head dim of key and the same sizes. Also that
    `actual_shared_prefix_len` has one entry.

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    Both halves, in the layout of key and value, with batch 1.

    ## Ops and versions
    FIA v1. v2 has no shared prefix.

    ## Evidence
    H12, H13: tiling of both engines in ops-transformer (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV145"
    name = "half-prefix"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("H12", "H13")
    families = ("fia",)
    bad = {
        "no values": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_shared_prefix=x.view(1, 128, 1024),  # KV145
                actual_shared_prefix_len=[128])
        """,
        "a batch of prefixes": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_shared_prefix=x.view(4, 128, 1024),  # KV145
                value_shared_prefix=y.view(4, 128, 1024), actual_shared_prefix_len=[128])
        """,
        "one length per sequence": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_shared_prefix=pk, value_shared_prefix=pv,
                actual_shared_prefix_len=[128, 128],  # KV145
            )
        """,
    }
    ok = {
        "both": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_shared_prefix=x.view(1, 128, 1024), value_shared_prefix=y.view(1, 128, 1024),
                actual_shared_prefix_len=[128])
        """,
        "neither": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_shared_prefix=None, value_shared_prefix=None)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the pair, its batch and its length list."""
        key, value = call.arg("key_prefix"), call.arg("value_prefix")
        if not call.has("key_prefix") or (key.is_none.yes and value.is_none.yes):
            yield NOT_APPLICABLE
            return
        for one, other in ((key, value), (value, key)):
            yield require(
                meant(other),
                f"{one.name} is passed without {other.name}",
                when=one.present,
                at=one,
                fix=f"Pass {other.name} too.",
            )
        batch = key.dim(0)
        size = whole(batch)
        if call.query_layout.among(("BSH", "BSND", "BNSD")).yes and size is not None:
            yield require(
                batch.holds(lambda value: value.integer == 1),
                f"the shared prefix has batch {size}, it must be 1",
                when=key.present,
                at=key,
            )
        yield require(
            ~differ(key.dim(-1), call.arg("key").dim(-1)),
            "the shared prefix has another last axis than key",
            when=key.present,
            at=key,
        )
        entries = call.arg("prefix_len")
        count = whole(entries.length)
        if entries.given.yes and count is not None:
            yield require(
                entries.length.holds(lambda value: value.integer == 1),
                f"{entries.name} has {count} entries, the prefix is shared by all sequences",
                at=entries,
                fix="Pass one length.",
            )
