"""KV313: running sums that do not end at the number of tokens."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Fact, Tri

from ._common import keys_packed, query_packed


class WrongLastLength(RunRule):
    """The last running sum is not the number of packed tokens.

    ## What it does
    Compares the last entry of a literal length list with the token axis, where both are constants.

    ## Why it is wrong
    The sums must account for every row of query (and of unpaged key). Tiling rejects the call with "queryT
    must be equal to the last element". Padding rows for a graph bucket is the usual cause.

    ## Use instead
    Slice the padding off (`q[:ends[-1]]`), or let the list end at the padded count.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    D02, D03: prefill tiling of ops-transformer (CANN 8.5 snapshot); accepted by the meta kernel of
    torch_npu 2.13 (executed).
    """

    code = "KV313"
    name = "wrong-last-length"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("D02", "D03")
    families = ("fia",)
    bad = {
        "per-sequence lengths": """
            q = torch.zeros(10, 8, 128, dtype=torch.bfloat16)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=[5, 5],  # KV313
                actual_seq_lengths_kv=[5, 10],
            )
        """,
    }
    ok = {
        "ends": """
            q = torch.zeros(10, 8, 128, dtype=torch.bfloat16)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=[5, 10],
                actual_seq_lengths_kv=[5, 10],
            )
        """,
        "unknown number of tokens": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=[5, 10],
                actual_seq_lengths_kv=[5, 10],
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query and key lengths apart."""
        yield _judge(call.arg("q_lens"), call.query_length, query_packed(call))
        yield _judge(call.arg("kv_lens"), call.key_length, keys_packed(call))


def _judge(lengths: Arg, tokens: Fact[Num], when: Tri) -> Verdict:
    size = tokens.value.integer if tokens.known else None
    if size is None or not lengths.integers.known or not lengths.integers.value:
        return NOT_APPLICABLE
    last = lengths.integers.value[-1]
    return require(
        Tri(last == size, (*lengths.integers.notes, *tokens.notes)),
        f"{lengths.name} ends at {last}, but there are {size} tokens",
        when=when,
        at=lengths,
        fix="Make the last entry the number of tokens, or slice the tensor to it.",
    )
