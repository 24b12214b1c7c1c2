"""The text of ``kvlint op``: what an operator takes, what it means, and which releases have it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvlint.contract.catalogue import (
    V1_TO_V2,
    V2_TO_V1,
    Operator,
    Param,
    find,
    names,
    operators,
    overloads,
    release_ranges,
    resolve_release,
    variants,
)
from kvlint.contract.data.roles import UNDECLARED_WRITES

Format = Literal["text", "json"]

_PREFIXES = ("torch.ops.", "torch_npu.", "torchair.ops.", "npu.", "atb.")


class UnknownOperator(ValueError):
    """The catalogue has no operator, or no overload, of that name."""


def describe(name: str, release: str | None, fmt: Format) -> str:
    """One operator overload, as the newest release or the given one has it.

    The name may carry an overload and be written as in a call: ``torch.ops.npu.NAME.out``. Raises
    UnknownOperator for a name that the catalogue does not have, ValueError for a release.
    """
    page = _page(name, release)
    return json.dumps(_as_json(page), indent=2) if fmt == "json" else _as_text(page)


def list_operators(fmt: Format) -> str:
    """Every operator, by family."""
    known = sorted(operators(), key=lambda o: (o.family, o.name.lstrip("_"), o.overload))
    if fmt == "json":
        return json.dumps([_identity(o) | {"releases": list(_carriers(o))} for o in known], indent=2)
    width = max(len(o.full_name) for o in known) + 2
    lines: list[str] = []
    family = ""
    for operator in known:
        if operator.family != family:
            family = operator.family
            lines += ["", family] if lines else [family]
        lines.append(f"  {operator.full_name:{width}}{release_ranges(_carriers(operator))}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Change:
    """What one schema changed against the schema before it."""

    releases: tuple[str, ...]
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Page:
    """Everything that both formats show."""

    operator: Operator
    release: str | None
    history: tuple[_Change, ...]
    siblings: tuple[str, ...]
    obligations: tuple[tuple[str, str], ...]


def _page(name: str, release: str | None) -> _Page:
    packet, overload = _locate(name)
    exact = None if release is None else resolve_release(release)
    operator = find(packet, overload, exact and f"=={exact}")
    known = variants(packet, overload)
    if operator is None:
        have = release_ranges(_carriers(known[-1]))
        raise ValueError(f"torch_npu {exact} has no {known[-1].full_name}; it is in {have}")
    siblings = tuple(f"{packet}.{other}" if other else packet
                     for other in overloads(packet) if other != operator.overload)
    return _Page(operator, exact, tuple(_history(known)), siblings, _obligations(operator))


def _locate(name: str) -> tuple[str, str]:
    bare = name.strip()
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix)
    packet, _, overload = bare.partition(".")
    overload = "" if overload == "default" else overload
    if packet not in names():
        near = difflib.get_close_matches(packet, sorted(names()), n=3, cutoff=0.75)
        hint = f", did you mean {' or '.join(near)}?" if near else ""
        raise UnknownOperator(f"no operator is called {packet!r}{hint}")
    if not variants(packet, overload):
        have = ", ".join(other or "default" for other in overloads(packet))
        raise UnknownOperator(f"{packet} has no overload {overload!r}; it has {have}")
    return packet, overload


def _carriers(operator: Operator) -> tuple[str, ...]:
    """The releases that have the overload, whatever its schema."""
    return tuple(r for variant in variants(operator.name, operator.overload) for r in variant.releases)


def _history(known: tuple[Operator, ...]) -> Iterator[_Change]:
    for position, variant in enumerate(known):
        before = known[position - 1] if position else None
        yield _Change(variant.releases, tuple(_differences(before, variant)) if before else ("first schema",))


def _differences(before: Operator, after: Operator) -> Iterator[str]:
    old = {p.name: p for p in before.params}
    new = {p.name: p for p in after.params}
    gone = [name for name in old if name not in new]
    come = [name for name in new if name not in old]
    if gone == ["self"] and come == ["input"]:
        yield "self is called input"
        gone = come = []
    if come:
        yield f"adds {', '.join(come)}"
    if gone:
        yield f"drops {', '.join(gone)}"
    for name, param in new.items():
        was = old.get(name)
        if was is None:
            continue
        if was.type != param.type:
            yield f"{name} is {param.type}, was {was.type}"
        if (was.required, was.default) != (param.required, param.default):
            yield f"{name} {_default(param)}, {_default(was, past=True)}"
        if was.position != param.position:
            yield f"{name} {_place(param)}, {_place(was, past=True)}"
    if before.returns != after.returns:
        yield f"{_results(after)}, was {before.returns}"


def _default(param: Param, past: bool = False) -> str:
    if param.required:
        return "was required" if past else "is required"
    return f"was {param.default!r}" if past else f"defaults to {param.default!r}"


def _place(param: Param, past: bool = False) -> str:
    kind = "keyword-only" if param.position is None else f"positional argument {param.position}"
    return f"was {kind}" if past else f"is {kind}"


def _results(operator: Operator) -> str:
    return {0: "no result", 1: "1 result"}.get(operator.returns, f"{operator.returns} results")


def _notes(operator: Operator, param: Param) -> list[str]:
    notes = []
    if param.type == "Tensor[]" and param.mutated:
        notes.append("list of the outputs, in the order of the results")
    elif param.mutated:
        notes.append("written in place")
    elif param.name in UNDECLARED_WRITES.get(operator.name, ()):
        notes.append("written in place, although the schema does not say so")
    counterpart = _counterpart(operator, param)
    if counterpart is not None and counterpart[1] != param.name:
        notes.append(f"{counterpart[0]}: {counterpart[1] or 'no equivalent'}")
    ranges = _param_releases(operator, param)
    if ranges:
        notes.append(f"in {ranges}")
    return notes


def _counterpart(operator: Operator, param: Param) -> tuple[str, str | None] | None:
    """The other FIA version, and what it calls this parameter."""
    if operator.family != "fia":
        return None
    other, mapping = ("v2", V1_TO_V2) if operator.version == "v1" else ("v1", V2_TO_V1)
    return (other, mapping[param.name]) if param.name in mapping else None


def _param_releases(operator: Operator, param: Param) -> str:
    """Where the parameter exists, empty when it always did."""
    known = variants(operator.name, operator.overload)
    having = [v for v in known if v.param(param.name) is not None]
    if len(having) == len(known) or param.name == "input":
        return ""
    return release_ranges([r for v in having for r in v.releases])


def _obligations(operator: Operator) -> tuple[tuple[str, str], ...]:
    try:
        from kvlint.contract.rule import all_rules
    except ImportError:
        return ()
    return tuple((rule.code, rule.name) for rule in all_rules() if rule.applies_to(operator))


def _identity(operator: Operator) -> dict[str, object]:
    return {
        "name": operator.full_name,
        "namespace": operator.namespace,
        "family": operator.family,
        "version": operator.version,
    }


def _as_text(page: _Page) -> str:
    operator = page.operator
    kind = f"{operator.family} {operator.version}".strip()
    shown = page.release or f"{operator.releases[-1]}, the newest"
    lines = [f"{operator.namespace}::{operator.full_name} ({kind}), {_results(operator)}",
             f"  as in torch_npu {shown}", ""]
    lines += _parameter_table(operator)
    lines += ["", f"In torch_npu {release_ranges(_carriers(operator))}"]
    if len(page.history) > 1:
        lines += ["", "Schemas, oldest first"]
        for change in page.history:
            lines.append(f"  {release_ranges(change.releases)}")
            lines += [f"    {text}" for text in change.changes]
    if page.siblings:
        lines += ["", "Other overloads", *(f"  {name}" for name in page.siblings)]
    if page.obligations:
        lines += ["", "Rules", *(f"  {code} {name}" for code, name in page.obligations)]
    return "\n".join(lines)


def _parameter_table(operator: Operator) -> list[str]:
    rows: list[tuple[str, str, str]] = []
    for param in operator.params:
        signature = f"{param.name}: {param.type}" + ("" if param.required else f" = {param.default!r}")
        rows.append((signature, param.role or "-", "; ".join(_notes(operator, param))))
    wide, role = (max((len(row[i]) for row in rows), default=0) + 2 for i in (0, 1))
    table = [f"  {signature:{wide}}{meaning:{role}}{notes}".rstrip() for signature, meaning, notes in rows]
    first_keyword = next((i for i, p in enumerate(operator.params) if p.position is None), None)
    if first_keyword is not None:
        table.insert(first_keyword, "  *, keyword-only from here")
    return table


def _as_json(page: _Page) -> dict[str, object]:
    operator = page.operator
    return _identity(operator) | {
        "release": page.release or operator.releases[-1],
        "schema": operator.schema,
        "results": operator.returns,
        "parameters": [_parameter_json(operator, param) for param in operator.params],
        "releases": list(_carriers(operator)),
        "history": [{"releases": list(c.releases), "changes": list(c.changes)} for c in page.history],
        "overloads": list(page.siblings),
        "rules": [{"code": code, "name": name} for code, name in page.obligations],
    }


def _parameter_json(operator: Operator, param: Param) -> dict[str, object]:
    content: dict[str, object] = {
        "name": param.name,
        "type": param.type,
        "position": param.position,
        "required": param.required,
        "role": param.role,
        "written": param.mutated or param.name in UNDECLARED_WRITES.get(operator.name, ()),
    }
    if not param.required:
        content["default"] = param.default
    counterpart = _counterpart(operator, param)
    if counterpart is not None:
        content[counterpart[0]] = counterpart[1]
    ranges = _param_releases(operator, param)
    if ranges:
        content["in"] = ranges
    return content
