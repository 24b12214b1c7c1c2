"""KV239: advice about the window of paged BSH decode."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import UNLIMITED


class DecodeWindowCount(RunRule):
    """`pre_tokens` limits the keys of a paged BSH decode call, although the documentation calls it ignored.

    ## What it does
    Points at a finite `pre_tokens` in a one-token BSH call with a block table. Off by default: it is the
    only way to get a window there.

    ## Why it is wrong
    It is wrong when the value is left over from prefill. Only the last `pre_tokens` keys are read, one
    fewer than `sparse_mode=4` keeps for the same value, and mask columns count from the start of the
    window.

    ## Use instead
    Leave `pre_tokens` out for full attention; pass the window itself (not window - 1) where one is meant.

    ## Ops and versions
    FIA v1 and v2, fp16 and bf16 without rope, every product but Ascend 310P.

    ## Evidence
    H16, X02: decode tiling and kernel of ops-transformer (CANN 8.5 snapshot); the op-plugin documentation
    says that the limits are ignored.
    """

    code = "KV239"
    name = "decode-window-count"
    severity = Severity.ADVICE
    confidence = Confidence.MEDIUM
    contract = ("H16", "X02")
    families = ("fia",)
    default = False
    bad = {
        "left over from prefill": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 1, 1024), kc.view(n, 128, 1024), vc.view(n, 128, 1024), num_heads=8,
                num_key_value_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=lens,
                block_table=table.to(torch.int32), block_size=128,
                pre_tokens=1023,  # KV239
            )
        """,
    }
    ok = {
        "no limit": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 1, 1024), kc.view(n, 128, 1024), vc.view(n, 128, 1024), num_heads=8,
                num_key_value_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=lens,
                block_table=table.to(torch.int32), block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Points at the limit."""
        limit = call.arg("pre_tokens")
        if limit.given.no or call.target.soc == "310P":
            return NOT_APPLICABLE
        finite = limit.constant.holds(lambda value: isinstance(value, int) and 0 < value < UNLIMITED)
        return require(
            ~finite,
            f"only the last {limit.constant.get('?')} keys are read here",
            when=call.single_token & call.layout.equals("BSH") & call.paged & ~call.rope,
            at=limit,
            fix=f"Leave {limit.name} out unless a window of exactly that many keys is meant.",
        )
