"""KV609: sin and cos are exchanged."""

from __future__ import annotations

import re

from kvlint.contract.call import Call
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
        "named by the caller alone": """
            def tables(both, positions):
                first, second = both
                return first[positions], second[positions]

            def prolog(x, w, both, positions, slots, kv_cache, kr_cache):
                cos, sin = tables(both, positions)
                return torch_npu.npu_mla_prolog_v2(
                    x, w.dq, w.uq, w.uk, w.dkv, w.g1, w.g2,
                    cos,  # KV609
                    sin, slots, kv_cache, kr_cache)
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
        says = self._says(labels(cos)), self._says(labels(sin))
        names = labels(cos)[:1], labels(sin)[:1]
        if says == ("", ""):
            # Where the values come from does not tell: what the call itself calls them.
            names = (cos.written.lower(),), (sin.written.lower(),)
            says = self._says(names[0]), self._says(names[1])
        if says == ("cos", "sin"):
            return PROVED
        if says != ("sin", "cos"):
            return NOT_APPLICABLE
        first = min(cos, sin, key=lambda arg: arg.param.position or 0)
        return violated(
            f"{names[0][0]} is passed as {cos.name} and {names[1][0]} as {sin.name}: everything is "
            "rotated wrongly",
            first,
            fix="Exchange the two, or pass them by keyword.",
        )

    @staticmethod
    def _says(names: tuple[str, ...]) -> str:
        found = set()
        for label in names:
            words = {word[:3] for word in re.split(r"[^a-z]+", label) if word in _WORDS}
            found.add(words.pop() if len(words) == 1 else "")
        return found.pop() if len(found) == 1 else ""
