"""KV206: a decode call that reads the compressed mask as a row of its own."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO

from ._common import mode_among, sparse_mode


class DecodeCompressedMask(RunRule):
    """A one-token decode call uses sparse mode 3 or 4 with the compressed mask.

    ## What it does
    Reports `sparse_mode` 3 or 4 with a mask in a call with one query token in a BSH, BSND or BNSD layout,
    without separate rope parts.

    ## Why it is wrong
    The decode engine accepts the 2048 x 2048 mask, then reads its first row as if it were the mask of the
    request: every key but the first of each 2048 is hidden. The result is silently wrong; Ascend 310P and
    other mask shapes are rejected. The documentation says that the mode is ignored for one token; it is
    not.

    ## Use instead
    `sparse_mode=0` without a mask: one token may see all `actual_seq_kvlen` keys. Or the TND layout, where
    mode 3 with the mask is right in decode as well.

    ## Ops and versions
    FIA v1 and v2 on Atlas A2 and A3. Not TND, not MLA with separate rope, not several query tokens.

    ## Evidence
    C13, 1.7, 1.9: decode checker and kernel of ops-transformer (CANN 8.5 snapshot: the mask stride stays 0
    and is multiplied by the batch index); the op-plugin documentation contradicts itself.
    """

    code = "KV206"
    name = "decode-compressed-mask"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("C13", "1.7")
    families = ("fia",)
    bad = {
        "one token in BSH": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 1, 1024), k, v, num_heads=8, scale=0.1, input_layout="BSH",
                actual_seq_lengths_kv=lens,
                atten_mask=self.hidden, sparse_mode=3,  # KV206
            )
        """,
        "prefill and decode in one method": """
            def attend(self, q, k, v, lens, prefill):
                opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BNSD"}
                opts["sparse_mode"] = 3  # KV206
                opts["atten_mask"] = self.hidden
                if not prefill:
                    return torch_npu.npu_fused_infer_attention_score_v2(
                        q.view(4, 8, 1, 128), k, v, actual_seq_kvlen=lens, **opts)
        """,
    }
    ok = {
        "no mask": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 1, 1024), k, v, num_heads=8, scale=0.1, input_layout="BSH",
                actual_seq_lengths_kv=lens,
                atten_mask=None, sparse_mode=0,
            )
        """,
        "packed decode": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 8, 128), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table, block_size=128,
                atten_mask=self.hidden, sparse_mode=3,
            )
        """,
        "unknown number of tokens": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=lens,
                atten_mask=self.hidden, sparse_mode=3,
            )
        """,
        "several draft tokens": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 2, 1024), k, v, num_heads=8, scale=0.1, input_layout="BSH",
                actual_seq_lengths_kv=lens,
                atten_mask=self.hidden, sparse_mode=3,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the mode of a one-token call."""
        mask, mode = call.arg("mask"), call.arg("sparse_mode")
        when = mask.meant & mode_among(call, 3, 4) & call.single_token & call.decode_engine & ~call.rope
        harmless = mask.fill.holds(lambda fill: not fill)
        return require(
            harmless if harmless.yes else NO,
            f"with one query token sparse_mode={sparse_mode(call)} reads row 0 of {mask.name}, "
            "which hides all keys but the first",
            when=when,
            at=mode,
            fix="Use sparse_mode=0 and no mask for one-token decode, or the TND layout.",
        )
