"""Verdicts per row (request, head, token), from the rounding unit of the operator's dtype.

What an operator may err: it rounds P to its dtype before the second product and rounds its
output. With ``u`` the rounding unit, ``r`` the reference row and ``w`` its softmax weights::

    R     = max(rms(r), |w|_2 * rms(v), smallest normal number)   scale of those two roundings in this row
    tight = rms(o - r) <= 1.5 u R   and   max|o - r| <= 2 u max|v|
    loose = rms(o - r) <= 2 * max(that of a plain low-precision computation, u R); only where allowed

Everything else has no tolerance: NaN or Inf that the reference does not have, a non-zero row that sees no
key, a written row outside every request."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

#: Legitimate errors measure 0.43-0.60 u R for fp32 scores with P in the operator's dtype, whatever the head
#: dimension, length and tile order; 1.5 leaves 2.5 times that for hardware exp and rescaling.
TIGHT_RMS = 1.5
#: A bound, not a measurement: rounding P moves an element by at most u sum p |v|, rounding the output by u
#: |o|.
TIGHT_MAX = 2.0
LOOSE_FACTOR = 2.0
LSE_TOLERANCE = 1e-3
LSE_TOLERANCE_LOW = 1e-2

_UNITS = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 64 * 2.0**-24,
    torch.float64: 2.0**-53,
}


def rounding_unit(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number; 64 times that for float32, which a device may compute in
    HF32."""
    return _UNITS.get(dtype, 2.0**-8)


class Status(enum.IntEnum):
    """Verdict of a row or of a case; the larger, the worse."""

    PASS = 0
    LOW_PRECISION = 1
    UNDEFINED = 2
    FAIL = 3


