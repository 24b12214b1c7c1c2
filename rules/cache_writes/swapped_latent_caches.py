"""KV608: the rope and the nope cache are exchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    Rule,
    Severity,
    Verdict,
    undecided,
    violated,
)
from kvlint.contract.sizes import constant
from kvlint.contract.tri import Tri

from ._common import KV_RMSNORM, PROLOG, labels

_ROPE_WORDS = frozenset(("rope", "pe", "kr", "krope", "ropes"))
_NOPE_WORDS = frozenset(("nope", "ckv", "latent", "latents", "knope", "kvc"))


class SwappedLatentCaches(Rule):
    """The rope cache and the nope cache are passed in each other's place.

    ## What it does
    Looks at the two latent caches: by their last axis (64 for rope, 512 for nope), and by the names the
    source gives them where both tell (`rope`, `pe`, `kr` against `nope`, `ckv`, `latent`).

    ## Why it is wrong
    npu_kv_rmsnorm_rope_cache takes the rope cache first (`k_cache`), npu_mla_prolog the nope cache first
    (`kv_cache`). Exchanged caches are rejected on the device at best; the meta kernel accepts them.

    ## Use instead
    npu_kv_rmsnorm_rope_cache(kv, gamma, cos, sin, index, rope_cache, nope_cache), and npu_mla_prolog(...,
    nope_cache, rope_cache).

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache and `_v2` (without `v`, which changes what the caches hold), npu_mla_prolog v1
    to v3, npu_mla_preprocess.

    ## Evidence
    KR-02, MP-03: op-plugin documentation; the meta kernel accepts exchanged caches (executed).
    """

    code = "KV608"
    name = "swapped-latent-caches"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("KR-02", "MP-03", "KR-19")
    operators = (*KV_RMSNORM, *PROLOG, "npu_mla_preprocess")
    bad = {
        "by name": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots,
                nope_cache,  # KV608
                rope_cache, epsilon=1e-6, cache_mode="PA")
        """,
        "by width": """
            nope = pool.view(-1, 128, 1, 512)
            rope = other.view(-1, 128, 1, 64)
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos,
                rope,  # KV608
                nope,
                cache_index=slots, rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
        "by attribute name": """
            class Layer:
                def write(self, kv, cos, sin, slots):
                    torch_npu.npu_kv_rmsnorm_rope_cache_v2(
                        kv, self.gamma, cos, sin, slots,
                        self.ckv_pool,  # KV608
                        self.pe_pool, epsilon=self.eps, cache_mode="PA_NZ")
        """,
    }
    ok = {
        "rope first": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots, rope_cache, nope_cache, epsilon=1e-6, cache_mode="PA")
        """,
        "neutral names": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots, kv_cache[1], kv_cache[0], epsilon=1e-6, cache_mode="PA")
        """,
        "nope first in the prolog": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, nope_cache, rope_cache, cache_index=slots,
                rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
        "only one name tells": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots, value_cache, rope_cache, epsilon=1e-6, cache_mode="PA")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the pair."""
        rope, nope = call.arg("rope_cache"), call.arg("nope_cache")
        if call.named("v").present.yes:
            yield NOT_APPLICABLE
            return
        if call.named("v").present.unknown:
            yield undecided(call.named("v").present)
            return
        first = min(rope, nope, key=lambda arg: arg.param.position or 0)
        wide, narrow = constant(rope.dim(-1)), constant(nope.dim(-1))
        rejected = wide.equals(512) | narrow.equals(64)
        if rejected.yes:
            yield violated(
                f"{rope.name} is the rope cache (64 wide) and {nope.name} the latent one: they are exchanged",
                first,
                rejected.notes,
                f"Pass the 64-wide cache as {rope.name}.",
            )
        elif wide.equals(64).yes and (narrow.equals(512) | narrow.equals(656)).yes:
            yield PROVED
        elif self._speaks(rope, _NOPE_WORDS, _ROPE_WORDS) and self._speaks(nope, _ROPE_WORDS, _NOPE_WORDS):
            yield violated(
                f"{labels(rope)[0]} is passed as {rope.name}, the rope cache, and {labels(nope)[0]} as "
                f"{nope.name}",
                first,
                fix=f"{rope.name} is the rope (64-wide) cache, {nope.name} the latent one: exchange them.",
            )
        else:
            yield undecided(Tri(None, (*wide.notes, *narrow.notes)))

    @staticmethod
    def _speaks(arg: Arg, words: frozenset[str], others: frozenset[str]) -> bool:
        """Whether every name of the argument says one thing and not the other."""
        found = [set(re.split(r"[^a-z0-9]+", label)) for label in labels(arg)]
        return bool(found) and all(words & tokens and not others & tokens for tokens in found)
