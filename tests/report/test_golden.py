"""The reports, character by character. ``KVLINT_UPDATE_GOLDEN=1 pytest tests/report`` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.cli import Kvlint

from kvlint import __version__
from kvlint.report.text import MAX_WIDTH, clean, underline

GOLDEN = Path(__file__).parent / "golden"

FILES = {
    "pkg/attention.py": '''\
"""Three calls."""

import torch_npu


def attend(q, use_mask):
    options = {"worse": 1}
    if use_mask:
        options["bad"] = 2
    return torch_npu.npu_fusion_attention(
        q,
        **options,
    )


def tabs(q):
\treturn torch_npu.npu_fusion_attention("注意 🙂", bad=1)  # wide and tabs


def whole(q):
    return torch_npu.npu_fusion_attention(
        q,
        whole=1,
    )
''',
    "pkg/comments.py": "x = 1  # kvlint: ignore[KV101, KV999] once upon a time\n",
    "pkg/broken.py": "torch_npu.npu_fusion_attention(q, bad=\n",
    "pkg/hidden.py": "import torch_npu\n"
    "torch_npu.npu_fusion_attention(bad=1)  # kvlint: ignore[KV101] meant\n",
    "pkg/clean.py": "print('hello')\n",
}

CASES = {
    "text.txt": (),
    "concise.txt": ("--output-format=concise",),
    "findings.json": ("--output-format=json",),
    "colour.txt": ("--color=always",),
    "statistics.txt": ("--statistics",),
    "coverage.txt": ("--coverage", "--undecided", "--output-format=concise", "--ignore=KV1,KV9"),
    "everything.json": ("--output-format=json", "--coverage", "--statistics", "--select=KV202"),
}


@pytest.mark.parametrize("name", CASES)
def test_report(kvlint: Kvlint, tree, name: str) -> None:
    tree(FILES)
    ran = kvlint("check", "--extend-select=KV201", *CASES[name])
    assert ran.err == ""
    out = ran.out.replace(f'"version": "{__version__}"', '"version": "VERSION"')
    path = GOLDEN / name
    if os.environ.get("KVLINT_UPDATE_GOLDEN"):
        path.write_text(out, encoding="utf-8")
    assert out == path.read_text(encoding="utf-8")


class TestUnderline:
    @pytest.mark.parametrize(
        ("text", "column", "end", "shown", "marks"),
        [
            ("abc", 2, 3, "abc", " ^"),
            ("abc", 1, 4, "abc", "^^^"),
            ("abc", 2, 2, "abc", " ^"),
            ("abc", 9, 12, "abc", "   ^"),
            ("\ta", 2, 3, "    a", "    ^"),
            ("注a", 2, 3, "注a", "  ^"),
            ("e\u0301a", 3, 4, "e\u0301a", " ^"),
            ("a\x1b[31mb", 7, 8, "a\\x1b[31mb", "         ^"),
        ],
    )
    def test_lines_up(self, text: str, column: int, end: int, shown: str, marks: str) -> None:
        assert underline(text, column, end) == (shown, marks)

    def test_long_line_is_cut_around_the_place(self) -> None:
        text = "x" * 500 + "HERE" + "y" * 500
        shown, marks = underline(text, 501, 505)
        assert len(shown) == MAX_WIDTH + 6
        assert shown[marks.index("^") : len(marks)] == "HERE"
        assert shown.startswith("...x") and shown.endswith("y...")

    def test_place_longer_than_the_window(self) -> None:
        shown, marks = underline("x" * 1000, 1, 1001)
        assert len(marks) <= len(shown)


def test_clean_shows_what_a_terminal_would_act_on() -> None:
    assert clean("a\nb\r\x1b]0;x\x07\u202e") == "a\\nb\\r\\x1b]0;x\\x07\\u202e"
    assert clean("plain ü 注") == "plain ü 注"


def test_hostile_source_reaches_no_terminal(kvlint: Kvlint, tree) -> None:
    tree({"a\x1b[2J.py": "import torch_npu\ntorch_npu.npu_fusion_attention('\x1b[2J', bad=1)\n"})
    assert "\x1b" not in kvlint("check").out
