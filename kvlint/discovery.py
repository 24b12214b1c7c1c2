"""Which files to check: walks folders by the settings of each, in a fixed order, each file once."""

from __future__ import annotations

import os
import stat

from .config import ConfigError, show
from .globs import Globs, relative
from .report.model import Problem
from .source.disk import Disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .config import Config, Settings

SUFFIXES = (".py", ".pyi", ".ipynb")


class Candidate:
    """A file to check.

    Attributes:
        path: absolute path, as it was reached.
        shown: the path as reports print it.
        settings: what holds for it.
        piped: its text comes from standard input.
    """

    __slots__ = ("path", "piped", "settings", "shown")

    def __init__(self, path: str, shown: str, settings: Settings, piped: bool = False) -> None:
        self.path = path
        self.shown = shown
        self.settings = settings
        self.piped = piped


def discover(
    paths: Iterable[str],
    config: Config,
    cwd: str,
    unread: list[Problem] | None = None,
    disk: Disk | None = None,
) -> list[Candidate]:
    """The files that the given paths stand for, sorted by shown path.

    Folders that cannot be listed are added to ``unread``: to skip them in silence would call them clean.

    A file passed by name is taken whatever its suffix, unless ``force-exclude`` is on and it is
    excluded. Raises :class:`ConfigError` for a path that does not exist.
    """
    found: dict[str, Candidate] = {}
    for text in paths:
        path = os.path.normpath(os.path.join(cwd, text))
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not a valid path"
            raise ConfigError(f"{text}: {reason}") from None
        if stat.S_ISDIR(mode):
            settings = config.of(path)
            if settings.force_exclude and excluded_above(path, True, settings):
                continue
            # Files that are reached through no link below the folder need no look at the disk each.
            real = os.path.realpath(path)
            problems = [] if unread is None else unread
            for item, key in _walk(path, real, config, cwd, problems, disk or Disk()):
                found.setdefault(key, item)
        elif stat.S_ISREG(mode):
            settings = config.of(os.path.dirname(path))
            if settings.force_exclude and excluded_above(path, False, settings):
                continue
            # A name the user typed wins over one that a walk came upon.
            found[os.path.realpath(path)] = Candidate(path, show(path, cwd), settings)
        else:
            raise ConfigError(f"{text}: neither a file nor a folder")
    return sorted(found.values(), key=lambda item: item.shown)


def excluded_above(path: str, is_dir: bool, settings: Settings) -> bool:
    """Whether the path or a folder above it, up to the base of the settings, is excluded."""
    while True:
        if settings.excluded(path, is_dir):
            return True
        if settings.respect_gitignore and _git_ignored(path, is_dir):
            return True
        above = os.path.dirname(path)
        if above == path or path == settings.base or relative(above, settings.base) is None:
            return False
        path, is_dir = above, True


def _git_ignored(path: str, is_dir: bool) -> bool:
    return _ignored(path, is_dir, _ignore_files_above(os.path.dirname(path)))


def _walk(
    top: str, real: str, config: Config, cwd: str, unread: list[Problem], disk: Disk
) -> Iterator[tuple[Candidate, str]]:
    """Files below ``top`` with the key that tells the same file apart from another."""
    pending: list[tuple[str, str, list[Globs]]] = [(top, real, _ignore_files_above(os.path.dirname(top)))]
    while pending:
        folder, real_folder, ignores = pending.pop()
        try:
            entries = disk.scan(folder)
        except OSError as error:
            reason = f"cannot be listed: {error.strerror}"
            unread.append(Problem("read", show(folder, cwd), 0, reason))
            continue
        names = {entry.name for entry in entries}
        if "pyvenv.cfg" in names and folder != top:
            continue
        settings = config.of(folder, "pyproject.toml" in names)
        if settings.respect_gitignore:
            if ".git" in names:
                ignores = _repository(folder)
            if ".gitignore" in names:
                ignores = [*ignores, *_ignore_file(folder)]
        else:
            ignores = []
        for entry in entries:
            name = entry.name
            try:
                is_dir = entry.is_dir(follow_symlinks=False)
                is_file = not is_dir and entry.is_file()
            except OSError:
                # A link that leads to itself names no file.
                continue
            if not is_dir and not name.endswith(SUFFIXES):
                continue
            path = f"{folder}/{name}" if os.sep == "/" and folder != "/" else os.path.join(folder, name)
            if settings.excluded(path, is_dir) or (ignores and _ignored(path, is_dir, ignores)):
                continue
            if is_dir:
                pending.append((path, os.path.join(real_folder, name), ignores))
            elif is_file:
                key = os.path.realpath(path) if entry.is_symlink() else os.path.join(real_folder, name)
                yield Candidate(path, show(path, cwd), settings), key


def _ignored(path: str, is_dir: bool, ignores: list[Globs]) -> bool:
    for globs in reversed(ignores):
        below = relative(path, globs.base)
        if below is not None:
            verdict = globs.match(below, is_dir)
            if verdict is not None:
                return verdict
    return False


def _ignore_file(folder: str, name: str = ".gitignore") -> list[Globs]:
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="surrogateescape") as file:
            globs = Globs(folder, file)
    except OSError:
        return []
    return [globs] if globs else []


def _repository(folder: str) -> list[Globs]:
    """The ignore file that a repository keeps for itself, which is weaker than any .gitignore."""
    return _ignore_file(folder, os.path.join(".git", "info", "exclude"))


def _ignore_files_above(folder: str) -> list[Globs]:
    """The ignore files from the top of the repository down to ``folder``; none outside of one."""
    chain = [folder]
    while not os.path.lexists(os.path.join(chain[-1], ".git")):
        above = os.path.dirname(chain[-1])
        if above == chain[-1]:
            return []
        chain.append(above)
    found = _repository(chain[-1])
    for item in reversed(chain):
        found += _ignore_file(item)
    return found
