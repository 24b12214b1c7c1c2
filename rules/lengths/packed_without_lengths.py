"""KV301: packed tokens without sequence lengths."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO


class PackedWithoutLengths(RunRule):
    """The TND layout is used without the sequence lengths.

    ## What it does
    Reports a call in the TND or NTD layout family whose query or key lengths are omitted or None.

    ## Why it is wrong
    With packed tokens only the lengths tell where a sequence ends. Tiling rejects the call. The schema and
    the meta kernel accept it, so compiling under fake tensors does not find this.

    ## Use instead
    Query lengths: running sums that end at the number of query tokens. Key lengths: running sums as well
    for plain keys, one length per request with a block table.

    ## Ops and versions
    FIA v1 (`actual_seq_lengths`, `actual_seq_lengths_kv`), FIA v2 and the npu_fusion_attention family
    (`actual_seq_qlen`, `actual_seq_kvlen`). All versions.

    ## Evidence
    D01, FUS-08: prefill tiling and checkers of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation; accepted by the meta kernel of torch_npu 2.13 (executed).
    """

    code = "KV301"
    name = "packed-without-lengths"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("D01", "FUS-08")
    families = ("fia", "fusion")
    bad = {
        "no lengths": """
            torch_npu.npu_fused_infer_attention_score(  # KV301
                q, k, v, num_heads=8, scale=0.1, input_layout="TND",
            )
        """,
        "query lengths only": """
            opts = dict(num_query_heads=8, softmax_scale=0.1, input_layout="TND")
            opts["actual_seq_qlen"] = ends
            torch.ops.npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)  # KV301
        """,
        "None on one path": """
            lens = None
            if varlen:
                lens = ends.tolist()
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "TND", scale=0.1,
                actual_seq_qlen=lens,  # KV301
                actual_seq_kvlen=lens,  # KV301
            )
        """,
    }
    ok = {
        "both": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends,
            )
        """,
        "layout and lengths by the same test": """
            packed = ends is not None
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "TND" if packed else "BSND", scale=0.1,
                actual_seq_qlen=ends if packed else None, actual_seq_kvlen=ends if packed else None,
            )
        """,
        "batched layout": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND")
        """,
        "lengths from elsewhere": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=meta.q_ends, actual_seq_kvlen=meta.kv_ends)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges both lists; a call that passes neither is reported once."""
        queries, keys = call.arg("q_lens"), call.arg("kv_lens")
        layout = call.layout.get("TND")
        missing = [arg for arg in (queries, keys) if arg.given.no]
        # With an unknown keyword it is most likely the name that is wrong, which is reported already.
        if missing and not call.binding.unexpected:
            names = " and ".join(arg.name for arg in missing)
            yield require(
                NO,
                f"input_layout {layout} needs {names}, not passed here",
                when=call.packed,
                at=call.place,
                fix=f"Pass {names}.",
            )
        for arg in (queries, keys):
            if arg not in missing:
                yield require(
                    arg.present,
                    f"input_layout {layout} needs {arg.name}, which is None",
                    when=call.packed,
                    at=arg,
                    fix=f"Pass {arg.name} whenever the layout is {layout}.",
                )
