"""KV141: an inner_precise that the engine does not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import decode_engine


class InnerPreciseOutOfRange(RunRule):
    """An inner_precise that the engine does not take.

    ## What it does
    Checks a constant `inner_precise`: 0 to 3 in prefill, 0 or 1 where the decode engine serves the call (one
    query token, or absorbed MLA).

    ## Why it is wrong
    Bit 0 chooses high performance (float16 only), bit 1 the correction of rows that attend to nothing. Decode
    has no such correction and rejects 2 and 3; prefill rejects 4 on A2 and only warns about larger values.

    ## Use instead
    0, or 2 in prefill with a mask that can hide whole rows.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions.

    ## Evidence
    H01, H02, F11: tiling of both engines in ops-transformer (CANN 8.5 snapshot); 9 is accepted by the meta
    kernel (executed).
    """

    code = "KV141"
    name = "inner-precise-out-of-range"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("H01", "H02", "F11")
    families = ("fia", "ifa")
    bad = {
        "no such value": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                inner_precise=4,  # KV141
            )
        """,
        "row correction in decode": """
            q = x.view(4, 8, 1, 128)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BNSD",
                actual_seq_kvlen=lens,
                inner_precise=2,  # KV141
            )
        """,
    }
    ok = {
        "row correction in prefill": """
            q = x.view(4, 8, 16, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD", atten_mask=mask,
                sparse_mode=1, inner_precise=2)
        """,
        "by phase": """
            def attend(x, k, v, mask, decode, lens):
                if decode:
                    q, precise, mode, hidden = x.view(4, 8, 1, 128), 0, 0, None
                else:
                    q, precise, mode, hidden = x.view(4, 8, 16, 128), 2, 1, mask
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD",
                    atten_mask=hidden, sparse_mode=mode, inner_precise=precise, actual_seq_lengths_kv=lens)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the value for either engine."""
        precise = call.arg("inner_precise")
        shown = precise.constant.get("?")
        if precise.given.no:
            yield NOT_APPLICABLE
            return
        yield require(
            precise.constant.among((0, 1, 2, 3)),
            f"inner_precise is {shown}, the operator knows 0 to 3",
            at=precise,
        )
        yield require(
            ~precise.constant.among((2, 3)),
            f"inner_precise is {shown}, but decode takes 0 or 1",
            when=decode_engine(call),
            at=precise,
        )
