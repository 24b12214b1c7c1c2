"""KV623: sizes and modes npu_mla_prolog does not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require, undecided
from kvlint.contract.sizes import constant
from kvlint.contract.tri import Tri, tri

from ._common import PROLOG

_HIDDEN = (1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192)
_MODES = ((0, 0, 0), (1, 0, 0), (1, 2, 0), (1, 3, 0), (2, 0, 0), (2, 1, 1), (2, 3, 0))


class PrologForm(Rule):
    """Sizes, block size or quantisation modes of npu_mla_prolog are not served.

    ## What it does
    Checks visible sizes: the hidden size (7168; in v3 one of nine), 512 for the latent cache (656 with
    `kv_cache_quant_mode` 3), 64 for the rope cache, a block axis of 16 or 128 (v3: a multiple of 16 up to
    1024), rotary tables 64 wide in bfloat16; and in v3 the combination of the three quantisation modes.

    ## Why it is wrong
    The operator rejects the call on the device.

    ## Use instead
    The sizes in the message; separate operators for other models.

    ## Ops and versions
    npu_mla_prolog v1, v2, v3. The mode table is that of A2 and A3.

    ## Evidence
    MP-06, MP-11, MP-12, MP-15: op-plugin documentation.
    """

    code = "KV623"
    name = "prolog-form"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("MP-06", "MP-11", "MP-12", "MP-15")
    operators = PROLOG
    bad = {
        "modes that do not go together": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                kv_cache_quant_mode=1,  # KV623
                rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
        "block of 64 in v2": """
            torch_npu.npu_mla_prolog_v2(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, slots,
                pool.view(-1, 64, 1, 512),  # KV623
                kr_cache, rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
        "tables in float32": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2,
                sin.float(),  # KV623
                cos, kv_cache, kr_cache, cache_index=slots, rmsnorm_epsilon_cq=1e-6,
                rmsnorm_epsilon_ckv=1e-6)
        """,
    }
    ok = {
        "served": """
            torch_npu.npu_mla_prolog_v3(
                x.view(-1, 7168), dq, uq, uk, dkv, g1, g2, sin.bfloat16(), cos, pool.view(-1, 64, 1, 512),
                kr_cache, cache_index=slots, weight_quant_mode=1, rmsnorm_epsilon_cq=1e-6,
                rmsnorm_epsilon_ckv=1e-6)
        """,
        "unknown": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots,
                kv_cache_quant_mode=3 if use_c8 else 0, weight_quant_mode=mode, rmsnorm_epsilon_cq=1e-6,
                rmsnorm_epsilon_ckv=1e-6)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges sizes and modes."""
        third = call.operator.version == "v3"
        tokens, latent = call.named("token_x"), call.arg("nope_cache")
        hidden = constant(tokens.dim(-1))
        yield require(
            hidden.among(_HIDDEN if third else (7168,)),
            f"{tokens.name} is {hidden.get(0)} wide, which {call.operator.name} does not serve",
            at=tokens,
        )
        packed = call.named("kv_cache_quant_mode").constant.equals(3)
        width = constant(latent.dim(-1))
        # A last axis of 64 is swapped-latent-caches, 16 and 32 are tiles of the NZ form.
        legal = (512, 656, 64, 16, 32) if packed.unknown else (656,) if packed.yes else (512, 64, 16, 32)
        yield require(
            width.among(legal),
            f"{latent.name} is {width.get(0)} wide, it must be {656 if packed.yes else 512}",
            at=latent,
        )
        block = constant(latent.dim(1))
        paged = call.arg("cache_mode").constant.holds(lambda value: str(value).startswith("PA"))
        in_rows = latent.rank.equals(4) & constant(latent.dim(2)).equals(1)
        served = block.among((16, 128))
        if third:
            served = block.holds(lambda size: size % 16 == 0 and 16 <= size <= 1024)
        yield require(
            served,
            f"blocks of {block.get(0)} rows in {latent.name} are not served by {call.operator.name}",
            when=paged & in_rows,
            at=latent,
        )
        for role in ("sin", "cos"):
            table = call.arg(role)
            size = constant(table.dim(-1))
            yield require(size.equals(64), f"{table.name} is {size.get(0)} wide, it must be 64", at=table)
            yield require(
                table.dtype.equals("bfloat16"),
                f"{table.name} is {table.dtype.get('?')}, it must be bfloat16",
                at=table,
            )
        yield self._modes(call) if third else NOT_APPLICABLE

    @staticmethod
    def _modes(call: Call) -> Verdict:
        if call.target.soc == "950":
            return NOT_APPLICABLE
        names = ("weight_quant_mode", "kv_cache_quant_mode", "query_quant_mode")
        modes = tuple(call.named(name).constant.get(None) for name in names)
        given = [name for name in names if call.named(name).given.yes]
        if None in modes:
            return undecided(Tri(None, call.named(names[modes.index(None)]).constant.notes))
        # Weight modes from 3 on are those of Ascend 950.
        newer = tri(isinstance(modes[0], int) and modes[0] > 2)
        if modes[0] not in (0, 1, 2):
            return undecided(Tri(None))  # a mode of Ascend 950
        return require(
            tri(modes in _MODES),
            f"the modes {', '.join(f'{n}={m}' for n, m in zip(names, modes, strict=True))} are no served set",
            when=~newer | call.target.soc_in("A2", "A3", "310P"),
            at=call.named(given[0]) if given else call.place,
        )
