"""What earlier runs found, kept on disk, and given again while it still holds.

An answer about a file is kept with all it depends on: the file, the files that were read for it, the
imports that were looked up, the searches through the project, the settings, and kvlint itself. It is
given again only when every one of these is what it was. Text and JSON only; a cache file that is not
exactly what was written counts as none.
"""

from __future__ import annotations

import contextlib
import os
import sys

from . import __version__
from .config import show
from .globs import relative
from .report.model import Finding, Problem, Result, Spot, Step
from .roots import Roots, project_around
from .source.disk import LARGE, Disk, Trace, digest_of, digest_of_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from .config import Config, Settings
    from .discovery import Candidate
    from .options import Values
    from .source.corpus import Corpora, Corpus, Searched
    from .source.locate import Locator

FOLDER = ".kvlint_cache"
# Grows when the files are laid out in another way.
FORMAT = "1"
_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of kvlint. See https://bford.info/cachedir/
"""
# Answers kept per file, for as many settings.
MAX_VARIANTS = 4
MAX_ACCEPTED = 40
# For fewer files, reading them is cheaper than reading the cache to learn which are of no interest.
MANY = 64
# What wrong data can raise where right data is expected.
_WRONG = (AttributeError, IndexError, KeyError, OSError, RecursionError, TypeError, ValueError)


def folder_for(values: Values, config: Config, start: str) -> str:
    """The folder of the cache for a run that starts at the path ``start``."""
    cwd = config.flags.cwd
    given = values["cache_dir"] or os.environ.get("KVLINT_CACHE_DIR")
    if given:
        return os.path.normpath(os.path.join(cwd, os.path.expanduser(str(given))))
    # The same one for all parts of the project that the run starts in.
    folders = [cwd] if relative(start, cwd) is not None else []
    folders.append(start if os.path.isdir(start) else os.path.dirname(start))
    for folder in folders:
        settings = config.of(folder)
        if settings.cache_dir:
            return os.path.normpath(os.path.join(settings.base, os.path.expanduser(settings.cache_dir)))
        base = settings.base if settings.source is not None else project_around(folder)
        if base is not None:
            return os.path.join(base, FOLDER)
    return os.path.join(cwd, FOLDER)


class Cache:
    """The cache of one run.

    Args:
        folder: where it is kept.
        cwd: what shown paths are relative to.
        named: the folders that the user asked to check.
        disk: the run's view of the file system.
    """

    def __init__(self, folder: str, cwd: str, named: Sequence[str], disk: Disk) -> None:
        self.folder = folder
        self.disk = disk
        disk.known = {}
        self.roots = Roots()
        self._cwd = cwd
        self._named = named
        self.loaded = False
        self._usable = True
        self._found = ""
        self._kept: set[str] = set()
        self._kvlint: tuple[str, str] = ("", "")
        self._rows: dict[str, list[Any]] = {}
        self._entries: dict[str, list[list[Any]]] = {}
        self._accepted: dict[str, int] = {}
        self._plain: list[str] = []
        self._dirty = False
        self._corpora: Corpora | None = None
        self._locators: dict[tuple[str, ...], Locator] = {}

    @property
    def corpora(self) -> Corpora:
        """The trees of files to search, with what earlier runs found in them."""
        if self._corpora is None:
            from .source.corpus import Corpora

            self._corpora = Corpora(self._named, self.disk, self._searched)
        return self._corpora

    # Asking.

    def worth_loading(self, items: Sequence[Candidate]) -> bool:
        """Whether to load the cache before it is known that one of the files is of interest."""
        return len(items) > MANY and os.path.isfile(self._main)

    def accepts(self, settings: Settings) -> bool:
        """Whether the selections of rules are known to be right."""
        self.load()
        return _digest(_selections(settings)) in self._accepted

    def accepted(self, settings: Settings) -> None:
        """Notes that they are right."""
        if len(self._accepted) >= MAX_ACCEPTED:
            self._accepted.clear()
        self._accepted[_digest(_selections(settings))] = 1
        self._dirty = True

    def recall(self, item: Candidate) -> Result | None:
        """The answer about a file, when an earlier one still holds. Before :meth:`load` there is none."""
        row = self._rows.get(item.path)
        if row is not None and row[5] and self.disk.unchanged(item.path):
            # Nothing in it is of interest.
            return Result()
        variants = self._entries.get(item.path)
        if variants is None:
            return None
        key = self._key(item)
        variant = next((variant for variant in variants if variant[0] == key), None)
        try:
            if variant is None or not self._holds(item, variant[1]):
                return None
            result = _unpacked(variant[1]["result"], item.shown, self._cwd)
        except _WRONG:
            return None
        if variant is not variants[0]:
            # The one that was wanted last is dropped last.
            variants.remove(variant)
            variants.insert(0, variant)
            self._dirty = True
        return result

    def _key(self, item: Candidate) -> str:
        """What the answer depends on besides files."""
        settings = item.settings
        return _digest(
            (
                _selections(settings),
                settings.ignored_in(item.path),
                settings.cann,
                settings.soc,
                self.roots.of(item.path, settings),
                # Outside of marked projects this hangs on the paths of the run.
                self.corpora.top(os.path.dirname(item.path)),
            )
        )

    def _holds(self, item: Candidate, entry: dict[str, Any]) -> bool:
        digest, corpora = self.disk.digest, self.corpora
        if digest(item.path) != entry["own"]:
            return False
        if any(digest(path) != held for path, held in entry["files"].items()):
            return False
        if any(corpora.top(folder) != top for folder, top in entry["tops"].items()):
            return False
        locator = self._locator(self.roots.of(item.path, item.settings))
        if any(
            locator.locate(folder, name, level) != found for folder, name, level, found in entry["imports"]
        ):
            return False
        for top, searches in entry["searches"].items():
            corpus = corpora.below(top)
            if corpus.state() != searches[0]:
                if _answers(corpus, searches[2]) != searches[1]:
                    return False
                searches[0] = corpus.state()
                self._dirty = True
        return True

    def _locator(self, roots: tuple[str, ...]) -> Locator:
        found = self._locators.get(roots)
        if found is None:
            from .source.locate import Locator

            found = self._locators[roots] = Locator(roots, self.disk)
        return found

    # Keeping.

    def plain(self, path: str) -> None:
        """Notes that there is nothing to check in a file that was read."""
        self._plain.append(path)

    def trace(self) -> Trace:
        """Notes what is asked from now on."""
        trace = self.corpora.trace = Trace()
        return trace

    def keep(self, item: Candidate, source: bytes, trace: Trace, result: Result) -> None:
        """Keeps an answer, and what was asked to find it."""
        self.corpora.trace = None
        self.disk.note(item.path, source)
        own = self.disk.digest(item.path)
        if own == LARGE or any(problem.kind == "internal" for problem in result.problems):
            return
        searches: dict[str, list[Any]] = {}
        for top, question in sorted(trace.asked):
            searches.setdefault(top, ["", "", []])[2].append(list(question))
        for top, held in searches.items():
            corpus = self.corpora.below(top)
            held[:2] = corpus.state(), _answers(corpus, held[2])
        entry = {
            "own": own,
            "files": {path: self.disk.digest(path) for path in sorted(trace.files)},
            "tops": trace.tops,
            "imports": [[*wanted, found] for wanted, found in trace.imports.items()],
            "searches": searches,
            "result": _packed(result, item.shown, self._cwd),
        }
        key = self._key(item)
        others = [variant for variant in self._entries.get(item.path, ()) if variant[0] != key]
        self._entries[item.path] = [[key, entry], *others[: MAX_VARIANTS - 1]]
        self._kept.add(item.path)
        self._dirty = True

    # The files of the cache.

    @property
    def _versioned(self) -> str:
        return os.path.join(self.folder, f"{__version__}-{sys.implementation.cache_tag}")

    @property
    def _main(self) -> str:
        return os.path.join(self._versioned, "findings")

    def load(self) -> None:
        """Reads what there is, once."""
        if self.loaded:
            return
        self.loaded = True
        data = _read(self._main)
        self._found = digest_of(data)
        header, _, body = data.partition(b"\n")
        words = header.decode("ascii", "replace").split(" ")
        known = (words[2], words[3]) if len(words) == 5 else ("", "")
        try:
            self._kvlint = _kvlint(known)
        except OSError:
            # Inside an archive, perhaps: what cannot be told apart is not remembered.
            self._usable = False
            return
        if words[:2] != ["kvlint", FORMAT] or self._kvlint[1] != known[1] or words[4] != digest_of(body):
            return
        # The same code, copied anew.
        self._dirty = self._kvlint != known
        import json

        try:
            document = json.loads(body)
            rows, entries, accepted = (dict(document[key]) for key in ("files", "entries", "accepted"))
            if not _right(rows, entries):
                return
        except _WRONG:
            return
        self._rows, self._entries, self._accepted = rows, entries, accepted
        self.disk.known = rows

    def save(self) -> None:
        """Writes what is new; a folder that cannot be written to is left alone."""
        if not self.loaded or not self._usable or self.disk.torn or not (self._dirty or self.disk.read_at):
            return
        try:
            rows = self._current_rows()
            if self._dirty or rows != self._rows:
                self._write_all(rows)
        except _WRONG:
            pass

    def _write_all(self, rows: dict[str, list[Any]]) -> None:
        import json

        self._merge(rows)
        looked_at = self.disk.signature
        rows = {path: row for path, row in rows.items() if looked_at(path) is not None}
        entries = {path: held for path, held in self._entries.items() if looked_at(path) is not None}
        if not entries and not os.path.isfile(self._main):
            # Nothing in it would save more than it costs to write.
            return
        if _kvlint(self._kvlint) != self._kvlint:
            # It was edited or replaced meanwhile: which of the two has answered is not known.
            return
        document = {"files": rows, "accepted": self._accepted, "entries": entries}
        body = json.dumps(document, separators=(",", ":")).encode("ascii")
        header = f"kvlint {FORMAT} {self._kvlint[0]} {self._kvlint[1]} {digest_of(body)}\n"
        self._make_folder()
        asked = _questions(entries)
        for top, corpus in self.corpora.known().items():
            if corpus.news and top in asked:
                self._write_answers(top, corpus, asked[top])
        kept = {os.path.basename(self._answers_file(top)) for top in asked}
        _replace(self._main, header.encode("ascii") + body)
        for name in os.listdir(self._versioned):
            if name.startswith("searches-") and name not in kept and not name.endswith(".new"):
                os.unlink(os.path.join(self._versioned, name))

    def _merge(self, rows: dict[str, list[Any]]) -> None:
        """Adds what another run has written since this one began."""
        if digest_of(_read(self._main)) == self._found:
            return
        other = Cache(self.folder, self._cwd, (), Disk())
        other.load()
        for path, row in other._rows.items():
            rows.setdefault(path, row)
        for path, variants in other._entries.items():
            if path not in self._kept:
                self._entries[path] = variants

    def _current_rows(self) -> dict[str, list[Any]]:
        """What is known of every file, by this run and the earlier ones."""
        rows = dict(self._rows)
        disk = self.disk
        plain = set(self._plain)
        for path in {*disk.digests, *plain}:
            signature = disk.signature(path)
            digest = disk.digests.get(path, "")
            if signature is None or (not digest and path not in plain):
                rows.pop(path, None)
                continue
            old = rows.get(path)
            known = old is not None and tuple(old[:4]) == signature
            flag = int(path in plain or (known and bool(old and old[5])))
            # A size that no file has: the signature may not change with the file.
            size = signature[0] if disk.settled(path) else -1
            rows[path] = [size, *signature[1:], digest or (str(old[4]) if known and old else ""), flag]
        return rows

    def _make_folder(self) -> None:
        new = not os.path.isdir(self.folder)
        os.makedirs(self._versioned, exist_ok=True)
        if new or os.path.basename(self.folder) == FOLDER:
            for name, text in (("CACHEDIR.TAG", _TAG), (".gitignore", "*\n")):
                path = os.path.join(self.folder, name)
                if not os.path.lexists(path):
                    _replace(path, text.encode())

    # Searches through a tree.

    def _answers_file(self, top: str) -> str:
        name = digest_of(top.encode("utf-8", "surrogatepass"))
        return os.path.join(self._versioned, f"searches-{name}")

    def _searched(self, top: str) -> Searched | None:
        """What earlier runs found in a tree."""
        import json

        from .source.corpus import Searched

        data = _read(self._answers_file(top))
        header, _, body = data.partition(b"\n")
        if header != f"kvlint {FORMAT} {self._kvlint[1]} {digest_of(body)}".encode():
            return None
        try:
            document = json.loads(body)
            if document["top"] != top:
                return None
            paths = list(document["files"])
            answers = {tuple(question): [paths[i] for i in found] for question, found in document["answers"]}
            return Searched(document["files"], answers)
        except _WRONG:
            return None

    def _write_answers(self, top: str, corpus: Corpus, wanted: set[tuple[str, ...]]) -> None:
        import json

        digests = corpus.digests()
        index = {path: position for position, path in enumerate(digests)}
        answers = [
            [list(question), [index[path] for path in found]]
            for question, found in corpus.answers.items()
            if question in wanted and question[0] != "complete"
        ]
        document = {"top": top, "files": digests, "answers": answers}
        body = json.dumps(document, separators=(",", ":")).encode("ascii")
        header = f"kvlint {FORMAT} {self._kvlint[1]} {digest_of(body)}\n"
        _replace(self._answers_file(top), header.encode() + body)


def _right(rows: dict[str, Any], entries: dict[str, Any]) -> bool:
    """Whether data from a file have the form that the rest relies on."""
    return all(type(row) is list and len(row) == 6 for row in rows.values()) and all(
        type(variants) is list
        and variants
        and all(type(item) is list and len(item) == 2 and type(item[1]) is dict for item in variants)
        for variants in entries.values()
    )


def remove(folder: str) -> bool:
    """Removes a cache; whether there was one. What kvlint did not put there stays."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    found = False
    for name in names:
        path = os.path.join(folder, name)
        if _is_ours(path):
            found = True
            for inner in os.listdir(path):
                os.unlink(os.path.join(path, inner))
            _remove_empty(path)
        elif name == "CACHEDIR.TAG" and _read(path) == _TAG.encode():
            found = True
            os.unlink(path)
            if _read(os.path.join(folder, ".gitignore")) == b"*\n":
                os.unlink(os.path.join(folder, ".gitignore"))
    if found:
        _remove_empty(folder)
    return found


