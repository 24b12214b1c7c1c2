"""KV818: a head dim that quantised tensors do not take."""

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

from ._common import INT4, whole


class QuantisedHeadDim(RunRule):
    """A head dim that quantised tensors do not take.

    ## What it does
    For constant head dims, checks multiples of 32 with int8 tensors, and of 64 with an int4 cache (8 values
    per int32 element).

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    A float cache for such layers.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions.

    ## Evidence
    B10, B11: tiling of both engines (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV818"
    name = "quantised-head-dim"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B10", "B11")
    families = ("fia", "pfa", "ifa")
    bad = {
        "int8": """
            q = x.view(2, 8, 16, 80)
            k = y.view(2, 8, 16, 80).to(torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                q,  # KV818
                k, k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD",
                key_antiquant_scale=ks, value_antiquant_scale=vs)
        """,
    }
    ok = {
        "int8": """
            q = x.view(2, 8, 16, 128)
            k = y.view(2, 8, 16, 128).to(torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD",
                key_antiquant_scale=ks, value_antiquant_scale=vs)
        """,
        "float": """
            q = x.view(2, 8, 16, 80)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the head dim of query, which key shares."""
        dim, key = call.head_dim, call.arg("key").dtype
        quantised = key.among(("int8", *INT4))
        if quantised.no:
            return NOT_APPLICABLE
        size = whole(dim)
        if size is not None and size % 64 == 0:
            return PROVED
        if not quantised.yes or not key.known:
            return undecided(*key.notes)
        step = 32 if key.value == "int8" else 64
        if size is None:
            return undecided(*dim.notes)
        if size % step == 0:
            return PROVED
        return violated(
            f"the head dim is {size}, a cache in {key.value} takes multiples of {step}",
            call.arg("query"),
            (*dim.notes, *key.notes),
        )
