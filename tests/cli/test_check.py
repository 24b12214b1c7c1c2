"""What a run of ``kvlint check`` does with files: exit codes, errors, order, standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import BAD, CLEAN, FAKE_RULES, Kvlint, call

from kvlint import options
from kvlint.check import run
from kvlint.config import Config, Flags
from kvlint.discovery import discover
from kvlint.source.reader import Analysis


class TestExitCode:
    def test_zero_without_findings(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": CLEAN})
        ran = kvlint("check")
        assert (ran.code, ran.out, ran.err) == (0, "No problems found: 1 operator call in 1 of 1 file.\n", "")

    def test_one_with_a_finding(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": BAD})
        assert kvlint("check").code == 1

    def test_exit_zero(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": BAD})
        ran = kvlint("check", "--exit-zero")
        assert ran.code == 0 and ran.findings

    def test_zero_in_an_empty_folder(self, kvlint: Kvlint) -> None:
        ran = kvlint("check")
        assert (ran.code, ran.out) == (0, "No problems found: 0 operator calls in 0 of 0 files.\n")

    def test_missing_path_is_one_line(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": BAD})
        ran = kvlint("check", "a.py", "gone.py")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == "kvlint: error: gone.py: No such file or directory\n"

    def test_path_with_a_null_byte(self, kvlint: Kvlint) -> None:
        ran = kvlint("check", "a\0b")
        assert ran.code == 2 and ran.err.count("\n") == 1

    @pytest.mark.parametrize(
        "words", [["--bogus"], ["--select"], ["--output-format", "xml"], ["--color=pink"], ["--exit-zero=1"]]
    )
    def test_wrong_usage(self, kvlint: Kvlint, words: list[str]) -> None:
        ran = kvlint("check", *words)
        assert ran.code == 2 and "Error: " in ran.err and ran.out == ""


class TestBadFiles:
    def test_syntax_error_is_reported_and_the_run_goes_on(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": "torch_npu.npu_fusion_attention(\n", "b.py": BAD})
        ran = kvlint("check", "--output-format", "concise")
        assert ran.code == 1
        assert ran.findings == ["b.py:2:35: KV101"]
        assert "a.py:1: error: does not parse: " in ran.out
        assert ran.out.endswith("1 operator call in 1 of 2 files, 1 path with errors.\n")

    def test_syntax_error_alone_is_exit_one(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": "torch_npu.npu_fusion_attention(\n"})
        assert kvlint("check").code == 1
        assert kvlint("check", "--exit-zero").code == 0

    def test_bytes_that_do_not_decode(self, kvlint: Kvlint, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_bytes(b"# \xff\nnpu_fusion_attention()\n")
        ran = kvlint("check")
        assert ran.code == 1 and "a.py: error: cannot be decoded: " in ran.out

    def test_unknown_coding_cookie(self, kvlint: Kvlint, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_bytes(b"# coding: klingon\nnpu_fusion_attention()\n")
        ran = kvlint("check")
        assert ran.code == 1 and "unknown encoding" in ran.out

    def test_byte_order_mark_does_not_move_columns(self, kvlint: Kvlint, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbf" + BAD.encode())
        assert kvlint("check", "--output-format=concise").findings == ["a.py:2:35: KV101"]

    def test_file_without_operator_names_is_not_parsed(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": "def (\n"})
        assert kvlint("check").code == 0

    @pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a user who can be refused")
    def test_unreadable_file(self, kvlint: Kvlint, tree, tmp_path: Path) -> None:
        tree({"a.py": BAD, "b.py": BAD})
        (tmp_path / "a.py").chmod(0)
        ran = kvlint("check", "--output-format=concise")
        assert ran.code == 1 and "a.py: error: cannot be read: Permission denied" in ran.out
        assert len(ran.findings) == 1

    def test_file_that_vanishes(self, tree, tmp_path: Path) -> None:
        tree({"a.py": BAD, "b.py": BAD})
        values, config = {**options.defaults()}, Config(Flags(options.defaults(), str(tmp_path)))
        items = discover(["."], config, str(tmp_path))
        (tmp_path / "a.py").unlink()
        result = run(items, values, config, str(tmp_path), rules=FAKE_RULES)
        assert [(p.kind, p.path) for p in result.problems] == [("read", "a.py")]
        assert [finding.spot.path for finding in result.findings] == ["b.py"]


class Broken:
    """A reader that fails on one file."""

    def __init__(self, roots, target, corpora=None) -> None:
        pass

    def read(self, path: str, source: bytes) -> Analysis:
        if path.endswith("a.py"):
            raise RuntimeError("tree is\nupside down")
        return Analysis(())


class TestInternalError:
    def test_names_the_file_and_goes_on(self, kvlint: Kvlint, tree, monkeypatch) -> None:
        tree({"a.py": BAD, "b.py": BAD})
        monkeypatch.setattr("kvlint.analysis.Project", Broken)
        ran = kvlint("check", "--output-format=concise")
        assert ran.code == 2
        assert ran.err == (
            "kvlint: error: a.py: internal error: RuntimeError: tree is (KVLINT_DEBUG=1 shows where)\n"
        )
        assert ran.out == "No problems found: 0 operator calls in 0 of 2 files, 1 path with errors.\n"

    def test_exit_zero_does_not_hide_it(self, kvlint: Kvlint, tree, monkeypatch) -> None:
        tree({"a.py": BAD})
        monkeypatch.setattr("kvlint.analysis.Project", Broken)
        assert kvlint("check", "--exit-zero").code == 2

    def test_debug_shows_the_traceback(self, kvlint: Kvlint, tree, monkeypatch) -> None:
        tree({"a.py": BAD})
        monkeypatch.setattr("kvlint.analysis.Project", Broken)
        monkeypatch.setenv("KVLINT_DEBUG", "1")
        with pytest.raises(RuntimeError, match="upside down"):
            kvlint("check")

    def test_one_broken_rule_does_not_hide_the_others(self, kvlint: Kvlint, tree, monkeypatch) -> None:
        def fail(call) -> None:
            raise ZeroDivisionError

        tree({"a.py": call("q", "bad=1", "worse=1")})
        monkeypatch.setattr(FAKE_RULES[0], "check", fail)
        ran = kvlint("check", "--output-format=concise")
        assert ran.code == 2
        assert ran.err == (
            "kvlint: error: a.py: internal error in KV101: ZeroDivisionError (KVLINT_DEBUG=1 shows where)\n"
        )
        assert ran.findings == ["a.py:2:42: KV102"]

    def test_is_in_the_json(self, kvlint: Kvlint, tree, monkeypatch) -> None:
        tree({"a.py": BAD})
        monkeypatch.setattr("kvlint.analysis.Project", Broken)
        ran = kvlint("check", "--output-format=json")
        assert [(e["kind"], e["path"]) for e in json.loads(ran.out)["errors"]] == [("internal", "a.py")]


class TestFilesOnce:
    def test_two_paths_to_one_file(self, kvlint: Kvlint, tree) -> None:
        tree({"pkg/a.py": BAD})
        ran = kvlint("check", "pkg/a.py", "pkg", ".", "./pkg/../pkg/a.py", "--output-format=concise")
        assert ran.findings == ["pkg/a.py:2:35: KV101"]

    def test_link_to_a_file(self, kvlint: Kvlint, tree, tmp_path: Path) -> None:
        tree({"a.py": BAD})
        (tmp_path / "b.py").symlink_to("a.py")
        assert len(kvlint("check", "--output-format=concise").findings) == 1

    def test_link_loop_of_folders(self, kvlint: Kvlint, tree, tmp_path: Path) -> None:
        tree({"pkg/a.py": BAD})
        (tmp_path / "pkg" / "again").symlink_to("..")
        assert kvlint("check", "--output-format=concise").findings == ["pkg/a.py:2:35: KV101"]

    def test_order_does_not_depend_on_the_arguments(self, kvlint: Kvlint, tree) -> None:
        tree({"b.py": BAD, "a/z.py": BAD, "a.py": BAD})
        first = kvlint("check", "b.py", "a", "a.py", "--output-format=json")
        second = kvlint("check", ".", "--output-format=json")
        assert first.out == second.out
        assert [f["path"] for f in json.loads(first.out)["findings"]] == ["a.py", "a/z.py", "b.py"]

    def test_same_words_at_one_place_are_one_finding(self, kvlint: Kvlint, tree) -> None:
        tree(
            {
                "a.py": "import torch_npu\n"
                "def helper(q, x):\n    return torch_npu.npu_fusion_attention(q, bad=x)\n"
                "def one(q):\n    return helper(q, 1)\n"
                "def two(q):\n    return helper(q, 2)\n"
            }
        )
        assert kvlint("check", "--output-format=concise").findings == ["a.py:3:46: KV101"]


class TestShownPaths:
    def test_relative_below_and_absolute_elsewhere(
        self, kvlint: Kvlint, tree, tmp_path: Path, monkeypatch
    ) -> None:
        tree({"in/a.py": BAD, "out/b.py": BAD})
        monkeypatch.chdir(tmp_path / "in")
        ran = kvlint("check", str(tmp_path / "in" / "a.py"), "../out", "--output-format=json")
        shown = {finding["path"] for finding in json.loads(ran.out)["findings"]}
        assert shown == {"a.py", str(tmp_path / "out" / "b.py")}


class TestStandardInput:
    def test_without_a_name(self, kvlint: Kvlint) -> None:
        ran = kvlint("check", "-", "--output-format=concise", stdin=BAD)
        assert ran.findings == ["<stdin>:2:35: KV101"] and ran.code == 1

    def test_name_gives_path_and_settings(self, kvlint: Kvlint, tree) -> None:
        tree({"sub/pyproject.toml": '[tool.kvlint]\nignore = ["KV101"]\n'})
        assert kvlint("check", "-", "--stdin-filename", "sub/a.py", stdin=BAD).code == 0
        ran = kvlint("check", "-", "--stdin-filename", "a.py", "--output-format=concise", stdin=BAD)
        assert ran.findings == ["a.py:2:35: KV101"]

    def test_excluded_name(self, kvlint: Kvlint) -> None:
        words = ("check", "-", "--stdin-filename", "gen/a.py", "--extend-exclude", "gen")
        assert kvlint(*words, stdin=BAD).code == 1
        assert kvlint(*words, "--force-exclude", stdin=BAD).code == 0

    def test_with_other_paths(self, kvlint: Kvlint) -> None:
        ran = kvlint("check", "-", "a.py", stdin=BAD)
        assert ran.code == 2 and "only path" in ran.err

    def test_excerpt_comes_from_the_text(self, kvlint: Kvlint) -> None:
        assert "2 | torch_npu.npu_fusion_attention(q, bad=1)" in kvlint("check", "-", stdin=BAD).out


class TestOutputChoices:
    def test_statistics(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": call("worse=1", "bad=1"), "b.py": BAD})
        ran = kvlint("check", "--statistics")
        assert ran.out.splitlines()[:2] == [
            "    2  KV101  bad-argument [silent]",
            "    1  KV102  worse-argument [host-error]",
        ]
        assert ran.code == 1

    def test_show_files(self, kvlint: Kvlint, tree) -> None:
        tree({"b.py": BAD, "a/c.py": "", "a/notes.txt": BAD, ".hidden/d.py": BAD})
        ran = kvlint("check", "--show-files")
        assert (ran.code, ran.out) == (0, "a/c.py\nb.py\n")

    def test_undecided_names_the_place(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": CLEAN})
        ran = kvlint("check", "--undecided")
        assert ran.code == 0
        assert ran.out.splitlines()[0] == (
            "a.py:2:1: KV202 undecided: query is a parameter (a.py:2) (open-question)"
        )

    def test_coverage_leaves_out_what_does_not_apply(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": BAD + CLEAN})
        lines = [line.split() for line in kvlint("check", "--coverage", "--statistics").out.splitlines()]
        assert ["KV101", "bad-argument", "1", "0", "1", "0", "100%"] in lines
        assert ["KV202", "open-question", "2", "0", "0", "2", "0%"] in lines
        assert ["all", "rules", "3", "0", "1", "2", "33%"] in lines
        assert not [line for line in lines if "KV102" in line]

    def test_json_has_obligations_when_asked(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": BAD})
        plain = json.loads(kvlint("check", "--output-format=json").out)
        assert "obligations" not in plain and "coverage" not in plain
        undecided = json.loads(kvlint("check", "--output-format=json", "--undecided").out)
        assert [item["outcome"] for item in undecided["obligations"]] == ["undecided"]
        every = json.loads(kvlint("check", "--output-format=json", "--coverage").out)
        assert [item["outcome"] for item in every["obligations"]] == ["undecided", "violated"]
        assert every["coverage"]["all"] == {"proved": 0, "violated": 1, "undecided": 1, "total": 2}


class TestColour:
    @pytest.mark.parametrize(
        ("words", "env", "coloured"),
        [
            ((), {}, False),
            (("--color=always",), {}, True),
            ((), {"FORCE_COLOR": "1"}, True),
            ((), {"FORCE_COLOR": "0"}, False),
            ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
            (("--color=always",), {"NO_COLOR": "1"}, True),
            (("--color=never",), {"FORCE_COLOR": "1"}, False),
        ],
    )
    def test_choice(self, kvlint: Kvlint, tree, monkeypatch, words, env, coloured: bool) -> None:
        tree({"a.py": BAD})
        for key, value in env.items():
            monkeypatch.setenv(key, value)
        assert ("\x1b[" in kvlint("check", *words).out) is coloured

    def test_json_is_never_coloured(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": BAD})
        assert "\x1b" not in kvlint("check", "--output-format=json", "--color=always").out


class TestQuietEnds:
    def test_closed_pipe(self, tree, tmp_path: Path) -> None:
        tree({f"m{i}.py": BAD * 40 for i in range(40)})
        child = subprocess.Popen(
            [sys.executable, "-m", "kvlint", "check", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
        )
        assert child.stdout is not None and child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 141
        child.stderr.close()

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
    def test_full_disk(self, tree, tmp_path: Path) -> None:
        tree({"a.py": BAD})
        with open("/dev/full", "wb") as full:
            child = subprocess.run(
                [sys.executable, "-m", "kvlint", "check"],
                check=False,
                cwd=tmp_path,
                stdout=full,
                stderr=subprocess.PIPE,
            )
        assert child.returncode == 2
        assert child.stderr == b"kvlint: error: cannot write the output: No space left on device\n"

    def test_folder_that_is_gone(self, tmp_path: Path) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        run = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m kvlint check"
        child = subprocess.run(["sh", "-c", run], check=False, capture_output=True)
        assert child.returncode == 2
        assert child.stderr.splitlines()[-1] == b"kvlint: error: the current folder does not exist"

    def test_interrupt(self, kvlint: Kvlint, tree, monkeypatch) -> None:
        def stop(item: object, disk: object) -> bytes:
            raise KeyboardInterrupt

        tree({"a.py": BAD})
        monkeypatch.setattr("kvlint.check._source", stop)
        ran = kvlint("check")
        assert (ran.code, ran.out, ran.err) == (130, "", "")

    def test_terminal_that_cannot_say_a_character(self, tree, tmp_path: Path) -> None:
        tree({"a.py": "import torch_npu\ntorch_npu.npu_fusion_attention('\u6ce8', bad=1)\n"})
        child = subprocess.run(
            [sys.executable, "-m", "kvlint", "check"],
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )
        assert child.returncode == 1 and child.stderr == b"" and b"\\u6ce8" in child.stdout
