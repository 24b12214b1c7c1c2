"""KV318: prefill run as decode rows that all see the whole context."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, undecided, violated

from ._common import repeated_input


class ExpandedDecode(RunRule):
    """Every token of a request becomes a decode row with the full key length.

    ## What it does
    Reports a one-token call whose block table rows and key lengths are both repeated by the same counts.

    ## Why it is wrong
    All tokens of a chunk get the key length of the whole request, so earlier tokens attend to later ones.
    Without a prefix the numbers are wrong for every token but the last. The call runs.

    ## Use instead
    The TND layout with `sparse_mode=3`, running query sums and one key length per request. Or give each row
    its own length: `(kv - q).repeat_interleave(q) + step + 1`.

    ## Ops and versions
    FIA v1 and v2 with one query token, npu_incre_flash_attention. All versions.

    ## Evidence
    C08, D05: a decode row attends to all of its keys; fixes in lmdeploy and dlinfer.
    """

    code = "KV318"
    name = "expanded-decode"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("C08", "D05")
    families = ("fia", "ifa")
    bad = {
        "lengths repeated as they are": """
            def prefill(q, kc, vc, table, q_lens, kv_lens):
                rows = table.repeat_interleave(q_lens, 0)
                lens = kv_lens.repeat_interleave(q_lens, 0)
                return torch_npu.npu_incre_flash_attention(
                    q.view(-1, 1, 1024), kc, vc, num_heads=8, num_key_value_heads=8, scale_value=0.1,
                    input_layout="BSH", block_table=rows.to(torch.int32), block_size=128,
                    actual_seq_lengths=lens.tolist(),  # KV318
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
        "packed prefill": """
            def prefill(q, kc, vc, table, q_lens, kv_lens, hidden):
                return torch_npu.npu_fused_infer_attention_score(
                    q.view(-1, 8, 128), kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="TND", block_table=table, block_size=128, atten_mask=hidden, sparse_mode=3,
                    actual_seq_lengths=q_lens.cumsum(0).tolist(), actual_seq_lengths_kv=kv_lens.tolist(),
                )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the counts both are repeated by."""
        table, lengths = call.arg("block_table").repeated, call.arg("kv_lens").repeated
        if not (table.known and lengths.known) or table.value != lengths.value:
            return NOT_APPLICABLE
        if not all(repeated_input(option) for option in call.arg("kv_lens").options):
            return NOT_APPLICABLE
        if call.operator.family == "fia" and not call.single_token.yes:
            return undecided(call.single_token) if call.single_token.unknown else NOT_APPLICABLE
        arg = call.arg("kv_lens")
        return violated(
            f"{arg.name} repeats the full key length for every token, so earlier tokens attend to later ones",
            arg,
            lengths.notes,
            "Use TND with sparse_mode=3, or give each row its own causal length.",
        )
