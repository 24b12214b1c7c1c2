"""KV115: a layout string that the operator does not know."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require

FIA = (
    "BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND",
    "TND_NTD", "NTD", "NTD_TND", "NSD",
)  # fmt: skip
FUSION = ("BSH", "SBH", "BSND", "BNSD", "TND")
QUERY = ("BSND", "TND")
CACHE = ("BSND", "TND", "PA_BSND")

LAYOUTS: dict[str, dict[str, tuple[str, ...]]] = {
    "fia": {"layout": FIA},
    "pfa": {"layout": ("BSH", "BSND", "BNSD", "BNSD_BSND", "TND", "NSD", "SH")},
    "ifa": {"layout": ("BSH", "BSND", "BNSD")},
    "fusion": {"layout": FUSION},
    "npu_ring_attention_update": {"layout": ("SBH", "TND")},
    "npu_sparse_flash_attention": {"layout_q": QUERY, "layout_kv": CACHE},
    "npu_kv_quant_sparse_flash_attention": {"layout_q": QUERY, "layout_kv": CACHE},
    "npu_lightning_indexer": {"layout_q": QUERY, "layout_kv": CACHE},
    "npu_quant_lightning_indexer": {"layout_q": QUERY, "layout_kv": CACHE},
}


class UnknownLayout(Rule):
    """A layout string that the operator does not know.

    ## What it does
    Checks constant layout strings against the set of the operator. Case matters.

    ## Why it is wrong
    FIA rejects it in the wrapper since op-plugin 7.3.0, before that in tiling. npu_prompt_flash_attention
    and npu_fusion_attention reject it in tiling only, the meta kernel accepts anything.

    ## Use instead
    One of the strings that the message lists. What follows `_` is the layout of the *output* (BSND_NBSD gives
    heads first), it never describes the KV cache. SBH exists for training only.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention,
    npu_ring_attention_update, npu_sparse_flash_attention and the lightning indexers. All versions;
    op-plugin before 7.1 lacks the NBSD and NTD forms.

    ## Evidence
    1.4, FUS-03, PFA-02, UPD-03: wrapper source and op-plugin documentation; 17 strings executed on torch_npu
    2.13.
    """

    code = "KV115"
    name = "unknown-layout"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("1.4", "FUS-03", "PFA-02", "UPD-03")
    families = ("fia", "pfa", "ifa", "fusion")
    operators = tuple(name for name in LAYOUTS if name.startswith("npu_"))
    bad = {
        "lower case": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="bsh",  # KV115
            )
        """,
        "training layout in inference": """
            opts = {"num_query_heads": 8, "num_key_value_heads": 8, "softmax_scale": 0.1}
            opts["input_layout"] = "SBH"  # KV115
            torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
        "other letters": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8,
                "BSHD",  # KV115
                scale=0.1)
        """,
        "FIA layout in sparse attention": """
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picks, scale, block_table=table, actual_seq_lengths_kv=lens, query_rope=qr,
                key_rope=kr, sparse_mode=3, attention_mode=2, layout_kv="PA_BSND",
                layout_query="BNSD",  # KV115
            )
        """,
    }
    ok = {
        "output in another order": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD_BSND")
        """,
        "training": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "SBH", scale=0.1)
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout=self.layout.upper())
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges every layout argument."""
        operator = call.operator
        known = LAYOUTS.get(operator.name) or LAYOUTS.get(operator.family, {})
        for role, allowed in known.items():
            yield _judge(call.arg(role), allowed)


def _judge(arg: Arg, allowed: tuple[str, ...]) -> Verdict:
    if arg.given.no:
        return NOT_APPLICABLE
    text = str(arg.constant.get("it"))
    near = get_close_matches(text.upper(), allowed, 1, 0.5)
    return require(
        arg.constant.among(allowed),
        f"{arg.name}={text!r} is none of {', '.join(allowed)}",
        at=arg,
        fix=f"Pass {near[0]!r} if that is meant." if near else "Pass one of them.",
    )
