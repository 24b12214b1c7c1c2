"""KV304: a block table without key lengths."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO

from ._common import keys_paged


class PagedWithoutKvLengths(RunRule):
    """A block table is passed without the key lengths.

    ## What it does
    Reports a call with a `block_table` whose key lengths are omitted or None on the same path.

    ## Why it is wrong
    A paged cache does not say how many of its rows are valid. Tiling rejects the call; the schema and the
    meta kernel accept it.

    ## Use instead
    Pass the number of valid keys per request, the token just written included: `actual_seq_lengths_kv` (FIA
    v1), `actual_seq_kvlen` (v2), `actual_seq_lengths` (npu_incre_flash_attention).

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions.

    ## Evidence
    D10: prefill and decode tiling of ops-transformer (CANN 8.5 snapshot); accepted by the meta kernel of
    torch_npu 2.13 (executed).
    """

    code = "KV304"
    name = "paged-without-kv-lengths"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("D10",)
    families = ("fia", "ifa")
    bad = {
        "omitted": """
            torch_npu.npu_fused_infer_attention_score(  # KV304
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128,
            )
        """,
        "query lengths only": """
            opts = dict(num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BNSD")
            opts.update(block_table=table, block_size=128, actual_seq_qlen=lens)
            self.fa_ops = torch.ops.npu
            self.fa_ops.npu_fused_infer_attention_score_v2(q, kc, vc, **opts)  # KV304
        """,
        "decode operator": """
            torch_npu.npu_incre_flash_attention(  # KV304
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                block_table=table, block_size=128,
            )
        """,
    }
    ok = {
        "given": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens,
            )
        """,
        "table and lengths in one branch": """
            opts = dict(num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BNSD")
            if paged:
                opts.update(block_table=table, block_size=128, actual_seq_kvlen=lens)
            torch.ops.npu.npu_fused_infer_attention_score_v2(q, kc, vc, **opts)
        """,
        "no table": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=None)
        """,
        "keywords passed on": """
            def attend(q, kc, vc, **rest):
                return torch_npu.npu_fused_infer_attention_score(
                    q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                    block_table=table, block_size=128, **rest)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the key lengths of a paged call."""
        lengths, table = call.arg("kv_lens"), call.arg("block_table")
        fix = f"Pass the number of valid keys per request as {lengths.name}."
        if lengths.given.no and call.binding.unexpected:
            # Most likely the lengths under the name of another version, which is reported already.
            return NOT_APPLICABLE
        if lengths.given.no:
            return require(
                NO,
                f"{table.name} is given but {lengths.name} is not",
                when=keys_paged(call),
                at=call.place,
                fix=fix,
            )
        return require(
            lengths.present,
            f"{table.name} is given but {lengths.name} is None",
            when=table.present,
            at=lengths,
            fix=fix,
        )
