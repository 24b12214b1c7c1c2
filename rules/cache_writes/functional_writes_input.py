"""KV621: the functional form of kv_rmsnorm_rope_cache that writes its inputs."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, violated


class FunctionalWritesInput(Rule):
    """npu_kv_rmsnorm_rope_cache_v2_functional updates its inputs and returns the old content.

    ## What it does
    Reports every call of npu_kv_rmsnorm_rope_cache_v2_functional. (In op-plugin 7.2.0, which has no
    argument `v`, it was right: with such a torch_npu configured the rule is silent.)

    ## Why it is wrong
    From op-plugin 7.3.0 on the wrapper clones the caches, runs the kernel on the originals and returns the
    clones: the returned caches lack the new rows and the inputs, which a functional operator leaves alone,
    are changed.

    ## Use instead
    npu_kv_rmsnorm_rope_cache_v2, which writes in place.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache_v2_functional of op-plugin 7.3.0 up to the current main branch.

    ## Evidence
    KR-21: wrapper source of op-plugin.
    """

    code = "KV621"
    name = "functional-writes-input"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("KR-21",)
    operators = ("npu_kv_rmsnorm_rope_cache_v2_functional",)
    bad = {
        "returned caches": """
            def write(kv, gamma, cos, sin, slots, rope, nope):
                k, c, _, _ = torch_npu.npu_kv_rmsnorm_rope_cache_v2_functional(  # KV621
                    kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
                return k, c
        """,
    }
    ok = {
        "in place": """
            torch_npu.npu_kv_rmsnorm_rope_cache_v2(
                kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the operator itself."""
        if call.operator.param("v") is None:
            return NOT_APPLICABLE
        return violated(
            f"{call.operator.name} writes into its inputs and returns the old caches",
            call.place,
            fix="Call npu_kv_rmsnorm_rope_cache_v2.",
        )
