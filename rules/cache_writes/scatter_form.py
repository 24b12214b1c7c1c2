"""KV611: cache, indices and rows of a scatter do not fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require
from kvlint.contract.sizes import constant, equal
from kvlint.contract.tri import Tri, all_of, tri

from ._common import ND_UPDATE, SCATTER, same_dtype

_ND_DTYPES = ("float32", "float16", "bool", "bfloat16", "int64", "int8")


class ScatterForm(Rule):
    """The cache, the indices and the new rows of a scatter do not fit each other.

    ## What it does
    Checks what is visible: cache and rows have one dtype; for scatter_update_ one number of axes (2 to 8);
    for npu_scatter_nd_update_ indices with at least two axes, rows shaped indices.shape[:-1] +
    cache.shape[a:] with a the last axis of the indices, and a dtype the operator serves.

    ## Why it is wrong
    The operators reject it on the device. The meta kernels accept all of it, so tests under fake tensors
    pass.

    ## Use instead
    `slots.view(-1, 1)` with a cache viewed as (slots, heads, dim); rows cast to the dtype of the cache.

    ## Ops and versions
    scatter_update(_), npu_scatter_nd_update(_). All versions.

    ## Evidence
    SU-01, SU-05, ND-01, ND-02, ND-06, ND-07: op-plugin documentation; that the meta kernels accept them was
    executed.
    """

    code = "KV611"
    name = "scatter-form"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("SU-01", "SU-05", "ND-01", "ND-02", "ND-06", "ND-07")
    operators = (*SCATTER, *ND_UPDATE)
    bad = {
        "ranks differ": """
            cache = torch.zeros(8, 4096, 1024, dtype=torch.float16)
            torch_npu.scatter_update_(
                cache, lens,
                rows.view(8, 1, 8, 128),  # KV611
                1)
        """,
        "dtypes differ": """
            cache = torch.zeros(8, 4096, 1024, dtype=torch.bfloat16)
            torch_npu.scatter_update_(
                cache, lens,
                rows.half(),  # KV611
                1)
        """,
        "flat indices": """
            flat = pool.view(-1, 512)
            torch_npu.npu_scatter_nd_update_(
                flat,
                slots.view(-1),  # KV611
                rows)
        """,
        "rows of another shape": """
            flat = pool.view(-1, 8, 128)
            torch_npu.npu_scatter_nd_update_(
                flat, slots.view(-1, 1),
                rows.view(-1, 1024))  # KV611
        """,
    }
    ok = {
        "fitting": """
            cache = torch.zeros(8, 4096, 1024, dtype=torch.bfloat16)
            torch_npu.scatter_update_(cache, lens, rows.view(8, 1, 1024).bfloat16(), 1)
        """,
        "column of slots": """
            flat = pool.view(-1, 8, 128)
            torch_npu.npu_scatter_nd_update_(flat, slots.view(-1, 1), rows.view(-1, 8, 128))
        """,
        "unknown": """
            torch_npu.npu_scatter_nd_update_(pool, slots, rows)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges dtypes and shapes."""
        data, indices, updates = call.arg("data"), call.arg("indices"), call.arg("updates")
        yield require(
            same_dtype(data, updates),
            f"{updates.name} is {updates.dtype.get('?')}, the cache is {data.dtype.get('?')}",
            at=updates,
            fix=f"Cast {updates.name} to the dtype of the cache.",
        )
        if call.operator.name in SCATTER:
            yield require(
                _same_rank(data, updates),
                f"{updates.name} has {updates.rank.get(0)} axes, the cache has {data.rank.get(0)}",
                at=updates,
            )
            return
        # The list is that of A2 and A3; Ascend 950 has 8-bit floats.
        eight_bit = data.dtype.holds(lambda dtype: dtype.startswith("float8"))
        yield require(
            data.dtype.among(_ND_DTYPES),
            f"{call.operator.name} does not serve {data.dtype.get('?')}",
            when=~eight_bit | call.target.soc_in("A2", "A3", "310P"),
            at=data,
        )
        yield require(
            indices.rank.holds(lambda rank: rank >= 2),
            f"{indices.name} has {indices.rank.get(0)} axis, its last one must be the coordinates of one row",
            at=indices,
            fix=f"Pass {indices.name}.view(-1, 1).",
        )
        fits = _fits(data, indices, updates)
        yield require(
            fits,
            f"{updates.name} must be shaped {indices.name}.shape[:-1] + cache.shape[a:], a being the last "
            f"axis of {indices.name}",
            at=updates,
        )


def _same_rank(left: Arg, right: Arg) -> Tri:
    if not (left.rank.known and right.rank.known):
        return Tri(None, left.rank.notes if not left.rank.known else right.rank.notes)
    return tri(left.rank.value == right.rank.value, *left.shape.notes, *right.shape.notes)


def _fits(data: Arg, indices: Arg, updates: Arg) -> Tri:
    width = constant(indices.dim(-1))
    ranks = (data.rank, indices.rank, updates.rank)
    if not width.known or not all(rank.known for rank in ranks) or indices.rank.value < 2:
        reasons = [note for fact in (width, *ranks) if not fact.known for note in fact.notes]
        return Tri(None, tuple(reasons or indices.rank.notes))
    wanted = indices.rank.value - 1 + data.rank.value - width.value
    if updates.rank.value != wanted:
        return tri(False, *data.shape.notes, *indices.shape.notes, *updates.shape.notes)
    states = [
        equal(updates.dim(axis - updates.rank.value), data.dim(axis - updates.rank.value))
        for axis in range(indices.rank.value - 1, updates.rank.value)
    ]
    states += [equal(updates.dim(axis), indices.dim(axis)) for axis in range(indices.rank.value - 1)]
    wrong = next((state for state in states if state.no), None)
    return wrong if wrong is not None else all_of(states)
