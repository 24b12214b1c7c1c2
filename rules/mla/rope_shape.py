"""KV503: a rope part that does not match its query or key."""

from __future__ import annotations

from collections.abc import Iterator

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
from kvlint.contract.sizes import equal, shown
from kvlint.contract.tri import Tri


class RopeShape(RunRule):
    """A rope part differs from its query or key in more than the width.

    ## What it does
    Compares `query_rope` with `query` and `key_rope` with `key`: same number of axes (also for the NZ
    form), same sizes except for the head dim.

    ## Why it is wrong
    The operator addresses both with the same indices and rejects a mismatch.

    ## Use instead
    View the rope cache the way the nope cache is viewed.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    F03: decode checker (ops-transformer, CANN 8.5 snapshot).
    """

    code = "KV503"
    name = "rope-shape"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("F03",)
    families = ("fia",)
    bad = {
        "nope in NZ form, rope not": """
            torch_npu.npu_fused_infer_attention_score(
                q, pool.view(-1, 1, 32, 128, 16), pool.view(-1, 1, 32, 128, 16), num_heads=8,
                num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe,
                key_rope=rope_pool.view(-1, 128, 64),  # KV503
                actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "other number of heads": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe.view(-1, 8, 64),  # KV503
                key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table,
                block_size=128,
            )
        """,
    }
    ok = {
        "both in NZ form": """
            torch_npu.npu_fused_infer_attention_score(
                q, pool.view(-1, 1, 32, 128, 16), pool.view(-1, 1, 32, 128, 16), num_heads=8,
                num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe,
                key_rope=rope_pool.view(-1, 1, 4, 128, 16), actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, pool.view(-1, 1, 32, 128, 16), pool.view(-1, 1, 32, 128, 16), num_heads=8,
                num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe, key_rope=k_pe,
                actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges both pairs."""
        for role in ("query", "key"):
            whole, rope = call.arg(role), call.arg(f"{role}_rope")
            if rope.is_none.yes:
                yield NOT_APPLICABLE
                continue
            ranks = whole.rank, rope.rank
            if not (ranks[0].known and ranks[1].known):
                yield undecided(Tri(None, ranks[0].notes if not ranks[0].known else ranks[1].notes))
                continue
            notes = (*ranks[0].notes, *ranks[1].notes)
            if ranks[0].value != ranks[1].value:
                yield violated(
                    f"{rope.name} has {ranks[1].value} axes but {whole.name} has {ranks[0].value}",
                    rope,
                    notes,
                    f"View {rope.name} the way {whole.name} is viewed.",
                )
                continue
            # In the NZ form the head dim is spread over axes 2 and 4, by the size of an element.
            axes = (0, 1, 3) if ranks[0].value == 5 else range(ranks[0].value - 1)
            states = [(axis, equal(whole.dim(axis), rope.dim(axis))) for axis in axes]
            wrong = next((axis for axis, state in states if state.no), None)
            if wrong is not None:
                yield violated(
                    f"axis {wrong} of {rope.name} is {shown(rope.dim(wrong))}, of {whole.name} "
                    f"{shown(whole.dim(wrong))}",
                    rope,
                    notes,
                )
            elif any(state.unknown for _, state in states):
                yield undecided(*(state for _, state in states))
            else:
                yield PROVED
