"""All files of a project, searched by the bytes of a name. Read once, when a question needs them."""

from __future__ import annotations

import os
import re

from kvlint.roots import above_package

from .disk import Disk, Question, Trace, digest_of_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .module import ModuleIndex

_TOP_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
_SKIPPED = frozenset(
    ("node_modules", "site-packages", "build", "dist", "venv", "__pycache__", "third_party", "3rdparty")
)
_TESTS = re.compile(
    r"(?:^|[/\\])(?:tests?|testing|unittests?)[/\\]|(?:^|[/\\])(?:test_\w*|\w*_test|conftest)\.py$"
)
_IMPORTS = re.compile(rb"^[ \t]*from[ \t]+[\w.]+[ \t]+import[ \t]*(?:\([^)]*\)|[^\n]*)", re.M)
_ASSIGNED = re.compile(rb"\.(\w+)[ \t]*=(?!=)")
_OBJECT = re.compile(rb"[ \t]*(?!self\.)[\w.]+\.")
_CLASS = re.compile(rb"class[ \t]+\w+[ \t]*\(([^)]*)\)")
# A larger tree is not searched: the answer "nobody else does it" would come too late to be worth it.
MAX_FOLDERS = 20_000
MAX_FILES = 12_000
MAX_BYTES = 200_000_000
MAX_FILE_BYTES = 2_000_000


class Searched:
    """The answers of an earlier run, and the content of the files that they were found in."""

    __slots__ = ("answers", "digests")

    def __init__(self, digests: Mapping[str, str], answers: Mapping[Question, list[str]]) -> None:
        self.digests = digests
        self.answers = answers


