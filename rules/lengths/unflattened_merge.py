"""KV350: partial results that are not flattened for npu_attention_update."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    require,
    undecided,
    violated,
)
from kvlint.contract.tri import Tri
from kvlint.contract.values import Sequence, Tensor, Value


class UnflattenedMerge(RunRule):
    """npu_attention_update gets partial results of the wrong form.

    ## What it does
    Checks the literal lists `lse` and `local_out`: 1-D float32 lse tensors, 2-D outputs, the same number of
    both, at most 16, and `update_type` 0 or 1.

    ## Why it is wrong
    The operator merges rows: lse of (B*S*N,), out of (B*S*N, D). FIA returns a 4-D (or (T, N, 1)) lse,
    which the meta kernel accepts and tiling rejects.

    ## Use instead
    `lse.reshape(-1)` and `out.reshape(-1, D)`, both in the same order of rows.

    ## Ops and versions
    npu_attention_update, since op-plugin 7.2.0.

    ## Evidence
    UPD-01, UPD-02: op-plugin documentation; a 4-D lse is accepted by the meta kernel of torch_npu 2.13
    (executed).
    """

    code = "KV350"
    name = "unflattened-merge"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("UPD-01", "UPD-02")
    operators = ("npu_attention_update",)
    bad = {
        "lse with four axes": """
            lse_a = torch.zeros(2, 8, 16, 1)
            lse_b = torch.zeros(2, 8, 16, 1)
            torch_npu.npu_attention_update(
                [lse_a, lse_b],  # KV350
                [out_a.view(-1, 128), out_b.view(-1, 128)],
                0,
            )
        """,
        "outputs with four axes": """
            torch_npu.npu_attention_update(
                [lse_a.view(-1), lse_b.view(-1)],
                [out_a.view(2, 16, 8, 128), out_b.view(2, 16, 8, 128)],  # KV350
                0,
            )
        """,
        "one part missing": """
            torch.ops.npu.npu_attention_update(
                [lse_a.view(-1), lse_b.view(-1)],
                [out_a.view(-1, 128)],  # KV350
                1,
            )
        """,
    }
    ok = {
        "flattened": """
            torch_npu.npu_attention_update(
                [lse_a.view(-1), lse_b.view(-1)], [out_a.view(-1, 128), out_b.view(-1, 128)], 0)
        """,
        "unknown": """
            torch_npu.npu_attention_update(lse_parts, out_parts, 0)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges both lists and the type."""
        lse, out, kind = call.named("lse"), call.named("local_out"), call.named("update_type")
        parts, results = _items(lse.value), _items(out.value)
        for arg, items, rank, form in ((lse, parts, 1, "(rows,)"), (out, results, 2, "(rows, D)")):
            wrong = next(
                (
                    len(i.shape)
                    for i in items or ()
                    if isinstance(i, Tensor) and i.shape and len(i.shape) != rank
                ),
                None,
            )
            if wrong is not None:
                yield violated(
                    f"{arg.name} holds tensors with {wrong} axes, the operator merges {form}",
                    arg,
                    fix="Flatten with .reshape(-1) and .reshape(-1, D), in the same order of rows.",
                )
            else:
                yield undecided(Tri(None, arg.identity.notes)) if items is None else NOT_APPLICABLE
        if parts is not None and results is not None:
            yield require(
                Tri(len(parts) == len(results) <= 16),
                f"{len(parts)} lse tensors and {len(results)} outputs, the same number up to 16 is needed",
                at=out,
                fix="Pass one lse and one output per part.",
            )
        yield require(
            kind.constant.among((0, 1)),
            f"{kind.name}={kind.constant.get('?')} is neither 0 nor 1",
            at=kind,
            fix="Use 0, or 1 for the merged lse as well.",
        )


def _items(value: Value) -> tuple[Value, ...] | None:
    return value.items if isinstance(value, Sequence) else None