def _is_ours(folder: str) -> bool:
    """Whether a folder is one for a version, with nothing else in it."""
    name = os.path.basename(folder)
    if not (name[:1].isdigit() and "-" in name and os.path.isdir(folder)) or os.path.islink(folder):
        return False
    names = os.listdir(folder)
    return bool(names) and all(
        name.startswith(("findings", "searches-")) and os.path.isfile(os.path.join(folder, name))
        for name in names
    )


def _remove_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _read(path: str) -> bytes:
    """The content of a file of the cache; empty when there is none."""
    try:
        with open(path, "rb", 0) as file:
            return file.read()
    except OSError:
        return b""


def _replace(path: str, data: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, whole."""
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(new, "wb", 0) as file:
            file.write(data)
        os.replace(new, path)
    except BaseException:
        if os.path.lexists(new):
            os.unlink(new)
        raise


def _digest(value: object) -> str:
    """A short name for nested lists of texts."""
    return digest_of(repr(value).encode("utf-8", "surrogatepass"))


def _selections(settings: Settings) -> object:
    """What is validated before a file is checked."""
    return (
        [
            (list(layer.select or ()), layer.select is None, list(layer.extend), list(layer.ignore))
            for layer in settings.layers
        ],
        [list(rules) for _, rules in settings.per_file_ignores],
        settings.torch_npu,
    )


def _answers(corpus: Corpus, questions: Iterable[Sequence[str]]) -> str:
    """A short name for the answers to some questions."""
    lines: list[str] = []
    for question in questions:
        lines += ["", *corpus.ask(tuple(question))]
    return digest_of_lines(lines)


def _questions(entries: Mapping[str, list[list[Any]]]) -> dict[str, set[tuple[str, ...]]]:
    """Top -> the questions that kept answers depend on."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for variants in entries.values():
        for _, entry in variants:
            for top, searches in entry["searches"].items():
                found.setdefault(top, set()).update(tuple(question) for question in searches[2])
    return found


# kvlint itself.


def _kvlint(known: tuple[str, str]) -> tuple[str, str]:
    """What tells one kvlint from another: by its files' time stamps, and by their content.

    ``known`` is such a pair; its second part is taken over when the first is right.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    files = sorted(_code(here))
    own = here + os.sep
    stamps = []
    for path in files:
        status = os.stat(path)
        stamps.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    python = [sys.version, sys.platform]
    stamp = digest_of_lines([*python, *stamps])
    if known[0] == stamp:
        return known
    # Where it is installed does not matter, what it is called inside does.
    content = [f"{path.removeprefix(own)} {digest_of(_read(path))}" for path in files if path.startswith(own)]
    content += [digest_of(_read(path)) for path in files if not path.startswith(own)]
    return stamp, digest_of_lines([*python, *sorted(content)])


def _code(here: str) -> Iterator[str]:
    """The files that decide what is found: those of kvlint, and the one with the version of its parser."""
    rules = os.path.join(here, "rules")
    if not os.path.isdir(rules):  # a checkout on a system without links
        rules = os.path.join(os.path.dirname(here), "rules")
    pending = [here, os.path.join(here, "contract"), os.path.join(here, "source"), rules]
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".json")):
                    yield entry.path
                elif folder != here and entry.name != "__pycache__" and entry.is_dir():
                    pending.append(entry.path)
    for folder in sys.path:
        version = os.path.join(folder, "libcst", "_version.py")
        if os.path.isfile(version):
            yield version
            return
    from importlib.util import find_spec

    spec = find_spec("libcst")
    if spec is not None and spec.origin is not None:
        yield spec.origin


# Results.


def _packed(result: Result, shown: str, cwd: str) -> dict[str, Any]:
    def spot(spot: Spot | None) -> list[Any] | None:
        if spot is None:
            return None
        path = None if spot.path == shown else os.path.normpath(os.path.join(cwd, spot.path))
        return [path, spot.line, spot.column, spot.end_line, spot.end_column, spot.cell]

    def steps(steps: Iterable[Step]) -> list[Any]:
        return [[step.text, spot(step.spot)] for step in steps]

    return {
        "relevant": result.relevant,
        "calls": result.calls,
        "suppressed": result.suppressed,
        "problems": [[problem.kind, problem.line, problem.message] for problem in result.problems],
        "findings": [
            [
                [getattr(finding, name) for name in _PLAIN_FIELDS],
                spot(finding.spot),
                [steps(getattr(finding, name)) for name in _STEP_FIELDS],
            ]
            for finding in result.findings
        ],
    }


_PLAIN_FIELDS = ("code", "name", "severity", "confidence", "message", "fix", "operator", "excerpt")
_STEP_FIELDS = ("steps", "when", "via")


def _unpacked(data: dict[str, Any], shown: str, cwd: str) -> Result:
    def spot(data: Sequence[Any]) -> Spot:
        path, *numbers = data
        return Spot(shown if path is None else show(path, cwd), *numbers)

    def steps(data: Iterable[Sequence[Any]]) -> tuple[Step, ...]:
        return tuple(Step(text, None if place is None else spot(place)) for text, place in data)

    result = Result()
    result.relevant = data["relevant"]
    result.calls = data["calls"]
    result.suppressed = data["suppressed"]
    result.problems = [Problem(kind, shown, line, message) for kind, line, message in data["problems"]]
    for plain, place, lists in data["findings"]:
        fields = dict(zip(_PLAIN_FIELDS, plain, strict=True))
        fields |= zip(_STEP_FIELDS, map(steps, lists), strict=True)
        result.findings.append(Finding(**fields, spot=spot(place)))
    return result
