"""A report to paste into an issue."""

from __future__ import annotations

from typing import Any


def render_markdown(data: dict[str, Any], *, limit: int = 40) -> str:
    """Markdown of a report; at most ``limit`` failing cases are written out."""
    summary = data["summary"]
    lines = [
        f"## kvlint oracle: backend `{data['backend']}`, {data['selection']}",
        "",
        ", ".join(f"**{n}** {outcome}" for outcome, n in summary.items() if n)
        + f" in {data['seconds']:.1f} s",
        "",
        "| environment | |",
        "|---|---|",
        *(f"| {k} | {_cell(v)} |" for k, v in data["environment"].items()),
        "",
    ]
    if data.get("ended_early"):
        lines += [f"**Stopped early:** {_cell(data['ended_early'])}", ""]
    failing = [c for c in data["cases"] if c["outcome"] in ("fail", "error")]
    if not failing:
        lines += ["No case fails.", ""]
    for case in failing[:limit]:
        lines += _case(case)
    if len(failing) > limit:
        lines += [f"... and {len(failing) - limit} more failing cases (see the JSON report).", ""]
    other = [c for c in data["cases"] if c["outcome"] in ("low-precision", "undefined")]
    if other:
        lines += ["### Passed with a remark", ""]
        lines += [
            f"* `{c['name']}`: {c['outcome']}; {_cell('; '.join(c['reasons'] + c['notes']))}" for c in other
        ]
        lines.append("")
    return "\n".join(lines)


def _case(case: dict[str, Any]) -> list[str]:
    lines = [f"### `{case['name']}`: {case['outcome']}", ""]
    lines.append(_subject(case))
    lines.append("")
    lines += [f"* {_cell(r)}" for r in case["reasons"][:6]]
    if len(case["reasons"]) > 6:
        lines.append(f"* ... {len(case['reasons']) - 6} more")
    lines += [f"* not explained: {_cell(n)}" for n in case["notes"] if "call" in case]
    where = case.get("where")
    if where:
        page = "" if where["page"] is None else f", page {where['page']}"
        lines.append(
            f"* **where**: first at request {where['request']}, head {where['head']}, "
            f"token {where['token']}{page}; {where['pattern']}"
        )
    why = case.get("why")
    if why:
        rules = f" (contract {', '.join(why['rules'])})" if why["rules"] else ""
        lines.append(f"* **why**: {why['sentence']}{rules}")
    if "case" in case:
        lines.append(f"* repeat: `kvlint oracle run --case {case['name']}`")
    lines.append("")
    return lines


def _subject(case: dict[str, Any]) -> str:
    """What was called."""
    if "call" in case:
        return (
            f"`{case['operator']}`"
            + (f" at `{case['place']}`" if case["place"] else "")
            + f": {case['call']}"
        )
    spec = case["case"]
    return (
        f"`{spec['op']}`, layout {spec['layout']}, cache {spec['cache']}, {spec['masking']}, "
        f"{spec['dtype']}, {spec['heads']}/{spec['kv_heads']} heads, D {spec['dim']}, "
        f"q {list(spec['q_lens'])}, kv {list(spec['kv_lens'])}"
        + (f"; mimics {spec['mimics']}" if spec["mimics"] else "")
        + (f"; covers: {spec['covers']}" if spec["covers"] else "")
    )


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
