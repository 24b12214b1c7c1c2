"""KV210: top-left causal mode although the keys start before the queries."""

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
from kvlint.contract.sizes import constant, equal
from kvlint.contract.tri import Tri

from ._common import mode_among

SEQUENCE_AXIS = {"BSH": 1, "BSND": 1, "BNSD": 2, "TND": 0, "SBH": 0}


class LeftUpWithCache(RunRule):
    """Sparse mode 2 is used although the keys are more than the queries.

    ## What it does
    Reports `sparse_mode=2` where key is visibly longer than query: constant sizes, literal lengths, or a
    key that is concatenated from past and new tokens while query is not.

    ## Why it is wrong
    Mode 2 puts the causal corner at the top left: query i sees the keys 0 to i. With a cached prefix,
    chunked prefill or several draft tokens, query i is really token kv_len - q_len + i, so the newest keys
    are hidden from all of them. The call runs.

    ## Use instead
    `sparse_mode=3` (corner at the bottom right) with the same mask. Both modes agree when the lengths are
    equal.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, the npu_fusion_attention family. All versions.

    ## Evidence
    C10, 1.7: op-plugin documentation, kernels of ops-transformer (CANN 8.5 snapshot).
    """

    code = "KV210"
    name = "left-up-with-cache"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("C10", "1.7")
    families = ("fia", "pfa", "fusion")
    bad = {
        "past concatenated to the key": """
            def attend(q, k, v, past, hidden):
                if past is not None:
                    k = torch.cat([past[0], k], dim=1)
                    v = torch.cat([past[1], v], dim=1)
                return torch_npu.npu_fusion_attention(
                    q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden, sparse_mode=2)  # KV210
        """,
        "constant sizes": """
            def run(q, k, v):
                q = torch.empty(1, 128, 8, 64, dtype=torch.float16)
                k = torch.empty(1, 512, 8, 64, dtype=torch.float16)
                opts = dict(num_query_heads=8, softmax_scale=0.1, input_layout="BSND", atten_mask=hidden)
                opts["sparse_mode"] = 2  # KV210
                torch_npu.npu_fused_infer_attention_score_v2(q, k, k, **opts)
        """,
        "literal lengths": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", atten_mask=hidden,
                actual_seq_lengths=[16],
                actual_seq_lengths_kv=[80], sparse_mode=2,  # KV210
            )
        """,
    }
    ok = {
        "bottom-right": """
            def attend(q, k, v, past, hidden):
                if past is not None:
                    k = torch.cat([past[0], k], dim=1)
                    v = torch.cat([past[1], v], dim=1)
                return torch_npu.npu_fusion_attention(
                    q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden, sparse_mode=3)
        """,
        "equal lengths": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", atten_mask=hidden,
                actual_seq_lengths=[16],
                actual_seq_lengths_kv=[16], sparse_mode=2,
            )
        """,
        "text and image joined on both sides": """
            q = torch.cat([q_text, q_image], dim=1)
            k = torch.cat([k_text, k_image], dim=1)
            v = torch.cat([v_text, v_image], dim=1)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden, sparse_mode=2)
        """,
        "rope joined to the head dim": """
            k = torch.cat([k_nope, k_rope], dim=-1)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden, sparse_mode=2)
        """,
        "unknown lengths": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", atten_mask=hidden, sparse_mode=2)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the lengths of query and key."""
        mode = call.arg("sparse_mode")
        selected = mode_among(call, 2)
        if selected.no or call.arg("mask").is_none.yes:
            return NOT_APPLICABLE
        longer = _longer_key(call)
        if selected.unknown or longer.unknown:
            return undecided(*(part for part in (selected, longer) if part.unknown))
        if longer.no:
            return PROVED
        return violated(
            "sparse_mode=2 aligns queries and keys at their first token, but the keys hold earlier ones too: "
            "the newest keys are hidden",
            mode,
            longer.notes,
            "Use sparse_mode=3, which aligns at the last token.",
        )


def _longer_key(call: Call) -> Tri:
    q_lens, kv_lens = call.arg("q_lens").integers, call.arg("kv_lens").integers
    if q_lens.known and kv_lens.known:
        return Tri(q_lens.value != kv_lens.value, (*q_lens.notes, *kv_lens.notes))
    unknown = Tri(None, (*call.query_length.notes, *call.key_length.notes))
    if call.paged.yes or (not call.arg("q_lens").is_none.yes and not call.packed.yes):
        return unknown
    sizes = equal(call.query_length, call.key_length)
    if sizes.yes or (constant(call.query_length).known and constant(call.key_length).known):
        return ~sizes
    query, key = call.arg("query"), call.arg("key")
    axis = SEQUENCE_AXIS.get(call.query_layout.get(""))
    if axis is None or not key.joined.known or query.joined.known:
        return unknown
    joined, _ = key.joined.value
    rank = 3 if call.query_layout.get("") in ("BSH", "TND", "SBH") else 4
    return Tri(True, key.joined.notes) if joined % rank == axis else unknown
