"""KV106: the told number of KV heads is not the size of the key's head axis."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    require,
    violated,
)

from ._common import INFERENCE, on_sequence_axis, paged, rescaled


class KvHeadsDifferFromKey(RunRule):
    """The told number of KV heads is not the size of the key's head axis.

    ## What it does
    Compares a given `num_key_value_heads` with the head axis of an unpaged BNSD or BSND key. Reported are
    different constants, a size that is the other one times a factor with a name, and a key whose sequence
    axis has that very number: heads and tokens are in the order of another layout.

    ## Why it is wrong
    Prefill tiling rejects the call. Decode (one query token) does not compare the two, reads key and value
    with the wrong head stride and gives wrong numbers.

    ## Use instead
    Pass the number of KV heads this rank holds.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions. Unpaged TND is left
    alone: the operator reads the number off key there.

    ## Evidence
    B05, B06, B26: prefill tiling and decode checker of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV106"
    name = "kv-heads-differ-from-key"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("B05", "B06", "B26")
    families = INFERENCE
    bad = {
        "query count for grouped keys": """
            k = y.view(2, 8, 512, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=32, scale=0.1, input_layout="BNSD",
                num_key_value_heads=32,  # KV106
            )
        """,
        "global count after a split over ranks": """
            def attend(q, y, heads, kv_heads, ranks, dim):
                k = y.view(y.shape[0], -1, kv_heads // ranks, dim)
                return torch_npu.npu_fused_infer_attention_score_v2(
                    q, k, k, num_query_heads=heads, softmax_scale=dim**-0.5, input_layout="BSND",
                    num_key_value_heads=kv_heads,  # KV106
                )
        """,
        "tokens before heads in BNSD": """
            def attend(q, y, heads, kv_heads, dim):
                k = y.view(y.shape[0], y.shape[1], kv_heads, dim)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, k, num_heads=heads, num_key_value_heads=kv_heads, scale=dim**-0.5,  # KV106
                    input_layout="BNSD")
        """,
    }
    ok = {
        "the same": """
            k = y.view(2, 8, 512, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=32, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "unknown key": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=32, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "zero means as many as query heads": """
            k = y.view(2, 8, 512, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=8, num_key_value_heads=0, scale=0.1, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the argument with the axis."""
        given = call.arg("kv_heads")
        if given.given.no or given.constant.equals(0).yes or call.query_layout.among(("BNSD", "BSND")).no:
            return NOT_APPLICABLE
        if paged(call).yes:
            return NOT_APPLICABLE
        axis, told = call.key_heads_axis, given.number
        seen = axis.value.label if axis.known else "?"
        shown = told.value.label if told.known else "?"
        applies = given.given & ~paged(call) & call.query_layout.among(("BNSD", "BSND"))
        if applies.yes and on_sequence_axis(told, axis, call.key_length):
            return violated(
                f"the {shown} heads of key are on its sequence axis in {call.query_layout.get('?')}",
                call.arg("key"),
                axis.notes,
                fix="Transpose key and value, or name the layout they have.",
            )
        return require(
            ~rescaled(axis, told),
            f"{given.name} is {shown}, but key has {seen} heads",
            when=applies,
            at=given,
            fix=f"Pass {given.name}={seen}.",
        )
