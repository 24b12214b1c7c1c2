"""KV622: cache_index of the prolog does not go with its mode."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require
from kvlint.contract.tri import YES, Tri, tri

from ._common import PROLOG


class PrologIndex(Rule):
    """cache_index, token_x or the rotary tables of npu_mla_prolog do not go together.

    ## What it does
    Checks what is visible: a PA mode needs `cache_index`, modes `BSND` and `TND` have none; `BSND` goes
    with a 3-D token_x, `TND` with a 2-D one; packed tokens (2-D) take 1-D slots and (tokens, 64) tables,
    (batch, tokens, width) takes 2-D slots and (batch, tokens, 64) tables; a packed PA_BLK mode needs
    `actual_seq_len`.

    ## Why it is wrong
    The operator rejects the call on the device. The meta kernel accepts a missing index.

    ## Use instead
    Slots shaped like token_x without its last axis.

    ## Ops and versions
    npu_mla_prolog v1, v2 (index required, PA modes only) and v3.

    ## Evidence
    MP-05, MP-09, MP-12, MP-13, MP-14: op-plugin documentation; a missing index is accepted by the meta
    kernel (executed).
    """

    code = "KV622"
    name = "prolog-index"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("MP-05", "MP-09", "MP-12", "MP-13", "MP-14")
    operators = PROLOG
    bad = {
        "slots forgotten": """
            torch_npu.npu_mla_prolog_v3(  # KV622
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, rmsnorm_epsilon_cq=1e-6,
                rmsnorm_epsilon_ckv=1e-6)
        """,
        "slots of another rank": """
            torch_npu.npu_mla_prolog_v3(
                hidden.view(-1, 7168), dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache,
                cache_index=slots.view(4, -1),  # KV622
                rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
        "slots in a contiguous mode": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache,
                cache_index=slots.long(),  # KV622
                cache_mode="BSND", rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
    }
    ok = {
        "packed": """
            torch_npu.npu_mla_prolog_v3(
                hidden.view(-1, 7168), dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache,
                cache_index=slots.view(-1), rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
        "contiguous": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_mode="BSND",
                rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
        "unknown": """
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, cache_index=slots, cache_mode=mode,
                rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges index, tokens and tables against the mode."""
        if call.binding.surplus:
            # Arguments have slid into other places; surplus-positional says so.
            yield NOT_APPLICABLE
            return
        mode, index = call.arg("cache_mode"), call.arg("slots")
        tokens = call.named("token_x")
        by_slot = mode.constant.holds(lambda value: str(value).startswith("PA"))
        yield require(
            index.meant,
            f"{mode.name}={mode.constant.get('')!r} needs {index.name}",
            when=by_slot,
            at=call.place,
            fix=f"Pass the slots as {index.name}.",
        )
        yield require(
            index.is_none,
            f"{mode.name}={mode.constant.get('')!r} has no {index.name}",
            when=~by_slot,
            at=index,
        )
        for name, rank in (("BSND", 3), ("TND", 2)):
            yield require(
                tokens.rank.equals(rank),
                f"cache_mode={name!r} goes with a {rank}-D {tokens.name}, it has {tokens.rank.get(0)} axes",
                when=mode.constant.equals(name),
                at=tokens,
            )
        if tokens.rank.known and tokens.rank.value in (2, 3):
            packed = tokens.rank.value == 2
            yield require(
                index.rank.equals(1 if packed else 2),
                f"{index.name} has {index.rank.get(0)} axes for a {tokens.rank.value}-D {tokens.name}",
                when=by_slot & ~by_block(call),
                at=index,
                fix="Shape the slots like token_x without its last axis.",
            )
            for role in ("sin", "cos"):
                table = call.arg(role)
                yield require(
                    table.rank.equals(tokens.rank.value),
                    f"{table.name} has {table.rank.get(0)} axes for a {tokens.rank.value}-D {tokens.name}",
                    at=table,
                )
            lengths = call.named("actual_seq_len")
            yield require(
                lengths.meant,
                f"{mode.name}={mode.constant.get('')!r} with packed tokens needs {lengths.name}",
                when=by_block(call) & tri(packed),
                at=call.place,
            )


def by_block(call: Call) -> Tri:
    """Whether the index holds one entry per block."""
    if not call.has("cache_mode"):
        return ~YES
    return call.arg("cache_mode").constant.holds(lambda value: str(value).startswith("PA_BLK"))
