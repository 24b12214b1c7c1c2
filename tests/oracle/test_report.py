"""Reports: what they hold, that they are self-contained, and what a comparison says."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from kvlint.oracle.backends import backend
from kvlint.oracle.cases import select
from kvlint.oracle.compare import compare
from kvlint.oracle.errors import ReportError
from kvlint.oracle.report import SCHEMA_VERSION, load, render_html, render_markdown, report_data
from kvlint.oracle.report.data import MAP_CELLS, heat_map
from kvlint.oracle.runner import run


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    cases = select(
        names=["tnd-paged-block-16", "dit-full-bnsd", "fp16-high-performance", "qwen3-moe-prefill-bsh-v1"]
    )
    results = run(cases, backend("sim:block-size-16"))
    return report_data(results, backend="sim:block-size-16", selection="4 cases", seconds=1.0)


def test_json_holds_everything(data: dict[str, Any]) -> None:
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again["schema_version"] == SCHEMA_VERSION
    assert again["summary"] == {
        "pass": 2,
        "low-precision": 1,
        "undefined": 0,
        "fail": 1,
        "error": 0,
        "skip": 0,
    }
    assert {"python", "torch"} <= set(again["environment"])
    failing = next(c for c in again["cases"] if c["outcome"] == "fail")
    assert failing["why"]["names"] == ["pages-doubled"] and failing["why"]["rules"]
    assert failing["where"]["page"] is not None and failing["where"]["map"]
    assert failing["verdict"]["failed"] > 0 and failing["verdict"]["columns"]["cosine"] < 1


def test_markdown_names_where_and_why(data: dict[str, Any]) -> None:
    text = render_markdown(data)
    assert "### `tnd-paged-block-16`: fail" in text
    assert "**where**" in text and "**why**" in text and "kvlint oracle run --case tnd-paged-block-16" in text
    assert "`fp16-high-performance`: low-precision" in text
    assert all(line.count("|") in (0, 3) for line in text.splitlines() if line.startswith("|"))


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.urls: list[str] = []
        self.canvases = 0
        self.rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input", "br", "link", "img"):
            self.stack.append(tag)
        self.urls += [v or "" for k, v in attrs if k in ("src", "href")]
        self.canvases += tag == "canvas"
        self.rows += tag == "tr"

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_html_is_one_balanced_file(data: dict[str, Any]) -> None:
    page = _Page()
    text = render_html(data)
    page.feed(text)
    assert page.stack == [] and page.urls == [] and page.canvases == 2
    assert page.rows >= len(data["cases"])
    assert "http" not in text.replace("http-equiv", "")


def test_html_escapes_what_it_shows(data: dict[str, Any]) -> None:
    hostile = copy.deepcopy(data)
    hostile["environment"]["git"] = "<script>alert(1)</script>"
    hostile["cases"][0]["name"] = 'x"><img src=x onerror=alert(1)>'
    text = render_html(hostile)
    assert "<script>alert" not in text and "<img" not in text


def test_heat_maps_are_bounded(data: dict[str, Any]) -> None:
    import torch
    from kvlint.oracle.judge import RowTable

    table = RowTable(torch.zeros(4, 1000), torch.rand(4, 1000), torch.rand(4, 1000), torch.arange(1000))
    table.error[2, 777] = 50.0
    cells = heat_map(table)
    assert len(cells) == 4 and len(cells[0]) <= MAP_CELLS and max(cells[2]) == 50.0


def test_load_refuses_what_is_not_a_report(tmp_path: Path, data: dict[str, Any]) -> None:
    good = tmp_path / "a.json"
    good.write_text(json.dumps(data))
    assert load(good)["backend"] == "sim:block-size-16"
    for text in ("{", "[]", "{}", json.dumps(data | {"schema_version": 99})):
        good.write_text(text)
        with pytest.raises(ReportError) as caught:
            load(good)
        assert "\n" not in str(caught.value)
    with pytest.raises(ReportError):
        load(tmp_path / "missing.json")


def test_compare(data: dict[str, Any]) -> None:
    before = copy.deepcopy(data)
    for case in before["cases"]:
        case["outcome"] = "pass"
    before["cases"].append(copy.deepcopy(before["cases"][0]) | {"name": "gone"})
    found = {d.name: d for d in compare(before, data)}
    assert found["tnd-paged-block-16"].kind == "regression"
    assert "block table" in found["tnd-paged-block-16"].detail
    assert found["fp16-high-performance"].kind == "changed" and found["gone"].kind == "removed"
    assert "dit-full-bnsd" not in found
    assert {d.kind for d in compare(data, before)} == {"fixed", "changed", "added"}
    slipped = copy.deepcopy(data)
    case = next(c for c in slipped["cases"] if c["name"] == "dit-full-bnsd")
    case["verdict"]["worst_error"] = 1.4
    assert [d.kind for d in compare(data, slipped)] == ["slipped"]
