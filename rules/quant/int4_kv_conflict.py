"""KV813: an int4 cache with arguments that exclude it."""

from __future__ import annotations

from collections.abc import Iterator

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

from ._common import INT4


class Int4KvConflict(RunRule):
    """An int4 cache with arguments that exclude it.

    ## What it does
    Reports a key that is known to be packed int4 (an int32 tensor) with a post-quantisation scale or left
    padding.

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    An int8 cache, or a float output and right padding.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    G18: decode checker (CANN 8.5 snapshot), op-plugin documentation of FIA v2.
    """

    code = "KV813"
    name = "int4-kv-conflict"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("G18",)
    families = ("fia",)
    bad = {
        "quantised output": """
            k = torch.zeros(2, 64, 128, dtype=torch.int32)
            torch_npu.npu_fused_infer_attention_score(
                q,
                k,  # KV813
                k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks, value_antiquant_scale=vs, quant_scale2=s.float(),
                actual_seq_lengths_kv=lens)
        """,
    }
    ok = {
        "contiguous": """
            k = torch.zeros(2, 64, 128, dtype=torch.int32)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks, value_antiquant_scale=vs, actual_seq_lengths_kv=lens)
        """,
        "unknown dtype": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_antiquant_scale=ks, value_antiquant_scale=vs, quant_scale2=s.float(),
                actual_seq_lengths_kv=lens)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each conflict."""
        key = call.arg("key")
        packed = key.dtype.among(INT4)
        conflicts = (
            ("a quantised output", call.arg("out_quant_scale").present),
            ("left padding", call.arg("kv_padding").present | call.arg("query_padding").present),
        )
        if not packed.yes:
            # Without such an argument any key will do.
            free = packed.unknown and all(holds.no for _, holds in conflicts)
            yield NOT_APPLICABLE if packed.no else PROVED if free else undecided(packed)
            return
        for what, holds in conflicts:
            yield require(~holds, f"an int4 cache does not go with {what}", at=key)
