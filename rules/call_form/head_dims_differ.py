"""KV123: query, key and value have different head dims."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import Fact, Tri

from ._common import differ, head_dim, rope, whole


class HeadDimsDiffer(RunRule):
    """Query, key and value have different head dims.

    ## What it does
    In BSH, BSND and BNSD without rope parts, compares the head dims of query, key and value. For
    npu_fusion_attention those of query and key, and that value is not wider.

    ## Why it is wrong
    Tiling rejects the call: only the packed layouts take a narrower value (192 with 128).

    ## Use instead
    Pad value to the head dim and cut the output, or use TND.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention. All versions.

    ## Evidence
    B15, B24, FUS-10: prefill tiling and decode checker of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation.
    """

    code = "KV123"
    name = "head-dims-differ"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B15", "B24", "FUS-10")
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "narrow value": """
            q = x.view(2, 16, 8, 192)
            v = y.view(2, 16, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q,
                v,  # KV123
                num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSND")
        """,
        "keys of another width in training": """
            q = x.view(2, 16, 8, 192)
            k = y.view(2, 16, 8, 128)
            torch_npu.npu_fusion_attention(
                q,
                k,  # KV123
                k, 8, "BSND", scale=0.1)
        """,
    }
    ok = {
        "equal": """
            q = x.view(2, 16, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSND")
        """,
        "narrow value in training": """
            q = x.view(2, 16, 8, 192)
            v = y.view(2, 16, 8, 128)
            torch_npu.npu_fusion_attention(q, q, v, 8, "BSND", scale=0.1)
        """,
        "packed": """
            q = x.view(64, 8, 192)
            v = y.view(64, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "names that may be equal": """
            class Attention:
                def forward(self, x, y):
                    q = x.view(2, 16, 8, self.head_dim)
                    v = y.view(2, 16, 8, self.v_dim)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, q, v, num_heads=8, num_key_value_heads=8, scale=self.scale, input_layout="BSND")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Compares key and value with query."""
        training = call.operator.family == "fusion"
        unpacked = call.query_layout.among(("BSH", "SBH", "BSND", "BNSD"))
        folded = call.query_layout.among(("BSH", "SBH"))
        heads = call.arg("q_heads")
        counted = heads.given.yes and (call.arg("kv_heads").given.yes or not call.has("kv_heads"))
        if rope(call).yes or (unpacked.no and not training) or (not folded.no and not counted):
            yield NOT_APPLICABLE
            return
        when = ~rope(call) & (unpacked if not training else Tri(True))
        if training and not folded.no:
            yield undecided(*folded.notes)
            return
        dim = call.head_dim
        for role in ("key", "value"):
            arg = call.arg(role)
            yield _judge(arg, dim, head_dim(call, arg), when, wider_only=training and role == "value")


def _judge(arg: Arg, dim: Fact[Num], own: Fact[Num], when: Tri, wider_only: bool) -> Verdict:
    apart = differ(own, dim)
    if wider_only:
        mine, theirs = whole(own), whole(dim)
        if mine is None or theirs is None:
            return undecided(*own.notes, *dim.notes)
        apart = Tri(mine > theirs, apart.notes)
    shown = own.value.label if own.known else "?"
    wanted = dim.value.label if dim.known else "?"
    return require(
        ~apart,
        f"{arg.name} has head dim {shown}, query has {wanted}",
        when=when,
        at=arg,
    )
