"""KV235: a training mode that wants packed tokens."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require

from ._common import mode_among, sparse_mode


class UnpackedFusionMode(RunRule):
    """`sparse_mode` 7 or 8 in a layout with a batch axis, or together with a bias.

    ## What it does
    Reports the modes 7 and 8 of the npu_fusion_attention family in another layout than TND, and with `pse`.

    ## Why it is wrong
    These modes are bands over varlen batches: they exist for packed tokens without a bias only. Other calls
    are rejected.

    ## Use instead
    `sparse_mode=4` for a band in a layout with a batch axis.

    ## Ops and versions
    npu_fusion_attention, _v2 and _v3. All versions.

    ## Evidence
    FUS-07: op-plugin documentation of npu_fusion_attention.
    """

    code = "KV235"
    name = "unpacked-fusion-mode"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("FUS-07",)
    families = ("fusion",)
    bad = {
        "mode 7 with a batch axis": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSND", scale=0.1, atten_mask=hidden,
                sparse_mode=7,  # KV235
            )
        """,
        "mode 8 with a bias": """
            bias = alibi.to(torch.float16)
            opts = {"scale": 0.1, "sparse_mode": 8, "actual_seq_qlen": ends, "actual_seq_kvlen": ends}
            torch.ops.npu.npu_fusion_attention_v2(
                q, k, v, 8, "TND", atten_mask=hidden,
                pse=bias,  # KV235
                **opts)
        """,
    }
    ok = {
        "mode 7 packed": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "TND", scale=0.1, atten_mask=hidden, sparse_mode=7, actual_seq_qlen=ends,
                actual_seq_kvlen=ends,
            )
        """,
        "layout from elsewhere": """
            torch_npu.npu_fusion_attention(q, k, v, 8, layout, scale=0.1, atten_mask=hidden, sparse_mode=8)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges layout and bias apart."""
        mode, bias = call.arg("sparse_mode"), call.arg("pse_shift")
        packed = mode_among(call, 7, 8)
        yield require(
            call.layout.equals("TND"),
            f"sparse_mode={sparse_mode(call)} exists for TND only, the layout is {call.layout.get('?')}",
            when=packed,
            at=mode,
            fix="Use sparse_mode=4 for a band in a layout with a batch axis.",
        )
        yield require(
            bias.is_none,
            f"sparse_mode={sparse_mode(call)} takes no {bias.name}",
            when=packed,
            at=bias,
            fix=f"Drop {bias.name}, or use another mode.",
        )
