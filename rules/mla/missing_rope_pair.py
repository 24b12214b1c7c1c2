"""KV501: only one of the two rope parts is passed."""

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


class MissingRopePair(RunRule):
    """One of query_rope and key_rope is passed without the other.

    ## What it does
    Reports a call that passes `query_rope` without `key_rope`, or the other way round, on the same path.

    ## Why it is wrong
    The rope parts are two halves of one product: scores are q·k plus q_rope·k_rope. Half of it is rejected
    by every engine; the meta kernel accepts it.

    ## Use instead
    Pass both, or concatenate both to query and key and pass neither.

    ## Ops and versions
    FIA v1 (since 7.0.0) and v2, npu_sparse_flash_attention.

    ## Evidence
    F01, SP-16: existence checks of the MLA checker, decode and prefill tiling (ops-transformer, CANN 8.5
    snapshot); accepted by the meta kernel (executed).
    """

    code = "KV501"
    name = "missing-rope-pair"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("F01", "SP-16")
    families = ("fia",)
    operators = ("npu_sparse_flash_attention",)
    bad = {
        "query only": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe,  # KV501
                actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "key only on one path": """
            opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "TND"}
            opts["key_rope"] = k_pe  # KV501
            if split:
                opts["query_rope"] = q_pe
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, actual_seq_qlen=ends, actual_seq_kvlen=ends, **opts)
        """,
        "held namespace": """
            class Layer:
                def __init__(self, graph):
                    self.ops = torchair.ops if graph else torch.ops.npu

                def forward(self, q, k, v, q_pe, k_pe):
                    return self.ops.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, scale=0.1, input_layout="BSH",
                        query_rope=None,
                        key_rope=k_pe)  # KV501
        """,
    }
    ok = {
        "both": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe,
                key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table,
                block_size=128,
            )
        """,
        "both in one branch": """
            opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "TND"}
            if split:
                opts["query_rope"] = q_pe
                opts["key_rope"] = k_pe
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, actual_seq_qlen=ends, actual_seq_kvlen=ends, **opts)
        """,
        "picked by the same test": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH",
                query_rope=q_pe if split else None, key_rope=k_pe if split else None)
        """,
        "the rest comes from the caller": """
            def run(q, k, v, q_pe, **kwargs):
                return torch_npu.npu_fused_infer_attention_score(q, k, v, query_rope=q_pe, **kwargs)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the pair."""
        query, key = call.arg("query_rope"), call.arg("key_rope")
        there, other = query.meant, key.meant
        if there.no and other.no:
            return NOT_APPLICABLE
        if there.yes and other.yes:
            return PROVED
        for half, rest, given, missing in ((query, key, there, other), (key, query, other, there)):
            if given.yes and missing.no:
                how = "is not" if rest.given.no else "is None"
                return violated(
                    f"{half.name} is passed but {rest.name} {how}: the call is rejected",
                    half,
                    (*given.notes, *missing.notes),
                    f"Pass {rest.name} too, or neither.",
                )
        return undecided(there, other)
