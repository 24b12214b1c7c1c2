"""A self-contained HTML page: table of cases with filters, heat maps of the failing ones, environment."""

from __future__ import annotations

import html
import json
from typing import Any

_STYLE = """
:root{--bg:#fff;--fg:#1b1f24;--dim:#656d76;--line:#d0d7de;--ok:#1a7f37;--bad:#cf222e;--warn:#9a6700;
  --card:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#8b949e;--line:#30363d;
  --ok:#3fb950;--bad:#f85149;--warn:#d29922;--card:#161b22}}
*{box-sizing:border-box}
body{margin:0;padding:1.5rem;font:14px/1.5 system-ui,sans-serif;background:var(--bg);color:var(--fg)}
h1{font-size:1.3rem;margin:0 0 .5rem}
h2{font-size:1.05rem;margin:1.5rem 0 .5rem}
code{font-family:ui-monospace,monospace}
.cards{display:flex;flex-wrap:wrap;gap:.5rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.4rem .8rem}
.card b{display:block;font-size:1.2rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{cursor:pointer;position:sticky;top:0;background:var(--bg)}
tr[hidden]{display:none}
.pass{color:var(--ok)}
.fail,.error{color:var(--bad);font-weight:600}
.low-precision,.undefined{color:var(--warn)}
.skip,.dim{color:var(--dim)}
input,select{font:inherit;padding:.25rem .5rem;border:1px solid var(--line);border-radius:6px;
  background:var(--bg);color:var(--fg)}
.wide{overflow-x:auto}
details{border:1px solid var(--line);border-radius:6px;padding:.5rem .8rem;margin:.5rem 0}
summary{cursor:pointer}
canvas{image-rendering:pixelated;border:1px solid var(--line);display:block;max-width:100%}
figure{margin:.5rem 0}
figcaption{color:var(--dim);font-size:12px}
"""

_SCRIPT = """
const rows = [...document.querySelectorAll('#cases tbody tr')];
const text = document.getElementById('filter');
const kind = document.getElementById('kind');
const shown = document.getElementById('shown');
function filter() {
  let n = 0;
  for (const r of rows) {
    const wanted = !kind.value || r.dataset.outcome === kind.value;
    const ok = wanted && r.textContent.toLowerCase().includes(text.value.toLowerCase());
    r.hidden = !ok;
    n += ok;
  }
  shown.textContent = n + ' of ' + rows.length + ' cases';
}
text.oninput = filter;
kind.onchange = filter;
filter();
const heads = [...document.querySelectorAll('#cases th')];
heads.forEach((th, i) => th.onclick = () => {
  const up = th.dataset.up !== '1';
  heads.forEach(t => delete t.dataset.up);
  th.dataset.up = up ? '1' : '0';
  const key = r => {
    const c = r.cells[i];
    return c.dataset.v !== undefined ? parseFloat(c.dataset.v) : c.textContent;
  };
  rows.sort((a, b) => {
    const x = key(a), y = key(b);
    return (x > y ? 1 : x < y ? -1 : 0) * (up ? 1 : -1);
  });
  rows.forEach(r => r.parentNode.appendChild(r));
});
function colour(e) {
  if (e < 0) return [160, 160, 160];
  if (e <= 1.5) return [36 + 60 * e / 1.5, 140, 70];
  const t = Math.min(1, Math.log10(1 + e) / 3);
  return [200 + 55 * t, Math.round(170 * (1 - t)), 40];
}
for (const c of document.querySelectorAll('canvas[data-map]')) {
  const m = JSON.parse(c.dataset.map);
  const h = m.length, w = h ? m[0].length : 0;
  if (!w) continue;
  const s = Math.max(4, Math.min(14, Math.floor(900 / w)));
  c.width = w * s;
  c.height = h * s;
  const g = c.getContext('2d');
  for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) {
    g.fillStyle = 'rgb(' + colour(m[y][x]).join(',') + ')';
    g.fillRect(x * s, y * s, s, s);
  }
  c.onmousemove = e => {
    const b = c.getBoundingClientRect();
    const x = Math.floor((e.clientX - b.left) / b.width * w);
    const y = Math.floor((e.clientY - b.top) / b.height * h);
    if (!m[y] || m[y][x] === undefined) return;
    c.title = 'head ' + y + ', token column ' + x + ': ' + (m[y][x] < 0 ? 'not judged' : m[y][x] + ' u');
  };
  c.dataset.drawn = '1';
}
"""


