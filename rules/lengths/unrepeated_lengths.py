"""KV317: a block table expanded per token beside lengths per request."""

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
from kvlint.contract.tri import Tri

from ._common import bare_input


class UnrepeatedLengths(RunRule):
    """The rows of the block table are repeated per token, the key lengths are not.

    ## What it does
    Reports a block table whose rows come from `repeat_interleave` in a call whose key lengths are passed on
    as they came in.

    ## Why it is wrong
    Running prefill as one decode row per token needs one length per row as well. The lengths per request
    are too few (rejected), or tokens read the length of another request.

    ## Use instead
    Give each token its own causal length: `(kv - q).repeat_interleave(q) + step + 1`. Better: the TND
    layout with `sparse_mode=3` and lengths per request.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention, _npu_paged_attention and its MLA form. All versions.

    ## Evidence
    D05, D14: decode checker of ops-transformer (CANN 8.5 snapshot), a fix in lmdeploy.
    """

    code = "KV317"
    name = "unrepeated-lengths"
    severity = Severity.DEVICE
    confidence = Confidence.MEDIUM
    contract = ("D05", "D14")
    families = ("fia", "ifa")
    operators = ("_npu_paged_attention", "_npu_paged_attention_mla")
    bad = {
        "lengths per request": """
            def prefill(q, kc, vc, table, q_lens, kv_lens):
                rows = table.repeat_interleave(q_lens, dim=0).to(torch.int32)
                return torch_npu.npu_incre_flash_attention(
                    q.view(-1, 1, 1024), kc, vc, num_heads=8, num_key_value_heads=8, scale_value=0.1,
                    input_layout="BSH", block_table=rows, block_size=128,
                    actual_seq_lengths=kv_lens.tolist(),  # KV317
                )
        """,
    }
    ok = {
        "length of each token": """
            def prefill(q, kc, vc, table, q_lens, kv_lens, step):
                rows = table.repeat_interleave(q_lens, dim=0).to(torch.int32)
                lens = (kv_lens - q_lens).repeat_interleave(q_lens) + step + 1
                return torch_npu.npu_incre_flash_attention(
                    q.view(-1, 1, 1024), kc, vc, num_heads=8, num_key_value_heads=8, scale_value=0.1,
                    input_layout="BSH", block_table=rows, block_size=128, actual_seq_lengths=lens.tolist(),
                )
        """,
        "table as it came in": """
            def decode(q, kc, vc, table, kv_lens):
                return torch_npu.npu_incre_flash_attention(
                    q.view(-1, 1, 1024), kc, vc, num_heads=8, num_key_value_heads=8, scale_value=0.1,
                    input_layout="BSH", block_table=table, block_size=128,
                    actual_seq_lengths=kv_lens.tolist(),
                )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares how rows and lengths are made."""
        table, lengths = call.arg("block_table"), call.arg("kv_lens")
        if table.is_none.yes or not table.repeated.known:
            return NOT_APPLICABLE
        if lengths.rows.known:
            return PROVED
        if not all(bare_input(option) for option in lengths.options):
            return undecided(Tri(None, lengths.rows.notes))
        return violated(
            f"{table.name} has one row per token, {lengths.name} still holds one length per request",
            lengths,
            table.repeated.notes,
            "Expand the lengths too, with each token's own causal length, or use TND with sparse_mode=3.",
        )
