"""One call against the reference: for tests of operator repositories and for live checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .calls import normalise, operator_name
from .errors import OracleError
from .judge import Judgement, Status, Truth, judge
from .reference import Answer, answer, output_shape


def check_call(
    op: str | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Tensor,
    lse: Tensor | None = None,
    *,
    rows: Sequence[Tensor | None] | None = None,
    low_precision: str = "",
    device: torch.device | str = "cpu",
) -> tuple[Judgement, Answer]:
    """Judge ``out`` (and ``lse``) of ``op(*args, **kwargs)`` against the reference.

    ``op``: the operator, such as ``torch_npu.npu_fused_infer_attention_score``, or its name. Tensors may live
    anywhere; they are copied to ``device``, where the reference runs in float64.
    ``rows``: per request, the token indices to check. ``low_precision``: why the operator may round its
    scores, if it may.
    """
    to = torch.device(device)

    def move(x: Any) -> Any:
        return x.to(to) if isinstance(x, Tensor) else x

    call = normalise(op, [move(a) for a in args], {k: move(v) for k, v in kwargs.items()})
    want_out, _ = output_shape(call)
    if tuple(out.shape) != want_out:
        raise OracleError(f"{call.op}: attention_out has shape {tuple(out.shape)}, expected {want_out}")
    found = answer(call, rows=rows, device=to)
    unpacked = found.unpack(out.to("cpu"))
    outs, truths, lses = [], [], []
    spare = lse is not None and lse.numel() > 0
    for (b, first, count), seq in zip(found.spans, found.sequences, strict=True):
        outs.append(unpacked[b, :, first : first + count][:, seq.rows])
        truths.append(
            Truth(
                seq.out, seq.lse, seq.dead, seq.spread, seq.value_peak, seq.value_rms, seq.undefined, seq.rows
            )
        )
        if spare and lse is not None:
            lses.append(found.unpack_lse(lse.to("cpu"))[b, :, first : first + count][:, seq.rows])
    verdict = judge(outs, truths, out.dtype, lses=lses if spare else None, low_precision=low_precision)
    return verdict, found


def log_sum_exp(op: str | Callable[..., Any], results: Sequence[Any]) -> Tensor | None:
    """The log-sum-exp among an operator's results; the second result of other operators is a maximum."""
    if not operator_name(op).startswith("npu_fused_infer_attention_score") or len(results) < 2:
        return None
    found = results[1]
    return found if isinstance(found, Tensor) and found.is_floating_point() else None


def assert_matches_reference(
    op: str | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Tensor | Sequence[Any],
    **options: Any,
) -> Judgement:
    """Raise AssertionError unless ``out`` is what ``op(*args, **kwargs)`` must give, up to its rounding.

    ``out``: the attention output, or all that the operator returned. Options as in :func:`check_call`.
    """
    first, lse = (out, None) if isinstance(out, Tensor) else (out[0], log_sum_exp(op, out))
    verdict, found = check_call(op, args, kwargs, first, lse, **options)
    if verdict.status is Status.FAIL:
        notes = "".join(f"\n  note: {n}" for n in found.notes)
        raise AssertionError(
            f"{operator_name(op)} differs from the reference: {'; '.join(verdict.reasons)}"
            f"\n  worst row error {verdict.worst_error:.2f} u R (limit 1.5), "
            f"{verdict.failed} of {verdict.rows} rows{notes}"
        )
    return verdict
