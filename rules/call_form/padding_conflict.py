"""KV147: left padding without the lengths it needs, or where it is not served."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import meant, whole


class PaddingConflict(RunRule):
    """Left padding without the lengths it needs, or where it is not served.

    ## What it does
    Checks `query_padding_size` and `kv_padding_size`: one int64 element, the matching length list, no packed
    layout, no block table, no shared prefix.

    ## Why it is wrong
    Prefill rejects the call. Decode only logs a missing length list or a block table and goes on with *right*
    padding: it attends to the padding instead of the tokens.

    ## Use instead
    Pass `actual_seq_lengths` / `actual_seq_lengths_kv`; with a paged cache there is no left padding.

    ## Ops and versions
    FIA v1, npu_incre_flash_attention (`kv_padding_size`). v2 has no left padding.

    ## Evidence
    H14, PG16: tiling of both engines in ops-transformer (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV147"
    name = "padding-conflict"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("H14", "PG16")
    families = ("fia", "ifa")
    bad = {
        "no lengths": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD",
                kv_padding_size=torch.zeros(1, dtype=torch.int64),  # KV147
            )
        """,
        "paged": """
            opts = {"num_heads": 8, "num_key_value_heads": 8, "scale": 0.1, "input_layout": "BSH"}
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, block_table=table.int(), block_size=128, actual_seq_lengths_kv=lens,
                kv_padding_size=start.view(1),  # KV147
                **opts)
        """,
        "int32": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=lens,
                kv_padding_size=torch.zeros(1, dtype=torch.int32),  # KV147
            )
        """,
    }
    ok = {
        "with lengths": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD",
                actual_seq_lengths_kv=lens, kv_padding_size=torch.zeros(1, dtype=torch.int64))
        """,
        "none": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD",
                kv_padding_size=None)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each padding argument."""
        for role, lengths in (("query_padding", "q_lens"), ("kv_padding", "kv_lens")):
            padding, lens = call.arg(role), call.arg(lengths)
            given = padding.present
            if not call.has(role) or given.no:
                yield NOT_APPLICABLE
                continue
            yield require(
                meant(lens),
                f"{padding.name} needs {lens.name}; decode falls back to right padding without it",
                when=given,
                at=padding,
                fix=f"Pass {lens.name}.",
            )
            conflicts = (
                ("a packed layout", call.packed),
                ("a block table", call.paged),
                ("a shared prefix", call.arg("key_prefix").present),
            )
            for what, holds in conflicts:
                yield require(~holds, f"{padding.name} does not go with {what}", when=given, at=padding)
            dtype, count = padding.dtype, padding.length
            yield require(
                dtype.equals("int64"),
                f"{padding.name} is {dtype.get('?')}, not int64",
                when=given,
                at=padding,
            )
            if whole(count) is not None:
                yield require(
                    count.holds(lambda value: value.integer == 1),
                    f"{padding.name} has {whole(count)} elements, not one",
                    when=given,
                    at=padding,
                )
