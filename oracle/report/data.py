"""The report as plain data (what the JSON file holds), and the environment it was made in."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..attribution import Attribution
from ..errors import ReportError
from ..judge import Judgement, RowTable, Status
from ..locate import Location
from ..runner import CaseResult

#: Raised when a field changes meaning or disappears; added fields do not raise it.
SCHEMA_VERSION = 1
#: Cells of a heat map per axis; larger maps are reduced by maximum.
MAP_CELLS = 96

_OUTCOMES = ("pass", "low-precision", "undefined", "fail", "error", "skip")


def environment(device: torch.device | None = None) -> dict[str, str]:
    """Versions that decide numbers: Python, torch, torch_npu, CANN, SoC, git revision of the working
    directory."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": str(torch.__version__),
        "torch_npu": _version("torch_npu") or _version("torch-npu"),
        "cann": _cann(),
        "soc": _soc(device),
        "kvlint": _version("kvlint"),
        "git": _git(),
        "threads": str(torch.get_num_threads()),
    }
    return {k: v for k, v in found.items() if v}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cann() -> str:
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    if not home:
        return ""
    for name in ("version.info", "runtime/version.info", "compiler/version.info"):
        path = Path(home) / name
        if path.is_file():
            return path.read_text(errors="replace").splitlines()[0].strip()
    return ""


def _soc(device: torch.device | None) -> str:
    npu = getattr(torch, "npu", None)
    if device is None or device.type != "npu" or npu is None:
        return ""
    return str(npu.get_device_name(device))


def _git() -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def report_data(
    results: Sequence[CaseResult],
    *,
    backend: str,
    selection: str,
    seconds: float,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Everything a report shows."""
    counts = Counter(r.outcome for r in results)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": "kvlint oracle",
        "backend": backend,
        "selection": selection,
        "seconds": round(seconds, 3),
        "environment": environment(device),
        "command": " ".join(Path(a).name if i == 0 else a for i, a in enumerate(sys.argv)),
        "summary": {name: counts.get(name, 0) for name in _OUTCOMES},
        "cases": [case_data(r) for r in results],
    }


#: What a replayed call's status counts as among the outcomes of cases.
_REPLAYED = {
    "pass": "pass", "equal": "pass", "close": "pass", "low_precision": "low-precision",
    "undefined": "undefined", "fail": "fail", "differs": "fail", "rejected": "fail", "skip": "skip",
    "error": "error",
}  # fmt: skip


def replay_data(
    outcomes: Sequence[Any],
    *,
    capture: str,
    made_by: Mapping[str, Any],
    backend: str,
    seconds: float,
    ended_early: str,
) -> dict[str, Any]:
    """The same for a replayed capture; ``outcomes`` are :class:`kvlint.runtime.replay.Outcome`.

    ``environment`` is that of the replay, prefixed with what the capture says of the machine it was made on.
    """
    counts = Counter(_REPLAYED[o.status] for o in outcomes)
    captured = {f"capture {k}": str(v) for k, v in made_by.items() if k not in ("version", "argv")}
    calls = len({o.number for o in outcomes})
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": "kvlint oracle",
        "backend": backend,
        "selection": f"replay of {capture}, {calls} calls",
        "capture": capture,
        "ended_early": ended_early,
        "failed": sum(o.bad for o in outcomes),
        "not_judged": calls - len({o.number for o in outcomes if o.judged}),
        "seconds": round(seconds, 3),
        "environment": captured | environment(),
        "command": " ".join(Path(a).name if i == 0 else a for i, a in enumerate(sys.argv)),
        "summary": {name: counts.get(name, 0) for name in _OUTCOMES},
        "cases": [_call_data(o) for o in outcomes],
    }


def _call_data(outcome: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": outcome.name, "outcome": _REPLAYED[outcome.status], "status": outcome.status,
        "seconds": round(outcome.seconds, 4), "number": outcome.number, "operator": outcome.operator,
        "subject": outcome.subject, "place": outcome.place, "call": outcome.call,
        "reasons": outcome.reasons, "notes": [],
    }  # fmt: skip
    if outcome.judgement is not None:
        data["verdict"] = _verdict(outcome.judgement)
    found = outcome.explanation
    if found is not None:
        data["notes"] = [found.note] if found.note else []
        data |= _explained(found.location, outcome.judgement, found.attribution)
    return data


def case_data(result: CaseResult) -> dict[str, Any]:
    case = dataclasses.asdict(result.case)
    data: dict[str, Any] = {
        "name": result.case.name,
        "outcome": result.outcome,
        "seconds": round(result.seconds, 4),
        "case": case,
        "reasons": result.reasons,
        "notes": result.notes,
    }
    if result.judgement is not None:
        data["verdict"] = _verdict(result.judgement)
    data |= _explained(result.location, result.judgement, result.attribution)
    if result.cache is not None and not result.cache.ok:
        data["cache"] = result.cache.lines()
    return data


def _explained(
    where: Location | None, judgement: Judgement | None, why: Attribution | None
) -> dict[str, Any]:
    """``where`` and ``why`` of a failure, as far as there are any."""
    data: dict[str, Any] = {}
    if where is not None:
        data["where"] = {
            "request": where.first[0], "head": where.first[1], "token": where.first[2], "page": where.block,
            "pattern": where.pattern, "by_request": _numbers(where.by_request),
            "by_head": _numbers(where.by_head),
            "map": [heat_map(t) for t in judgement.tables] if judgement else [],
        }  # fmt: skip
    if why is not None:
        data["why"] = {
            "outcome": why.outcome, "names": why.names, "rules": why.rules, "sentence": why.sentence(),
            "score": _number(why.score), "margin": _number(why.margin), "runner_up": why.runner_up,
            "closest": {n: _number(s) for n, s in sorted(why.scores.items(), key=lambda i: i[1])[:6]},
        }  # fmt: skip
    return data


def _verdict(j: Judgement) -> dict[str, Any]:
    return {
        "rows": j.rows, "failed": j.failed, "undefined": j.undefined, "worst_error": _number(j.worst_error),
        "worst_peak": _number(j.worst_peak), "lse_error": _number(j.lse_error),
        "columns": {k: _number(v) if isinstance(v, float) else v for k, v in j.columns.items()},
    }  # fmt: skip


def heat_map(table: RowTable) -> list[list[float]]:
    """Error per head (rows) and token (columns), in units of u R, reduced to :data:`MAP_CELLS` columns by
    maximum; rows that are not judged are -1."""
    error = torch.where(table.status == Status.UNDEFINED, -1.0, table.error.double().clamp(max=1e6))
    count = error.shape[1]
    if count > MAP_CELLS:
        step = math.ceil(count / MAP_CELLS)
        error = torch.nn.functional.pad(error, (0, -count % step), value=-1.0)
        error = error.reshape(len(error), -1, step).amax(-1)
    return [[round(float(x), 3) for x in row] for row in error]


def _number(value: float | None) -> float | None:
    """JSON has no infinity."""
    return None if value is None or not math.isfinite(value) else round(float(value), 6)


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [_number(v) for v in values]


def load(path: Path) -> dict[str, Any]:
    """A report read back; raises :class:`ReportError` with a one-line reason."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ReportError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict) or "cases" not in data or data.get("tool") != "kvlint oracle":
        raise ReportError(f"{path}: not a report of kvlint oracle")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ReportError(
            f"{path}: schema version {data.get('schema_version')}, this kvlint reads {SCHEMA_VERSION}"
        )
    return data
