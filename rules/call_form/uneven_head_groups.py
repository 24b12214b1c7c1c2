"""KV118: query heads cannot be grouped over the KV heads."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.num import Num
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
from kvlint.contract.tri import Fact

from ._common import INFERENCE, RANKS, decode_engine, rope, whole


class UnevenHeadGroups(RunRule):
    """Query heads cannot be grouped over the KV heads.

    ## What it does
    For constant counts, checks that the KV heads divide the query heads, that at most 64 query heads share a
    KV head, and the limit of 256 heads.

    ## Why it is wrong
    Tiling rejects the call. The meta kernel accepts any ratio, with a wrong output width in BSH.

    ## Use instead
    The head counts of this rank; KV heads are replicated where there are fewer than ranks.

    ## Ops and versions
    FIA v1 and v2 without rope parts, npu_prompt_flash_attention, npu_incre_flash_attention,
    npu_fusion_attention (limit of 256 only). All versions.

    ## Evidence
    B07, FUS-10: tiling of ops-transformer (CANN 8.5 snapshot), op-plugin documentation; ratios 8:3 and 128:1
    are accepted by the meta kernel (executed).
    """

    code = "KV118"
    name = "uneven-head-groups"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B07", "FUS-10")
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "eight over three": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH",
                num_key_value_heads=3,  # KV118
            )
        """,
        "too many per KV head": """
            opts = {"num_query_heads": 128, "softmax_scale": 0.1, "input_layout": "BSH"}
            opts["num_key_value_heads"] = 1  # KV118
            torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
    }
    ok = {
        "grouped": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=32, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
        "MLA shares one head": """
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, query_rope=qr, key_rope=kr, num_heads=128, num_key_value_heads=1,
                scale=192**-0.5, input_layout="TND", block_table=table, block_size=128,
                actual_seq_lengths=ends, actual_seq_lengths_kv=lens, atten_mask=mask, sparse_mode=3)
        """,
        "unknown counts": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=heads, num_key_value_heads=3, scale=0.1, input_layout="BSH")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges constant counts."""
        if rope(call).yes or call.arg("q_heads").given.no:
            return NOT_APPLICABLE
        heads = whole(call.heads)
        told = call.arg("kv_heads")
        groups: Fact[Num] = call.kv_heads if call.has("kv_heads") else _key_heads(call)
        kv = whole(groups)
        at = told if told.given.yes else call.arg("q_heads")
        notes = (*call.heads.notes, *groups.notes)
        if heads is not None and heads > 256 and not decode_engine(call).yes:
            return violated(f"{heads} query heads are more than 256", call.arg("q_heads"), notes)
        if heads is None or kv is None or heads < 1 or kv < 1:
            return undecided(*notes)
        if kv > 256:
            return violated(f"{kv} KV heads are more than 256", at, notes)
        if heads % kv:
            return violated(f"{heads} query heads cannot be shared by {kv} KV heads", at, notes)
        if call.operator.family in INFERENCE and heads // kv > 64:
            return violated(f"{heads // kv} query heads share one KV head, the operator takes 64", at, notes)
        return PROVED


def _key_heads(call: Call) -> Fact[Num]:
    """The heads of key where its axes are those of the layout."""
    rank, layout = call.arg("key").rank, call.query_layout
    if rank.known and layout.known and rank.value == RANKS.get(layout.value):
        return call.key_heads_axis
    return Fact(None, (*rank.notes, *layout.notes))
