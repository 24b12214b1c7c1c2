"""KV615: arguments npu_quant_scatter does not take."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require
from kvlint.contract.sizes import constant, equal
from kvlint.contract.tri import Tri

from ._common import QUANT_SCATTER


class QuantScatterForm(Rule):
    """The cache, the indices or the scales of npu_quant_scatter have the wrong form.

    ## What it does
    Checks what is visible: an int8 cache with 3 to 8 axes, indices that are 1-D or (n, 2), an axis that is
    neither the first nor the last, the last axis for `quant_axis`, rows that fill whole 32-byte lines, one
    scale per element of the rows along `quant_axis`.

    ## Why it is wrong
    The operator rejects the call on the device.

    ## Use instead
    A (batch, length, width) int8 cache with axis -2 and quant_axis -1.

    ## Ops and versions
    npu_quant_scatter, npu_quant_scatter_. All versions.

    ## Evidence
    QS-02, QS-03, QS-04: op-plugin documentation.
    """

    code = "KV615"
    name = "quant-scatter-form"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("QS-02", "QS-03", "QS-04")
    operators = QUANT_SCATTER
    bad = {
        "first axis": """
            cache = torch.zeros(8, 4096, 512, dtype=torch.int8)
            torch_npu.npu_quant_scatter_(
                cache, where.int(), new, factors,
                axis=0,  # KV615
                quant_axis=-1)
        """,
        "scales of another width": """
            torch_npu.npu_quant_scatter_(
                cache, where.int(), new.view(8, 1, 512),
                torch.ones(64),  # KV615
                axis=-2, quant_axis=-1)
        """,
    }
    ok = {
        "fitting": """
            cache = torch.zeros(8, 4096, 512, dtype=torch.int8)
            torch_npu.npu_quant_scatter_(
                cache, where.int(), new.view(8, 1, 512), torch.ones(512), axis=-2, quant_axis=-1)
        """,
        "unknown": """
            torch_npu.npu_quant_scatter_(cache, where.int(), new, factors, axis=-2, quant_axis=-1)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each argument."""
        data, indices, updates = call.arg("data"), call.arg("indices"), call.arg("updates")
        rank = data.rank if data.rank.known else updates.rank
        yield require(
            data.dtype.equals("int8"),
            f"the cache is {data.dtype.get('?')}, {call.operator.name} writes int8",
            when=call.named("dst_type").is_none,
            at=data,
        )
        yield require(
            rank.holds(lambda count: 3 <= count <= 8),
            f"the cache has {rank.get(0)} axes, 3 to 8 are served",
            at=data,
        )
        one, two = indices.rank.equals(1), indices.rank.equals(2) & constant(indices.dim(-1)).equals(2)
        yield require(
            one | two, f"{indices.name} must be 1-D or (n, 2), it has {indices.rank.get(0)} axes", at=indices
        )
        for name, inner in (("axis", True), ("quant_axis", False)):
            axis = call.named(name)
            place = rank.map(partial(_place, axis.constant.get(None)))
            count = rank.get(0)
            legal = range(1, count - 1) if inner else range(count - 1, count)
            yield require(
                place.among(legal) if rank.known and axis.constant.known else Tri(None, rank.notes),
                f"{name}={axis.constant.get('?')} is "
                + ("the first or last axis" if inner else "not the last axis")
                + " of the cache",
                when=axis.given,
                at=axis,
            )
        width = constant(updates.dim(-1))
        yield require(
            width.holds(lambda size: size % 32 == 0),
            f"the rows are {width.get(0)} elements wide, they must fill whole 32-byte lines",
            at=updates,
        )
        scales = call.named("quant_scales")
        sized = equal(scales.dim(0), updates.dim(-1)) if scales.rank.equals(1).yes else Tri(None)
        if not constant(scales.dim(0)).equals(1).no:
            sized = sized if sized.yes else Tri(None)
        last = call.named("quant_axis").constant.among((-1, (rank.get(1) or 1) - 1))
        yield require(
            sized,
            f"{scales.name} has {scales.length.get('?')} entries, the rows are {updates.dim(-1).get('?')} wide",
            when=last,
            at=scales,
        )


def _place(value: object, rank: int) -> int:
    """The axis counted from 0; -1 where there is no such axis."""
    return value % rank if isinstance(value, int) and -rank <= value < rank else -1
