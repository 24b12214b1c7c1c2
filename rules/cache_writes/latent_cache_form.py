"""KV619: arguments npu_kv_rmsnorm_rope_cache does not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require
from kvlint.contract.sizes import constant

from ._common import KV_RMSNORM

_RANKS = {"kv": 4, "gamma": 1, "cos": 4, "sin": 4}
_WIDTHS = {"kv": 576, "gamma": 512, "cos": 64, "sin": 64}
_FLOATS = ("float16", "bfloat16")


class LatentCacheForm(Rule):
    """A tensor of npu_kv_rmsnorm_rope_cache has the wrong shape or dtype.

    ## What it does
    Checks what is visible: kv (batch, 1, tokens, 576), gamma (512,), cos and sin (batch, 1, tokens, 64),
    all float16 or bfloat16; an int8 cache needs its scale (`k_rope_scale` for k_cache, `c_kv_scale` for
    ckv_cache). With `v` other widths hold, which are left alone.

    ## Why it is wrong
    The sizes are fixed to DeepSeek's; the ranks are checked by the wrapper, the rest on the device. The
    meta kernel accepts other widths and an int8 cache without scales.

    ## Use instead
    `latent.view(-1, 1, tokens, 576)` and `cos.view(-1, 1, tokens, 64)` in the dtype of the model.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache, `_v2`, functional form. All versions.

    ## Evidence
    KR-11, KR-12, KR-13, KR-20: op-plugin documentation; ranks executed.
    """

    code = "KV619"
    name = "latent-cache-form"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("KR-11", "KR-12", "KR-13", "KR-20")
    operators = KV_RMSNORM
    bad = {
        "token axis missing": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                latent.view(-1, 1, 576),  # KV619
                gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
        "tables in float32": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                latent, gamma,
                cos.float(),  # KV619
                sin.float(),  # KV619
                slots, rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
        "int8 cache without its scale": """
            nope = torch.zeros(64, 128, 1, 512, dtype=torch.int8)
            torch_npu.npu_kv_rmsnorm_rope_cache(
                latent, gamma, cos, sin, slots, rope,
                nope,  # KV619
                epsilon=1e-6, cache_mode="PA")
        """,
    }
    ok = {
        "fitting": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                latent.view(-1, 1, 1, 576), gamma, cos.view(-1, 1, 1, 64), sin.view(-1, 1, 1, 64), slots,
                rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
        "int8 cache with its scale": """
            nope = torch.zeros(64, 128, 1, 512, dtype=torch.int8)
            torch_npu.npu_kv_rmsnorm_rope_cache(
                latent, gamma, cos, sin, slots, rope, nope, c_kv_scale=factors, epsilon=1e-6, cache_mode="PA")
        """,
        "unknown": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                latent, gamma, cos, sin, slots, rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges ranks, widths and dtypes."""
        for name, rank in _RANKS.items():
            tensor = call.named(name)
            yield require(
                tensor.rank.equals(rank),
                f"{name} has {tensor.rank.get(0)} axes, it must have {rank}",
                at=tensor,
            )
            yield require(
                tensor.dtype.among(_FLOATS),
                f"{name} is {tensor.dtype.get('?')}, it must be float16 or bfloat16",
                at=tensor,
            )
            width = constant(tensor.dim(-1)) if tensor.rank.equals(rank).yes else None
            if width is not None:
                yield require(
                    width.equals(_WIDTHS[name]),
                    f"{name} is {width.get(0)} wide, it must be {_WIDTHS[name]} without v",
                    when=call.named("v").is_none,
                    at=tensor,
                )
        for cache_name, scale_name in (("k_cache", "k_rope_scale"), ("ckv_cache", "c_kv_scale")):
            cache, scale = call.named(cache_name), call.named(scale_name)
            yield require(
                scale.meant,
                f"{cache_name} is int8 but {scale_name} is not passed",
                when=cache.dtype.equals("int8"),
                at=cache,
                fix=f"Pass {scale_name}.",
            )
