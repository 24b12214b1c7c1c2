"""``kvlint check``: finds the files, reads them, and hands those that are worth it to the analysis.

Nothing heavy is imported before a file with an operator name has been seen: a tree without any is done
in about the time the interpreter takes to start.
"""

from __future__ import annotations

import gc
import os
import sys

from .config import Config, ConfigError, Flags, show
from .discovery import Candidate, discover, excluded_above
from .report.model import Problem, Result
from .source.disk import Disk
from .source.prefilter import relevant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from kvlint.contract.rule import Rule

    from .analysis import MakeReader, Session
    from .cache import Cache
    from .options import Values


def main(values: Values) -> int:
    """Runs a parsed command line, prints the report, and returns the exit code."""
    try:
        return _main(values, sys.stdout)
    except ConfigError as error:
        sys.stdout.flush()
        print(f"kvlint: error: {error}", file=sys.stderr)
        return 2


def _main(values: Values, out: TextIO) -> int:
    if hasattr(out, "reconfigure"):
        # A source line may hold what the terminal's encoding cannot say.
        out.reconfigure(errors="backslashreplace")
    try:
        cwd = os.getcwd()
    except OSError:
        raise ConfigError("the current folder does not exist") from None
    config = Config(Flags(values, cwd))
    if values["show_settings"]:
        return _show_settings(values, config, cwd, out)
    unread: list[Problem] = []
    disk = Disk()
    items = candidates(values, config, cwd, unread, disk)
    if values["show_files"]:
        out.writelines(f"{item.shown}\n" for item in items)
        return 0
    result = run(items, values, config, cwd, disk=disk)
    result.problems[:0] = unread
    from .report.write import write

    write(result, values, out, sys.stderr)
    return exit_code(result, bool(values["exit_zero"]))