@dataclass(frozen=True, slots=True)
class Truth:
    """What one request should give: all ``[N, R, ...]``, see :class:`~.reference.SequenceAnswer`."""

    out: Tensor
    lse: Tensor
    dead: Tensor
    spread: Tensor
    value_peak: float
    value_rms: float
    undefined: Tensor | None = None
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RowTable:
    """Per request: ``status`` ``[N, R]`` of :class:`Status`, ``error`` ``[N, R]`` in units of ``u R``
    (limit 1.5), ``peak`` ``[N, R]`` in units of ``u max|v|`` (limit 2), ``rows`` ``[R]`` token indices."""

    status: Tensor
    error: Tensor
    peak: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict over all rows of a case."""

    status: Status
    reasons: list[str]
    tables: list[RowTable]
    rows: int
    failed: int
    undefined: int
    worst_error: float
    worst_peak: float
    lse_error: float | None = None
    columns: dict[str, float | bool | None] = field(default_factory=dict)


def judge(
    outs: Sequence[Tensor],
    truths: Sequence[Truth],
    dtype: torch.dtype,
    *,
    lses: Sequence[Tensor] | None = None,
    baselines: Sequence[Tensor] | None = None,
    low_precision: str = "",
    invalid_lse: bool = True,
) -> Judgement:
    """Compare ``outs[b]`` ``[N, R, Dv]`` (and ``lses[b]`` ``[N, R]``) with ``truths[b]``.

    ``low_precision``: why the operator may round its scores (empty: it may not); ``baselines``: the same rows
    computed entirely in ``dtype``, needed for the loose tier.
    """
    unit = rounding_unit(dtype)
    reasons: list[str] = []
    tables: list[RowTable] = []
    lse_error: float | None = None
    for b, (out, truth) in enumerate(zip(outs, truths, strict=True)):
        baseline = None if baselines is None or not low_precision else baselines[b]
        tables.append(_rows(b, out, truth, unit, dtype, baseline, reasons))
        if lses is not None:
            limit = LSE_TOLERANCE_LOW if low_precision else LSE_TOLERANCE
            worst = _lse(b, lses[b], truth, limit, reasons, tables[-1])
            lse_error = max(lse_error or 0.0, worst)
    everything = torch.cat([t.status.flatten() for t in tables]) if tables else torch.zeros(0)
    failed = int((everything == Status.FAIL).sum())
    undefined = int((everything == Status.UNDEFINED).sum())
    low = int((everything == Status.LOW_PRECISION).sum())
    status = Status.FAIL if failed or reasons else Status.LOW_PRECISION if low else Status.PASS
    if status is Status.PASS and len(everything) and undefined == len(everything):
        status = Status.UNDEFINED
    if low and status is Status.LOW_PRECISION:
        reasons.append(f"{low} rows pass only the low-precision tier ({low_precision})")
    elif failed and not reasons:
        reasons.append(f"{failed} of {len(everything)} rows exceed the rounding limit")
    return Judgement(
        status, reasons, tables, len(everything), failed, undefined,
        _worst(tables, "error"), _worst(tables, "peak"), lse_error,
    )  # fmt: skip


def _worst(tables: Sequence[RowTable], name: str) -> float:
    values = [getattr(t, name)[t.status != Status.UNDEFINED] for t in tables]
    tops = [float(v.max()) for v in values if v.numel()]
    return max(tops, default=0.0)


def _rows(
    b: int,
    out: Tensor,
    truth: Truth,
    unit: float,
    dtype: torch.dtype,
    baseline: Tensor | None,
    reasons: list[str],
) -> RowTable:
    o, r = out.double(), truth.out.double()
    heads, count, _ = r.shape
    rows = torch.arange(count) if truth.rows is None else truth.rows
    if o.shape != r.shape:
        reasons.append(f"request {b}: output rows have shape {tuple(o.shape)}, expected {tuple(r.shape)}")
        nan = torch.full((heads, count), math.nan)
        return RowTable(torch.full((heads, count), int(Status.FAIL)), nan, nan, rows)
    if not dtype.is_floating_point:
        off = (o - r.round().clamp(-128, 127)).abs().amax(-1)
        status = torch.where(off <= 1.0, int(Status.PASS), int(Status.FAIL))
        return RowTable(status, off, off, rows)
    finite = torch.isfinite(o).all(-1)
    difference = torch.where(finite.unsqueeze(-1), o - r, 0.0)
    rms_error = difference.square().mean(-1).sqrt()
    scale = torch.maximum(r.square().mean(-1).sqrt(), truth.spread.double() * truth.value_rms)
    floor = torch.finfo(torch.float32).tiny
    error = rms_error / (unit * scale.clamp_min(torch.finfo(dtype).tiny))
    peak = difference.abs().amax(-1) / max(unit * truth.value_peak, floor)
    error = torch.where(finite, error, math.inf)
    peak = torch.where(finite, peak, math.inf)
    status = torch.where((error <= TIGHT_RMS) & (peak <= TIGHT_MAX), int(Status.PASS), int(Status.FAIL))
    if baseline is not None:
        plain = (baseline.double() - r).square().mean(-1).sqrt() / (unit * scale).clamp_min(floor)
        # A row of the baseline may be right by luck: it counts for its head's usual error at least.
        usual = plain.square().mean(-1, keepdim=True).sqrt()
        allowed = LOOSE_FACTOR * torch.maximum(plain, usual).clamp_min(1.0) * unit * scale
        loose = (status == Status.FAIL) & finite & (rms_error <= allowed)
        status = torch.where(loose, int(Status.LOW_PRECISION), status)
    dead = truth.dead
    alive_zero = (o == 0).all(-1)
    status = torch.where(dead, torch.where(alive_zero, int(Status.PASS), int(Status.FAIL)), status)
    error = torch.where(dead, torch.where(alive_zero, 0.0, math.inf), error)
    peak = torch.where(dead, torch.where(alive_zero, 0.0, math.inf), peak)
    if truth.undefined is not None:
        status = torch.where(truth.undefined.expand(heads, count), int(Status.UNDEFINED), status)
    bad = status == Status.FAIL
    if bool((bad & ~finite).any()):
        reasons.append(f"request {b}: {int((bad & ~finite).sum())} rows hold NaN or Inf")
    if bool((bad & dead).any()):
        reasons.append(f"request {b}: {int((bad & dead).sum())} rows that see no key are not zero")
    return RowTable(status, error, peak, rows)


def _lse(b: int, lse: Tensor, truth: Truth, limit: float, reasons: list[str], table: RowTable) -> float:
    got, want = lse.double(), truth.lse.double()
    if got.shape != want.shape:
        reasons.append(f"request {b}: lse rows have shape {tuple(got.shape)}, expected {tuple(want.shape)}")
        return math.inf
    judged = table.status != Status.UNDEFINED
    if bool((torch.isnan(got) & judged).any()):
        reasons.append(f"request {b}: lse holds NaN")
        return math.inf
    # "No key" is spelled +inf by the prefill kernels and -3.4e38 by one decode kernel.
    got_invalid = torch.isinf(got) | (got <= -3.0e38)
    want_invalid = torch.isinf(want)
    wrong = (got_invalid != want_invalid) & judged
    if bool(wrong.any()):
        reasons.append(f"request {b}: {int(wrong.sum())} rows differ in whether lse is valid")
    both = judged & ~got_invalid & ~want_invalid
    worst = float((got - want)[both].abs().max()) if bool(both.any()) else 0.0
    if worst > limit:
        reasons.append(f"request {b}: lse is off by {worst:.2g}, limit {limit:g}")
    return worst


# --------------------------------------------------------------------------- what other projects would say


def peer_columns(
    outs: Sequence[Tensor], truths: Sequence[Truth], dtype: torch.dtype, baselines: Sequence[Tensor] | None
) -> dict[str, float | bool | None]:
    """Verdicts of other rules over the same rows; information only.

    ``cosine`` and ``rmse`` over everything; ``double_001``: share of elements above both 1e-3 tolerances
    at most
    0.1 %; ``fa2``: max error at most twice that of ``baselines``; ``cann_*``: max, mean relative and rms
    error
    over those of the baseline (accepted: 5, 1.5, 1.5).
    """
    o = torch.cat([x.double().flatten() for x in outs])
    r = torch.cat([t.out.double().flatten() for t in truths])
    if not o.numel():
        return {}
    difference = (o - r).abs()
    norm = float(o.norm() * r.norm())
    columns: dict[str, float | bool | None] = {
        "cosine": float(o @ r) / norm if norm else 1.0,
        "rmse": float(difference.square().mean().sqrt()),
        "double_001": float((difference > 1e-3 + 1e-3 * r.abs()).double().mean()) <= 1e-3,
        "fa2": None,
        "cann_mare": None,
        "cann_mere": None,
        "cann_rmse": None,
    }
    if baselines is None:
        return columns
    p = (torch.cat([x.double().flatten() for x in baselines]) - r).abs()
    columns["fa2"] = float(difference.max()) <= 2 * float(p.max())
    small = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(dtype, 2.0**-14)
    large = r.abs() >= small
    if bool(large.any()):
        mine, theirs = (difference / r.abs())[large], (p / r.abs())[large]
        columns["cann_mare"] = float(mine.max()) / max(float(theirs.max()), small)
        columns["cann_mere"] = float(mine.mean()) / max(float(theirs.mean()), small)
        columns["cann_rmse"] = float(difference.square().mean().sqrt()) / max(
            float(p.square().mean().sqrt()), small
        )
    return columns
