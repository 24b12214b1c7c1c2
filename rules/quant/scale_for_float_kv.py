"""KV807: a scale for a cache that is not quantised."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import FLOATS


class ScaleForFloatKv(RunRule):
    """A scale for a cache that is not quantised.

    ## What it does
    Reports a scale or offset for key or value with a cache that is known to be float16 or bfloat16.

    ## Why it is wrong
    Decode tiling rejects the call.

    ## Use instead
    None for layers with a float cache.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions.

    ## Evidence
    G08: decode tiling (CANN 8.5 snapshot).
    """

    code = "KV807"
    name = "scale-for-float-kv"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("G08",)
    families = ("fia", "ifa")
    bad = {
        "float16 cache": """
            cache = torch.zeros(64, 128, 1024, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                x.half(), cache, cache, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                key_antiquant_scale=ks.half(),  # KV807
                value_antiquant_scale=vs.half(),  # KV807
            )
        """,
    }
    ok = {
        "int8 cache": """
            cache = torch.zeros(64, 128, 1024, dtype=torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                x.half(), cache, cache, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens, key_antiquant_scale=ks,
                value_antiquant_scale=vs)
        """,
        "may be None": """
            cache = torch.zeros(64, 128, 1024, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                x.half(), cache, cache, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                key_antiquant_scale=layer.k_scale, value_antiquant_scale=layer.v_scale)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each scale."""
        for role, tensor in (
            ("key_quant_scale", "key"),
            ("value_quant_scale", "value"),
            ("merged_quant_scale", "key"),
        ):
            scale, cache = call.arg(role), call.arg(tensor)
            if scale.is_none.yes:
                yield NOT_APPLICABLE
                continue
            yield require(
                ~cache.dtype.among(FLOATS),
                f"{scale.name} is passed, but {tensor} is {cache.dtype.get('float')}",
                when=scale.present,
                at=scale,
            )
