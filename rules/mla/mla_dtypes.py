"""KV512: dtypes that absorbed and explicit MLA do not take together."""

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
from kvlint.contract.tri import Note, Tri

from ._common import with_rope

_FLOATS = ("float16", "bfloat16")


class MlaDtypes(RunRule):
    """Query, key and rope parts have dtypes that do not go together.

    ## What it does
    With rope parts, checks the dtypes that are visible: all float16 or all bfloat16, or, with full
    quantisation, int8 query and key with bfloat16 rope parts.

    ## Why it is wrong
    The checker knows these rows only and rejects a mixture, for example a rope part that was left in
    float32 by the rotary computation. The meta kernel accepts it.

    ## Use instead
    Cast the rope parts to the dtype of query.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    F18, F16: dtype table of the MLA checker (ops-transformer, CANN 8.5 snapshot).
    """

    code = "KV512"
    name = "mla-dtypes"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("F18", "F16")
    families = ("fia",)
    bad = {
        "rope part in float32": """
            torch_npu.npu_fused_infer_attention_score(
                q.bfloat16(), k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe.float(),  # KV512
                key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table,
                block_size=128,
            )
        """,
        "two floats": """
            torch_npu.npu_fused_infer_attention_score(
                q.bfloat16(), k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe,
                key_rope=k_pe.half(),  # KV512
                actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
    }
    ok = {
        "one dtype": """
            torch_npu.npu_fused_infer_attention_score(
                q.bfloat16(), k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe.bfloat16(), key_rope=k_pe, actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe,
                key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table,
                block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the visible dtypes together."""
        rope = with_rope(call)
        if rope.no:
            return NOT_APPLICABLE
        if rope.unknown:
            return undecided(rope)
        query = call.arg("query").dtype.get("")
        open_notes: list[Note] = []
        for role in ("query_rope", "key_rope"):
            part = call.arg(role)
            dtype = part.dtype
            if not dtype.known:
                open_notes.extend(dtype.notes)
                continue
            legal = (query,) if query in _FLOATS else ("bfloat16",) if query == "int8" else _FLOATS
            if dtype.value not in legal:
                which = f"but query is {query}" if query else "it must be float16 or bfloat16"
                return violated(
                    f"{part.name} is {dtype.value}, {which}",
                    part,
                    dtype.notes,
                    f"Cast {part.name} with .to(torch.{legal[0]}).",
                )
        return undecided(Tri(None, tuple(open_notes))) if open_notes or not query else PROVED
