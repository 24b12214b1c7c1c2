"""Captured calls once more: against the reference, and through a backend, on any machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvlint.contract import catalogue
from kvlint.oracle.assertions import check_call, log_sum_exp
from kvlint.oracle.backends import backend as find_backend
from kvlint.oracle.calls import ROLES
from kvlint.oracle.captured import Explanation, explain_call
from kvlint.oracle.errors import OracleError
from kvlint.oracle.judge import Judgement, Status, rounding_unit
from kvlint.oracle.kernels import KernelError
from kvlint.oracle.report import replay_data
from kvlint.runtime.store import CapturedCall, CaptureError, Reader

#: Families whose operators copy, so that two of them must agree bit by bit or to one rounding step.
COPYING = ("cache_write", "merge", "cache_read")
#: Rounding units by which two attention kernels may differ as a whole: each errs by about half of one.
CLOSE = 4.0


@dataclass(slots=True)
class Outcome:
    """What replaying one call gave.

    ``status``: pass, low_precision, undefined, fail, equal, close, differs, rejected, skip or error.
    ``subject`` is whose numbers were judged: ``captured``, or the name of the backend. ``close`` is the
    weakest: there is no reference for the operator, only agreement with the simulated kernel. ``error``: it
    raised, so that there are no numbers to judge."""

    number: int
    operator: str
    place: str
    subject: str
    status: str
    worst_error: float | None = None
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0
    judgement: Judgement | None = None
    explanation: Explanation | None = None
    call: str = ""

    @property
    def bad(self) -> bool:
        return self.status in ("fail", "differs", "rejected")

    @property
    def judged(self) -> bool:
        return self.status not in ("skip", "error")

    @property
    def name(self) -> str:
        return f"{self.number:08d} {self.operator} [{self.subject}]"

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        worst = "" if self.worst_error is None else f" (worst row {self.worst_error:.2f} u R)"
        yield f"{self.name} {self.status}{worst}" + (
            f" at {self.place}" if (self.bad or self.status == "error") and self.place else ""
        )
        if self.bad or not self.judged:
            yield from (f"    {r}" for r in self.reasons[:6])
        found = self.explanation
        if found is not None and found.location is not None:
            b, h, t = found.location.first
            yield f"    where: request {b}, head {h}, token {t}; {found.location.pattern}"
        if found is not None:
            why = found.note if found.attribution is None else found.attribution.sentence()
            yield f"    why: {why}"


@dataclass(slots=True)
class Report:
    """All outcomes of a capture."""

    folder: str
    backend: str
    outcomes: list[Outcome]
    head: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    ended_early: str = ""

    @property
    def failed(self) -> int:
        return sum(o.bad for o in self.outcomes)

    @property
    def incomplete(self) -> bool:
        """Something raised, or there was nothing that could be judged."""
        return any(o.status == "error" for o in self.outcomes) or not any(o.judged for o in self.outcomes)

    def text(self) -> str:
        """For a terminal."""
        lines = [line for o in self.outcomes for line in o.lines()]
        lines.append(self.summary())
        if self.ended_early:
            lines.append(f"stopped: {self.ended_early}")
        return "\n".join(lines) + "\n"

    @property
    def not_judged(self) -> int:
        """Calls of which no numbers were judged."""
        return len({o.number for o in self.outcomes} - {o.number for o in self.outcomes if o.judged})

    def summary(self) -> str:
        """One line that counts calls."""
        calls = len({o.number for o in self.outcomes})
        wrong = len({o.number for o in self.outcomes if o.bad})
        raised = len({o.number for o in self.outcomes if o.status == "error"})
        parts = [f"{calls} call{'' if calls == 1 else 's'}", f"{wrong} with wrong numbers"]
        parts += [f"{raised} raised an error"] if raised else []
        parts += [f"{self.not_judged} not judged"] if self.not_judged else []
        return ", ".join(parts) + (": nothing was judged" if self.not_judged == calls else "")

    def data(self) -> dict[str, Any]:
        """As plain data, of the form that ``kvlint oracle run`` reports, so that two can be compared."""
        return replay_data(
            self.outcomes, capture=self.folder, made_by=self.head, backend=self.backend, seconds=self.seconds,
            ended_early=self.ended_early,
        )  # fmt: skip

    def json(self) -> str:
        """For a program."""
        return json.dumps(self.data(), indent=1) + "\n"


def replay(folder: Path, backend: str = "sim", *, explain: bool = True) -> Report:
    """Judges the captured numbers, and those that ``backend`` gives for the same calls.

    Attention is judged against the float64 reference, and with ``explain`` a failure is attributed to the
    misuse that gives its numbers; a cache writer's backend is compared, bit by bit, with what the captured
    call left behind. A call that raises is an outcome too, and the next ones are judged. Raises
    :class:`CaptureError` if the capture cannot be read at all; damage further on ends the report early.
    """
    reader = Reader(folder)
    operators = find_backend(backend).ops
    outcomes: list[Outcome] = []
    report = Report(str(folder), backend, outcomes, reader.head)
    began = time.perf_counter()
    try:
        for call in reader:
            _Replay(call, operators, backend, explain).into(outcomes)
    except CaptureError as error:
        report.ended_early = str(error)
    report.seconds = time.perf_counter() - began
    return report


class _Replay:
    """One call."""

    def __init__(self, call: CapturedCall, operators: Any, backend: str, explain: bool) -> None:
        self.call, self.operators, self.backend, self.explain = call, operators, backend, explain
        self.namespace, _, rest = call.operator.partition("::")
        self.name, _, self.overload = rest.partition(".")
        self._began = time.perf_counter()

    def into(self, outcomes: list[Outcome]) -> None:
        """Appends what replaying the call gave, up to where it raised."""
        try:
            for outcome in self.outcomes():
                outcomes.append(outcome)
        except Exception as error:
            outcomes.append(self._error(self.backend, error))

    def outcomes(self) -> Iterator[Outcome]:
        schema = self._schema()
        if schema is None:
            yield self._skip("captured", "the operator is not in this kvlint's catalogue")
            return
        given = {
            k: v
            for k, v in self.call.given.items()
            if k not in ("workspace", "out") and not _is_output(schema, k)
        }
        if self.namespace == "atb" and "out" in self.call.given and not self.overload:
            given["out"] = self.call.given["out"]
        known = self.name in ROLES
        if known:
            results = self.call.results or [v for v in self.call.mutated.values() if isinstance(v, Tensor)]
            yield self._judged("captured", given, results)
        if self.backend == "npu" and self.overload:
            return
        operator = self._operator(known or schema.family in COPYING)
        if operator is None:
            yield self._skip(
                "captured" if not known else self.backend,
                f"backend {self.backend} has no {self.name}" if known else "the reference does not know it",
            )
            return
        fresh = {k: v.clone() if isinstance(v, Tensor) else v for k, v in given.items()}
        try:
            args, kwargs = _spelled(schema, fresh)
            found = operator(*args, **kwargs)
        except (KernelError, OracleError) as error:
            yield self._outcome(self.backend, "rejected", reasons=[_first_line(error)])
            return
        except NotImplementedError as error:
            yield self._skip(self.backend, _first_line(error))
            return
        outs = [t for t in (found if isinstance(found, (list, tuple)) else [found]) if isinstance(t, Tensor)]
        if known:
            yield self._judged(self.backend, given, [t.cpu() for t in outs])
        else:
            yield self._compared(fresh, outs, schema.family in COPYING)

    def _schema(self) -> catalogue.Operator | None:
        """The newest schema that has every name that was passed: parameters are renamed between releases."""
        known = catalogue.variants(self.name, self.overload)
        fitting = [o for o in known if all(o.param(name) is not None for name in self.call.given)]
        return (fitting or known or (None,))[-1]

    def _operator(self, in_backend: bool) -> Any:
        """The backend's operator; for the simulator any kernel there is."""
        if in_backend:
            try:
                found = getattr(self.operators, self.name, None)
            except OracleError:
                found = None
            if found is not None or self.backend != "sim":
                return found
        if self.backend != "sim":
            return None
        from kvlint.sim import registry

        return registry.find(self.namespace, self.name)

    def _outcome(self, subject: str, status: str, **more: Any) -> Outcome:
        now = time.perf_counter()
        seconds, self._began = now - self._began, now
        call = self.call
        return Outcome(
            call.number, call.operator, call.place, subject, status, seconds=seconds, call=_described(call),
            **more,
        )  # fmt: skip

    def _skip(self, subject: str, why: str) -> Outcome:
        return self._outcome(subject, "skip", reasons=[why])

    def _error(self, subject: str, error: Exception) -> Outcome:
        return self._outcome(subject, "error", reasons=[_named(error)])

    def _judged(self, subject: str, given: dict[str, Any], outs: list[Tensor]) -> Outcome:
        if not outs:
            return self._skip(subject, "no result was captured")
        lse = log_sum_exp(self.name, outs)
        try:
            verdict, answer = check_call(self.name, (), given, outs[0], lse)
        except OracleError as error:
            return self._skip(subject, str(error))
        except Exception as error:
            return self._error(subject, error)
        explanation = None
        if verdict.status is Status.FAIL and self.explain:
            try:
                explanation = explain_call(self.name, (), given, outs[0], verdict, answer)
            except Exception as error:  # the verdict stands without it
                explanation = Explanation(None, None, f"the explanation failed ({_named(error)})")
        return self._outcome(
            subject, verdict.status.name.lower(), worst_error=float(verdict.worst_error),
            reasons=[*verdict.reasons, *answer.notes], judgement=verdict, explanation=explanation,
        )  # fmt: skip

    def _compared(self, fresh: dict[str, Any], outs: list[Tensor], copying: bool) -> Outcome:
        """Bit by bit, but for one rounding step where a copying operator computes (norm, rotary, merge)."""
        call = self.call
        pairs = [(n, fresh[n].cpu(), v) for n, v in call.mutated.items() if isinstance(v, Tensor)]
        if not pairs:
            pairs = [
                (f"result {i}", a.cpu(), b) for i, (a, b) in enumerate(zip(outs, call.results, strict=False))
            ]
        alike = _same if copying else _close
        wrong = [n for n, a, b in pairs if not alike(a, b)]
        if not wrong:
            return self._outcome(self.backend, "equal" if copying else "close")
        return self._outcome(
            self.backend, "differs", reasons=[f"{n} is not what was captured" for n in wrong]
        )


