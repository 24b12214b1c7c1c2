"""KV507: a layout that split rope parts do not go with."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant

from ._common import with_rope

_ABSORBED = ("BSH", "BSND", "BNSD", "TND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND_NTD")
_EXPLICIT = ("BSH", "BSND", "BNSD", "TND", "NTD", "NTD_TND", "BSH_BNSD", "BSND_BNSD", "BNSD_BSND")


class MlaLayout(RunRule):
    """input_layout is one that split rope parts do not go with.

    ## What it does
    With rope parts, compares `input_layout` with what is served: for head dim 512 BSH, BSND, BNSD, their
    `_NBSD` forms, TND and TND_NTD; for head dim 128 BSH, BSND, BNSD, BNSD_BSND, BSH_BNSD, BSND_BNSD, TND,
    NTD and NTD_TND.

    ## Why it is wrong
    The other combinations reach an engine that does not know the rope parts and are rejected.

    ## Use instead
    TND_NTD for absorbed MLA, NTD_TND or TND for explicit keys.

    ## Ops and versions
    FIA v1 and v2. For head dim 128 the CANN 8.5 snapshot knows TND and NTD_TND only.

    ## Evidence
    F08, F14: feature checks (ops-transformer, CANN 8.5 snapshot), op-plugin documentation of FIA v2.
    """

    code = "KV507"
    name = "mla-layout"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("F08", "F14")
    families = ("fia",)
    bad = {
        "NSD": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(16, -1, 128), k, v, num_heads=16, num_key_value_heads=16, scale=0.1,
                input_layout="NSD",  # KV507
                query_rope=q_pe, key_rope=k_pe,
            )
        """,
        "output transposed for absorbed MLA": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(4, 16, -1, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1,
                input_layout="BNSD_BSND",  # KV507
                query_rope=q_pe, key_rope=k_pe, actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
    }
    ok = {
        "absorbed": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1,
                input_layout="TND_NTD", query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "explicit keys": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(16, -1, 128), k, v, num_heads=16, num_key_value_heads=16, scale=0.1,
                input_layout="NTD_TND", query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends,
            )
        """,
        "layout chosen elsewhere": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(-1, 16, 512), k, k, num_heads=16, num_key_value_heads=1, scale=0.1,
                input_layout=layout, query_rope=q_pe, key_rope=k_pe, actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the layout for the head dim."""
        rope, layout = with_rope(call), call.layout
        dim = constant(call.head_dim)
        fits = layout.among(set(_ABSORBED) | set(_EXPLICIT))
        if dim.known and dim.value in (512, 128):
            fits = layout.among(_ABSORBED if dim.value == 512 else _EXPLICIT)
        what = f"head dim {dim.value}" if dim.known else "rope parts"
        return require(
            fits,
            f"input_layout={layout.get('')!r} is not served with {what} and split rope",
            when=rope,
            at=call.arg("layout"),
            fix="Use TND, TND_NTD for absorbed MLA or NTD_TND for explicit keys.",
        )
