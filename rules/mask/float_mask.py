"""KV202: the mask has a dtype the operator does not read."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require

READ: tuple[str, ...] = ("bool", "int8", "uint8")


class FloatMask(RunRule):
    """The attention mask is a float (or another dtype that is not bool, int8 or uint8).

    ## What it does
    Checks the dtype of `atten_mask` where the source shows it.

    ## Why it is wrong
    The mask says which scores are hidden (non-zero), it is never added to them. The additive masks of
    Hugging Face code and of SDPA (0 and -inf or `finfo.min`) are rejected by tiling, in eager mode possibly
    at a later operator. The meta kernel accepts them. `torch.ones`, `torch.zeros` and `torch.full` without
    `dtype` give float32.

    ## Use instead
    A bool mask that is True where a key is hidden. From an additive mask: `mask != 0` (or `mask < 0`).

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, the npu_fusion_attention family.
    The ATB operators want the opposite: a float mask (rule `bool-atb-mask`). Ascend 310P prefill: bool
    only.

    ## Evidence
    C01, C24, FUS-04, IFA-03: prefill and decode tiling of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation; fp16 and fp32 accepted by the meta kernel of torch_npu 2.13 (executed).
    """

    code = "KV202"
    name = "float-mask"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C01", "C24", "FUS-04", "IFA-03")
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "ones without a dtype": """
            hidden = torch.triu(torch.ones(2048, 2048), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3,
                atten_mask=hidden,  # KV202
            )
        """,
        "additive mask": """
            bias = torch.zeros(s, s, dtype=torch.float16).masked_fill(pad, float("-inf"))
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=bias)  # KV202
        """,
        "half mask in a dict": """
            def run(q, k, v):
                opts = {"num_heads": 8, "scale_value": 0.1, "input_layout": "BSND"}
                opts["atten_mask"] = visible.half()  # KV202
                torch.ops.npu.npu_prompt_flash_attention(q, k, v, **opts)
        """,
        "additive mask of any width": """
            def attend(q, k, v, keep):
                bias = torch.zeros(keep.shape, dtype=q.dtype).masked_fill(keep == 0, torch.finfo(q.dtype).min)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, scale=0.1, input_layout="BNSD", sparse_mode=1, inner_precise=2,
                    atten_mask=bias,  # KV202
                )
        """,
    }
    ok = {
        "bool": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=hidden,
            )
        """,
        "float turned into int8": """
            hidden = torch.triu(torch.ones(2048, 2048), diagonal=1).to(torch.int8)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=hidden,
            )
        """,
        "additive mask compared with 0": """
            bias = torch.zeros(s, s, dtype=torch.float16).masked_fill(pad, float("-inf"))
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSND", scale=0.1, atten_mask=bias != 0)
        """,
        "unknown": """
            torch_npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSND", atten_mask=visible)
        """,
        "float mask for the ATB operator": """
            bias = torch.zeros(128, 128, dtype=torch.float16)
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=bias, seq_len=lens, scale_value=0.1, num_heads=8,
                num_kv_heads=8,
                out=out,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the dtype of the mask."""
        mask = call.arg("mask")
        allowed = READ
        if call.operator.family in ("fia", "pfa") and call.target.soc == "310P" and call.prefill_engine.yes:
            allowed = ("bool",)
        shown = " or ".join(mask.dtype.values or ())
        return require(
            mask.dtype.among(allowed),
            f"{mask.name} is {shown}, the operator reads {', '.join(allowed)} only",
            when=mask.present,
            at=mask,
            fix="Pass a bool mask that is True where a key is hidden; from an additive mask: mask != 0.",
        )
