"""KV122: a head dim that packed layouts do not take."""

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

from ._common import head_dim, rope, whole

KNOWN = ((64, 64, 64), (128, 128, 128), (192, 192, 128), (192, 192, 192), (256, 256, 256))
"""Head dims of query, key and value without rope parts; 256 since CANN 9.0."""


class PackedHeadDim(RunRule):
    """A head dim that packed layouts do not take.

    ## What it does
    For TND and NTD without rope parts, compares constant head dims of query, key and value with the
    combinations that are known to be served: 64, 128, 256, and 192 with a value of 128 or 192 (not 192 in
    NTD_TND).

    ## Why it is wrong
    Tiling rejects the call. Models with 80 or 96 wide heads (vision towers) run in BSH and BNSD, not here.

    ## Use instead
    Pad the head dim to one of these, with the scale of the original one.

    ## Ops and versions
    FIA v1 and v2. The list is that of the CANN 8.5 snapshot and of CANN 9.0; silent for a configured CANN of
    9.1 or newer.

    ## Evidence
    B21, B22: prefill tiling of ops-transformer (CANN 8.5 snapshot), model notes of cann-recipes-infer (256).
    """

    code = "KV122"
    name = "packed-head-dim"
    severity = Severity.HOST
    confidence = Confidence.LOW
    contract = ("B21", "B22")
    families = ("fia",)
    bad = {
        "vision tower": """
            q = x.view(-1, 16, 80)
            torch_npu.npu_fused_infer_attention_score(
                q,  # KV122
                q, q, num_heads=16, num_key_value_heads=16, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
    }
    ok = {
        "128": """
            q = x.view(-1, 16, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=16, num_key_value_heads=16, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "80 in BNSD": """
            q = x.view(2, 16, 64, 80)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=16, num_key_value_heads=16, scale=0.1, input_layout="BNSD")
        """,
        "unknown head dim": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=16, num_key_value_heads=16, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges what is constant of the three head dims."""
        if call.packed.no or rope(call).yes or call.target.cann_at_least("9.1").yes:
            yield NOT_APPLICABLE
            return
        if call.packed.unknown or rope(call).unknown:
            yield undecided(call.packed, rope(call))
            return
        dims = (call.head_dim, head_dim(call, call.arg("key")), head_dim(call, call.arg("value")))
        sizes = tuple(whole(dim) for dim in dims)
        if sizes[0] in (None, 512):
            yield undecided(*dims[0].notes)
            return
        fitting = [row for row in KNOWN if all(s is None or s == r for s, r in zip(sizes, row, strict=True))]
        if not fitting:
            shown = "/".join("?" if size is None else str(size) for size in sizes)
            yield violated(
                f"head dims {shown} of query, key and value are not served in {call.layout.get('TND')}",
                call.arg("query"),
                dims[0].notes,
                fix="Pad the head dim, and keep the scale of the original one.",
            )
        elif call.layout.equals("NTD_TND").yes and sizes[2] == 192:
            yield violated(
                "NTD_TND does not serve a value with head dim 192", call.arg("value"), dims[2].notes
            )
        elif None in sizes:
            yield undecided(*(note for dim in dims for note in dim.notes))
        else:
            yield PROVED
