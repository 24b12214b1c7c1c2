"""KV652: one of the two norms of the prolog keeps its default epsilon."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require
from kvlint.contract.tri import Tri

from ._common import PROLOG

_PAIR = ("rmsnorm_epsilon_cq", "rmsnorm_epsilon_ckv")


class UnevenEpsilon(Rule):
    """One of the two norms of the prolog gets the model's epsilon, the other keeps its default.

    ## What it does
    Reports a prolog call that passes one of `rmsnorm_epsilon_cq` and `rmsnorm_epsilon_ckv` as a number other
    than the default, and leaves the other out.

    ## Why it is wrong
    Both default to 1e-5, models have one epsilon for all their norms. The norm that was forgotten is off by
    a little in every layer, silently.

    ## Use instead
    Pass the model's epsilon as both.

    ## Ops and versions
    npu_mla_prolog v1 to v3. All versions.

    ## Evidence
    MP-16: schemas, model configurations.
    """

    code = "KV652"
    name = "uneven-epsilon"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("MP-16",)
    operators = PROLOG
    bad = {
        "query norm only": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                rmsnorm_epsilon_cq=1e-6,  # KV652
            )
        """,
        "in a dict": """
            EPS = 1e-6
            def prolog(x, w, sin, cos, slots, kv_cache, kr_cache):
                options = {"cache_mode": "PA_BSND"}
                options["rmsnorm_epsilon_ckv"] = EPS  # KV652
                return torch_npu.npu_mla_prolog_v2(
                    x, w.dq, w.uq, w.uk, w.dkv, w.g1, w.g2, sin, cos, slots, kv_cache, kr_cache, **options)
        """,
    }
    ok = {
        "both": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
        "the default is the model's": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                rmsnorm_epsilon_cq=1e-5)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the pair."""
        pair = [call.named(name) for name in _PAIR if call.operator.param(name) is not None]
        given = [epsilon for epsilon in pair if epsilon.given.yes]
        if len(pair) != len(_PAIR) or len(given) != 1:
            return NOT_APPLICABLE
        mine = given[0]
        other = pair[1] if mine is pair[0] else pair[0]
        value = mine.constant
        same = value.equals(mine.param.default) if value.known else Tri(None, value.notes)
        return require(
            same | other.given,
            f"{mine.name} is {value.get('?')}, but {other.name} is left at {other.param.default}",
            at=mine,
            fix=f"Pass the same number as {other.name}.",
        )
