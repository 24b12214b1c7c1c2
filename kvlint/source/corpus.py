"""All files of a project, searched by the bytes of a name. Read once, when a question needs them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from .module import ModuleIndex

_TOP_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
_SKIPPED = frozenset(
    ("node_modules", "site-packages", "build", "dist", "venv", "__pycache__", "third_party", "3rdparty")
)
_TESTS = re.compile(
    r"(?:^|[/\\])(?:tests?|testing|unittests?)[/\\]|(?:^|[/\\])(?:test_\w*|\w*_test|conftest)\.py$"
)
_IMPORTS = re.compile(rb"^[ \t]*from[ \t]+[\w.]+[ \t]+import[ \t]*(?:\([^)]*\)|[^\n]*)", re.M)
# Searches that start with fixed bytes are many times faster than those that start at every line.
_ASSIGNED = re.compile(rb"\.(\w+)[ \t]*=(?!=)")
_OBJECT = re.compile(rb"[ \t]*(?!self\.)[\w.]+\.")
_CLASS = re.compile(rb"class[ \t]+\w+[ \t]*\(([^)]*)\)")
# A larger tree is not searched: the answer "nobody else does it" would come too late to be worth it.
MAX_FOLDERS = 20_000
MAX_FILES = 12_000
MAX_BYTES = 200_000_000
MAX_FILE_BYTES = 2_000_000


class Corpus:
    """The Python files below a folder, without tests: they call things wrongly on purpose."""

    def __init__(self, top: str) -> None:
        self.top = top
        self._texts: dict[str, bytes] | None = None
        self._assigned: set[bytes] | None = None
        self._derived: dict[str, list[str]] | None = None
        self.complete = True
        """False when the tree is too large to be searched."""

    def mentioning(self, *names: str) -> list[str]:
        """The files with one of the identifiers in them, by path."""
        wanted = re.compile(rb"\b(?:" + b"|".join(re.escape(n.encode()) for n in names) + rb")\b")
        plain = [name.encode() for name in names]
        return [
            path
            for path, text in self._read().items()
            if any(name in text for name in plain) and wanted.search(text)
        ]

    def using(self, *names: str) -> list[str]:
        """The files that do more with one of the classes than import it or name it in an annotation."""
        one_of = b"|".join(re.escape(n.encode()) for n in names)
        wanted = re.compile(
            rb"\b(?:" + one_of + rb")\s*\(|[(=\[{,]\s*(?:\w+\.)*(?:" + one_of + rb")\b|"
            rb"\b(?:return|else|or|and|if|yield)\s+(?:\w+\.)*(?:" + one_of + rb")\b"
        )
        texts = self._read()
        return [path for path in self.mentioning(*names) if wanted.search(_IMPORTS.sub(b"", texts[path]))]

    def deriving(self, name: str) -> list[str]:
        """The files with a class that has a base of that name."""
        if self._derived is None:
            self._derived = {}
            for path, text in self._read().items():
                for header in _CLASS.finditer(text):
                    for base in header.group(1).split(b","):
                        last = base.split(b"[")[0].rsplit(b".", 1)[-1].strip().decode(errors="replace")
                        if path not in self._derived.setdefault(last, []):
                            self._derived[last].append(path)
        return self._derived.get(name, [])

    def replaces(self, name: str) -> bool:
        """Whether some file assigns ``x.name``, so that a function of that name may be another one."""
        if self._assigned is None:
            self._assigned = set()
            for text in self._read().values():
                self._assigned.update(_assigned_in(text))
        return name.encode() in self._assigned

    def calling(self, name: str) -> list[str]:
        """The files that call something by that name."""
        plain = name.encode()
        wanted = re.compile(rb"(?<!def )\b" + re.escape(plain) + rb"\s*\(")
        return [path for path, text in self._read().items() if plain in text and wanted.search(text)]

    def assigning(self, name: str) -> list[str]:
        """The files that assign an attribute of that name to something other than ``self``."""
        plain = b"." + name.encode()
        wanted = re.compile(rb"(?<!\bself)" + re.escape(plain) + rb"\s*(?:\[[^\n\]]*\])?\s*=(?!=)")
        return [path for path, text in self._read().items() if plain in text and wanted.search(text)]

    def _read(self) -> dict[str, bytes]:
        if self._texts is None:
            self._texts = {}
            total = 0
            paths = self._paths()
            self.complete = paths is not None
            for path in paths or ():
                try:
                    with open(path, "rb") as stream:
                        text = stream.read(MAX_FILE_BYTES + 1)
                except OSError:
                    continue
                total += len(text)
                if len(text) <= MAX_FILE_BYTES:
                    self._texts[path] = text
                if total > MAX_BYTES:
                    self.complete = False
                    self._texts = {}
                    break
        return self._texts

    def _paths(self) -> list[str] | None:
        """Every Python file below the folder; None when the tree is too large."""
        found: list[str] = []
        for count, (folder, folders, files) in enumerate(os.walk(self.top)):
            if count > MAX_FOLDERS or len(found) > MAX_FILES:
                return None
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            folders[:] = sorted(
                f
                for f in folders
                if f not in _SKIPPED and not f.startswith(".") and not f.endswith(".egg-info")
            )
            for name in sorted(files):
                path = os.path.join(folder, name)
                if name.endswith(".py") and not _TESTS.search(os.path.relpath(path, self.top)):
                    found.append(path)
        return found


class Corpora:
    """The corpora of a run, each read once.

    Args:
        named: folders that the user asked to check.
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._named = tuple(os.path.abspath(folder) for folder in named)
        self._tops: dict[str, str | None] = {}
        self._found: dict[str, Corpus] = {}
        self.modules: dict[str, ModuleIndex | None] = {}
        """Absolute path -> what is in the file, for every project of the run."""

    def of(self, path: str) -> Corpus | None:
        """The files of the project that a file belongs to; None for a file by itself."""
        folder = os.path.dirname(os.path.abspath(path))
        if folder not in self._tops:
            self._tops[folder] = _top_of(folder, self._named)
        top = self._tops[folder]
        if top is None:
            return None
        if top not in self._found:
            self._found[top] = Corpus(top)
        return self._found[top]


def _assigned_in(text: bytes) -> Iterator[bytes]:
    """The names of attributes that a text assigns to something other than ``self``."""
    for found in _ASSIGNED.finditer(text):
        dot = found.start()
        if _OBJECT.fullmatch(text, text.rfind(b"\n", 0, dot) + 1, dot + 1):
            yield found.group(1)


def _top_of(folder: str, named: tuple[str, ...]) -> str | None:
    """The folder of the project a file belongs to: marked as one, or named on the command line."""
    current = folder
    for _ in range(12):
        if any(os.path.lexists(os.path.join(current, mark)) for mark in _TOP_MARKS):
            return current
        above = os.path.dirname(current)
        if above == current:
            break
        current = above
    around = [top for top in named if folder == top or folder.startswith(top.rstrip(os.sep) + os.sep)]
    if around:
        return min(around, key=len)
    if not os.path.isfile(os.path.join(folder, "__init__.py")):
        return None
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    return folder
