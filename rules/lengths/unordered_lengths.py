"""KV312: running sums that decrease."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri

from ._common import SPARSE, keys_packed, query_packed


class UnorderedLengths(RunRule):
    """A literal list of running sums decreases.

    ## What it does
    Checks literal length lists of packed tokens: every entry must be at least the one before.

    ## Why it is wrong
    Entry i is where sequence i ends. A smaller one after it gives a negative length; tiling rejects the
    call. The usual cause is a list of lengths instead of running sums.

    ## Use instead
    `list(itertools.accumulate(lens))`.

    ## Ops and versions
    FIA v1 and v2, the npu_fusion_attention family (zeros at the end are allowed there), the
    sparse-attention operators.

    ## Evidence
    D02, D03, FUS-08: prefill tiling of ops-transformer (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV312"
    name = "unordered-lengths"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("D02", "D03", "FUS-08")
    families = ("fia", "fusion")
    operators = SPARSE
    bad = {
        "lengths instead of ends": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=[7, 3, 5],  # KV312
                actual_seq_lengths_kv=[7, 10, 15],
            )
        """,
        "tensor": """
            ends = torch.tensor([4, 2], dtype=torch.int32, device="npu")
            torch_npu.npu_sparse_flash_attention(
                q, kc, kc, picked, 0.1, query_rope=qr, key_rope=kr,
                actual_seq_lengths_query=ends,  # KV312
                actual_seq_lengths_kv=lens, block_table=table, layout_query="TND", layout_kv="PA_BSND",
                attention_mode=2,
            )
        """,
    }
    ok = {
        "ends": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=[7, 10, 10],
                actual_seq_lengths_kv=[7, 10, 15],
            )
        """,
        "key lengths of a paged call": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=[1, 2], actual_seq_lengths_kv=[70, 5], block_table=table, block_size=128,
            )
        """,
        "padded tail in training": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "TND", scale=0.1, actual_seq_qlen=[7, 10, 0, 0], actual_seq_kvlen=[7, 10, 0, 0])
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query and key lengths apart."""
        yield _judge(call, call.arg("q_lens"), query_packed(call))
        yield _judge(call, call.arg("kv_lens"), keys_packed(call))


def _judge(call: Call, lengths: Arg, when: Tri) -> Verdict:
    if not lengths.integers.known:
        return NOT_APPLICABLE
    values = list(lengths.integers.value)
    if call.operator.family == "fusion":
        while values and values[-1] == 0:
            values.pop()
    drop = next((i for i in range(1, len(values)) if values[i] < values[i - 1]), None)
    shown = "" if drop is None else f"{values[drop]} follows {values[drop - 1]}"
    return require(
        Tri(drop is None, lengths.integers.notes),
        f"{lengths.name} must be running sums, but {shown}",
        when=when,
        at=lengths,
        fix="Pass where each sequence ends: list(itertools.accumulate(lens)).",
    )
