"""Settings: where they come from, which win, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import BAD, CLEAN, Kvlint, call

BOTH = call("q", "bad=1", "worse=1", "whole=1")


def codes(ran) -> list[str]:
    return [item.rpartition(" ")[2] for item in ran.findings]


def check(kvlint: Kvlint, *words: str) -> list[str]:
    ran = kvlint("check", "--output-format=concise", *words)
    assert ran.err == "" and ran.code in (0, 1)
    return codes(ran)


class TestSelection:
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ([], ["KV101", "KV102"]),
            (["--select", "KV101"], ["KV101"]),
            (["--select", "kv101"], ["KV101"]),
            (["--select", "bad-argument"], ["KV101"]),
            (["--select", "KV1"], ["KV101", "KV102"]),
            (["--select", "KV2"], ["KV201"]),
            (["--select", "ALL"], ["KV201", "KV101", "KV102"]),
            (["--select", "KV101,KV102"], ["KV101", "KV102"]),
            (["--select", "KV101", "--select", "KV102"], ["KV101", "KV102"]),
            (["--extend-select", "whole-call"], ["KV201", "KV101", "KV102"]),
            (["--select", "KV101", "--extend-select", "KV201"], ["KV201", "KV101"]),
            (["--ignore", "KV1"], []),
            (["--ignore", "KV102"], ["KV101"]),
            (["--select", "KV1", "--ignore", "KV101"], ["KV102"]),
            (["--select", "KV101", "--ignore", "KV1"], ["KV101"]),
            (["--select", "KV101", "--ignore", "KV101"], []),
            (["--select", "ALL", "--ignore", "KV1"], ["KV201"]),
        ],
    )
    def test_by_flags(self, kvlint: Kvlint, tree, words: list[str], expected: list[str]) -> None:
        tree({"a.py": BOTH})
        assert check(kvlint, *words) == expected

    @pytest.mark.parametrize(
        ("table", "words", "expected"),
        [
            ('select = ["KV102"]', [], ["KV102"]),
            ('ignore = ["bad-argument"]', [], ["KV102"]),
            ('extend-select = ["KV201"]', [], ["KV201", "KV101", "KV102"]),
            ('select = ["KV102"]', ["--select", "KV101"], ["KV101"]),
            ('ignore = ["KV101"]', ["--select", "KV1"], ["KV101", "KV102"]),
            ('ignore = ["KV101"]', ["--ignore", "KV102"], []),
            ('select = ["KV102"]', ["--extend-select", "KV101"], ["KV101", "KV102"]),
            ('ignore = ["KV101"]', ["--extend-select", "KV101"], ["KV101", "KV102"]),
            ('select = ["KV101"]', ["--ignore", "KV1"], []),
            ('select = ["KV102"]', ["--config", "select=KV101"], ["KV101"]),
            ('select = ["KV102"]', ["--config", "select=['KV101', 'KV201']"], ["KV201", "KV101"]),
            ('select = ["KV102"]', ["--config", "ignore=KV102"], []),
            ('select = ["KV102"]', ["--isolated"], ["KV101", "KV102"]),
        ],
    )
    def test_by_file_and_flags(
        self, kvlint: Kvlint, tree, table: str, words: list[str], expected: list[str]
    ) -> None:
        tree({"a.py": BOTH, "pyproject.toml": f"[tool.kvlint]\n{table}\n"})
        assert check(kvlint, *words) == expected

    @pytest.mark.parametrize("flag", ["--select", "--ignore", "--extend-select"])
    def test_unknown_rule_on_the_command_line(self, kvlint: Kvlint, tree, flag: str) -> None:
        tree({"a.py": "x = 1\n"})
        ran = kvlint("check", flag, "bad-argumnt")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == (
            'kvlint: error: the command line: no rule is called "bad-argumnt", did you mean "bad-argument"?\n'
        )

    def test_unknown_rule_in_a_file(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": BAD, "pyproject.toml": '[tool.kvlint]\nignore = ["KV7"]\n'})
        ran = kvlint("check")
        assert (ran.code, ran.err) == (2, 'kvlint: error: pyproject.toml: no rule is called "KV7"\n')


class TestPerFileIgnores:
    TABLE = """\
