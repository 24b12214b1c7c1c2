"""Runs the command line in this process, with rules that do not change when the real ones do."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvlint.__main__ import main
from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, undecided, violated
from kvlint.contract.tri import Note
from kvlint.rules.noisy.unknown_suppression import UnknownSuppression
from kvlint.rules.noisy.unused_suppression import UnusedSuppression

CALL = "torch_npu.npu_fusion_attention"


class _Keyword(Rule):
    """Reports calls that pass the keyword ``word``.

    ## Use instead
    Leave it out.
    Nothing else will do.

    Not this paragraph.
    """

    families = ("fusion",)
    word = ""

    def check(self, call: Call) -> Iterator[Verdict]:
        for keyword in call.binding.unexpected:
            if keyword.name == self.word:
                yield violated(
                    f"{self.word} is passed",
                    keyword.place,
                    [Note(f"{self.word} is written here", keyword.place)],
                )


class Bad(_Keyword):
    __doc__ = _Keyword.__doc__
    code, name, severity, word = "KV101", "bad-argument", Severity.SILENT, "bad"
    contract = ("A01",)


class Worse(_Keyword):
    code, name, severity, word = "KV102", "worse-argument", Severity.HOST, "worse"
    confidence = Confidence.MEDIUM
    contract = ("A02",)


class Whole(_Keyword):
    """Reports the call itself. It is off by default."""

    code, name, severity, default = "KV201", "whole-call", Severity.ADVICE, False
    contract = ("A03",)

    def check(self, call: Call) -> Iterator[Verdict]:
        if any(keyword.name == "whole" for keyword in call.binding.unexpected):
            yield violated("the call is wrong", fix="Write another call.")


class Open(_Keyword):
    code, name, severity = "KV202", "open-question", Severity.DEVICE
    contract = ("A04",)

    def check(self, call: Call) -> Verdict:
        return undecided(Note("query is a parameter", call.place))


FAKE_RULES: tuple[Rule, ...] = (Bad(), Worse(), Whole(), Open(), UnusedSuppression(), UnknownSuppression())


@dataclass
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def findings(self) -> list[str]:
        """The headlines of a concise or text report, up to the code."""
        return [
            line.split(" [")[0]
            for line in self.out.splitlines()
            if " KV" in line and ": KV" in line and "[" in line
        ]


Kvlint = Callable[..., Ran]


@pytest.fixture
def kvlint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Kvlint]:
    """Runs ``kvlint`` with the given words in an empty folder, with the fake rules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvlint.analysis.all_rules", lambda: FAKE_RULES)
    for name in ("NO_COLOR", "FORCE_COLOR", "KVLINT_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, stdin: str | bytes | None = None) -> Ran:
        if stdin is not None:
            data = stdin.encode() if isinstance(stdin, str) else stdin
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, captured.out, captured.err)

    yield run


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., None]:
    """Writes files, as ``path="text"`` pairs in a dict, below the test's folder."""

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)

    return write


def call(*arguments: str) -> str:
    """A module with one call that passes these arguments."""
    return f"import torch_npu\n{CALL}({', '.join(arguments)})\n"


BAD = call("q", "bad=1")
CLEAN = call("q")


def environment() -> dict[str, str]:
    """The environment for a child process, without what changes the output."""
    return {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