def _described(call: CapturedCall) -> str:
    """The arguments in short: shapes and dtypes of tensors, values of the rest."""

    def short(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, (list, tuple)) and len(value) > 8:
            return f"[{', '.join(short(v) for v in value[:6])}, ... {len(value)} entries]"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(short(v) for v in value)}]"
        return repr(value)

    return ", ".join(f"{name}={short(value)}" for name, value in call.given.items())


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(error)}" if str(error) else type(error).__name__


def _spelled(schema: catalogue.Operator, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """(args, kwargs) of the call; a default stands where one was skipped before a positional argument."""
    places = [p for p in schema.params if p.position is not None]
    while places and places[-1].name not in given:
        places.pop()
    missing = [p.name for p in places if p.required and p.name not in given]
    if missing:
        raise TypeError(f"{schema.name}: {missing[0]} is missing")
    args = [given.get(p.name, p.default) for p in places]
    names = {p.name for p in places}
    return args, {k: v for k, v in given.items() if k not in names}


def _is_output(schema: catalogue.Operator, name: str) -> bool:
    param = schema.param(name)
    return "out" in schema.overload and param is not None and param.mutated


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    if not a.is_floating_point():
        return False
    unit = torch.finfo(a.dtype).eps
    return bool(torch.allclose(a.float(), b.float(), rtol=2 * unit, atol=2 * unit, equal_nan=True))


def _close(a: Tensor, b: Tensor) -> bool:
    """The same up to the rounding of an attention kernel, as a whole; integers exactly."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    x, y = a.double(), b.double()
    if not torch.equal(x.isfinite(), y.isfinite()):
        return False
    error = torch.where(x.isfinite(), x - y, 0).norm()
    return bool(error <= CLOSE * rounding_unit(a.dtype) * torch.where(y.isfinite(), y, 0).norm())