[tool.kvlint.per-file-ignores]
"tests/**" = ["KV101"]
"*_gen.py" = ["KV1"]
"one.py" = ["worse-argument"]
"""

    def test_patterns(self, kvlint: Kvlint, tree) -> None:
        names = ("tests/x/a.py", "src/tests.py", "deep/b_gen.py", "sub/one.py")
        tree({"pyproject.toml": self.TABLE, **dict.fromkeys(names, BOTH)})
        ran = kvlint("check", "--output-format=concise")
        assert [item.split(":")[0] + item[-6:] for item in ran.findings] == [
            "src/tests.py KV101",
            "src/tests.py KV102",
            "sub/one.py KV101",
            "tests/x/a.py KV102",
        ]

    def test_patterns_are_relative_to_the_file(
        self, kvlint: Kvlint, tree, tmp_path: Path, monkeypatch
    ) -> None:
        tree({"pyproject.toml": self.TABLE, "tests/a.py": BAD})
        monkeypatch.chdir(tmp_path / "tests")
        assert check(kvlint) == []

    def test_flag(self, kvlint: Kvlint, tree) -> None:
        tree({"tests/a.py": BOTH, "a.py": BOTH})
        ran = kvlint("check", "--output-format=concise", "--per-file-ignores", "tests:KV101,tests/:KV102")
        assert [item.split(":")[0] for item in ran.findings] == ["a.py", "a.py"]

    @pytest.mark.parametrize("word", ["tests", ":KV101", "tests:"])
    def test_malformed_flag(self, kvlint: Kvlint, word: str) -> None:
        ran = kvlint("check", "--per-file-ignores", word)
        assert ran.code == 2 and "is not PATTERN:RULE" in ran.err

    def test_unknown_rule(self, kvlint: Kvlint) -> None:
        ran = kvlint("check", "--per-file-ignores", "tests:KV999")
        assert (ran.code, ran.err) == (2, 'kvlint: error: --per-file-ignores: no rule is called "KV999"\n')

    def test_a_comment_for_an_ignored_rule_is_not_unused(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": "x = 1  # kvlint: ignore[KV101]\n"})
        assert check(kvlint) == ["KV901"]
        assert check(kvlint, "--per-file-ignores", "a.py:KV101") == []


class TestNearestFile:
    def test_each_file_has_its_own(self, kvlint: Kvlint, tree) -> None:
        tree(
            {
                "pyproject.toml": '[tool.kvlint]\nselect = ["KV101"]\n',
                "a.py": BOTH,
                "sub/pyproject.toml": '[tool.kvlint]\nselect = ["KV102"]\n',
                "sub/deep/b.py": BOTH,
                "other/pyproject.toml": "[project]\nname = 'kvlint-user'\n",
                "other/c.py": BOTH,
            }
        )
        ran = kvlint("check", "--output-format=concise")
        assert [item.split(":")[0] + item[-6:] for item in ran.findings] == [
            "a.py KV101",
            "other/c.py KV101",
            "sub/deep/b.py KV102",
        ]

    def test_found_above_the_current_folder(self, kvlint: Kvlint, tree, tmp_path: Path, monkeypatch) -> None:
        tree({"pyproject.toml": '[tool.kvlint]\nignore = ["KV101"]\n', "x/y/a.py": BAD})
        monkeypatch.chdir(tmp_path / "x" / "y")
        assert check(kvlint) == []

    def test_flags_win_everywhere(self, kvlint: Kvlint, tree) -> None:
        tree({"sub/pyproject.toml": '[tool.kvlint]\nselect = ["KV102"]\n', "sub/b.py": BOTH})
        assert check(kvlint, "--select", "KV201") == ["KV201"]


class TestWrongFile:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[tool.kvlint]\nselct = []\n", '[tool.kvlint]: unknown key "selct", did you mean "select"?'),
            ("[tool.kvlint]\ntorch_npu = '2.7.1'\n", 'unknown key "torch_npu", did you mean "torch-npu"?'),
            ("[tool.kvlint]\nzzz = 1\n", '[tool.kvlint]: unknown key "zzz"'),
            ("[tool.kvlint]\nselect = 'KV101'\n", '"select" must be a list of strings'),
            ("[tool.kvlint]\nselect = [1]\n", '"select" must be a list of strings'),
            ("[tool.kvlint]\nforce-exclude = 'yes'\n", '"force-exclude" must be true or false'),
            ("[tool.kvlint]\ntorch-npu = 2.7\n", '"torch-npu" must be a string'),
            ("[tool.kvlint]\ntorch-npu = 'new'\n", '"new" is not a version such as 2.7.1.post2'),
            ("[tool.kvlint]\nper-file-ignores = ['a']\n", '"per-file-ignores" must be a table'),
            ("[tool.kvlint]\nsoc = 'A9'\n", 'unknown product "A9" (one of A2, A3, 310P, 950)'),
            ("[tool.kvlint]\ncann = '8'\n", '"8" is not a version such as 8.2.RC1'),
            ("[tool]\nkvlint = 1\n", "tool.kvlint must be a table"),
            ("[tool.kvlint\n", "not valid TOML: "),
            ("[tool.kvlint]\nselect = ['\xff']\n", "not valid UTF-8"),
        ],
    )
    def test_one_line(self, kvlint: Kvlint, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "a.py").write_text("x = 1\n")
        (tmp_path / "pyproject.toml").write_bytes(text.encode("latin-1"))
        ran = kvlint("check")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("kvlint: error: pyproject.toml: ") and said in ran.err
        assert ran.err.count("\n") == 1

    def test_somebody_elses_broken_file_is_not_ours(self, kvlint: Kvlint, tree) -> None:
        tree({"pyproject.toml": "[tool.other\n", "a.py": CLEAN})
        assert check(kvlint) == []

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("select", '"select" is not KEY=VALUE'),
            ("selct=KV1", '--config: unknown key "selct", did you mean "select"?'),
            ("select=[KV1", 'the value of "select" is not valid TOML'),
            ("force-exclude=maybe", '"force-exclude" must be true or false'),
            ("per-file-ignores=a", '"per-file-ignores" must be a table'),
            ("soc=A9", 'unknown product "A9"'),
        ],
    )
    def test_config_flag(self, kvlint: Kvlint, word: str, said: str) -> None:
        ran = kvlint("check", "--config", word)
        assert ran.code == 2 and said in ran.err and ran.err.count("\n") == 1

    def test_config_flag_with_a_table(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": BAD})
        assert check(kvlint, "--config", 'per-file-ignores={"*.py" = ["KV101"]}') == []

    def test_config_flag_with_a_boolean(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": BAD})
        assert check(kvlint, "a.py", "--config", "force-exclude=true", "--exclude", "a.py") == []


class TestTarget:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--soc", "A7"], '--soc: unknown product "A7"'),
            (["--cann", "new"], '--cann: "new" is not a version'),
            (["--torch-npu", "x.y"], '--torch-npu: "x.y" is not a version'),
            (["--torch-npu", "99.1"], "torch-npu: no torch_npu release '99.1'"),
        ],
    )
    def test_refused(self, kvlint: Kvlint, words: list[str], said: str) -> None:
        ran = kvlint("check", *words)
        assert ran.code == 2 and said in ran.err and ran.err.count("\n") == 1

    @pytest.mark.parametrize(
        "words",
        [["--soc", "a2"], ["--cann", "8.1.RC1.alpha002"], ["--cann", "8.5.0"], ["--torch-npu", "2.7.1"]],
    )
    def test_accepted(self, kvlint: Kvlint, words: list[str]) -> None:
        assert kvlint("check", *words).code == 0

    def test_reaches_the_reader(self, kvlint: Kvlint, tree, monkeypatch) -> None:
        from kvlint.source import reader

        seen = []

        class Spy(reader.Project):
            def __init__(self, roots, target, corpora=None) -> None:
                seen.append((roots, target))
                super().__init__(roots, target, corpora)

        monkeypatch.setattr("kvlint.analysis.Project", Spy)
        tree(
            {
                "a.py": CLEAN,
                "pyproject.toml": "[tool.kvlint]\nsoc = 'A2'\ncann = '8.0.0'\ntorch-npu = '2.7.1'\n",
            }
        )
        assert check(kvlint, "--cann", "8.2.RC1") == []
        ((_, target),) = seen
        assert (target.soc, target.cann) == ("A2", "8.2.RC1")
        assert target.torch_npu is not None and target.torch_npu.startswith("2.7.1")


class TestShowSettings:
    def test_is_a_configuration_file(self, kvlint: Kvlint, tree, tmp_path: Path) -> None:
        tree(
            {"sub/pyproject.toml": "[tool.kvlint]\nsoc = 'A3'\nextend-exclude = ['x']\nignore = ['KV101']\n"}
        )
        ran = kvlint("check", "sub", "--show-settings")
        assert ran.code == 0
        lines = ran.out.splitlines()
        assert lines[0] == f"# from {tmp_path / 'sub' / 'pyproject.toml'}"
        assert 'soc = "A3"' in lines and 'ignore = ["KV101"]' in lines
        assert "# cann: any" in lines and "respect-gitignore = true" in lines
