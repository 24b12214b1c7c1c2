"""``kvlint check``: finds the files, reads them, and hands those that are worth it to the analysis.

Nothing heavy is imported before a file with an operator name has been seen: a tree without any is done
in about the time the interpreter takes to start.
"""

from __future__ import annotations

import gc
import os
import sys

from .config import Config, ConfigError, Flags
from .discovery import Candidate, discover, excluded_above
from .report.model import Problem, Result
from .source.prefilter import relevant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from kvlint.contract.rule import Rule

    from .analysis import MakeReader, Session
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
    items = candidates(values, config, cwd, unread)
    if values["show_files"]:
        out.writelines(f"{item.shown}\n" for item in items)
        return 0
    result = run(items, values, config, cwd)
    result.problems[:0] = unread
    from .report.write import write

    write(result, values, out, sys.stderr)
    return exit_code(result, bool(values["exit_zero"]))


def exit_code(result: Result, exit_zero: bool = False) -> int:
    """0, 1 or 2, see ``EXIT_CODES``."""
    if any(problem.kind == "internal" for problem in result.problems):
        return 2
    return int(bool(result.findings or result.problems) and not exit_zero)


def candidates(values: Values, config: Config, cwd: str, unread: list[Problem]) -> list[Candidate]:
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
    return discover(paths, config, cwd, unread)


def run(
    items: Sequence[Candidate],
    values: Values,
    config: Config,
    cwd: str,
    *,
    rules: Sequence[Rule] | None = None,
    project: MakeReader | None = None,
) -> Result:
    """Checks the files. ``rules`` and ``project`` replace the real ones in tests."""
    result = Result()
    session: Session | None = None

    def start() -> Session:
        from .analysis import Session

        kept = {"undecided"} if values["undecided"] else set()
        if values["coverage"]:
            kept = {"proved", "violated", "undecided"}
        debug = bool(os.environ.get("KVLINT_DEBUG"))
        folders = [
            os.path.join(cwd, path) for path in _paths(values) if os.path.isdir(os.path.join(cwd, path))
        ]
        return Session(
            result, cwd, rules=rules, project=project, keep=frozenset(kept), folders=folders, debug=debug
        )

    flags = config.flags
    if any(flags.layer.selectors()) or flags.per_file_ignores or flags.torch_npu:
        # What the user has just typed is wrong or right whether or not there is a file to use it on.
        session = start()
        session.validate(config.default)
    for item in items:
        result.files += 1
        try:
            source = sys.stdin.buffer.read() if item.piped else _read(item.path)
        except OSError as error:
            result.problems.append(Problem("read", item.shown, 0, f"cannot be read: {error.strerror}"))
            continue
        wanted = _worth_it(source)
        if not wanted and not _mentions_us(source):
            continue
        if session is None:
            session = start()
        session.check(item, source, wanted)
        _collect_garbage()
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


def _paths(values: Values) -> list[str]:
    paths = values["paths"]
    assert isinstance(paths, list)
    return paths or ["."]


def _read(path: str) -> bytes:
    with open(path, "rb", 0) as file:
        return file.read()


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