def render_html(data: dict[str, Any]) -> str:
    """One file without external resources."""
    counts = {name: n for name, n in data["summary"].items() if n}
    summary = "".join(f'<div class="card {name}"><b>{n}</b>{name}</div>' for name, n in counts.items())
    environment = "".join(f"<tr><th>{_(k)}</th><td>{_(v)}</td></tr>" for k, v in data["environment"].items())
    kinds = "".join(f'<option value="{name}">{name}</option>' for name in counts)
    early = f'<p class="fail">Stopped early: {_(data["ended_early"])}</p>' if data.get("ended_early") else ""
    stack = f"backend <code>{_(data['backend'])}</code>, {_(data['selection'])}, {data['seconds']:.1f} s"
    failing = [c for c in data["cases"] if c["outcome"] in ("fail", "error")]
    details = "".join(_detail(c) for c in failing) or '<p class="pass">No case fails.</p>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>kvlint oracle: {_(data["backend"])}</title>'
        f"<style>{_STYLE}</style></head><body><h1>kvlint oracle</h1>"
        f'<p class="dim">{stack}</p>{early}'
        f'<div class="cards">{summary}</div><h2>Failures</h2>{details}<h2>All cases</h2>'
        f'<p><input id="filter" placeholder="filter" aria-label="filter cases"> <select id="kind" '
        f'aria-label="outcome"><option value="">every outcome</option>{kinds}</select> '
        f'<span id="shown" class="dim"></span></p><div class="wide"><table id="cases"><thead><tr>'
        "<th>case</th><th>outcome</th><th>error (u)</th><th>peak (u)</th><th>LSE</th><th>cosine</th>"
        "<th>FA2 rule</th><th>0.001 rule</th><th>seconds</th><th>mimics / covers, "
        "or the call</th></tr></thead><tbody>"
        f"{''.join(_row(c) for c in data['cases'])}</tbody></table></div>"
        '<p class="dim">error: rms of a row over u R, limit 1.5; peak: largest element over u max|v|, '
        "limit 2. The rules of other projects are shown for comparison and decide nothing.</p>"
        f"<h2>Environment</h2><table>{environment}</table><script>{_SCRIPT}</script></body></html>\n"
    )


def _(text: object) -> str:
    return html.escape(str(text), quote=True)


def _row(case: dict[str, Any]) -> str:
    verdict = case.get("verdict", {})
    columns = verdict.get("columns", {})
    spec = case.get("case") or {"mimics": case["place"], "covers": case["call"]}
    cells = [
        f"<td><code>{_(case['name'])}</code></td>",
        f'<td class="{case["outcome"]}">{case["outcome"]}</td>',
        _value(verdict.get("worst_error"), ".2f"),
        _value(verdict.get("worst_peak"), ".2f"),
        _value(verdict.get("lse_error"), ".1e"),
        _value(columns.get("cosine"), ".6f"),
        f"<td>{_flag(columns.get('fa2'))}</td>",
        f"<td>{_flag(columns.get('double_001'))}</td>",
        _value(case["seconds"], ".2f"),
        f"<td>{_(spec['mimics'])} {_(spec['covers'])}</td>",
    ]
    return f'<tr data-outcome="{case["outcome"]}">{"".join(cells)}</tr>'


def _value(value: float | None, form: str) -> str:
    return '<td data-v="-1"></td>' if value is None else f'<td data-v="{value}">{value:{form}}</td>'


def _flag(value: bool | None) -> str:
    return "" if value is None else "pass" if value else "fail"


def _detail(case: dict[str, Any]) -> str:
    where, why = case.get("where"), case.get("why")
    parts = ["<ul>", *(f"<li>{_(r)}</li>" for r in case["reasons"][:8])]
    if where:
        page = "" if where["page"] is None else f", page {where['page']}"
        parts.append(
            f"<li><b>where</b>: request {where['request']}, head {where['head']}, "
            f"token {where['token']}{page}; {_(where['pattern'])}</li>"
        )
    if why:
        closest = ", ".join(f"{n} {s}" for n, s in why["closest"].items() if s is not None)
        parts.append(f"<li><b>why</b>: {_(why['sentence'])}<br><span class='dim'>{_(closest)}</span></li>")
    if "case" in case:
        parts.append(f"<li>repeat: <code>kvlint oracle run --case {_(case['name'])}</code></li>")
    else:
        parts += [f"<li>not explained: {_(n)}</li>" for n in case["notes"]]
        parts.append(f"<li><code>{_(case['place'])}</code> {_(case['call'])}</li>")
    parts.append("</ul>")
    for b, cells in enumerate(where["map"] if where else []):
        if cells and cells[0]:
            packed = _(json.dumps(cells, separators=(",", ":")))
            parts.append(
                f'<figure><canvas data-map="{packed}"></canvas><figcaption>request {b}: heads down, '
                "tokens across; green within the limit, red beyond, grey not judged</figcaption></figure>"
            )
    outcome = f'<span class="{case["outcome"]}">{case["outcome"]}</span>'
    title = f"<summary><code>{_(case['name'])}</code> {outcome}</summary>"
    return f"<details>{title}{''.join(parts)}</details>"
