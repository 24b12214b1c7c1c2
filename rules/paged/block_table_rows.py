"""KV410: a block table with more or fewer rows than there are sequences."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.sizes import equal, kept_apart
from kvlint.contract.tri import Fact, Tri

from ._common import paged


class BlockTableRows(RunRule):
    """The block table does not have one row per sequence of the call.

    ## What it does
    Compares the number of rows of the block table with the number of sequences: the entries of the length
    list in packed layouts and in the ATB operators, the batch axis of the query elsewhere. Lengths that are
    cut to the live batch (`lens[:live]`) next to the whole persistent table are the usual case.

    ## Why it is wrong
    ATB and the prefill engine compare the two and reject the call, but only for the batches where they
    differ: it runs while the batch is full and fails later. The decode engine does not compare.

    ## Use instead
    Cut the table the same way: `table[:live]`.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention, ATB operators with host lists of lengths. All versions.

    ## Evidence
    D14, ATB-13, ATB-09: prefill tiling (ops-transformer, CANN 8.5 snapshot), ATB operation checks; fixed
    three times in vllm-ascend.
    """

    code = "KV410"
    name = "block-table-rows"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("D14", "ATB-13", "ATB-09")
    families = ("fia", "ifa", "atb")
    bad = {
        "persistent table, lengths of the live batch": """
            class State:
                def __init__(self, max_reqs, max_blocks):
                    self.table = torch.zeros(max_reqs, max_blocks, dtype=torch.int32)
                    self.lens = torch.zeros(max_reqs, dtype=torch.int32)

                def attend(self, q, k, v, live, heads, out):
                    torch_npu._npu_paged_attention(
                        query=q, key_cache=k, value_cache=v, num_kv_heads=heads, num_heads=heads,
                        scale_value=0.1,
                        block_table=self.table,  # KV410
                        context_lens=self.lens[:live], out=out)
        """,
        "constants in a packed layout": """
            table = torch.zeros(8, 16, dtype=torch.int32)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", block_size=128,
                block_table=table,  # KV410
                actual_seq_qlen=[4, 8], actual_seq_kvlen=[100, 90],
            )
        """,
    }
    ok = {
        "table cut too": """
            class State:
                def __init__(self, max_reqs, max_blocks):
                    self.table = torch.zeros(max_reqs, max_blocks, dtype=torch.int32)
                    self.lens = torch.zeros(max_reqs, dtype=torch.int32)

                def attend(self, q, k, v, live, heads, out):
                    torch_npu._npu_paged_attention(
                        query=q, key_cache=k, value_cache=v, num_kv_heads=heads, num_heads=heads,
                        scale_value=0.1, out=out,
                        block_table=self.table[:live], context_lens=self.lens[:live])
        """,
        "both whole": """
            table = torch.zeros(rows, 16, dtype=torch.int32)
            lens = torch.zeros(rows, dtype=torch.int32)
            torch_npu._npu_paged_attention(
                query=q, key_cache=k, value_cache=v, num_kv_heads=8, num_heads=8, scale_value=0.1,
                block_table=table, context_lens=lens, out=out)
        """,
        "unknown rows": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", block_size=128,
                block_table=meta.table, actual_seq_qlen=[4, 8], actual_seq_kvlen=[100, 90],
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the rows of the table."""
        table, is_paged = call.arg("block_table"), paged(call)
        if is_paged.no:
            return NOT_APPLICABLE
        sequences, named = self._sequences(call)
        rows = table.dim(0)
        if not (rows.known and sequences.known):
            return undecided(Tri(None, rows.notes), Tri(None, sequences.notes))
        same = equal(rows, sequences)
        if same.unknown:
            # Two capacities that the author names apart and that must be the same number.
            same = ~kept_apart(rows, sequences)
        return require(
            same,
            f"{table.name} has {rows.value.label} rows for the {sequences.value.label} {named}: "
            "rejected whenever the two differ",
            when=is_paged,
            at=table,
            fix=f"Cut {table.name} to the {sequences.value.label} sequences of the call.",
        )

    @staticmethod
    def _sequences(call: Call) -> tuple[Fact[Num], str]:
        lengths = call.arg("kv_lens") if call.arg("kv_lens").given.yes else call.arg("q_lens")
        if call.operator.family == "atb":
            return lengths.length, f"entries of {lengths.name}"
        packed = call.packed
        if packed.yes:
            return lengths.length, f"entries of {lengths.name}"
        if packed.no and call.prefill_engine.yes:
            return call.batch, "sequences of query"
        return Fact(None, call.prefill_engine.notes), ""
