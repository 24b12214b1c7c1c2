"""Notebooks: cells are one module, and reports name the cell."""

from __future__ import annotations

import json

import pytest
from support.cli import Kvlint

from kvlint.notebook import NotebookError, read


def notebook(*cells: str | list[str], kind: str = "code") -> str:
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": kind, "source": cell} for cell in cells]})


class TestReport:
    BOOK = notebook(
        "import torch_npu\n",
        [
            "%matplotlib inline\n",
            "q = 1\n",
            "torch_npu.npu_fusion_attention(\n",
            "    q,\n",
            "    bad=1,\n",
            ")",
        ],
    )

    def test_names_cell_and_line(self, kvlint: Kvlint, tree) -> None:
        tree({"a.ipynb": self.BOOK})
        ran = kvlint("check")
        assert ran.out.splitlines()[:4] == [
            "a.ipynb:cell 2:5:5: KV101 [silent] bad is passed (bad-argument)",
            "  |",
            "5 |     bad=1,",
            "  |     ^^^^^",
        ]
        assert "because: a.ipynb:cell 2:5: bad is written here" in ran.out

    def test_json(self, kvlint: Kvlint, tree) -> None:
        tree({"a.ipynb": self.BOOK})
        (finding,) = json.loads(kvlint("check", "--output-format=json").out)["findings"]
        assert (finding["cell"], finding["line"], finding["end_line"], finding["column"]) == (2, 5, 5, 5)
        assert finding["provenance"][0]["cell"] == 2

    def test_suppression(self, kvlint: Kvlint, tree) -> None:
        tree({"a.ipynb": self.BOOK.replace("bad=1,", "bad=1,  # kvlint: ignore[KV101]")})
        assert kvlint("check").code == 0

    def test_no_notebook(self, kvlint: Kvlint, tree) -> None:
        tree({"a.ipynb": '{"npu_fusion_attention": 1}', "b.ipynb": "npu_fusion_attention"})
        ran = kvlint("check")
        assert ran.code == 1
        assert "a.ipynb: error: not a notebook: it has no list of cells" in ran.out
        assert "b.ipynb: error: not a notebook: " in ran.out

    def test_from_standard_input(self, kvlint: Kvlint) -> None:
        ran = kvlint("check", "-", "--stdin-filename", "x.ipynb", "--output-format=concise", stdin=self.BOOK)
        assert ran.findings == ["x.ipynb:cell 2:5:5: KV101"]


class TestText:
    @pytest.mark.parametrize(
        ("cell", "text"),
        [
            ("x = 1", "x = 1"),
            ("!pip list", "pass"),
            ("if a:\n    %time f()", "if a:\n    pass"),
            ("files = !ls", "files = None"),
            ("a, b = %magic", "a, b = None"),
            ("torch_npu?", "pass"),
            ("%%bash\nrm -rf x\nls", "\n\n"),
            ("%%time\nx = 1", "pass\nx = 1"),
            ("x = '''\n%not magic\n'''", "x = '''\n%not magic\n'''"),
            ("x = a \\\n  % b", "x = a \\\n  % b"),
            ("y = (a\n% b)", "y = (a\n% b)"),
            ("x = 1  # why?", "x = 1  # why?"),
        ],
    )
    def test_line_for_line(self, cell: str, text: str) -> None:
        assert read(notebook(cell).encode())[0] == text + "\n"

    def test_other_cells_count_but_are_left_out(self) -> None:
        book = {
            "cells": [{"cell_type": "markdown", "source": "x ="}, {"cell_type": "code", "source": "a\n\nb"}]
        }
        assert read(json.dumps(book).encode()) == ("a\n\nb\n", [(2, 1), (2, 2), (2, 3)])

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": 1}', "\x00", "[" * 100_000])
    def test_refused(self, text: str) -> None:
        with pytest.raises(NotebookError, match="not a notebook"):
            read(text.encode())

    def test_cells_of_odd_shape_are_skipped(self) -> None:
        book = {"cells": [1, {"cell_type": "code"}, {"cell_type": "code", "source": 5}, {}]}
        assert read(json.dumps(book).encode()) == ("5\n", [(3, 1)])
