"""KV617: the default cache mode Norm with a paged cache."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, undecided, violated
from kvlint.contract.sizes import constant
from kvlint.contract.tri import Tri

from ._common import KV_RMSNORM


class NormModeOnPagedCache(Rule):
    """npu_kv_rmsnorm_rope_cache runs in mode Norm, but the cache or the index is paged.

    ## What it does
    Reports `cache_mode` left at `Norm` (or passed so) where the cache is visibly (blocks, block, 1, width),
    or the index is built as `table * block + position % block`; and the opposite, a PA mode with a visible
    (batch, 1, length, width) cache.

    ## Why it is wrong
    `Norm` reads the index as offsets inside each sequence of a (batch, 1, length, width) cache. Global
    slots run past the end of it or land in other sequences.

    ## Use instead
    `cache_mode="PA"` (or `PA_NZ` with a reader that views the cache as NZ).

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache, `_v2`, functional form. All versions.

    ## Evidence
    KR-05, KR-17: op-plugin documentation.
    """

    code = "KV617"
    name = "norm-mode-on-paged-cache"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("KR-05", "KR-17")
    operators = KV_RMSNORM
    bad = {
        "paged cache, mode omitted": """
            rope = pool.view(-1, 128, 1, 64)
            nope = other.view(-1, 128, 1, 512)
            torch_npu.npu_kv_rmsnorm_rope_cache(kv, gamma, cos, sin, index, rope, nope, epsilon=1e-6)  # KV617
        """,
        "slots into Norm": """
            pos = first + torch.arange(tokens)
            slots = (row[pos // 128] * 128 + pos % 128).to(torch.int64)
            torch_npu.npu_kv_rmsnorm_rope_cache_v2(  # KV617
                kv, gamma, cos, sin, slots.unsqueeze(0), rope, nope, epsilon=1e-6)
        """,
    }
    ok = {
        "PA": """
            rope = pool.view(-1, 128, 1, 64)
            nope = other.view(-1, 128, 1, 512)
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, index, rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
        "Norm with a contiguous cache": """
            rope = pool.view(batch, 1, -1, 64)
            nope = other.view(batch, 1, -1, 512)
            torch_npu.npu_kv_rmsnorm_rope_cache(kv, gamma, cos, sin, index, rope, nope, epsilon=1e-6)
        """,
        "unknown": """
            torch_npu.npu_kv_rmsnorm_rope_cache(kv, gamma, cos, sin, index, rope, nope, epsilon=1e-6)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the mode against cache and index."""
        mode, index = call.arg("cache_mode"), call.arg("slots")
        norm = mode.constant.equals("Norm")
        if not (norm.yes or norm.no):
            yield undecided(norm)
            return
        at = mode if mode.given.yes else call.place
        paged = self._paged(call.arg("rope_cache"))
        paged = paged if not paged.unknown else self._paged(call.arg("nope_cache"))
        by_slot = index.content.holds(lambda content: content.slots == "token")
        if norm.yes and paged.yes:
            yield violated(
                f"{mode.name} is Norm, but the cache is (blocks, block, 1, width): slots are read as offsets "
                "inside each sequence",
                at,
                paged.notes,
                'Pass cache_mode="PA".',
            )
        elif norm.yes and by_slot.yes:
            yield violated(
                f"{mode.name} is Norm, which reads offsets inside a sequence, but {index.name} holds slots",
                at,
                by_slot.notes,
                'Pass cache_mode="PA".',
            )
        elif norm.no and paged.no and mode.constant.holds(lambda value: str(value).startswith("PA")).yes:
            yield violated(
                f"{mode.name}={mode.constant.get('')!r} writes by slot, but the cache is "
                "(batch, 1, length, width)",
                at,
                paged.notes,
                "Use mode Norm, or a paged cache.",
            )
        else:
            yield undecided(paged) if paged.unknown else NOT_APPLICABLE

    @staticmethod
    def _paged(cache: Arg) -> Tri:
        """Whether a cache is (blocks, block, 1, width) rather than (batch, 1, length, width)."""
        if not cache.rank.equals(4).yes:
            return Tri(None, cache.rank.notes)
        first, second = constant(cache.dim(1)), constant(cache.dim(2))
        if second.equals(1).yes and first.holds(lambda size: size > 1).yes:
            return first.holds(lambda size: size > 1)
        if first.equals(1).yes and second.holds(lambda size: size > 1).yes:
            return second.equals(1)
        named = cache.dim(1)
        if second.equals(1).yes and named.known and named.value.integer is None and named.value.declared:
            return ~second.holds(lambda size: size != 1)
        return Tri(None, (*first.notes, *second.notes))