def clean(paths: Sequence[str], folder: str | None) -> int:
    """Removes the caches of runs over the paths, and returns the exit code."""
    from .cache import folder_for, remove
    from .options import defaults

    cwd = os.getcwd()
    values = {**defaults(), "cache_dir": folder}
    try:
        for path in paths:
            if not os.path.lexists(path):
                raise ConfigError(f"{path}: No such file or directory")
        config = Config(Flags(values, cwd))
        found = {folder_for(values, config, os.path.normpath(os.path.join(cwd, path))) for path in paths}
        for item in sorted(found):
            if remove(item):
                print(f"Removed {show(item, cwd)}")
    except ConfigError as error:
        print(f"kvlint: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"kvlint: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def exit_code(result: Result, exit_zero: bool = False) -> int:
    """0, 1 or 2, see ``EXIT_CODES``."""
    if any(problem.kind == "internal" for problem in result.problems):
        return 2
    return int(bool(result.findings or result.problems) and not exit_zero)


def candidates(
    values: Values, config: Config, cwd: str, unread: list[Problem], disk: Disk | None = None
) -> list[Candidate]:
    """The files that the command line names; standard input is one without a file.

    Folders that cannot be listed are added to ``unread``.
    """
    paths = _paths(values)
    if paths == ["-"]:
        name = values["stdin_filename"]
        path = os.path.normpath(os.path.join(cwd, str(name))) if name else os.path.join(cwd, "<stdin>")
        settings = config.of(os.path.dirname(path))
        if name and settings.force_exclude and excluded_above(path, False, settings):
            return []
        return [Candidate(path, str(name) if name else "<stdin>", settings, piped=True)]
    if "-" in paths:
        raise ConfigError("- (standard input) must be the only path")
    return discover(paths, config, cwd, unread, disk)


def run(
    items: Sequence[Candidate],
    values: Values,
    config: Config,
    cwd: str,
    *,
    rules: Sequence[Rule] | None = None,
    project: MakeReader | None = None,
    disk: Disk | None = None,
) -> Result:
    """Checks the files. ``rules`` and ``project`` replace the real ones in tests."""
    disk = disk or Disk()
    result = Result()
    session: Session | None = None
    folders = [os.path.join(cwd, path) for path in _paths(values) if os.path.isdir(os.path.join(cwd, path))]
    cache = _cache(items, values, config, disk, folders) if rules is None and project is None else None

    def start() -> Session:
        from .analysis import Session
        from .source.corpus import Corpora

        kept = {"undecided"} if values["undecided"] else set()
        if values["coverage"]:
            kept = {"proved", "violated", "undecided"}
        return Session(
            result,
            cwd,
            rules=rules,
            project=project,
            keep=frozenset(kept),
            corpora=cache.corpora if cache is not None else Corpora(folders, disk),
            roots=cache.roots if cache is not None else None,
            debug=bool(os.environ.get("KVLINT_DEBUG")),
        )

    flags = config.flags
    typed = any(flags.layer.selectors()) or flags.per_file_ignores or flags.torch_npu
    if typed and (cache is None or not cache.accepts(config.default)):
        # What the user has just typed is wrong or right whether or not there is a file to use it on.
        session = start()
        session.validate(config.default)
        if cache is not None:
            cache.accepted(config.default)
    if cache is not None and cache.worth_loading(items):
        cache.load()
    try:
        for item in items:
            result.files += 1
            found = cache.recall(item) if cache is not None else None
            if found is None:
                try:
                    source = _source(item, disk)
                except OSError as error:
                    problem = Problem("read", item.shown, 0, f"cannot be read: {error.strerror}")
                    result.problems.append(problem)
                    continue
                wanted = _worth_it(source)
                if not wanted and not _mentions_us(source):
                    if cache is not None:
                        cache.plain(item.path)
                    continue
                if cache is not None and not cache.loaded:
                    cache.load()
                    found = cache.recall(item)
            if found is None:
                if session is None:
                    session = start()
                found = _checked(session, item, source, wanted, cache)
            result.add(found)
    finally:
        if cache is not None:
            cache.save()
    result.findings.sort(key=lambda finding: (finding.spot.key, finding.code, finding.message))
    result.obligations.sort(key=lambda item: (item.spot.key, item.code))
    return result


# What is collected in one go when the collector does not run by itself.
_MUCH_GARBAGE = 2_000_000


def _collect_garbage() -> None:
    """Looks once at what came up since the last time; what is in use then is not looked at again."""
    if not gc.isenabled() and gc.get_count()[0] > _MUCH_GARBAGE:
        gc.collect()
        gc.freeze()


# What a variable says to switch nothing on.
_OFF = ("", "0", "false", "no", "off")


def _source(item: Candidate, disk: Disk) -> bytes:
    return sys.stdin.buffer.read() if item.piped else disk.peek(item.path)


def _checked(session: Session, item: Candidate, source: bytes, wanted: bool, cache: Cache | None) -> Result:
    """What is found in one file."""
    result = session.result = Result()
    trace = cache.trace() if cache is not None else None
    session.check(item, source, wanted)
    _collect_garbage()
    if cache is not None and trace is not None:
        cache.keep(item, source, trace, result)
    return result


def _cache(
    items: Sequence[Candidate], values: Values, config: Config, disk: Disk, folders: Sequence[str]
) -> Cache | None:
    """What earlier runs found; None when it is not wanted, or cannot help."""
    # It keeps findings alone.
    if values["coverage"] or values["undecided"] or any(item.piped for item in items):
        return None
    if values["no_cache"] or os.environ.get("KVLINT_NO_CACHE", "").lower() not in _OFF:
        return None
    from .cache import Cache, folder_for

    cwd = config.flags.cwd
    start = os.path.normpath(os.path.join(cwd, _paths(values)[0]))
    return Cache(folder_for(values, config, start), cwd, folders, disk)


def _paths(values: Values) -> list[str]:
    paths = values["paths"]
    assert isinstance(paths, list)
    return paths or ["."]


# Every operator name of the catalogue contains one of these (a test keeps it so). Most files have none of
# the three, and a few searches are much cheaper than the full list of the reader.
_FIRST = (b"npu_", b"scatter_update", b"swapped_memory")


def _worth_it(source: bytes) -> bool:
    """Whether the text can contain an operator call."""
    return any(token in source for token in _FIRST) and relevant(source)


def _mentions_us(source: bytes) -> bool:
    """Whether the text can hold a suppression comment of ours, which may be useless or wrong."""
    return b"kvlint:" in source or (b"KV" in source and (b"noqa" in source or b"NOQA" in source))


def _show_settings(values: Values, config: Config, cwd: str, out: TextIO) -> int:
    path = os.path.normpath(os.path.join(cwd, _paths(values)[0]))
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    settings = config.of(folder)
    out.writelines(f"{line}\n" for line in settings.lines())
    return 0
