"""KV620: rows and caches of _npu_reshape_and_cache do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require
from kvlint.contract.sizes import constant, equal, shown

from ._common import RESHAPE, same_dtype


class RowCacheForm(Rule):
    """Rows, caches and slots of _npu_reshape_and_cache do not fit each other.

    ## What it does
    Checks what is visible: rows (tokens, heads, dim) of the dtype of the cache, the heads and dim of a 4-D
    (blocks, block, heads, dim) cache, one slot per token.

    ## Why it is wrong
    ATB compares them and rejects the call. Slots that are longer than the rows are the usual case: padded
    buffers must be cut to the tokens of the step.

    ## Use instead
    `key.view(-1, heads, dim)` and `slots[:key.shape[0]]`.

    ## Ops and versions
    _npu_reshape_and_cache, _npu_reshape_and_cache_siso. All versions. Strided rows are right: the wrapper
    copies them.

    ## Evidence
    RC-02, RC-05, RC-06: ATB operation checks.
    """

    code = "KV620"
    name = "row-cache-form"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("RC-02", "RC-05", "RC-06")
    operators = RESHAPE
    bad = {
        "rows without a head axis": """
            torch_npu._npu_reshape_and_cache(
                key=k.view(-1, 1024),  # KV620
                value=v, key_cache=kc, value_cache=vc, slot_indices=slots)
        """,
        "other dims than the cache": """
            kc = pool.view(-1, 128, 8, 128)
            torch_npu._npu_reshape_and_cache(
                key=k.view(-1, 16, 64),  # KV620
                value=v, key_cache=kc, value_cache=kc, slot_indices=slots)
        """,
        "dtypes differ": """
            kc = torch.zeros(64, 128, 8, 128, dtype=torch.bfloat16)
            torch_npu._npu_reshape_and_cache_siso(
                k.half(),  # KV620
                kc, slots)
        """,
    }
    ok = {
        "fitting": """
            kc = pool.view(-1, 128, 8, 128)
            torch_npu._npu_reshape_and_cache(
                key=k.view(-1, 8, 128), value=v, key_cache=kc, value_cache=kc, slot_indices=slots)
        """,
        "unknown": """
            torch_npu._npu_reshape_and_cache(key=k, value=v, key_cache=kc, value_cache=vc, slot_indices=slots)
        """,
        "NZ cache": """
            kc = pool.view(-1, 64, 128, 16)
            torch_npu._npu_reshape_and_cache(
                key=k.view(-1, 8, 128), value=v, key_cache=kc, value_cache=kc, slot_indices=slots)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each pair of rows and cache."""
        slots = call.arg("slots")
        for role, cache_role in (("key", "key_cache"), ("value", "value_cache")):
            if not call.has(role):
                continue
            rows, cache = call.arg(role), call.arg(cache_role)
            yield require(
                rows.rank.equals(3),
                f"{rows.name} has {rows.rank.get(0)} axes, it must be (tokens, heads, dim)",
                at=rows,
            )
            yield require(
                same_dtype(rows, cache),
                f"{rows.name} is {rows.dtype.get('?')} but {cache.name} is {cache.dtype.get('?')}",
                at=rows,
            )
            # A last axis of 16 or 32 is a tile of the NZ form.
            plain = cache.rank.equals(4) & rows.rank.equals(3) & ~constant(cache.dim(3)).among((16, 32))
            fits = equal(rows.dim(1), cache.dim(2)) & equal(rows.dim(2), cache.dim(3))
            yield require(
                fits,
                f"{rows.name} holds rows of {shown(rows.dim(1))} x {shown(rows.dim(2))}, {cache.name} of "
                f"{shown(cache.dim(2))} x {shown(cache.dim(3))}",
                when=plain,
                at=rows,
            )
            yield require(
                equal(slots.length, rows.dim(0)),
                f"{slots.name} has {shown(slots.length)} entries for {shown(rows.dim(0))} rows",
                when=rows.rank.equals(3),
                at=slots,
                fix=f"Cut {slots.name} to the rows that are written.",
            )
