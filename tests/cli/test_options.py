"""The quick argument reader and the typer application understand the same words the same way."""

from __future__ import annotations

import inspect

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlint import cli, options
from kvlint.options import OPTIONS, parse

_FLAGS = [option.flag for option in OPTIONS] + [option.off for option in OPTIONS if option.off]
_CHOICES = [choice for option in OPTIONS for choice in option.choices]
_WORDS = st.sampled_from(
    [
        *_FLAGS,
        *_CHOICES,
        "a.py",
        "KV1,KV2",
        "x=y",
        "",
        "-",
        "--",
        "-q",
        "-h",
        "--help",
        "--selec",
        "--unknown",
        "-5",
    ]
)
_JOINED = st.tuples(st.sampled_from(_FLAGS), st.sampled_from([*_CHOICES, "KV1", "", "a=b", "-x"])).map(
    "=".join
)


def full(words: list[str]) -> dict[str, object] | None:
    """What the application reads, or None when it does not get to run the command."""
    seen: list[dict[str, object]] = []

    def record(**values: object) -> None:
        seen.append(cli.plain_values(values))

    app = typer.Typer(rich_markup_mode=None)
    app.command()(cli.with_options(record))
    command = typer.main.get_command(app)
    try:
        command.main(args=words, prog_name="check", standalone_mode=False)
    except (Exception, SystemExit):
        return None
    return seen[0] if seen else None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(_WORDS, _JOINED), max_size=6))
def test_what_the_quick_reader_accepts_the_application_reads_alike(words: list[str]) -> None:
    quick = parse(words)
    if quick is not None:
        assert quick == full(words)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_every_option_takes_the_quick_way(option: options.Option) -> None:
    value = option.choices[-1] if option.choices else "word"
    spellings = (
        [[option.flag]] if option.kind == "flag" else [[option.flag, value], [f"{option.flag}={value}"]]
    )
    if option.off:
        spellings.append([option.off])
    for words in spellings:
        quick = parse([*words, "a.py"])
        assert quick is not None
        assert quick == full([*words, "a.py"])
        assert quick["paths"] == ["a.py"]
        assert quick[option.dest] != options.defaults()[option.dest] or value == option.default


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h"],
        ["--bogus"],
        ["--select"],
        ["--select", "-x"],
        ["--color", "pink"],
        ["--isolated=1"],
    ],
)
def test_anything_doubtful_is_left_to_the_application(words: list[str]) -> None:
    assert parse(words) is None


def test_after_two_dashes_everything_is_a_path() -> None:
    quick = parse(["--isolated", "--", "--select", "-"])
    assert quick is not None and quick["paths"] == ["--select", "-"]
    assert quick == full(["--isolated", "--", "--select", "-"])


def test_no_words() -> None:
    assert parse([]) == options.defaults() == full([])


def test_defaults_are_not_shared_between_runs() -> None:
    first = parse(["--select", "KV1"])
    assert first is not None and first["select"] == ["KV1"]
    assert options.defaults()["select"] == []


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(["check", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for option in OPTIONS:
        assert option.flag in out and option.off in out
    assert " ".join(options.EXIT_CODES.split()) in " ".join(out.split())


def test_the_application_is_made_from_the_table() -> None:
    names = list(inspect.signature(cli.with_options(lambda **given: None)).parameters)
    assert names == ["paths", *(option.dest for option in OPTIONS)]
