"""KV116: a tensor has another number of axes than the layout."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri

from ._common import RANKS, paged


class LayoutRank(RunRule):
    """A tensor has another number of axes than the layout.

    ## What it does
    Compares the rank of query, and of key and value where they are not paged, with `input_layout`, which is
    "BSH" when it is not passed.

    ## Why it is wrong
    The wrapper rejects the call.

    ## Use instead
    The layout of the tensors: 3 axes for BSH, SBH, TND, NTD and NSD, 4 for BSND and BNSD.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention. All versions.

    ## Evidence
    1.4, B16: wrapper source; a 4-D query with the default layout and a key of another rank raise (executed
    on torch_npu 2.13).
    """

    code = "KV116"
    name = "layout-rank"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("1.4", "B16")
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "default layout for four axes": """
            q = x.view(2, 16, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v,  # KV116
                num_heads=8, num_key_value_heads=8, scale=0.1)
        """,
        "heads not folded": """
            q = x.view(2, 16, 8, 128)
            opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BSH"}
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v,  # KV116
                **opts)
        """,
        "key of another rank": """
            q = x.view(2, 16, 8, 128)
            k = y.view(2, 16, 1024)
            torch_npu.npu_fusion_attention(
                q,
                k,  # KV116
                v, 8, "BSND", scale=0.1)
        """,
    }
    ok = {
        "fits": """
            q = x.view(2, 16, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSND")
        """,
        "paged cache": """
            q = x.view(2, 1, 1024)
            cache = pool.view(64, 128, 1024)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens)
        """,
        "layout chosen with the shape": """
            def attend(x, packed, ends, mask):
                if packed:
                    q, layout = x.view(64, 8, 128), "TND"
                else:
                    q, layout = x.view(4, 16, 8, 128), "BSND"
                return torch_npu.npu_fused_infer_attention_score(
                    q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout=layout,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=ends, atten_mask=mask,
                    sparse_mode=3 if packed else 1)
        """,
        "unknown rank": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query, key and value."""
        layout = call.query_layout
        wanted = layout.map(RANKS.get)
        for role in ("query", "key", "value"):
            arg = call.arg(role)
            if wanted.known and wanted.value is None:
                yield NOT_APPLICABLE
                continue
            rank = arg.rank
            fits = rank.equals(wanted.value) if wanted.known else Tri(None, wanted.notes)
            yield require(
                fits,
                f"{arg.name} has {rank.get(0)} axes, but input_layout is"
                f" {call.layout.get('')!r}, which has {wanted.get(None)}",
                when=None if role == "query" else ~paged(call),
                at=arg,
                fix="Pass the layout of the tensors, or reshape them.",
            )
