"""Lines and columns as editors count them: 1-based lines, columns in characters of the file as it is."""

from __future__ import annotations

import pytest
from support.examples import PRELUDE

from kvlint.contract.call import Call, Target
from kvlint.contract.tri import Place
from kvlint.source.reader import Analysis, Project, SourceError

OP = "npu_fused_infer_attention_score"
CALL = f"torch_npu.{OP}(q, q, q, scale=0.25)"


def read(source: str | bytes) -> Analysis:
    data = source.encode() if isinstance(source, str) else source
    return Project([], Target()).read("module.py", data)


def calls(source: str | bytes) -> list[Call]:
    return [call for scope in read(source).scopes for call in scope.calls]


def only(source: str | bytes) -> Call:
    (call,) = calls(source)
    return call


def start(place: Place | None) -> tuple[int, int]:
    assert place is not None
    return place.line, place.column


def end(place: Place | None) -> tuple[int, int]:
    assert place is not None
    return place.end_line, place.end_column


def found_at(source: str, text: str) -> tuple[int, int]:
    """Where a text is in the source, counted here by other means than the reader's."""
    before = source[: source.index(text)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


LAYOUTS = {
    "module": f"import torch_npu\ntorch_npu.{OP}(q, k, v, scale=0.25)\n",
    "function": f"import torch_npu\ndef f(q):\n    return {CALL}\n",
    "method": f"import torch_npu\nclass A:\n    def f(self, q):\n        {CALL}\n",
    "nested class": (
        f"import torch_npu\nclass A:\n    class B:\n        def f(self, q):\n            {CALL}\n"
    ),
    "nested function": (f"import torch_npu\ndef f(q):\n    def g():\n        return {CALL}\n    return g\n"),
    "decorators": (
        "import torch_npu\nimport functools\n\n@functools.wraps(\n    None,\n)\n@staticmethod\ndef f(q):\n"
        f"    {CALL}\n"
    ),
    "several lines": (
        f"import torch_npu\ndef f(q):\n    torch_npu.{OP}(\n        q, q, q,\n\n        scale=0.25,\n    )\n"
    ),
    "method of a local class": (
        "import torch_npu\ndef f():\n    class A:\n        def g(self, q):\n"
        f"            {CALL}\n    return A\n"
    ),
    "function in a function in a function": (
        "import torch_npu\ndef f(q):\n    def g():\n        def h():\n"
        f"            return {CALL}\n        return h\n    return g\n"
    ),
    "one line": f"import torch_npu\ndef f(q): return {CALL}\n",
    "after a one-line class": f"import torch_npu\nclass A: x = 1; y = 2\ndef f(q): return {CALL}\n",
    "lambda": f"import torch_npu\ndef f(q):\n    return (lambda r: {CALL})(q)\n",
    "two statements on a line": f"import torch_npu\ndef f(q):\n    a = 1; {CALL}\n",
    "tabs": f"import torch_npu\nclass A:\n\tdef f(self, q):\n\t\t{CALL}\n",
    "unicode before": f"import torch_npu\ndef f(q):\n    x = 'é€😀'; {CALL}\n",
    "unicode names": f"import torch_npu\ndef größe(q):\n    π = {CALL}\n",
    "backslash": f"import torch_npu\ndef f(q):\n    x = \\\n        {CALL}\n",
    "string of several lines": (f'import torch_npu\ndef f(q):\n    """One\n    two"""\n    {CALL}\n'),
    "form feed": f"import torch_npu\n\x0c\ndef f(q):\n    {CALL}\n",
    "no newline at the end": f"import torch_npu\ndef f(q):\n    {CALL}",
    "comment lines": f"import torch_npu\ndef f(q):\n# one\n    # two\n    {CALL}  # three\n",
    "under if": f"import torch_npu\nif True:\n    def f(q):\n        {CALL}\n",
    "async": f"import torch_npu\nasync def f(q):\n    await g({CALL})\n",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_and_values_are_where_they_are_written(layout: str) -> None:
    source = LAYOUTS[layout]
    call = only(source)
    assert start(call.place) == found_at(source, "torch_npu.npu")
    value = call.arg("scale").value
    assert start(value.place) == found_at(source, "0.25")
    line, column = start(value.place)
    assert end(value.place) == (line, column + len("0.25"))


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_other_line_ends_count_the_same(newline: str) -> None:
    source = LAYOUTS["several lines"]
    call = only(source.replace("\n", newline))
    assert start(call.place) == found_at(source, "torch_npu.npu")
    assert start(call.arg("scale").value.place) == found_at(source, "0.25")


def test_the_end_of_a_call_is_behind_its_last_bracket() -> None:
    call = only(LAYOUTS["several lines"])
    assert end(call.place) == (7, 6)


def test_an_argument_passed_by_keyword_is_placed_at_its_keyword_or_value() -> None:
    source = LAYOUTS["several lines"]
    place = only(source).arg("scale").place
    assert place is not None and place.line == found_at(source, "0.25")[0]


class TestEncodings:
    TEXT = f"# Größe\nimport torch_npu\ndef f(q):\n    x = 'Ä'; {CALL}\n"

    @pytest.mark.parametrize(
        ("encoding", "cookie"),
        [
            ("utf-8", ""),
            ("utf-8-sig", ""),
            ("latin-1", "# -*- coding: latin-1 -*-\n"),
            ("cp1252", "# vim: set fileencoding=cp1252 :\n"),
        ],
    )
    def test_declared_encodings(self, encoding: str, cookie: str) -> None:
        text = cookie + self.TEXT
        call = only(text.encode(encoding))
        assert start(call.place) == found_at(text, "torch_npu.npu")

    @pytest.mark.parametrize(
        "data",
        [
            b"\xff\xfe\x00",
            b"x = '\xe4'\n",
            b"# -*- coding: no-such-coding -*-\n",
            b"# -*- coding: ascii -*-\nx = '\xe4'\n",
            b"x = 1\x00\n",
        ],
    )
    def test_what_does_not_decode_is_an_error_of_the_file(self, data: bytes) -> None:
        with pytest.raises(SourceError):
            read(data)


class TestFiles:
    @pytest.mark.parametrize("source", ["", "\n", "# comment", '"""Doc."""', "\ufeff", "\x0c\n", "pass"])
    def test_files_without_calls(self, source: str) -> None:
        assert read(source).scopes == ()

    @pytest.mark.parametrize(
        ("source", "line"),
        [
            ("def f(:\n", 1),
            ("x = 1\ny = (\n", 2),
            ("x = 1\n  y = 2\n", 2),
            ("def f():\n\tif x:\n        pass\n", 3),
            ("x = 'abc\n", 1),
            ("print 'x'\n", 1),
        ],
    )
    def test_a_syntax_error_has_its_line(self, source: str, line: int) -> None:
        with pytest.raises(SourceError) as caught:
            read(source)
        assert caught.value.line == line

    def test_names_of_scopes(self) -> None:
        source = PRELUDE + (
            f"class A:\n    def run(self, q):\n        torch_npu.{OP}(q, q, q)\n"
            f"def free(q):\n    torch_npu.{OP}(q, q, q)\n"
            f"torch_npu.{OP}(q, q, q)\n"
        )
        assert [scope.name for scope in read(source).scopes] == ["run", "free", "<module>"]
        assert [len(scope.calls) for scope in read(source).scopes] == [1, 1, 1]

    def test_reading_twice_says_the_same(self) -> None:
        project = Project([], Target())
        data = LAYOUTS["method"].encode()
        first, second = project.read("a.py", data), project.read("a.py", data)
        places = [
            [start(call.place) for scope in one.scopes for call in scope.calls] for one in (first, second)
        ]
        assert places[0] == places[1] != []

    def test_two_files_of_one_project_do_not_mix(self) -> None:
        project = Project([], Target())
        project.read("a.py", LAYOUTS["method"].encode())
        (scope,) = project.read("b.py", LAYOUTS["function"].encode()).scopes
        assert scope.name == "f" and scope.calls[0].place is not None
        assert scope.calls[0].place.path == "b.py"
