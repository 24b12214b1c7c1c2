"""Whatever is edited, a run with the cache says exactly what a run without it says."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from source.test_flow import BAD, GOOD, PROJECTS

from kvlint.__main__ import main
from kvlint.contract.call import Call
from kvlint.contract.rule import Outcome, Rule, Verdict, judge
from kvlint.source.disk import TICK

STEPS = 14
SEEDS = range(int(os.environ.get("KVLINT_CACHE_SEEDS", "6")))
LINES = (
    "x.mask = None",
    "x.heads = 4",
    "attend = None",
    "op.attend = print",
    "attend(q, k, v, None, ends)",
    "class Other(Attention): pass",
    "class Other(Op): pass",
    "Meta(None, None)",
    "# kvlint: ignore-file[KV203]",
    "# kvlint: ignore-file[KV999]",
    "from op import *",
    "def broken(:",
    "\N{LATIN SMALL LETTER E WITH ACUTE} = 1",
)
OPTIONS = (
    (),
    (),
    ("--ignore", "KV203"),
    ("--select", "ALL"),
    ("--torch-npu", "2.7.1"),
    ("--soc", "310P"),
    ("--config", "src=['.', 'extra']"),
    ("--statistics",),
    ("--coverage",),
    ("--exclude", "b"),
)


class Edits:
    """Random changes of a tree of files."""

    def __init__(self, top: Path, chance: random.Random) -> None:
        self.top = top
        self.chance = chance
        self.gone: dict[Path, bytes] = {}

    def some_file(self) -> Path:
        files = sorted(path for path in self.top.rglob("*.py") if path.is_file())
        if not files:
            project(self.top, self.chance)
            return self.some_file()
        return self.chance.choice(files)

    def some_folder(self) -> Path:
        folders = [path for path in self.top.rglob("*") if path.is_dir() and ".kvlint_cache" not in str(path)]
        return self.chance.choice(sorted([self.top, *folders]))

    def mask(self) -> None:
        path = self.some_file()
        text = path.read_bytes().decode(errors="replace")
        text = text.replace(GOOD, BAD) if GOOD in text else text.replace(BAD, GOOD)
        path.write_text(text)

    def same_size(self) -> None:
        path = self.some_file()
        before = path.stat()
        data = path.read_bytes()
        data = data.replace(b"mode=3", b"mode=0") if b"mode=3" in data else data.replace(b"mode=0", b"mode=3")
        path.write_bytes(data)
        if self.chance.random() < 0.5:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def line(self) -> None:
        path = self.some_file()
        with open(path, "a") as file:
            file.write(f"{self.chance.choice(LINES)}\n")

    def undo_line(self) -> None:
        path = self.some_file()
        lines = path.read_bytes().splitlines(keepends=True)
        if lines and lines[-1].decode(errors="replace").rstrip() in LINES:
            path.write_bytes(b"".join(lines[:-1]))

    def touch(self) -> None:
        os.utime(self.some_file(), (1, self.chance.randrange(10**9)))

    def delete(self) -> None:
        path = self.some_file()
        self.gone[path] = path.read_bytes()
        path.unlink()

    def restore(self) -> None:
        for path in list(self.gone):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.gone.pop(path))
            return

    def rename(self) -> None:
        path = self.some_file()
        names = ("op.py", "use.py", "other.py", "model.py", "test_x.py")
        path.rename(path.with_name(self.chance.choice(names)))

    def swap(self) -> None:
        first, second = self.some_file(), self.some_file()
        if first != second:
            first.rename(self.top / "swapped")
            second.rename(first)
            (self.top / "swapped").rename(second)

    def mark(self) -> None:
        name = self.chance.choice(("__init__.py", "pyproject.toml", "setup.cfg", "setup.py", ".git", "src"))
        path = self.some_folder() / name
        if path.is_file():
            path.unlink()
        elif not path.exists():
            path.touch()

    def settings(self) -> None:
        texts = ("", "[tool.kvlint]\nignore = ['KV203']\n", "[tool.kvlint]\nsrc = ['a', 'b']\n")
        text = self.chance.choice(texts)
        (self.some_folder() / "pyproject.toml").write_text(text)

    def shadow(self) -> None:
        path = self.some_file()
        (self.some_folder() / path.name).write_bytes(path.read_bytes())

    def link(self) -> None:
        path = self.some_file()
        other = self.some_file()
        if path != other and not other.is_symlink():
            path.unlink()
            path.symlink_to(other)

    def damage(self) -> None:
        files = sorted(path for path in self.top.glob(".kvlint_cache/*/*") if path.is_file())
        if files:
            path = self.chance.choice(files)
            data = bytearray(path.read_bytes())
            if self.chance.random() < 0.3:
                path.unlink()
            elif self.chance.random() < 0.5:
                path.write_bytes(data[: self.chance.randrange(len(data))])
            else:
                data[self.chance.randrange(len(data))] ^= 4
                path.write_bytes(data)

    def any(self) -> Callable[[], None]:
        edits = (
            self.mask, self.mask, self.same_size, self.same_size, self.line, self.line, self.undo_line,
            self.touch, self.delete, self.restore, self.rename, self.swap, self.mark, self.settings,
            self.shadow, self.link, self.damage,
        )  # fmt: skip
        return self.chance.choice(edits)


def tell_all(rule: Rule, call: Call, **options: bool) -> list[Verdict]:
    """Makes every verdict a finding, so that whatever is known of a call shows."""
    verdicts = judge(rule, call, **options)
    return [
        replace(verdict, outcome=Outcome.VIOLATED, message=f"{verdict.outcome.value}: {verdict.message}")
        for verdict in verdicts
    ]


def project(top: Path, chance: random.Random) -> None:
    for folder in ("a", "b"):
        files = PROJECTS[chance.choice(sorted(PROJECTS))]
        for name, text in files.items():
            path = top / folder / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("import torch, torch_npu\n" + text.replace("MASK", chance.choice((GOOD, BAD))))
    (top / "setup.py").touch()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_found_is_what_a_run_without_the_cache_finds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    monkeypatch.delenv("KVLINT_NO_CACHE")
    monkeypatch.chdir(tmp_path)
    project(tmp_path, chance)
    edits = Edits(tmp_path, chance)
    done: list[str] = []
    if seed % 2:
        monkeypatch.setattr("kvlint.analysis.judge", tell_all)
    # So short that the signatures of files are trusted soon after they were written.
    monkeypatch.setattr("kvlint.source.disk.TICK", chance.choice((TICK, 10_000_000)))
    def ran(*words: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["check", "--output-format", "json", "--cache-dir", str(tmp_path / ".kvlint_cache"), *words])
        return ended.value.code, *capsys.readouterr()

    for _ in range(STEPS):
        words = list(chance.choice(OPTIONS))
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            edit = edits.any()
            done.append(edit.__name__)
            edit()
        where = chance.choice((".", ".", ".", "a", "b"))
        if chance.random() < 0.3:
            where = os.path.relpath(edits.some_file())
        words += [where] if os.path.exists(where) else ["."]
        done.append(" ".join(words))
        plain = ran(*words, "--no-cache")
        assert ran(*words) == plain, done
        assert ran(*words) == plain, done


@pytest.mark.parametrize("seed", range(8))
def test_what_is_found_in_a_file_does_not_depend_on_the_files_before(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    project(tmp_path, random.Random(seed))

    def obligations(*paths: str) -> list[dict[str, object]]:
        with pytest.raises(SystemExit):
            main(["check", "--output-format", "json", "--coverage", *paths])
        found = json.loads(capsys.readouterr().out)["obligations"]
        return sorted(found, key=json.dumps)

    alone = [item for path in sorted(tmp_path.rglob("*.py")) for item in obligations(str(path))]
    assert obligations(".") == sorted(alone, key=json.dumps) != []
