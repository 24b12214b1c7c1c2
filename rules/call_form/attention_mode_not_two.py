"""KV138: sparse attention without attention_mode 2."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require


class AttentionModeNotTwo(RunRule):
    """Sparse attention without attention_mode 2.

    ## What it does
    Reports a call of npu_sparse_flash_attention or npu_kv_quant_sparse_flash_attention whose
    `attention_mode` is omitted or another constant than 2.

    ## Why it is wrong
    The default is 0, which the operator does not serve: only 2 (absorbed MLA) is. Tiling rejects the call,
    the meta kernel accepts it.

    ## Use instead
    `attention_mode=2`.

    ## Ops and versions
    npu_sparse_flash_attention, npu_kv_quant_sparse_flash_attention. All versions.

    ## Evidence
    SP-01: op-plugin documentation; the omission is accepted by the meta kernel (executed).
    """

    code = "KV138"
    name = "attention-mode-not-two"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("SP-01",)
    operators = ("npu_sparse_flash_attention", "npu_kv_quant_sparse_flash_attention")
    bad = {
        "omitted": """
            torch_npu.npu_sparse_flash_attention(  # KV138
                q, cache, cache, picks, scale, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=qr, key_rope=kr, layout_query="TND",
                layout_kv="PA_BSND", sparse_mode=3)
        """,
        "zero": """
            opts = {"layout_query": "TND", "layout_kv": "PA_BSND", "sparse_mode": 3}
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picks, scale, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=qr, key_rope=kr,
                attention_mode=0,  # KV138
                **opts)
        """,
    }
    ok = {
        "two": """
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picks, scale, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=qr, key_rope=kr, layout_query="TND",
                layout_kv="PA_BSND", sparse_mode=3, attention_mode=2)
        """,
        "unknown": """
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picks, scale, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=qr, key_rope=kr, layout_query="TND",
                layout_kv="PA_BSND", sparse_mode=3, attention_mode=mode)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the mode."""
        mode = call.arg("attention_mode")
        shown = "not passed and defaults to 0" if mode.given.no else mode.constant.get("?")
        return require(
            mode.constant.equals(2),
            f"attention_mode is {shown}, the operator serves 2 only",
            at=mode if mode.given.yes else call.place,
            fix="Pass attention_mode=2.",
        )
