"""The full command line, a typer application. ``__main__.py`` comes here for all but a plain check.

``check`` is made from the table in ``options.py``; every command imports what it needs when it runs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import typer

from . import __version__
from .__main__ import quietly
from .options import EXIT_CODES, OPTIONS, Option, Values

app = typer.Typer(
    name="kvlint",
    help="Correctness linter for FlashAttention and KV-cache call sites on Ascend NPUs.",
    no_args_is_help=True,
    # Plain help and errors: they load faster and read the same in a log.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class DocFormat(str, Enum):
    """Formats of ``kvlint rule``."""

    text = "text"
    json = "json"
    markdown = "markdown"


class OpFormat(str, Enum):
    """Formats of ``kvlint op``."""

    text = "text"
    json = "json"


def run(words: list[str]) -> int:
    """Runs the application; typer itself exits."""
    app(args=words, prog_name="kvlint")
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvlint {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _check(**given: Any) -> None:
    from .check import main

    raise typer.Exit(quietly(lambda: main(plain_values(given))))


def plain_values(given: dict[str, Any]) -> Values:
    """What typer read, in the form that :func:`kvlint.options.parse` gives."""
    values: Values = {}
    for key, value in given.items():
        if isinstance(value, Enum):
            value = value.value
        elif isinstance(value, (list, tuple)):
            value = list(value)
        values[key] = value
    for key in ("paths", *(option.dest for option in OPTIONS if option.kind == "list")):
        values[key] = values.get(key) or []
    return values


def _parameter(option: Option) -> inspect.Parameter:
    hint: Any = bool
    default: Any = option.default
    flags = (f"{option.flag}/{option.off}",) if option.off else (option.flag,)
    if option.kind == "list":
        hint, default = list[str] | None, None
    elif option.choices:
        # typer takes choices as an enumeration.
        make: Any = Enum
        hint = make(option.dest, [(choice, choice) for choice in option.choices], type=str)
        default = hint(option.default)
    elif option.kind == "value":
        hint = str | None
    elif default is None:
        hint = bool | None
    info = typer.Option(
        *flags, help=option.help, show_default=bool(option.choices), metavar=option.metavar or None
    )
    return inspect.Parameter(
        option.dest, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info]
    )


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives the command the signature that the table describes."""
    about = typer.Argument(help="Files and folders, or - for standard input [default: .].")
    paths = inspect.Parameter(
        "paths",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[list[str] | None, about],
    )
    parameters = [paths, *(_parameter(option) for option in OPTIONS)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


app.command("check", help="Check source files.", epilog=EXIT_CODES)(with_options(_check))


@app.command("clean")
def _clean(
    paths: Annotated[
        list[str] | None, typer.Argument(help="What was checked [default: .].", show_default=False)
    ] = None,
    cache_dir: Annotated[str | None, typer.Option(help="The cache to remove.", metavar="FOLDER")] = None,
) -> None:
    """Remove the cache of "kvlint check"."""
    from .check import clean

    raise typer.Exit(quietly(lambda: clean(paths or ["."], cache_dir)))


@app.command("rule")
def _rule(
    rule: Annotated[str | None, typer.Argument(help="Code or name; without one, all are listed.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Explain every rule.")] = False,
    output_format: Annotated[DocFormat, typer.Option(help="How it is printed.")] = DocFormat.text,
) -> None:
    """Explain a rule."""
    from .contract.rule import all_rules, find_rule
    from .report.rules import listing, render

    def print_it() -> int:
        if every:
            text = render(all_rules(), output_format.value, False)
        elif rule is None:
            if output_format is not DocFormat.text:
                return _fail("rule: name a rule or give --all")
            text = listing(all_rules())
        else:
            found = find_rule(rule)
            if found is None:
                from difflib import get_close_matches

                near = get_close_matches(rule.lower(), [item.name for item in all_rules()], 1)
                hint = f', did you mean "{near[0]}"?' if near else ""
                return _fail(f'no rule is called "{rule}"{hint}')
            text = render([found], output_format.value, True)
        sys.stdout.write(text)
        return 0

    raise typer.Exit(quietly(print_it))


@app.command("op")
def _op(
    name: Annotated[str | None, typer.Argument(help="Name of an operator.")] = None,
    torch_npu: Annotated[str | None, typer.Option(help="Release whose schema is shown.")] = None,
    every: Annotated[bool, typer.Option("--list", help="List the operators that kvlint knows.")] = False,
    output_format: Annotated[OpFormat, typer.Option(help="How it is printed.")] = OpFormat.text,
) -> None:
    """Show an operator's schema, roles and history."""
    from .opinfo import Format, describe, list_operators

    form: Format = "json" if output_format is OpFormat.json else "text"

    def print_it() -> int:
        if every:
            text = list_operators(form)
        elif name is None:
            return _fail("op: name an operator or give --list")
        else:
            try:
                text = describe(name, torch_npu, form)
            except ValueError as error:  # an unknown operator is one too
                return _fail(str(error))
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return 0

    raise typer.Exit(quietly(print_it))


@app.command(
    "oracle",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def _oracle(context: typer.Context) -> None:
    """Run operators against an exact reference (needs the extra "oracle")."""
    raise typer.Exit(quietly(lambda: _extra("oracle", context.args)))


@app.command(
    "run",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def _run(context: typer.Context) -> None:
    """Run a script, in the simulator or on a device (needs the extra "sim")."""
    raise typer.Exit(start_script(context.args))


@app.command("doctor")
def _doctor() -> None:
    """Say which oracle backends can run here, and why the others cannot."""

    def print_it() -> int:
        from importlib.util import find_spec

        absent = [module for module in ("torch", "numpy") if find_spec(module) is None]
        if not absent:
            return _extra("oracle", ["backends"])
        reason = f"{' and '.join(absent)} not installed (pip install 'kvlint[oracle]')"
        for backend in ("sim", "sdpa", "npu"):
            print(f"{backend:<10} not here: {reason}")
        return 0

    raise typer.Exit(quietly(print_it))


def _extra(name: str, words: list[str]) -> int:
    """Runs a command that lives in an optional part of kvlint."""
    if missing := _missing(name, ("torch", "numpy")):
        return missing
    from importlib import import_module

    application = import_module(f"kvlint.{name}.cli").app
    application(args=words, prog_name=f"kvlint {name}")
    return 0


def start_script(words: list[str]) -> int:
    """``kvlint run words...``; the exit code is the script's."""
    if missing := _missing("sim", ("torch", "numpy", "safetensors")):
        return missing
    from .runtime.cli import run as start

    return start(words)


def _missing(extra: str, modules: tuple[str, ...]) -> int:
    """2 with a message when something of an extra is not installed, 0 otherwise."""
    from importlib.util import find_spec

    for module in modules:
        if find_spec(module) is None:
            return _fail(f"this needs {module}: pip install 'kvlint[{extra}]'")
    return 0


def _fail(text: str) -> int:
    sys.stdout.flush()
    print(f"kvlint: error: {text}", file=sys.stderr)
    return 2
