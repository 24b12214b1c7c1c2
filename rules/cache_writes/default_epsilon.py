"""KV616: the normalisation epsilon is left to its default."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require

from ._common import KV_RMSNORM, PROLOG

_NAMES = ("epsilon", "rmsnorm_epsilon_cq", "rmsnorm_epsilon_ckv")


class DefaultEpsilon(Rule):
    """The epsilon of a fused RMS norm is left to its default of 1e-5.

    ## What it does
    Reports a fused norm-and-cache operator without its epsilon. Off by default: it is only wrong for models
    whose configuration says another value.

    ## Why it is wrong
    DeepSeek and most MLA models use 1e-6. The difference is small, silent and present in every layer.

    ## Use instead
    `epsilon=self.norm.variance_epsilon`; in the prolog both `rmsnorm_epsilon_cq` and `rmsnorm_epsilon_ckv`.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache (1e-5), npu_mla_prolog v1 to v3 (1e-5). All versions.

    ## Evidence
    KR-14, MP-16: schemas, model configurations.
    """

    code = "KV616"
    name = "default-epsilon"
    severity = Severity.ADVICE
    confidence = Confidence.LOW
    contract = ("KR-14", "MP-16")
    operators = (*KV_RMSNORM, *PROLOG)
    default = False
    bad = {
        "omitted": """
            torch_npu.npu_kv_rmsnorm_rope_cache(  # KV616
                kv, gamma, cos, sin, slots, rope, nope, cache_mode="PA")
        """,
        "one of two": """
            torch_npu.npu_mla_prolog_v3(  # KV616
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                rmsnorm_epsilon_cq=1e-6)  # KV652
        """,
    }
    ok = {
        "given": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots, rope, nope, epsilon=norm.eps, cache_mode="PA")
        """,
        "both": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                rmsnorm_epsilon_cq=eps, rmsnorm_epsilon_ckv=eps)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each epsilon the operator has."""
        for name in _NAMES:
            if call.operator.param(name) is not None:
                epsilon = call.named(name)
                yield require(
                    epsilon.given,
                    f"{name} is left at {epsilon.param.default}",
                    at=call.place,
                    fix=f"Pass {name} from the model configuration.",
                )
