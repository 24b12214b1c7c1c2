"""KV221: token limits that leave no band."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO, Fact, Tri

from ._common import mode_among


class ImpossibleBand(RunRule):
    """`pre_tokens` and `next_tokens` leave no band: both negative, or the band ends before it starts.

    ## What it does
    Compares literal token limits in `sparse_mode` 4, and in mode 0 with a mask.

    ## Why it is wrong
    Row i sees the keys i - pre_tokens to i + next_tokens (shifted to the last token in mode 4). With
    `-next_tokens > pre_tokens`, or both negative, that range is empty; tiling rejects the call.

    ## Use instead
    A window of W tokens that includes the token itself is `pre_tokens=W - 1, next_tokens=0`.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention. All versions.

    ## Evidence
    C11, C12: prefill tiling of ops-transformer (CANN 8.5 snapshot), `CheckVarLenPreNextToken`.
    """

    code = "KV221"
    name = "impossible-band"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C11", "C12")
    families = ("fia", "pfa")
    bad = {
        "both negative": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=4,
                pre_tokens=-1,  # KV221
                next_tokens=-1,
            )
        """,
        "ends before it starts": """
            torch.ops.npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH", atten_mask=hidden, sparse_mode=4,
                pre_tokens=4,  # KV221
                next_tokens=-8,
            )
        """,
    }
    ok = {
        "window": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=4, pre_tokens=1023, next_tokens=0,
            )
        """,
        "band in the past": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=4, pre_tokens=64, next_tokens=-8,
            )
        """,
        "limits from elsewhere": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=4, pre_tokens=a, next_tokens=b,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the limits."""
        mask, pre, following = call.arg("mask"), call.arg("pre_tokens"), call.arg("next_tokens")
        limits = (_integer(pre.constant), _integer(following.constant))
        active = mode_among(call, 4) | (mode_among(call, 0) & mask.present)
        if None in limits:
            return require(Tri(None, (*pre.constant.notes, *following.constant.notes)), "", when=active)
        before, ahead = limits
        assert before is not None and ahead is not None
        return require(
            Tri(not (before < 0 and ahead < 0) and -ahead <= before, pre.constant.notes)
            if before < 0 or ahead < 0
            else ~NO,
            f"{pre.name}={before} and {following.name}={ahead} leave no key to attend to",
            when=active,
            at=pre if pre.given.yes else following,
            fix=f"For a window of W tokens pass {pre.name}=W - 1 and {following.name}=0.",
        )


def _integer(fact: Fact[object]) -> int | None:
    value = fact.get(None)
    return value if isinstance(value, int) else None
