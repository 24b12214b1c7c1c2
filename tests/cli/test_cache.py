"""The cache: what an answer depends on, what survives which change, and what happens to bad files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli.test_startup import COSTLY, FOR_OPERATORS, HEAVY, found, imported

from kvlint import analysis
from kvlint.__main__ import main
from kvlint.cache import FOLDER, Cache

OP = "import torch, torch_npu\n"
INVERTED = "torch.tril(torch.ones(2048, 2048, dtype=torch.bool))"
RIGHT = "torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)"
ATTEND = (
    "def attend(q, k, v, mask, ends):\n"
    "    return torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=8, num_key_value_heads=8,"
    " scale=0.1, input_layout='TND', sparse_mode=3, atten_mask=mask, actual_seq_lengths=ends,"
    " actual_seq_lengths_kv=ends)[0]\n"
)
FILES = {
    "setup.py": "",
    "pack/op.py": OP + ATTEND,
    "pack/use.py": f"{OP}from pack.op import attend\ndef run(q, k, v, ends):\n"
    f"    return attend(q, k, v, {INVERTED}, ends)\n",
    "pack/other.py": f"{OP}def run(q, k, v):\n"
    "    return torch_npu.npu_fusion_attention(q, k, v, 8, 'BSH')[0]\n",
    "pack/plain.py": "x = 1\n",
}


class Place:
    """A project, and runs over it."""

    def __init__(self, top: Path, capsys: pytest.CaptureFixture[str], checked: list[str]) -> None:
        self.top = top
        self.capsys = capsys
        self.checked = checked

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run(self, *words: str, command: str = "check") -> tuple[int, str]:
        """The exit code and output; errors are none."""
        with pytest.raises(SystemExit) as ended:
            main([command, *words])
        out, err = self.capsys.readouterr()
        assert err == ""
        assert isinstance(ended.value.code, int)
        return ended.value.code, out

    def work(self, *words: str) -> list[str]:
        """The files that a run had to check anew; its report is that of a run without the cache."""
        expected = self.run(*words, "--no-cache")
        self.checked.clear()
        assert self.run(*words) == expected
        return sorted(os.path.relpath(path, self.top) for path in self.checked)

    @property
    def files(self) -> list[Path]:
        """The cache's own."""
        return sorted(path for path in (self.top / FOLDER).glob("*/*"))


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Place]:
    monkeypatch.delenv("KVLINT_NO_CACHE")
    monkeypatch.chdir(tmp_path)
    # Files count as settled at once; the tests take longer than a time stamp.
    monkeypatch.setattr("kvlint.source.disk.TICK", 0)
    checked: list[str] = []
    check = analysis.Session.check

    def noted(self: analysis.Session, item, source: bytes, relevant: bool) -> None:
        checked.append(item.path)
        check(self, item, source, relevant)

    monkeypatch.setattr(analysis.Session, "check", noted)
    made = Place(tmp_path, capsys, checked)
    made.write(FILES)
    yield made


EVERY = ["pack/op.py", "pack/other.py"]


