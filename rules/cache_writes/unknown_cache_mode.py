"""KV605: a cache_mode that does not exist."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require

from ._common import KV_RMSNORM, PROLOG, SCATTER_PA

_PROLOG = ("PA_BSND", "PA_NZ")

MODES: dict[str, tuple[str | None, ...]] = {
    **dict.fromkeys(KV_RMSNORM, ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")),
    **dict.fromkeys(SCATTER_PA, (None, "Norm", "PA_NZ")),
    **dict.fromkeys(PROLOG[:2], _PROLOG),
    **dict.fromkeys(PROLOG[2:], (*_PROLOG, "PA_BLK_BSND", "PA_BLK_NZ", "BSND", "TND")),
    "npu_mla_preprocess": (None, "krope_ctkv", "int8_nzcache", "nzcache"),
}


class UnknownCacheMode(Rule):
    """cache_mode is a string the operator does not know.

    ## What it does
    Compares a constant `cache_mode` with the modes of the operator. They differ: `Norm` and `PA_BNSD`
    belong to npu_kv_rmsnorm_rope_cache, `PA_BSND` to npu_mla_prolog, `Norm` and `PA_NZ` to
    npu_scatter_pa_kv_cache.

    ## Why it is wrong
    The mode is checked before the kernel runs, on the device only: the meta kernels accept any string, so
    tests under fake tensors pass.

    ## Use instead
    One of the modes in the message.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache and `_v2`, npu_scatter_pa_kv_cache (cache_mode since 26.0.0), npu_mla_prolog
    v1 to v3, npu_mla_preprocess.

    ## Evidence
    KR-01, PA-01, MP-05, MP-13: op-plugin documentation; the meta kernels accept a typo (executed).
    """

    code = "KV605"
    name = "unknown-cache-mode"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("KR-01", "PA-01", "MP-05", "MP-13")
    operators = tuple(MODES)
    bad = {
        "mode of the prolog": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6,
                cache_mode="PA_BSND")  # KV605
        """,
        "spelling": """
            torch_npu.npu_scatter_pa_kv_cache(
                key, value, key_cache, value_cache, slots,
                cache_mode="norm")  # KV605
        """,
        "on one path": """
            opts = {"rmsnorm_epsilon_cq": 1e-6, "rmsnorm_epsilon_ckv": 1e-6}
            torch_npu.npu_mla_prolog_v2(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, slots, kv_cache, kr_cache,
                cache_mode="PA_NZ" if nz else "PA",  # KV605
                **opts)
        """,
    }
    ok = {
        "known": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA_NZ" if nz else "PA")
        """,
        "unknown value": """
            torch_npu.npu_scatter_pa_kv_cache(key, value, kc, vc, slots, cache_mode=mode)
        """,
        "None is Norm": """
            torch_npu.npu_scatter_pa_kv_cache(key, value, kc, vc, slots, cache_mode=None)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges a constant mode."""
        mode = call.arg("cache_mode")
        legal = MODES[call.operator.name]
        shown = ", ".join(str(name) for name in legal if name)
        return require(
            mode.constant.among(legal),
            f"{call.operator.name} has no {mode.name} {mode.constant.get('')!r}, its modes are {shown}",
            when=mode.given,
            at=mode,
        )
