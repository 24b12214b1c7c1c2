"""Numeric oracle: an exact reference, cache modes, a case matrix, verdicts and attribution.

Typical use from Python::

    from kvlint.oracle import assert_matches_reference, reference

    operator = "npu_fused_infer_attention_score"
    answer = reference(operator, q, k, v, num_heads=8, scale=0.125)
    assert_matches_reference(operator, (q, k, v), {"num_heads": 8, "scale": 0.125}, out)

Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvlint.autoload import leave_npu_alone

if TYPE_CHECKING:
    from .assertions import assert_matches_reference
    from .attribution import attribute
    from .cases import Case, matrix, select
    from .errors import OracleError
    from .hypotheses import HYPOTHESES
    from .judge import judge
    from .reference import Answer, reference
    from .runner import run, run_case

_HOMES = {
    "HYPOTHESES": "hypotheses",
    "Answer": "reference",
    "Case": "cases",
    "OracleError": "errors",
    "assert_matches_reference": "assertions",
    "attribute": "attribution",
    "judge": "judge",
    "matrix": "cases",
    "reference": "reference",
    "run": "runner",
    "run_case": "runner",
    "select": "cases",
}

__all__ = [
    "HYPOTHESES",
    "Answer",
    "Case",
    "OracleError",
    "assert_matches_reference",
    "attribute",
    "judge",
    "matrix",
    "reference",
    "run",
    "run_case",
    "select",
]

leave_npu_alone()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
