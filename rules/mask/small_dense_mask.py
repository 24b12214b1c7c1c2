"""KV223: a full mask that is smaller than the scores."""

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
from kvlint.contract.tri import Tri

from ._common import constant_dim, constant_length, mode_among


class SmallDenseMask(RunRule):
    """A full mask (mode 0 or 1) has fewer rows than queries, or fewer columns than keys.

    ## What it does
    Compares the last two axes of `atten_mask` with the query and key length where all are constants.

    ## Why it is wrong
    The mask is read at (query, key). Larger is accepted, smaller is rejected; a padding mask (B, 1, 1, S2)
    is not broadcast over the queries.

    ## Use instead
    Expand the mask to (B, 1, S1, S2), or build it for the longest sequence and slice it.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, with several query tokens. All versions.

    ## Evidence
    C07: prefill tiling of ops-transformer (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV223"
    name = "small-dense-mask"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C07",)
    families = ("fia", "pfa")
    bad = {
        "padding mask not expanded": """
            q = torch.zeros(2, 8, 128, 64, dtype=torch.float16)
            hidden = torch.zeros(2, 1, 1, 128, dtype=torch.bool)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BNSD",
                atten_mask=hidden,  # KV223
            )
        """,
        "columns of the new keys only": """
            q = torch.zeros(2, 128, 512, dtype=torch.float16)
            k = torch.zeros(2, 256, 512, dtype=torch.float16)
            opts = {"num_heads": 8, "scale_value": 0.1, "input_layout": "BSH", "next_tokens": 2147483647}
            torch.ops.npu.npu_prompt_flash_attention(
                q, k, k,
                atten_mask=torch.ones(128, 128, dtype=torch.bool).triu(1),  # KV223
                **opts)
        """,
    }
    ok = {
        "full size": """
            q = torch.zeros(2, 8, 128, 64, dtype=torch.float16)
            hidden = torch.zeros(2, 1, 128, 128, dtype=torch.bool)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, scale=0.1, input_layout="BNSD", atten_mask=hidden)
        """,
        "larger": """
            q = torch.zeros(2, 8, 128, 64, dtype=torch.float16)
            hidden = torch.ones(512, 512, dtype=torch.bool).triu(1)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, scale=0.1, input_layout="BNSD", atten_mask=hidden)
        """,
        "unknown length": """
            hidden = torch.zeros(2, 1, 1, 128, dtype=torch.bool)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BNSD", atten_mask=hidden)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the sizes."""
        mask = call.arg("mask")
        full = mode_among(call, 0, 1)
        if full.no or mask.is_none.yes or not call.packed.no:
            return NOT_APPLICABLE
        rows, columns = constant_dim(mask, -2), constant_dim(mask, -1)
        queries = constant_length(call.query_length)
        keys = constant_length(call.key_length) if call.paged.no else None
        if full.unknown or queries is None or queries < 2:
            return undecided(full if full.unknown else Tri(None, call.query_length.notes))
        wrong = []
        if rows is not None and rows < queries:
            wrong.append(f"{rows} rows for {queries} queries")
        if columns is not None and keys is not None and columns < keys:
            wrong.append(f"{columns} columns for {keys} keys")
        if wrong:
            return violated(
                f"{mask.name} has {' and '.join(wrong)}",
                mask,
                mask.shape.notes,
                "Build or expand the mask to (..., S1, S2).",
            )
        return PROVED if rows and columns and keys else undecided(Tri(None, mask.shape.notes))
