"""Two reports side by side: what got worse between two stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_RANK = {"pass": 0, "low-precision": 1, "undefined": 1, "skip": 1, "fail": 3, "error": 4}
#: A case whose error grew by this factor and is beyond plain rounding noise is worth a look though it passes.
GROWTH = 2.0
NOISE = 0.75


@dataclass(frozen=True, slots=True)
class Difference:
    """One case that differs. ``kind``: regression, fixed, slipped (passes with a clearly larger error),
    changed, added or removed."""

    name: str
    kind: str
    before: str
    after: str
    detail: str = ""


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[Difference]:
    """Differences between two loaded reports, regressions first."""
    old = {c["name"]: c for c in before["cases"]}
    new = {c["name"]: c for c in after["cases"]}
    found = []
    for name in [*old, *(n for n in new if n not in old)]:
        if name not in new:
            found.append(Difference(name, "removed", old[name]["outcome"], ""))
        elif name not in old:
            found.append(Difference(name, "added", "", new[name]["outcome"]))
        else:
            difference = _case(name, old[name], new[name])
            if difference is not None:
                found.append(difference)
    order = ["regression", "slipped", "changed", "fixed", "removed", "added"]
    return sorted(found, key=lambda d: order.index(d.kind))


def _case(name: str, a: dict[str, Any], b: dict[str, Any]) -> Difference | None:
    x, y = a["outcome"], b["outcome"]
    if x != y:
        rank = _RANK.get(y, 4) - _RANK.get(x, 4)
        bad = _RANK.get(y, 4) >= 3
        kind = (
            "regression" if rank > 0 and bad else "fixed" if rank < 0 and _RANK.get(x, 4) >= 3 else "changed"
        )
        why = b.get("why", {}).get("sentence", "") or "; ".join(b["reasons"][:1])
        return Difference(name, kind, x, y, why if bad else "")
    e, f = (c.get("verdict", {}).get("worst_error") for c in (a, b))
    if x != "fail" and e is not None and f is not None and f > NOISE and f > GROWTH * e:
        return Difference(name, "slipped", x, y, f"worst error {e:.2f} -> {f:.2f} u")
    return None
