"""KV612: the index has another rank than its cache mode reads."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require
from kvlint.contract.tri import YES

from ._common import KV_RMSNORM, RESHAPE


class IndexRank(Rule):
    """The index has another number of axes than the cache mode reads.

    ## What it does
    Checks the rank of the index where it is visible: for npu_kv_rmsnorm_rope_cache 2-D (batch, tokens) in
    mode `Norm` and 1-D in the `PA` modes, for _npu_reshape_and_cache 1-D.

    ## Why it is wrong
    `Norm` (the default) reads offsets inside each sequence, the `PA` modes read global slots. The rank is
    how the operator tells them apart: a mismatch is rejected, and it usually means that the wrong kind of
    index is passed.

    ## Use instead
    `slots.view(-1)` with a PA mode; (batch, tokens) offsets with `Norm`.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache, `_v2`, functional form; _npu_reshape_and_cache. All versions.

    ## Evidence
    KR-04, KR-05, RC-05: op-plugin documentation, ATB operation checks; cann-recipes-infer flattens its
    slots.
    """

    code = "KV612"
    name = "index-rank"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("KR-04", "KR-05", "KR-17", "RC-05")
    operators = (*KV_RMSNORM, *RESHAPE)
    bad = {
        "slots with the default mode": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin,
                slots.view(-1),  # KV612
                rope, nope, epsilon=1e-6)
        """,
        "two axes in a PA mode": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin,
                slots.view(4, 2),  # KV612
                rope, nope, epsilon=1e-6, cache_mode="PA_NZ")
        """,
        "column of slots": """
            torch_npu._npu_reshape_and_cache(
                key=k, value=v, key_cache=kc, value_cache=vc,
                slot_indices=slots.int().view(-1, 1))  # KV612
        """,
    }
    ok = {
        "flat slots": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots.view(-1), rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
        "offsets": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, offsets.view(4, 2), rope, nope, epsilon=1e-6)
        """,
        "unknown": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode=mode)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the rank against the mode."""
        index, mode = call.arg("slots"), call.arg("cache_mode")
        if call.operator.name in RESHAPE:
            wanted, when = 1, YES
        elif mode.constant.equals("Norm").yes:
            wanted, when = 2, YES
        else:
            wanted, when = 1, mode.constant.holds(lambda value: str(value).startswith("PA"))
        shown = f"{mode.name}={mode.constant.get('')!r}" if call.has("cache_mode") else call.operator.name
        return require(
            index.rank.equals(wanted),
            f"{index.name} has {index.rank.get(0)} axes, {shown} reads {wanted}",
            when=when,
            at=index,
            fix="Pass flat slots with a PA mode, (batch, tokens) offsets with Norm.",
        )
