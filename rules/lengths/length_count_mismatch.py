"""KV314: query and key lengths for different numbers of sequences."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri, tri

from ._common import SPARSE, query_packed


class LengthCountMismatch(RunRule):
    """The number of lengths does not fit the number of sequences.

    ## What it does
    For packed tokens: query and key lengths with different numbers of entries. For a layout with a batch
    axis: a list that is neither one entry nor one per batch. Constants only.

    ## Why it is wrong
    One entry per sequence is needed on both sides. Tiling rejects the call; the meta kernel accepts it. A
    dummy request for graph padding that is added on one side only is a usual cause, a leading 0 another.

    ## Use instead
    Build both lists from the same batch, without a leading 0.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, the sparse-attention operators.

    ## Evidence
    D01, D05, D15: prefill tiling and decode checker of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV314"
    name = "length-count-mismatch"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("D01", "D05", "D15")
    families = ("fia", "pfa", "ifa")
    operators = SPARSE
    bad = {
        "leading 0 on the query side": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=[0, 7, 10],
                actual_seq_lengths_kv=[7, 10],  # KV314
            )
        """,
        "too few for the batch": """
            q = torch.zeros(4, 1, 1024, dtype=torch.float16)
            torch_npu.npu_incre_flash_attention(
                q, kc, vc, num_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=[70, 80],  # KV314
            )
        """,
    }
    ok = {
        "same number": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=[7, 10],
                actual_seq_lengths_kv=[7, 10],
            )
        """,
        "one entry for all": """
            q = torch.zeros(4, 1, 1024, dtype=torch.float16)
            torch_npu.npu_incre_flash_attention(
                q, kc, vc, num_heads=8, scale_value=0.1, input_layout="BSH", actual_seq_lengths=[70])
        """,
        "extra entries are ignored": """
            q = torch.zeros(4, 1, 1024, dtype=torch.float16)
            torch_npu.npu_incre_flash_attention(
                q, kc, vc, num_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=[70, 80, 90, 60, 0, 0])
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Compares the numbers of entries."""
        queries, keys = call.arg("q_lens"), call.arg("kv_lens")
        packed = query_packed(call)
        mine, theirs = _count(queries), _count(keys)
        if mine is not None and theirs is not None and not packed.no:
            yield require(
                tri(mine == theirs, *queries.length.notes, *keys.length.notes),
                f"{queries.name} has {mine} entries and {keys.name} has {theirs}, one per sequence is needed",
                when=packed,
                at=keys,
                fix="Build both lists from the same sequences, without a leading 0.",
            )
        batch = call.batch.value.integer if call.batch.known else None
        for lengths in (queries, keys):
            count = _count(lengths)
            if batch is None or count is None:
                yield NOT_APPLICABLE
                continue
            yield require(
                Tri(count == 1 or count >= batch, lengths.length.notes),
                f"{lengths.name} has {count} entries for a batch of {batch}",
                when=~packed,
                at=lengths,
                fix="Pass one length per batch, or a single one for all.",
            )


def _count(lengths: Arg) -> int | None:
    return lengths.length.value.integer if lengths.length.known else None
