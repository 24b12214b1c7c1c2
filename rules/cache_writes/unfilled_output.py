"""KV613: a result is used that the operator does not fill."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call, leaves
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

from ._common import KV_RMSNORM

_FILLED_ON_REQUEST = {
    "npu_kv_rmsnorm_rope_cache": (2, 3),
    "npu_kv_rmsnorm_rope_cache_v2": (0, 1),
    "npu_kv_rmsnorm_rope_cache_v2_functional": (2, 3),
    "npu_qkv_rms_norm_rope_cache": (0, 1, 2),
}


class UnfilledOutput(Rule):
    """A result is used that the operator allocates but does not fill.

    ## What it does
    Reports reads of the key and value results of npu_kv_rmsnorm_rope_cache (of npu_qkv_rms_norm_rope_cache)
    in a call that leaves `is_output_kv` (`is_output_qkv`) at False, or uses cache mode `Norm`, where the
    flag has no effect.

    ## Why it is wrong
    The results have the right shape and hold whatever was in memory. Attention over them gives random
    numbers.

    ## Use instead
    `is_output_kv=True` in a PA mode, or read the rows back from the cache.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache, `_v2`, functional form; npu_qkv_rms_norm_rope_cache. All versions.

    ## Evidence
    KR-09, KR-10, KR-22: op-plugin documentation; the meta kernel returns full shapes either way (executed).
    """

    code = "KV613"
    name = "unfilled-output"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("KR-09", "KR-10", "KR-22")
    operators = (*KV_RMSNORM, "npu_qkv_rms_norm_rope_cache")
    bad = {
        "flag forgotten": """
            def prefill(kv, gamma, cos, sin, slots, rope, nope):
                _, _, pe, latent = torch_npu.npu_kv_rmsnorm_rope_cache(
                    kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
                return torch.cat([latent, pe], dim=-1)  # KV613
        """,
        "v2": """
            def prefill(kv, gamma, cos, sin, slots, rope, nope):
                k_rope, k_nope = torch_npu.npu_kv_rmsnorm_rope_cache_v2(
                    kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA_NZ",
                    is_output_kv=False)
                return k_rope.squeeze(1)  # KV613
        """,
        "indexed": """
            def prefill(kv, gamma, cos, sin, slots, rope, nope):
                found = torch_npu.npu_kv_rmsnorm_rope_cache(
                    kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
                return torch.cat([found[3], found[2]], dim=-1)  # KV613
        """,
        "in a layer": """
            class Attention(torch.nn.Module):
                def prefill(self, kv, gamma, cos, sin, slots, rope, nope):
                    _, _, pe, latent = torch_npu.npu_kv_rmsnorm_rope_cache(
                        kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
                    return pe, self.kv_b_proj(latent)  # KV613
        """,
        "in the caller": """
            class Attention(torch.nn.Module):
                def write(self, kv, gamma, cos, sin, slots, rope, nope):
                    _, _, pe, latent = torch_npu.npu_kv_rmsnorm_rope_cache(
                        kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
                    return pe, latent

                def prefill(self, kv, gamma, cos, sin, slots, rope, nope):
                    pe, latent = self.write(kv, gamma, cos, sin, slots, rope, nope)
                    return torch.cat([latent, pe], dim=-1)  # KV613
        """,
        "Norm ignores the flag": """
            def prefill(kv, gamma, cos, sin, offsets, rope, nope):
                _, _, pe, latent = torch_npu.npu_kv_rmsnorm_rope_cache(
                    kv, gamma, cos, sin, offsets, rope, nope, epsilon=1e-6, is_output_kv=True)
                return pe + latent[..., :64]  # KV613
        """,
    }
    ok = {
        "asked for": """
            def prefill(kv, gamma, cos, sin, slots, rope, nope):
                _, _, pe, latent = torch_npu.npu_kv_rmsnorm_rope_cache(
                    kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA", is_output_kv=True)
                return torch.cat([latent, pe], dim=-1)
        """,
        "passed on": """
            def write(kv, gamma, cos, sin, slots, rope, nope):
                _, _, pe, latent = torch_npu.npu_kv_rmsnorm_rope_cache(
                    kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
                return pe, latent

            def step(backend, kv, gamma, cos, sin, slots, rope, nope):
                pe, latent = write(kv, gamma, cos, sin, slots, rope, nope)
                return backend.plan(pe, latent, latent.shape)
        """,
        "the caches are results too": """
            def decode(kv, gamma, cos, sin, slots, rope, nope):
                pe, latent, _, _ = torch_npu.npu_kv_rmsnorm_rope_cache(
                    kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
                return torch.cat([latent, pe], dim=-1)
        """,
        "flag decided elsewhere": """
            def step(kv, gamma, cos, sin, slots, rope, nope, prefill):
                _, _, pe, latent = torch_npu.npu_kv_rmsnorm_rope_cache(
                    kv, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA",
                    is_output_kv=prefill)
                if prefill:
                    return torch.cat([latent, pe], dim=-1)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the results that are computed with."""
        flag, mode = call.arg("is_output_kv"), call.arg("cache_mode")
        # A result that is indexed is wanted; one that is unpacked may only be passed on.
        reads = dict(call.use.touched)
        if call.use.unpacked is None:
            reads.update(call.use.read or {})
        used = [index for index in reads if index in _FILLED_ON_REQUEST[call.operator.name]]
        if not used:
            yield NOT_APPLICABLE
            return
        # Which results are used is not known per path, so neither may be the flag.
        single = len(leaves(flag.value, {})) == 1 and len(leaves(mode.value, {})) == 1
        off = flag.constant.equals(False)
        inert = mode.constant.equals("Norm")
        if single and (off.yes or inert.yes):
            why = f"{flag.name} is False" if off.yes else f"{mode.name} Norm ignores {flag.name}"
            index = used[0]
            yield violated(
                f"result {index + 1} of {call.operator.name} is not filled, because {why}",
                reads[index],
                off.notes if off.yes else inert.notes,
                f"Pass {flag.name}=True with a PA mode, or read the rows from the cache.",
            )
        else:
            yield PROVED if off.no and inert.no else undecided(off, inert)