class TestWhatIsCheckedAnew:
    def test_nothing_without_a_change(self, place: Place) -> None:
        assert place.work() == EVERY
        assert place.work() == []

    def test_the_finding_is_there(self, place: Place) -> None:
        for _ in range(2):
            code, out = place.run("--output-format", "concise")
            assert code == 1
            assert "pack/op.py:3:" in out and "KV203" in out

    def test_the_edited_file(self, place: Place) -> None:
        place.work()
        place.write({"pack/other.py": FILES["pack/other.py"] + "\n"})
        assert place.work() == ["pack/other.py"]
        assert place.work() == []

    def test_what_the_edited_file_calls(self, place: Place) -> None:
        place.work()
        place.write({"pack/use.py": FILES["pack/use.py"].replace(INVERTED, RIGHT)})
        assert place.work() == ["pack/op.py"]

    def test_nothing_for_a_file_that_nobody_asked_about(self, place: Place) -> None:
        place.work()
        place.write({"pack/plain.py": "x = 2\n", "pack/new.py": "y = 3\n"})
        assert place.work() == []

    def test_who_is_called_from_a_new_file(self, place: Place) -> None:
        place.work()
        place.write({"pack/new.py": FILES["pack/use.py"]})
        assert place.work() == ["pack/op.py"]

    def test_who_was_called_from_a_deleted_file(self, place: Place) -> None:
        place.work()
        (place.top / "pack/use.py").unlink()
        assert place.work() == ["pack/op.py"]

    def test_who_imports_a_file_that_was_not_there(self, place: Place) -> None:
        user = f"{OP}from masks import MASK\n{ATTEND.replace('mask=mask', 'mask=MASK')}"
        place.write({"pack/user.py": user})
        assert "pack/user.py" in place.work()
        place.write({"masks.py": f"import torch\nMASK = {INVERTED}\n"})
        assert place.work() == ["pack/user.py"]
        place.write({"pack/masks.py": f"import torch\nMASK = {RIGHT}\n"})
        assert place.work() == ["pack/user.py"]

    def test_nothing_for_a_new_time_stamp(self, place: Place) -> None:
        place.work()
        for name in FILES:
            os.utime(place.top / name, (1, 1))
        assert place.work() == []

    def test_a_change_that_keeps_size_and_time(self, place: Place) -> None:
        place.work()
        path = place.top / "pack/use.py"
        before = path.stat()
        path.write_text(FILES["pack/use.py"].replace("tril", "triu"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert place.work() == ["pack/op.py"]

    def test_files_that_were_not_part_of_the_run_are_kept(self, place: Place) -> None:
        place.work()
        place.write({"pack/use.py": FILES["pack/use.py"].replace(INVERTED, RIGHT)})
        assert place.work("pack/other.py") == []
        assert place.work("pack/op.py") == ["pack/op.py"]
        assert place.work() == []

    def test_a_notebook(self, place: Place) -> None:
        cell = '{"cells": [{"cell_type": "code", "source": "import torch_npu\\n%s"}]}'
        call = "torch_npu.npu_fusion_attention(q, k, v, 8, 'BSH')"
        place.write({"n.ipynb": cell % call})
        assert "n.ipynb" in place.work()
        assert place.work("--output-format", "json") == []

    def test_a_file_that_does_not_parse(self, place: Place) -> None:
        place.write({"pack/other.py": FILES["pack/other.py"] + "def (:\n"})
        assert "pack/other.py" in place.work()
        assert place.work() == []

    def test_comments_that_hide_findings(self, place: Place) -> None:
        text = FILES["pack/op.py"].replace("    return", "    # kvlint: ignore[KV203, KV777]\n    return")
        place.write({"pack/op.py": text, "pack/note.py": "x = 1  # kvlint: ignore[KV203]\n"})
        assert place.work("--select", "ALL") == ["pack/note.py", *EVERY]
        assert place.work("--select", "ALL") == []


class TestSettings:
    def test_each_selection_has_its_answers(self, place: Place) -> None:
        place.work()
        assert place.work("--ignore", "KV203") == EVERY
        assert place.work() == []
        assert place.work("--ignore", "KV203") == []

    @pytest.mark.parametrize(
        "words",
        [
            ("--torch-npu", "2.7.1"),
            ("--soc", "310P"),
            ("--cann", "8.2"),
            ("--config", "src=['pack']"),
            ("--per-file-ignores", "op.py:KV203"),
        ],
    )
    def test_answers_to_others_are_not_given(self, place: Place, words: tuple[str, ...]) -> None:
        place.work()
        assert "pack/op.py" in place.work(*words)

    def test_wrong_ones_are_reported_all_the_same(
        self, place: Place, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place.work("--select", "KV203")
        place.write({"pyproject.toml": "[tool.kvlint]\nselect = ['KV777']\n"})
        for _ in range(2):
            with pytest.raises(SystemExit) as ended:
                main(["check"])
            assert ended.value.code == 2
            assert 'no rule is called "KV777"' in capsys.readouterr().err

    def test_without_a_marked_project_each_choice_of_paths_has_its_answers(self, place: Place) -> None:
        (place.top / "setup.py").unlink()
        place.work("--cache-dir", FOLDER)
        assert place.work("pack/op.py", "--cache-dir", FOLDER) == ["pack/op.py"]
        assert place.work("--cache-dir", FOLDER) == []
        assert place.work("pack/op.py", "--cache-dir", FOLDER) == []

    def test_paths_are_shown_from_where_the_run_starts(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place.work()
        monkeypatch.chdir(place.top / "pack")
        assert place.work("..") == []
        assert "../" not in place.run(".")[1]

    @pytest.mark.parametrize("words", [("--coverage",), ("--undecided",)])
    def test_obligations_are_always_worked_out(self, place: Place, words: tuple[str, ...]) -> None:
        place.work()
        assert place.work(*words) == EVERY


class TestFiles:
    def test_the_folder_is_no_part_of_the_project(self, place: Place) -> None:
        place.work("pack/op.py")
        folder = place.top / FOLDER
        assert (folder / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
        assert (folder / ".gitignore").read_text() == "*\n"

    def test_there_is_none_where_there_is_nothing_to_check(self, place: Place) -> None:
        place.run("pack/plain.py")
        assert not (place.top / FOLDER).exists()

    def test_it_is_in_the_project_of_what_is_checked(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        place.run(str(place.top / "pack"))
        assert place.files
        assert os.listdir() == []

    def test_the_parts_of_a_project_share_it(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        place.write({"pack/pyproject.toml": ""})
        place.run("pack/op.py")
        assert place.files
        monkeypatch.chdir(place.top / "pack")
        place.run("op.py")
        assert (place.top / "pack" / FOLDER).exists()

    def test_where_it_is_said_to_be(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        place.write({"pyproject.toml": "[tool.kvlint]\ncache-dir = 'in/config'\n"})
        place.run("pack")
        monkeypatch.setenv("KVLINT_CACHE_DIR", "in/environment")
        place.run("pack")
        place.run("pack", "--cache-dir", "in/option")
        made = {path.relative_to(place.top).as_posix() for path in place.top.glob("in/*/*/findings")}
        assert {name.split("/")[1] for name in made} == {"config", "environment", "option"}
        assert not (place.top / FOLDER).exists()

    def test_a_folder_of_somebody_else_is_not_hidden(self, place: Place) -> None:
        place.write({"mine/note.txt": ""})
        place.run("pack", "--cache-dir", "mine")
        assert not (place.top / "mine/.gitignore").exists()

    @pytest.mark.parametrize("value", ["1", "true", "yes"])
    def test_none_is_wanted(self, place: Place, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        place.run("pack", "--no-cache")
        monkeypatch.setenv("KVLINT_NO_CACHE", value)
        place.run("pack")
        assert not (place.top / FOLDER).exists()

    @pytest.mark.parametrize("value", ["", "0", "false", "no"])
    def test_one_is_wanted(self, place: Place, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.setenv("KVLINT_NO_CACHE", value)
        place.run("pack")
        assert place.files

    def test_standard_input_leaves_nothing(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        import io
        from types import SimpleNamespace

        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(FILES["pack/op.py"].encode())))
        place.run("-", "--stdin-filename", "pack/op.py")
        assert not (place.top / FOLDER).exists()

    def test_deleted_files_are_dropped(self, place: Place) -> None:
        place.work()
        assert b"other.py" in place.files[0].read_bytes()
        (place.top / "pack/other.py").unlink()
        place.write({"pack/plain.py": "x = 22\n"})
        place.work()
        assert all(b"other.py" not in path.read_bytes() for path in place.files)


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _foreign(data: bytes) -> bytes:
    from kvlint.source.disk import digest_of

    header, _, _ = data.partition(b"\n")
    body = b'{"files": {"a": 1}, "entries": [1], "accepted": 7, "top": {}, "answers": 3}'
    return b" ".join([*header.split(b" ")[:-1], digest_of(body).encode()]) + b"\n" + body


class TestBadFiles:
    @pytest.mark.parametrize("spoil", [_cut, _flip, _foreign, lambda data: b"", lambda data: b"\xff" * 99])
    @pytest.mark.parametrize("name", ["findings", "searches"])
    def test_count_as_none(self, place: Place, name: str, spoil: Callable[[bytes], bytes]) -> None:
        place.work()
        (path, *_) = (path for path in place.files if path.name.startswith(name))
        path.write_bytes(spoil(path.read_bytes()))
        place.write({"pack/new.py": "attend = 1\n"})
        place.work()
        assert place.work() == []

    def test_a_folder_in_the_place_of_a_file(self, place: Place) -> None:
        place.work()
        path = place.files[0]
        path.unlink()
        path.mkdir()
        assert place.work() == EVERY

    def test_a_file_in_the_place_of_the_folder(self, place: Place) -> None:
        place.write({FOLDER: ""})
        assert place.work() == EVERY

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing stops root")
    def test_a_folder_that_cannot_be_written_to(self, place: Place) -> None:
        place.top.chmod(0o500)
        try:
            assert place.work() == EVERY
        finally:
            place.top.chmod(0o700)

    @pytest.mark.parametrize("call", ["makedirs", "replace", "listdir"])
    def test_a_system_that_says_no(self, place: Place, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", "there")

        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            assert place.work() == EVERY

    def test_another_kvlint(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        place.work()
        monkeypatch.setattr("kvlint.cache._kvlint", lambda known: ("other", "other"))
        assert place.work() == EVERY
        assert place.work() == []

    def test_every_part_that_decides_counts(self) -> None:
        from kvlint import cache

        here = Path(cache.__file__).parent
        counted = {Path(path).resolve() for path in cache._code(str(here))}
        parts = [path for name in ("contract", "source", "rules") for path in (here / name).rglob("*.py")]
        parts += [*here.glob("*.py"), *here.glob("contract/**/*.json")]
        assert {path.resolve() for path in parts} <= counted
        assert any(path.parent.name == "libcst" for path in counted)

    def test_a_kvlint_that_is_edited_meanwhile(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        edits = iter("abc")
        with monkeypatch.context() as patch:
            patch.setattr("kvlint.cache._kvlint", lambda known: (next(edits), "x"))
            place.run()
        assert place.files == []

    def test_one_inside_an_archive(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(known: tuple[str, str]) -> tuple[str, str]:
            raise NotADirectoryError

        monkeypatch.setattr("kvlint.cache._kvlint", fail)
        assert place.work() == EVERY
        assert place.files == []

    def test_the_same_kvlint_installed_anew(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        from kvlint import cache

        place.work()
        real = cache._kvlint
        monkeypatch.setattr("kvlint.cache._kvlint", lambda known: ("moved", real(("", ""))[1]))
        assert place.work() == []


def test_a_file_that_changes_meanwhile_is_not_remembered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = analysis.Session.check

    def edited(self: analysis.Session, item, source: bytes, relevant: bool) -> None:
        check(self, item, source, relevant)
        path = place.top / "pack/use.py"
        path.write_text(path.read_text() + "\n")

    with monkeypatch.context() as patch:
        patch.setattr(analysis.Session, "check", edited)
        place.run()
    assert place.work() == EVERY


def test_an_internal_error_is_not_remembered(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr("kvlint.analysis._File.run", fail)
        with pytest.raises(SystemExit) as ended:
            main(["check"])
        assert ended.value.code == 2
        capsys.readouterr()
    assert place.work() == EVERY


def test_what_another_run_has_written_meanwhile_is_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Cache.save

    def later(self: Cache) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Cache, "save", save)
            place.run("pack/op.py")
        save(self)

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "save", later)
        place.run("pack/other.py")
    assert place.work() == []


def test_runs_at_the_same_time(place: Place) -> None:
    expected = place.run("--no-cache")

    def child(words: tuple[str, ...]) -> tuple[int, str, str]:
        ran = subprocess.run(
            [sys.executable, "-m", "kvlint", "check", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=place.top,
        )
        return ran.returncode, ran.stdout, ran.stderr

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(child, ()) for _ in range(4)]
        runs += [pool.submit(child, ("pack/op.py",)) for _ in range(2)]
        for run in runs[:4]:
            assert run.result() == (*expected, "")
        assert all(run.result()[2] == "" for run in runs)
    assert not [path for path in place.files if path.name.endswith(".new")]
    assert place.run() == expected


class TestStart:
    def test_a_run_without_a_change_loads_no_parser(self, place: Place) -> None:
        place.run()
        modules = imported(place.top, "check")
        assert "kvlint.cache" in modules
        assert found(modules, HEAVY + FOR_OPERATORS) == []

    def test_neither_does_one_after_a_change_that_matters_to_nobody(self, place: Place) -> None:
        place.run()
        place.write({"pack/plain.py": "def build(): ...\n"})
        assert found(imported(place.top, "check"), HEAVY + FOR_OPERATORS) == []

    def test_selections_that_were_right_need_no_rules(self, place: Place) -> None:
        place.run("--select", "KV2")
        assert found(imported(place.top, "check", "--select", "KV2"), HEAVY + FOR_OPERATORS) == []

    def test_a_file_without_calls_needs_no_cache(self, place: Place) -> None:
        place.run()
        modules = imported(place.top, "check", "pack/plain.py")
        assert found(modules, (*HEAVY, *FOR_OPERATORS, *COSTLY, "re")) == []


class TestClean:
    def test_removes_it(self, place: Place) -> None:
        place.work()
        assert place.run(command="clean") == (0, f"Removed {FOLDER}\n")
        assert not (place.top / FOLDER).exists()
        assert place.run(command="clean") == (0, "")

    def test_a_path_that_does_not_exist(self, place: Place) -> None:
        place.work()
        with pytest.raises(SystemExit) as ended:
            main(["clean", "pak"])
        assert ended.value.code == 2
        assert place.capsys.readouterr().err == "kvlint: error: pak: No such file or directory\n"
        assert (place.top / FOLDER).exists()

    def test_the_home_folder(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(place.top / "home"))
        monkeypatch.setenv("KVLINT_CACHE_DIR", "~/kept")
        place.run("pack")
        assert (place.top / "home" / "kept").is_dir()
        assert not (place.top / "~").exists()

    def test_what_is_not_ours_stays(self, place: Place) -> None:
        place.write({"mine/note.txt": "", "mine/deep/findings.txt": "", "mine/1-2/findings/x.txt": ""})
        place.run("pack", "--cache-dir", "mine")
        assert place.run("--cache-dir", "mine", command="clean") == (0, "Removed mine\n")
        left = sorted(path.relative_to(place.top).as_posix() for path in place.top.glob("mine/**/*"))
        kept = ["mine/1-2/findings/x.txt", "mine/deep/findings.txt", "mine/note.txt"]
        assert [name for name in left if name.endswith(".txt")] == kept
