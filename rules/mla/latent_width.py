"""KV515: widths that the latent-attention operators of ATB do not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant

_WIDTHS = {
    "npu_multi_head_latent_attention": (("q_nope", 512), ("q_rope", 64), ("ctkv", 512), ("k_rope", 64)),
    "npu_mla_preprocess": (("kv_cache", 512), ("kv_cache_rope", 64)),
    "npu_ring_mla": (("q_rope", 64), ("k_rope", 64)),
}


class LatentWidth(RunRule):
    """A latent or rope tensor has the wrong width for a latent-attention operator of ATB.

    ## What it does
    Checks visible widths: 512 for the latent parts of npu_multi_head_latent_attention and
    npu_mla_preprocess, 64 for the rope parts there and in npu_ring_mla.

    ## Why it is wrong
    ATB checks the widths and rejects the call; they usually mean that the two parts are exchanged or not
    yet split.

    ## Use instead
    q_nope (tokens, heads, 512), q_rope (tokens, heads, 64), caches (blocks, block, 1, 512) and (blocks,
    block, 1, 64). In NZ modes the caches have other shapes and are left alone.

    ## Ops and versions
    The ATB operators named. All versions.

    ## Evidence
    2.5, F19: ATB operation checks.
    """

    code = "KV515"
    name = "latent-width"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("2.5", "F19")
    operators = tuple(_WIDTHS)
    bad = {
        "parts not split": """
            torch_npu.atb.npu_multi_head_latent_attention(
                q.view(-1, 16, 576),  # KV515
                q_pe, ctkv, k_pe, table, lens, 16, 0.1, 1)
        """,
    }
    ok = {
        "split": """
            torch_npu.atb.npu_multi_head_latent_attention(
                q.view(-1, 16, 512), q_pe.view(-1, 16, 64), ctkv, k_pe, table, lens, 16, 0.1, 1)
        """,
        "unknown": """
            torch_npu.atb.npu_multi_head_latent_attention(q, q_pe, ctkv, k_pe, table, lens, 16, 0.1, 1)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each visible width."""
        for name, wanted in _WIDTHS[call.operator.name]:
            part = call.named(name)
            width = constant(part.dim(-1))
            # A last axis of 16 or 32 is a tile of the NZ form.
            yield require(
                width.among((wanted, 16, 32)),
                f"{name} is {width.get(0)} wide, it must be {wanted}",
                at=part,
            )