class Corpus:
    """The Python files below a folder, without tests: they call things wrongly on purpose."""

    def __init__(
        self, top: str, disk: Disk | None = None, earlier: Callable[[str], Searched | None] | None = None
    ) -> None:
        self.top = top
        self.trace: Trace | None = None
        """Where questions are noted; None when nobody wants to know."""
        self.answers: dict[Question, list[str]] = {}
        """What has been asked, and the files that were found."""
        self.news = False
        """Whether there are answers that no earlier run had, or that have changed since."""
        self._disk = disk or Disk()
        self._earlier = earlier
        self._listed: tuple[list[str], bool] | None = None
        self._digests: dict[str, str] | None = None
        self._state = ""
        self._texts: dict[str, bytes] | None = None
        self._tables: dict[str, dict[bytes, list[str]]] = {}

    @property
    def complete(self) -> bool:
        """False when the tree is too large to be searched."""
        self._note(("complete",))
        return self._list()[1]

    def mentioning(self, *names: str) -> list[str]:
        """The files with one of the identifiers in them, by path."""
        return self.ask(("mentioning", *names))

    def using(self, *names: str) -> list[str]:
        """The files that do more with one of the classes than import it or name it in an annotation."""
        return self.ask(("using", *names))

    def deriving(self, name: str) -> list[str]:
        """The files with a class that has a base of that name."""
        return self.ask(("deriving", name))

    def replaces(self, name: str) -> bool:
        """Whether some file assigns ``x.name``, so that a function of that name may be another one."""
        return bool(self.ask(("replacing", name)))

    def calling(self, name: str) -> list[str]:
        """The files that call something by that name."""
        return self.ask(("calling", name))

    def assigning(self, name: str) -> list[str]:
        """The files that assign an attribute of that name to something other than ``self``."""
        return self.ask(("assigning", name))

    def ask(self, question: Question) -> list[str]:
        """The files that a search finds, in the order of the tree."""
        self._note(question)
        if self._earlier is not None and question not in self.answers:
            earlier = self._earlier(self.top)
            self._earlier = None
            if earlier is not None:
                self._resume(earlier)
        found = self.answers.get(question)
        if found is None:
            found = self.answers[question] = self._search(*question)
            self.news = True
        return found

    def _search(self, kind: str, *names: str) -> list[str]:
        if kind == "complete":
            return [] if self._list()[1] else [self.top]
        if kind in _TABLES:
            return self._table(kind).get(names[0].encode(), [])
        test = _Test(kind, names)
        return [path for path, text in self._read().items() if test.holds(text)]

    def _note(self, question: Question) -> None:
        if self.trace is not None:
            self.trace.asked.add((self.top, question))

    def _table(self, kind: str) -> dict[bytes, list[str]]:
        """Name -> the files with it, for a search that is cheaper for all names at once."""
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = {}
            for path, text in self._read().items():
                for name in set(_TABLES[kind](text)):
                    table.setdefault(name, []).append(path)
        return table

    # What an earlier run knew.

    def digests(self) -> dict[str, str]:
        """Path -> digest of the content, for the files that are searched."""
        if self._digests is None:
            # One that cannot be read is not searched.
            found = ((path, self._disk.digest(path)) for path in self._list()[0])
            self._digests = {path: digest for path, digest in found if digest}
        return self._digests

    def state(self) -> str:
        """A short name for the tree and all that is in it."""
        if not self._state:
            lines = [f"{path}\n{digest}" for path, digest in self.digests().items()]
            self._state = digest_of_lines([str(self._list()[1]), *lines])
        return self._state

    def _resume(self, earlier: Searched) -> None:
        """Takes over the answers of an earlier run, brought up to date by the files that have changed."""
        now = self.digests()
        then = earlier.digests
        changed = {path for path, digest in now.items() if then.get(path) != digest}
        gone = {path for path in then if path not in now}
        self.news = bool(changed or gone)
        texts = {path: self._disk.read(path) for path in changed}
        tables = {
            kind: {path: set(find(text)) for path, text in texts.items()} for kind, find in _TABLES.items()
        }
        order = {path: index for index, path in enumerate(now)}
        for question, found in earlier.answers.items():
            kind, *names = question
            if question in self.answers:
                continue
            if kind in _TABLES:
                name = names[0].encode()
                new = [path for path, held in tables[kind].items() if name in held]
            else:
                test = _Test(kind, names)
                new = [path for path, text in texts.items() if test.holds(text)]
            kept = [path for path in found if path not in changed and path not in gone]
            if new:
                kept = sorted(kept + new, key=order.__getitem__)
            self.answers[question] = kept

    # The files.

    def _read(self) -> dict[str, bytes]:
        if self._texts is None:
            self._texts = {}
            for path in self._list()[0]:
                try:
                    self._texts[path] = self._disk.read(path)
                except OSError:
                    continue
        return self._texts

    def _list(self) -> tuple[list[str], bool]:
        """The files to search, and whether they are all there are."""
        if self._listed is None:
            paths = self._paths()
            found: list[str] = []
            total = 0
            for path in paths or ():
                signature = self._disk.signature(path)
                if signature is None:
                    continue
                total += min(signature[0], MAX_FILE_BYTES)
                if signature[0] <= MAX_FILE_BYTES:
                    found.append(path)
            complete = paths is not None and total <= MAX_BYTES
            self._listed = (found if complete else [], complete)
        return self._listed

    def _paths(self) -> list[str] | None:
        """Every Python file below the folder; None when the tree is too large."""
        found: list[str] = []
        for count, (folder, below, names) in enumerate(self._walk()):
            if count > MAX_FOLDERS or len(found) > MAX_FILES:
                return None
            found += [f"{folder}{name}" for name in names if not _TESTS.search(f"{below}{name}")]
        return found

    def _walk(self) -> Iterator[tuple[str, str, list[str]]]:
        """Folders with their names from the top, both with a separator at the end, and their Python files."""
        pending = [(os.path.join(self.top, ""), "")]
        while pending:
            folder, below = pending.pop()
            try:
                entries = self._disk.scan(folder.rstrip(os.sep) or folder)
            except OSError:
                continue
            folders: list[str] = []
            files: list[str] = []
            for entry in entries:
                name = entry.name
                try:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    # A link to a folder is neither walked nor a file.
                    linked = not is_folder and entry.is_symlink() and entry.is_dir()
                except OSError:
                    is_folder = linked = False
                if is_folder:
                    folders.append(name)
                elif not linked:
                    files.append(name)
            if "pyvenv.cfg" in files:
                yield folder, below, []
                continue
            yield folder, below, sorted(name for name in files if name.endswith(".py"))
            for name in sorted(folders, reverse=True):
                if name not in _SKIPPED and not name.startswith(".") and not name.endswith(".egg-info"):
                    pending.append((f"{folder}{name}{os.sep}", f"{below}{name}{os.sep}"))


