"""KV128: a size is over the operator's limit."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.rule import PROVED, Confidence, RunRule, Severity, Verdict, undecided, violated
from kvlint.contract.tri import Fact

from ._common import INFERENCE, decode_engine, paged, whole


class SizeOverLimit(RunRule):
    """A size is over the operator's limit.

    ## What it does
    Checks constant sizes: batch at most 65536, lengths at most 20971520 in prefill and 262144 keys in decode,
    1048576 packed tokens.

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    Split the batch or the tokens.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions.

    ## Evidence
    B13: constants of the prefill tiling (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV128"
    name = "size-over-limit"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("B13",)
    families = INFERENCE
    bad = {
        "packed tokens": """
            q = x.view(2097152, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q,  # KV128
                k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "batch": """
            q = x.view(131072, 8, 1, 128)
            torch_npu.npu_fused_infer_attention_score(
                q,  # KV128
                k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
    }
    ok = {
        "within": """
            q = x.view(65536, 8, 1, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the constant sizes."""
        query, key = call.arg("query"), call.arg("key")
        if call.packed.yes:
            yield _within(query, call.query_length, 1048576, "packed tokens")
            return
        yield _within(query, call.batch, 65536, "sequences")
        yield _within(query, call.query_length, 20971520, "query tokens")
        if paged(call).no:
            limit = 262144 if decode_engine(call).yes else 20971520
            yield _within(key, call.key_length, limit, "keys")


def _within(arg: Arg, size: Fact[Num], limit: int, what: str) -> Verdict:
    number = whole(size)
    if number is None:
        return undecided(*size.notes)
    if number <= limit:
        return PROVED
    return violated(f"{number} {what} are more than the operator's {limit}", arg, size.notes)
