"""Rules as documents: for ``kvlint rule`` and for the table in the README."""

from __future__ import annotations

import json
from collections.abc import Iterable
from textwrap import dedent, indent

from kvlint.contract.rule import DOC_HEADINGS, Rule

FAMILIES = {
    "1": "Call form: scale, head counts, keywords, layouts",
    "2": "Masks and sparse modes",
    "3": "Sequence lengths",
    "4": "Paged cache",
    "5": "MLA",
    "6": "Cache writes",
    "7": "Lifecycle across layers and steps",
    "8": "Quantisation and sink",
    "9": "About the comments themselves",
}


def as_text(rule: Rule) -> str:
    """One rule for a terminal."""
    doc = rule.doc()
    lines = [f"{rule.code} {rule.name} ({_kind(rule)})", "", doc[""]]
    for heading in DOC_HEADINGS:
        lines += ["", heading, indent(doc.get(heading, ""), "  ")]
    for title, examples in (("Wrong", rule.bad), ("Right", rule.ok)):
        for name, source in examples.items():
            lines += ["", f"{title}: {name}", indent(_source(source), "    ")]
    return "\n".join(lines) + "\n"


def as_markdown(rule: Rule) -> str:
    """One rule as a page."""
    doc = rule.doc()
    lines = [f"# {rule.name} ({rule.code})", "", f"{_kind(rule)}.", "", doc[""]]
    for heading in DOC_HEADINGS:
        lines += ["", f"## {heading}", "", doc.get(heading, "")]
    lines += ["", f"Contract: {', '.join(rule.contract)}."]
    for title, examples in (("Wrong", rule.bad), ("Right", rule.ok)):
        for name, source in examples.items():
            lines += ["", f"### {title}: {name}", "", "```python", _source(source), "```"]
    return "\n".join(lines) + "\n"


def as_data(rule: Rule) -> dict[str, object]:
    """One rule for a program."""
    doc = rule.doc()
    return {
        "code": rule.code,
        "name": rule.name,
        "summary": doc[""],
        "severity": rule.severity.value,
        "confidence": rule.confidence.value,
        "default": rule.default,
        "families": list(rule.families),
        "operators": list(rule.operators),
        "contract": list(rule.contract),
        "doc": {heading: doc.get(heading, "") for heading in DOC_HEADINGS},
        "bad": {name: _source(source) for name, source in rule.bad.items()},
        "ok": {name: _source(source) for name, source in rule.ok.items()},
    }


def render(rules: Iterable[Rule], output_format: str, single: bool) -> str:
    """One rule, or several one after the other."""
    if output_format == "json":
        data = [as_data(rule) for rule in rules]
        return json.dumps(data[0] if single else data, indent=2) + "\n"
    page = as_markdown if output_format == "markdown" else as_text
    return "\n".join(page(rule) for rule in rules)


def listing(rules: Iterable[Rule]) -> str:
    """One line per rule."""
    rows = [(rule.code, rule.name, rule.severity.value, rule.doc()[""]) for rule in rules]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "".join(
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3])) + "\n"
        for row in rows
    )


def table(rules: Iterable[Rule]) -> str:
    """The Markdown table of the README, by family."""
    lines: list[str] = []
    family = ""
    for rule in rules:
        if rule.code[2] != family:
            family = rule.code[2]
            lines += ["", f"**{FAMILIES[family]}**", "", "| code | name | consequence | what |"]
            lines += ["| --- | --- | --- | --- |"]
        what = rule.doc()[""].replace("|", "\\|")
        off = "" if rule.default else " (off by default)"
        lines.append(f"| {rule.code} | `{rule.name}` | {rule.severity.value}{off} | {what} |")
    return "\n".join(lines).lstrip("\n") + "\n"


def _kind(rule: Rule) -> str:
    kind = f"{rule.severity.value}, {rule.confidence.value} confidence"
    return kind if rule.default else f"{kind}, off by default"


def _source(text: str) -> str:
    return dedent(text).strip("\n").rstrip()