class _Test:
    """Whether a text has what a question asks for."""

    def __init__(self, kind: str, names: Iterable[str]) -> None:
        self._plain = [name.encode() for name in names]
        self._imports = kind == "using"
        one_of = b"|".join(re.escape(name) for name in self._plain)
        if kind == "calling":
            pattern = rb"(?<!def )\b(?:" + one_of + rb")\s*\("
        elif kind == "assigning":
            self._plain = [b"." + name for name in self._plain]
            pattern = rb"(?<!\bself)\.(?:" + one_of + rb")\s*(?:\[[^\n\]]*\])?\s*=(?!=)"
        elif kind == "using":
            pattern = (
                rb"\b(?:" + one_of + rb")\s*\(|(?:[(=\[{,]|[\"'\]]\s*:)\s*(?:\w+\.)*(?:" + one_of + rb")\b|"
                rb"\b(?:return|else|or|and|if|yield)\s+(?:\w+\.)*(?:" + one_of + rb")\b"
            )
        else:
            pattern = rb"\b(?:" + one_of + rb")\b"
        self._wanted = re.compile(pattern)

    def holds(self, text: bytes) -> bool:
        """For the text of one file."""
        if not any(name in text for name in self._plain):
            return False
        return self._wanted.search(_IMPORTS.sub(b"", text) if self._imports else text) is not None


def _bases(text: bytes) -> Iterator[bytes]:
    """The last names of the bases of all classes."""
    for header in _CLASS.finditer(text):
        for base in header.group(1).split(b","):
            yield base.split(b"[")[0].rsplit(b".", 1)[-1].strip()


def _assigned_in(text: bytes) -> Iterator[bytes]:
    """The names of attributes that a text assigns to something other than ``self``."""
    for found in _ASSIGNED.finditer(text):
        dot = found.start()
        if _OBJECT.fullmatch(text, text.rfind(b"\n", 0, dot) + 1, dot + 1):
            yield found.group(1)


_TABLES: Mapping[str, Callable[[bytes], Iterable[bytes]]] = {
    "deriving": _bases,
    "replacing": _assigned_in,
}


class Corpora:
    """The corpora of a run, each read once.

    Args:
        named: folders that the user asked to check.
        disk: the run's view of the file system.
        earlier: what earlier runs found below a top.
    """

    def __init__(
        self,
        named: Iterable[str] = (),
        disk: Disk | None = None,
        earlier: Callable[[str], Searched | None] | None = None,
    ) -> None:
        self.disk = disk or Disk()
        self.modules: dict[str, ModuleIndex | None] = {}
        """Absolute path -> what is in the file, for every project of the run."""
        self._named = tuple(os.path.abspath(folder) for folder in named)
        self._tops: dict[str, str | None] = {}
        self._marked: dict[str, bool] = {}
        self._found: dict[str, Corpus] = {}
        self._earlier = earlier
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace | None:
        """Where it is noted what was asked."""
        return self._trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._trace = trace
        for corpus in self._found.values():
            corpus.trace = trace

    def of(self, path: str) -> Corpus | None:
        """The files of the project that a file belongs to; None for a file by itself."""
        folder = os.path.dirname(os.path.abspath(path))
        top = self.top(folder)
        if self._trace is not None:
            self._trace.tops[folder] = top
        return self.below(top) if top is not None else None

    def top(self, folder: str) -> str | None:
        """The folder of the project that the files in a folder belong to."""
        if folder not in self._tops:
            self._tops[folder] = self._top_of(folder)
        return self._tops[folder]

    def known(self) -> Mapping[str, Corpus]:
        """Top -> corpus, for those that were asked for."""
        return self._found

    def below(self, top: str) -> Corpus:
        """The corpus of a folder."""
        found = self._found.get(top)
        if found is None:
            found = self._found[top] = Corpus(top, self.disk, self._earlier)
            found.trace = self._trace
        return found

    def _top_of(self, folder: str) -> str | None:
        """The top is marked as a project, or named on the command line, or that of a package."""
        current = folder
        for _ in range(12):
            if self._is_marked(current):
                return current
            above = os.path.dirname(current)
            if above == current:
                break
            current = above
        named = [
            top for top in self._named if folder == top or folder.startswith(top.rstrip(os.sep) + os.sep)
        ]
        if named:
            return min(named, key=len)
        outside = above_package(folder)
        return outside if outside != folder else None

    def _is_marked(self, folder: str) -> bool:
        found = self._marked.get(folder)
        if found is None:
            found = any(os.path.lexists(os.path.join(folder, mark)) for mark in _TOP_MARKS)
            self._marked[folder] = found
        return found
