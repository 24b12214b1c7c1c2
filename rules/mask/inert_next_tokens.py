"""KV207: next_tokens=0 meant to make the call causal, without a mask."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Note, Tri
from kvlint.contract.values import Absent, Const

from ._common import alternatives, constant_length, one_token_path


class InertNextTokens(RunRule):
    """`next_tokens=0` without a mask: the attention is not causal.

    ## What it does
    Reports an explicit `next_tokens=0` (`next_tockens` in npu_fusion_attention) in a call that never gets a
    mask.

    ## Why it is wrong
    Without `atten_mask` the operator sets both token limits to "unlimited": every token attends to the
    future, and nothing says so. Only a mask makes a call causal; the limits merely cut off key ranges
    around it.

    ## Use instead
    `sparse_mode=3` (or 2) with `atten_mask=torch.triu(torch.ones(2048, 2048, dtype=torch.bool),
    diagonal=1)`. Where full attention is meant, leave `next_tokens` out.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention (whose default is 0, with the same lack of effect; only an
    explicit 0 is reported), the npu_fusion_attention family. All versions. Calls that may be one-token
    decode (paged, or with key lengths only) are left alone: one token has no future to hide.

    ## Evidence
    C08, PFA-03, FUS-05, 1.7: prefill tiling of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation.
    """

    code = "KV207"
    name = "inert-next-tokens"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("C08", "PFA-03", "FUS-05", "1.7")
    families = ("fia", "pfa", "fusion")
    bad = {
        "causal by next_tokens": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", sparse_mode=0,
                next_tokens=0,  # KV207
            )
        """,
        "causal flag turned into a limit": """
            def run(q, k, v):
                opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BNSD"}
                opts["next_tokens"] = 0 if causal else 65535  # KV207
                torch.ops.npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
        "training operator": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSND", scale=0.1, atten_mask=None, pre_tockens=65536,
                next_tockens=0,  # KV207
            )
        """,
        "explicit in the prompt operator": """
            torch_npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH", next_tokens=0)  # KV207
        """,
    }
    ok = {
        "with the mask": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", sparse_mode=3, next_tokens=0,
                atten_mask=hidden,
            )
        """,
        "no limit": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="BNSD", pre_tokens=65535,
                next_tokens=65535,
            )
        """,
        "mask dropped on the one-token path only": """
            if longest > 1:
                hidden, mode = self.hidden, 3
            else:
                hidden, mode = None, 0
            torch.ops.npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=kv_ends, sparse_mode=mode, atten_mask=hidden, next_tokens=0,
            )
        """,
        "paged decode": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, kc, vc, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                next_tokens=0, atten_mask=None, actual_seq_kvlen=lens, block_table=table, block_size=128,
            )
        """,
        "decode over a contiguous cache": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, scale=0.1, input_layout="BNSD", next_tokens=0,
                actual_seq_lengths_kv=lens)
        """,
        "default of the prompt operator": """
            torch_npu.npu_prompt_flash_attention(q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the token limit of a call without a mask."""
        mask, limit = call.arg("mask"), call.arg("next_tokens")
        if limit.given.no or call.single_token.yes or call.absorbed.yes or one_token_path(call):
            return NOT_APPLICABLE
        if any(not _no_mask(value) for value in alternatives(mask.value)):
            return NOT_APPLICABLE
        when = mask.is_none & limit.given
        if call.operator.family == "fia" and not constant_length(call.query_length):
            when = when & _prompt(call)
        return require(
            ~limit.constant.equals(0),
            f"{limit.name}=0 has no effect without {mask.name}: every token also attends to the future",
            when=when,
            at=limit,
            fix=f"Pass the 2048 x 2048 causal mask as {mask.name} with sparse_mode=3, or drop {limit.name} "
            "if full attention is meant.",
        )


def _no_mask(value: object) -> bool:
    return isinstance(value, Absent) or (isinstance(value, Const) and value.value is None)


def _prompt(call: Call) -> Tri:
    """Whether the call cannot be one-token decode, as far as its arguments tell."""
    lengths = call.arg("kv_lens").present & ~call.arg("q_lens").given
    decode = call.paged | lengths
    if decode.no:
        return ~decode
    return Tri(None, (Note("this may be one-token decode", call.place),))
