"""Captured calls once more: against the reference, and through a backend, on any machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvlint.contract import catalogue
from kvlint.oracle.assertions import check_call
from kvlint.oracle.backends import backend as find_backend
from kvlint.oracle.calls import ROLES
from kvlint.oracle.errors import OracleError
from kvlint.oracle.kernels import KernelError
from kvlint.runtime.store import CapturedCall, CaptureError, Reader


@dataclass(slots=True)
class Outcome:
    """What replaying one call gave.

    ``status``: pass, low_precision, undefined, fail, equal, differs, rejected or skip. ``subject`` is whose
    numbers were judged: ``captured``, or the name of the backend."""

    number: int
    operator: str
    place: str
    subject: str
    status: str
    worst_error: float | None = None
    reasons: list[str] = field(default_factory=list)

    @property
    def bad(self) -> bool:
        return self.status in ("fail", "differs", "rejected")


@dataclass(slots=True)
class Report:
    """All outcomes of a capture."""

    folder: str
    backend: str
    outcomes: list[Outcome]
    ended_early: str = ""

    @property
    def failed(self) -> int:
        return sum(o.bad for o in self.outcomes)

    def text(self) -> str:
        """For a terminal."""
        lines = [
            f"{o.number:08d} {o.operator} [{o.subject}] {o.status}"
            + (f" (worst row {o.worst_error:.2f} u R)" if o.worst_error is not None else "")
            + (f" at {o.place}" if o.bad and o.place else "")
            + "".join(f"\n    {r}" for r in o.reasons if o.bad or o.status == "skip")
            for o in self.outcomes
        ]
        calls = len({o.number for o in self.outcomes})
        lines.append(f"{calls} calls, {self.failed} with wrong numbers")
        if self.ended_early:
            lines.append(f"stopped: {self.ended_early}")
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        """For a program."""
        content = {
            "capture": self.folder, "backend": self.backend, "failed": self.failed,
            "ended_early": self.ended_early, "calls": [asdict(o) for o in self.outcomes],
        }  # fmt: skip
        return json.dumps(content, indent=1) + "\n"


def replay(folder: Path, backend: str = "sim") -> Report:
    """Judges the captured numbers, and those that ``backend`` gives for the same calls.

    Attention is judged against the float64 reference; a cache writer's backend is compared, bit by bit, with
    what the captured call left behind. Raises :class:`CaptureError` if the capture cannot be read at all;
    damage further on ends the report early.
    """
    reader = Reader(folder)
    operators = find_backend(backend).ops
    outcomes: list[Outcome] = []
    report = Report(str(folder), backend, outcomes)
    try:
        for call in reader:
            outcomes.extend(_replay(call, operators, backend))
    except CaptureError as error:
        report.ended_early = str(error)
    return report


def _replay(call: CapturedCall, operators: Any, backend: str) -> Iterator[Outcome]:
    name, _, overload = call.operator.partition("::")[2].partition(".")

    def outcome(subject: str, status: str, **more: Any) -> Outcome:
        return Outcome(call.number, call.operator, call.place, subject, status, **more)

    schema = catalogue.find(name, overload)
    if schema is None:
        yield outcome("captured", "skip", reasons=["the operator is not in this kvlint's catalogue"])
        return
    given = {
        k: v for k, v in call.given.items() if k not in ("workspace", "out") and not _is_output(schema, k)
    }
    lead = [p.name for p in schema.params if p.position is not None and p.name in given]
    rest = {k: v for k, v in given.items() if k not in lead}
    results = call.results or [v for v in call.mutated.values() if isinstance(v, Tensor)]
    if name in ROLES:
        yield _judged(outcome, "captured", name, [given[n] for n in lead], rest, results)
    elif schema.family not in ("cache_write", "merge", "cache_read"):
        yield outcome("captured", "skip", reasons=["the reference does not know this operator"])
        return
    if backend == "npu" and overload:
        return
    fresh = {k: v.clone() if isinstance(v, Tensor) else v for k, v in given.items()}
    try:
        found = getattr(operators, name)(*(fresh[n] for n in lead), **{k: fresh[k] for k in rest})
    except AttributeError:
        yield outcome(backend, "skip", reasons=[f"backend {backend} has no {name}"])
        return
    except (KernelError, OracleError) as error:
        yield outcome(backend, "rejected", reasons=[str(error).splitlines()[0]])
        return
    except (RuntimeError, TypeError, NotImplementedError) as error:
        yield outcome(backend, "skip", reasons=[str(error).splitlines()[0]])
        return
    outs = [t for t in (found if isinstance(found, (list, tuple)) else [found]) if isinstance(t, Tensor)]
    if name in ROLES:
        yield _judged(outcome, backend, name, [given[n] for n in lead], rest, [t.cpu() for t in outs])
    else:
        yield _compared(outcome, backend, call, fresh, outs)


def _is_output(schema: catalogue.Operator, name: str) -> bool:
    param = schema.param(name)
    return "out" in schema.overload and param is not None and param.mutated


def _judged(
    outcome: Any, subject: str, name: str, args: list[Any], kwargs: dict[str, Any], outs: list[Tensor]
) -> Outcome:
    if not outs:
        return _typed(outcome(subject, "skip", reasons=["no result was captured"]))
    lse = (
        outs[1] if len(outs) > 1 and outs[1].dtype == torch.float32 and name.startswith("npu_fused") else None
    )
    try:
        verdict, answer = check_call(name, args, kwargs, outs[0], lse)
    except OracleError as error:
        return _typed(outcome(subject, "skip", reasons=[str(error)]))
    reasons = [*verdict.reasons, *answer.notes]
    return _typed(
        outcome(subject, verdict.status.name.lower(), worst_error=float(verdict.worst_error), reasons=reasons)
    )


def _compared(
    outcome: Any, backend: str, call: CapturedCall, fresh: dict[str, Any], outs: list[Tensor]
) -> Outcome:
    """Bit by bit, but one rounding step where the operator computes (norm, rotary, merge)."""
    pairs = [(n, fresh[n].cpu(), v) for n, v in call.mutated.items() if isinstance(v, Tensor)]
    if not pairs:
        pairs = [
            (f"result {i}", a.cpu(), b) for i, (a, b) in enumerate(zip(outs, call.results, strict=False))
        ]
    wrong = [n for n, a, b in pairs if not _same(a, b)]
    if not wrong:
        return _typed(outcome(backend, "equal"))
    return _typed(outcome(backend, "differs", reasons=[f"{n} is not what was captured" for n in wrong]))


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    if not a.is_floating_point():
        return False
    unit = torch.finfo(a.dtype).eps
    return bool(torch.allclose(a.float(), b.float(), rtol=2 * unit, atol=2 * unit, equal_nan=True))


def _typed(value: Any) -> Outcome:
    assert isinstance(value, Outcome)
    return value


def run(argv: Sequence[str]) -> int:
    """``oracle replay argv...``: exit code 1 if a call has wrong numbers, 2 if nothing can be read."""
    parser = argparse.ArgumentParser(prog="kvlint oracle replay", description="Judge the calls of a capture.")
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--backend", default="sim", help="sim, sdpa or npu [default: sim]")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there")
    options = parser.parse_args(argv)
    try:
        report = replay(options.folder, options.backend)
        text = report.json() if options.format == "json" else report.text()
        if options.output is not None:
            options.output.write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    except (CaptureError, OracleError, OSError) as error:
        sys.stdout.flush()
        print(f"kvlint: error: {error}", file=sys.stderr)
        return 2
    return 1 if report.failed or report.ended_early else 0
