"""Start of the command ``kvlint``.

A plain ``kvlint check ...`` is read here, because loading the full command line costs more than
checking a tree without operator calls. Everything else goes to the typer application in ``cli.py``.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def quietly(command: Callable[[], int]) -> int:
    """Runs a command to its exit code; a closed pipe or Ctrl-C ends it without a traceback."""
    import os

    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has gone. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.filename is not None:
            raise  # not about the output
        sys.stderr.write(f"kvlint: error: cannot write the output: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2


def _alone(command: Callable[[], int]) -> NoReturn:
    """Runs a command that this process is there for alone, without tidying up what goes with it anyway."""
    import gc
    import os

    # Nearly everything is kept to the end: searching it for garbage again and again only costs time.
    gc.disable()
    code = quietly(command)
    if sys.stderr is not None:
        sys.stderr.flush()
    os._exit(code)


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of the console script and of ``python -m kvlint``."""
    words = sys.argv[1:] if argv is None else argv
    if sys.stdout is None:
        # Standard output was closed before the start: the exit code is all that can be told.
        import os

        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if words == ["--version"]:
        from . import __version__

        sys.exit(quietly(lambda: print(f"kvlint {__version__}") or 0))
    if words[:1] == ["check"]:
        from .options import parse

        values = parse(words[1:])
        if values is not None:
            from .check import main as check

            if argv is not None:
                sys.exit(quietly(lambda: check(values)))
            _alone(lambda: check(values))
    if words[:1] == ["run"] and words[1:] not in ([], ["--help"], ["-h"]):
        # The words after the script are the script's own: typer must not read them.
        from .cli import start_script

        sys.exit(start_script(words[1:]))
    from .cli import run

    sys.exit(quietly(lambda: run(words)))


if __name__ == "__main__":
    main()
