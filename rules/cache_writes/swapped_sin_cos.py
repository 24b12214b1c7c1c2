"""KV609: sin and cos are exchanged."""

from __future__ import annotations

import re

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, PROVED, Confidence, Rule, Severity, Verdict, violated

from ._common import KV_RMSNORM, PROLOG, labels

_WORDS = ("cos", "sin", "cosine", "sine")


class SwappedSinCos(Rule):
    """The sine is passed where the operator expects the cosine, and the other way round.

    ## What it does
    Compares the names of the two tensors in the source with the parameters they are passed to. Only names
    that say `cos` or `sin`, and not both, count.

    ## Why it is wrong
    Both have the same shape and dtype, so nothing rejects the exchange: every key and query is rotated
    wrongly. The order differs between the operators: npu_kv_rmsnorm_rope_cache and the rotary helpers take
    cos first, npu_mla_prolog takes `rope_sin` first.

    ## Use instead
    Pass them by keyword where the operator allows it.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache and `_v2`, npu_qkv_rms_norm_rope_cache, npu_mla_prolog v1 to v3,
    npu_mla_preprocess, npu_rotary_mul, npu_interleave_rope, npu_apply_rotary_pos_emb.

    ## Evidence
    KR-16, MP-02: op-plugin schemas and documentation.
    """

    code = "KV609"
    name = "swapped-sin-cos"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("KR-16", "MP-02", "3.9")
    families = ("rotary", "prolog")
    operators = (*KV_RMSNORM, "npu_qkv_rms_norm_rope_cache", *PROLOG)
    bad = {
        "order of the prolog": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma,
                sin,  # KV609
                cos, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
        "cos first in the prolog": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2,
                self.cos_table[ids],  # KV609
                self.sin_table[ids],
                kv_cache, kr_cache, cache_index=slots, rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
        "rotary helper": """
            def rotate(query, sin_q, cos_q):
                return torch_npu.npu_rotary_mul(query, sin_q, cos_q, rotary_mode="half")  # KV609
        """,
    }
    ok = {
        "cos first": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
        "names that say nothing": """
            torch_npu.npu_interleave_rope(x, a, b)
        """,
        "one table for both": """
            torch_npu.npu_interleave_rope(x, cos_sin[0], cos_sin[1])
        """,
        "sin first in the prolog": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the names of the pair."""
        cos, sin = call.arg("cos"), call.arg("sin")
        says = self._says(cos), self._says(sin)
        if says == ("cos", "sin"):
            return PROVED
        if says != ("sin", "cos"):
            return NOT_APPLICABLE
        first = min(cos, sin, key=lambda arg: arg.param.position or 0)
        return violated(
            f"{labels(cos)[0]} is passed as {cos.name} and {labels(sin)[0]} as {sin.name}: everything is "
            "rotated wrongly",
            first,
            fix="Exchange the two, or pass them by keyword.",
        )

    @staticmethod
    def _says(arg: Arg) -> str:
        found = set()
        for label in labels(arg):
            words = {word[:3] for word in re.split(r"[^a-z]+", label) if word in _WORDS}
            found.add(words.pop() if len(words) == 1 else "")
        return found.pop() if len(found) == 1 else ""
