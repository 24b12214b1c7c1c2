"""KV321: packed lengths that the engine cannot serve."""

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

from ._common import keys_paged


class QueryLongerThanKeys(RunRule):
    """A sequence of a packed causal call has more query tokens than keys, or more than MLA takes.

    ## What it does
    Computes the lengths of each sequence from literal lists of a TND call: in `sparse_mode` 3 a query may
    not be longer than its keys, and absorbed MLA takes at most 16 query tokens per sequence.

    ## Why it is wrong
    Mode 3 aligns the last query with the last key; a longer query has rows before the first key. Tiling
    rejects the call. Query ends used as key lengths of a chunk with a prefix, or swapped lists, give such
    numbers.

    ## Use instead
    Key lengths count the cached prefix and the new tokens. Longer MLA chunks go through the unabsorbed
    form.

    ## Ops and versions
    FIA v1 and v2, TND. All versions.

    ## Evidence
    C18, D08: prefill tiling and MLA checker of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV321"
    name = "query-longer-than-keys"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C18", "D08")
    families = ("fia",)
    bad = {
        "swapped lists": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", atten_mask=hidden, sparse_mode=3,
                actual_seq_lengths=[70, 150],  # KV321
                actual_seq_lengths_kv=[7, 15],
            )
        """,
    }
    ok = {
        "prefix": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", atten_mask=hidden, sparse_mode=3,
                actual_seq_lengths=[7, 15], actual_seq_lengths_kv=[70, 150],
            )
        """,
        "full attention": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=[70, 150],
                actual_seq_lengths_kv=[7, 15],
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the lengths of each sequence."""
        queries, keys = call.arg("q_lens"), call.arg("kv_lens")
        if call.packed.no or not queries.integers.known:
            return NOT_APPLICABLE
        lengths = _apart(queries.integers.value)
        if call.packed.yes and call.absorbed.yes and max(lengths, default=0) > 16:
            return violated(
                f"{queries.name} holds a sequence of {max(lengths)} query tokens, absorbed MLA takes 16",
                queries,
                queries.integers.notes,
                "Use the unabsorbed form for longer chunks.",
            )
        causal = call.arg("sparse_mode").constant.equals(3)
        paged = keys_paged(call)
        if causal.no or not keys.integers.known:
            return NOT_APPLICABLE
        if causal.unknown or paged.unknown or call.packed.unknown:
            return undecided(*(part for part in (causal, paged, call.packed) if part.unknown))
        available = list(keys.integers.value) if paged.yes else _apart(keys.integers.value)
        for mine, theirs in zip(lengths, available, strict=False):
            if mine > theirs:
                return violated(
                    f"a sequence has {mine} query tokens and {theirs} keys, which sparse_mode=3 rejects",
                    queries,
                    (*queries.integers.notes, *keys.integers.notes),
                    "Count the cached prefix and the new tokens in the key lengths.",
                )
        return PROVED


def _apart(ends: tuple[int, ...]) -> list[int]:
    """Lengths from running sums."""
    return [end - start for start, end in zip((0, *ends), ends, strict=False)]
