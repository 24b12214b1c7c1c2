"""KV146: a shared prefix with arguments that exclude it."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require


class PrefixConflict(RunRule):
    """A shared prefix with arguments that exclude it.

    ## What it does
    Reports `key_shared_prefix` together with a block table, left padding, or int8 queries.

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    With a paged cache, let the block tables of the sequences share blocks.

    ## Ops and versions
    FIA v1.

    ## Evidence
    H12, PG16: tiling of both engines in ops-transformer (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV146"
    name = "prefix-conflict"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("H12", "PG16")
    families = ("fia",)
    bad = {
        "paged": """
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table.to(torch.int32), block_size=128, actual_seq_lengths_kv=lens,
                key_shared_prefix=x.view(1, 128, 1024),  # KV146
                value_shared_prefix=y.view(1, 128, 1024))
        """,
    }
    ok = {
        "contiguous": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                key_shared_prefix=pk, value_shared_prefix=pv)
        """,
        "one or the other": """
            def attend(q, k, v, pk, pv, table, lens):
                opts = {"num_heads": 8, "num_key_value_heads": 8, "scale": 0.1, "input_layout": "BSH"}
                if table is None:
                    opts.update(key_shared_prefix=pk, value_shared_prefix=pv)
                else:
                    opts.update(block_table=table, block_size=128, actual_seq_lengths_kv=lens)
                return torch_npu.npu_fused_infer_attention_score(q, k, v, **opts)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each conflict."""
        prefix = call.arg("key_prefix")
        given = prefix.present
        if not call.has("key_prefix") or given.no:
            yield NOT_APPLICABLE
            return
        conflicts = [("a block table", call.paged)]
        conflicts += [("left padding", call.arg(role).present) for role in ("query_padding", "kv_padding")]
        conflicts += [("an int8 query", call.arg("query").dtype.equals("int8"))]
        for what, holds in conflicts:
            yield require(~holds, f"a shared prefix does not go with {what}", when=given, at=prefix)
