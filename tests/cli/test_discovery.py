"""Which files a path stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import Kvlint


def files(kvlint: Kvlint, *words: str) -> list[str]:
    ran = kvlint("check", "--show-files", *words)
    assert (ran.code, ran.err) == (0, "")
    return ran.out.splitlines()


class TestDefault:
    def test_suffixes(self, kvlint: Kvlint, tree) -> None:
        tree(dict.fromkeys(["a.py", "b.pyi", "c.ipynb", "d.txt", "e.pyc", "f"], ""))
        assert files(kvlint) == ["a.py", "b.pyi", "c.ipynb"]

    def test_skipped_folders(self, kvlint: Kvlint, tree) -> None:
        skipped = [".git", ".tox", "__pycache__", "build", "dist", "node_modules", "site-packages", "venv"]
        tree({f"{name}/a.py": "" for name in [*skipped, "src", "src/build", "builder"]})
        assert files(kvlint) == ["builder/a.py", "src/a.py"]

    def test_virtual_environment_of_any_name(self, kvlint: Kvlint, tree) -> None:
        tree({"env39/pyvenv.cfg": "", "env39/lib/a.py": "", "a.py": ""})
        assert files(kvlint) == ["a.py"]
        assert files(kvlint, "env39/lib") == ["env39/lib/a.py"]

    def test_hidden_files_are_no_folders(self, kvlint: Kvlint, tree) -> None:
        tree({".a.py": ""})
        assert files(kvlint) == [".a.py"]

    def test_explicit_file_of_any_kind(self, kvlint: Kvlint, tree) -> None:
        tree({"script": "", "build/a.py": "", ".x/b.py": ""})
        assert files(kvlint, "script", "build/a.py", ".x/b.py") == [".x/b.py", "build/a.py", "script"]

    def test_explicit_folder_that_is_skipped_by_default(self, kvlint: Kvlint, tree) -> None:
        tree({"build/a.py": "", "build/.x/b.py": ""})
        assert files(kvlint, "build") == ["build/a.py"]


class TestExclude:
    TREE = ["a.py", "gen/b.py", "src/gen/c.py", "src/old/d.py", "build/e.py"]

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--extend-exclude", "gen"], ["a.py", "src/old/d.py"]),
            (["--extend-exclude", "/gen"], ["a.py", "src/gen/c.py", "src/old/d.py"]),
            (["--extend-exclude", "src/old,gen/"], ["a.py"]),
            (["--extend-exclude", "src/**/*.py"], ["a.py", "gen/b.py"]),
            (["--extend-exclude", "[a-b].py"], ["src/gen/c.py", "src/old/d.py"]),
            (["--exclude", "gen"], ["a.py", "build/e.py", "src/old/d.py"]),
            (["--config", "exclude=[]"], sorted(TREE)),
            (["--config", "extend-exclude=src"], ["a.py", "gen/b.py"]),
        ],
    )
    def test_patterns(self, kvlint: Kvlint, tree, words: list[str], expected: list[str]) -> None:
        tree(dict.fromkeys(self.TREE, ""))
        assert files(kvlint, *words) == expected

    def test_config_patterns_are_relative_to_the_file(
        self, kvlint: Kvlint, tree, tmp_path: Path, monkeypatch
    ) -> None:
        tree(
            {
                **dict.fromkeys(self.TREE, ""),
                "pyproject.toml": "[tool.kvlint]\nextend-exclude = ['src/gen']\n",
            }
        )
        monkeypatch.chdir(tmp_path / "src")
        assert files(kvlint) == ["old/d.py"]

    def test_explicit_file_is_checked_unless_forced(self, kvlint: Kvlint, tree) -> None:
        tree(dict.fromkeys(self.TREE, ""))
        words = ("--extend-exclude", "gen", "src/gen/c.py", "a.py")
        assert files(kvlint, *words) == ["a.py", "src/gen/c.py"]
        assert files(kvlint, *words, "--force-exclude") == ["a.py"]
        assert files(kvlint, "build", "gen", "--force-exclude") == ["gen/b.py"]

    def test_forced_by_the_file_and_unforced_by_the_flag(self, kvlint: Kvlint, tree) -> None:
        tree({"build/a.py": "", "pyproject.toml": "[tool.kvlint]\nforce-exclude = true\n"})
        assert files(kvlint, "build/a.py") == []
        assert files(kvlint, "build/a.py", "--no-force-exclude") == ["build/a.py"]


class TestGitignore:
    def test_nested_files(self, kvlint: Kvlint, tree) -> None:
        tree(
            {
                ".gitignore": "*.gen.py\n/top.py\nout/\n",
                "x.gen.py": "",
                "top.py": "",
                "out/a.py": "",
                "pkg/.gitignore": "!keep.gen.py\nlocal.py\n",
                "pkg/keep.gen.py": "",
                "pkg/other.gen.py": "",
                "pkg/top.py": "",
                "pkg/local.py": "",
                "pkg/sub/local.py": "",
                "local.py": "",
            }
        )
        assert files(kvlint) == ["local.py", "pkg/keep.gen.py", "pkg/top.py"]

    def test_can_be_switched_off(self, kvlint: Kvlint, tree) -> None:
        tree({".gitignore": "a.py\n", "a.py": "", "pyproject.toml": ""})
        assert files(kvlint) == []
        assert files(kvlint, "--no-respect-gitignore") == ["a.py"]
        tree({"pyproject.toml": "[tool.kvlint]\nrespect-gitignore = false\n"})
        assert files(kvlint) == ["a.py"]
        assert files(kvlint, "--respect-gitignore") == []

    def test_files_above_count_in_a_repository(self, kvlint: Kvlint, tree) -> None:
        tree({".git/HEAD": "", ".gitignore": "/pkg/sub/a.py\nb.py\n", "pkg/sub/a.py": "", "pkg/sub/b.py": ""})
        tree(
            {
                "pkg/.gitignore": "!b.py\n",
                ".git/info/exclude": "c.py\n",
                "pkg/sub/c.py": "",
                "pkg/sub/d.py": "",
            }
        )
        assert files(kvlint, "pkg/sub") == ["pkg/sub/b.py", "pkg/sub/d.py"]

    def test_a_repository_inside_starts_anew(self, kvlint: Kvlint, tree) -> None:
        tree({".git/HEAD": "", ".gitignore": "a.py\n", "third/.git/HEAD": "", "third/a.py": ""})
        assert files(kvlint) == ["third/a.py"]

    def test_explicit_file_is_checked_unless_forced(self, kvlint: Kvlint, tree) -> None:
        tree({".git/HEAD": "", ".gitignore": "out/\n", "out/a.py": ""})
        assert files(kvlint, "out/a.py") == ["out/a.py"]
        assert files(kvlint, "out/a.py", "--force-exclude") == []

    def test_odd_bytes_and_line_ends(self, kvlint: Kvlint, tmp_path: Path) -> None:
        (tmp_path / ".gitignore").write_bytes(b"\xff\xfe*\r\nb.py\r\n")
        for name in ("a.py", "b.py"):
            (tmp_path / name).write_text("")
        assert files(kvlint) == ["a.py"]


class TestOddTrees:
    def test_broken_link(self, kvlint: Kvlint, tree, tmp_path: Path) -> None:
        tree({"a.py": ""})
        (tmp_path / "b.py").symlink_to("gone.py")
        assert files(kvlint) == ["a.py"]

    def test_neither_file_nor_folder(self, kvlint: Kvlint, tmp_path: Path) -> None:
        import os

        os.mkfifo(tmp_path / "pipe.py")
        assert files(kvlint) == []
        ran = kvlint("check", "pipe.py")
        assert (ran.code, ran.err) == (2, "kvlint: error: pipe.py: neither a file nor a folder\n")

    def test_folder_named_like_a_file(self, kvlint: Kvlint, tree) -> None:
        tree({"pkg.py/a.py": ""})
        assert files(kvlint) == ["pkg.py/a.py"]
