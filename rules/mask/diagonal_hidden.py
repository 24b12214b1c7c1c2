"""KV205: the causal mask hides each token from itself."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Tri
from kvlint.contract.values import Triangle

from ._common import COMPRESSED, mode_among


class DiagonalHidden(RunRule):
    """The causal mask includes its diagonal, so no token sees itself.

    ## What it does
    Reports an upper triangle that starts at the diagonal or below it: `torch.triu(torch.ones(n, n))`, whose
    `diagonal` defaults to 0, or `~torch.tril(ones, diagonal=-1)`.

    ## Why it is wrong
    Ones belong strictly above the diagonal. With the diagonal included each token misses its own key, and
    the first row has nothing to attend to, so its result is undefined.

    ## Use instead
    `torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1)`.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, the npu_fusion_attention family, the ATB operators. All
    versions.

    ## Evidence
    C05, 1.7, ATB-05, ATB-09, FUS-09: kernels of ops-transformer, op-plugin documentation, masks of
    cann-recipes-infer and vllm-ascend.
    """

    code = "KV205"
    name = "diagonal-hidden"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("C05", "1.7", "ATB-05", "ATB-09", "FUS-09")
    families = ("fia", "pfa", "fusion", "atb")
    bad = {
        "triu without an offset": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool))
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3,
                atten_mask=hidden,  # KV205
            )
        """,
        "strict lower triangle inverted": """
            n = q.shape[2]
            keep = torch.ones(n, n, dtype=torch.bool, device=q.device).tril(-1)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=~keep)  # KV205
        """,
        "int8 in a dict": """
            def run(q, k, v):
                opts = dict(num_query_heads=8, softmax_scale=0.1, input_layout="TND", actual_seq_qlen=ends)
                opts.update(sparse_mode=3, actual_seq_kvlen=ends)
                opts["atten_mask"] = torch.ones(2048, 2048).triu().to(torch.int8)  # KV205
                ops = torch.ops.npu
                ops.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
    }
    ok = {
        "offset 1": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=hidden,
            )
        """,
        "tril inverted": """
            n = q.shape[2]
            keep = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=~keep)
        """,
        "offset from elsewhere": """
            hidden = torch.triu(torch.ones(n, m, dtype=torch.bool), diagonal=offset)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=hidden)
        """,
        "rectangle whose keys start before the queries": """
            hidden = torch.ones(n, m, dtype=torch.bool).triu(0)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=hidden)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges where the triangle starts."""
        mask = call.arg("mask")
        if mask.fault.yes:
            return NOT_APPLICABLE
        compressed = call.operator.family != "atb" and mode_among(call, *COMPRESSED).yes
        square = mask.shape.holds(
            lambda shape: len(shape) > 1 and shape[-1] is not None and shape[-1] == shape[-2]
        )
        triangle = mask.triangle
        covers = triangle.holds(lambda shape: shape.upper and shape.covers_diagonal is True)
        if covers.yes and not (compressed or square.yes):
            covers = Tri(None, mask.shape.notes)
        offset = triangle.map(_offset).get("0")
        return require(
            ~covers,
            f"{mask.name} is non-zero from diagonal {offset} on, so each token is hidden from itself",
            when=mask.present,
            at=mask,
            fix="Start the triangle above the diagonal: torch.triu(..., diagonal=1).",
        )


def _offset(triangle: Triangle) -> str:
    return triangle.diagonal.label
