"""KV628: the query norm of the prolog is used without asking for it."""

from __future__ import annotations

from kvlint.contract.call import Call, leaves
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, undecided, violated

from ._common import PROLOG


class QueryNormNotRequested(Rule):
    """query_norm of npu_mla_prolog_v3 is used without query_norm_flag.

    ## What it does
    Reports a use of the fourth or fifth result of npu_mla_prolog_v3 in a call that leaves `query_norm_flag`
    at False, and of the fifth (its scale) with unquantised weights.

    ## Why it is wrong
    The result is an empty tensor. Code that views or multiplies it fails later, or silently gives an empty
    tensor.

    ## Use instead
    `query_norm_flag=True`.

    ## Ops and versions
    npu_mla_prolog_v3 and its functional form (7.3.0 and newer).

    ## Evidence
    MP-10: op-plugin documentation; executed on the meta kernel.
    """

    code = "KV628"
    name = "query-norm-not-requested"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("MP-10",)
    operators = PROLOG[2:]
    bad = {
        "flag forgotten": """
            def prolog(x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, slots):
                q, pe, _, norm, _ = torch_npu.npu_mla_prolog_v3(
                    x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                    rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
                return q, pe, norm.view(-1, 1536)  # KV628
        """,
    }
    ok = {
        "flag set": """
            def prolog(x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, slots):
                q, pe, _, norm, _ = torch_npu.npu_mla_prolog_v3(
                    x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                    rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6, query_norm_flag=True)
                return q, pe, norm.view(-1, 1536)
        """,
        "passed on unused": """
            def prolog(x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, slots):
                q, pe, _, norm, _ = torch_npu.npu_mla_prolog_v3(
                    x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                    rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
                return q, pe, norm
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the use of the norm."""
        flag, weights = call.named("query_norm_flag"), call.named("weight_quant_mode")
        used = [index for index in (3, 4) if index in call.use.touched]
        if not used:
            return NOT_APPLICABLE
        off = flag.constant.equals(False)
        if off.yes and len(leaves(flag.value, {})) == 1:
            return violated(
                f"result {used[0] + 1} is empty, because {flag.name} is False",
                call.use.touched[used[0]],
                off.notes,
                f"Pass {flag.name}=True.",
            )
        plain = weights.constant.equals(0)
        if 4 in used and plain.yes and len(leaves(weights.value, {})) == 1:
            return violated(
                f"result 5 is the scale of the norm, which only quantised weights have ({weights.name} is 0)",
                call.use.touched[4],
                plain.notes,
            )
        return undecided(off) if off.unknown else NOT_APPLICABLE
