"""The options of ``kvlint check`` as data.

The quick argument reader below and the typer application (``cli.py``) are both made from
:data:`OPTIONS`, so that they cannot disagree about what exists.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# A parsed command line, by ``Option.dest``.
Values = dict[str, object]


class Option:
    """One option.

    Attributes:
        dest: key in the parsed values.
        flag: how it is written.
        kind: "flag", "value" (the last one wins) or "list" (given several times; commas separate).
        metavar: what the value is called in the help.
        choices: the only values allowed; empty for any.
        default: value when it is not given; None for "what the configuration says".
        off: for a flag: how to write its opposite.
        help: one sentence.
        group: heading in the help.
    """

    __slots__ = ("choices", "default", "dest", "flag", "group", "help", "kind", "metavar", "off")

    def __init__(
        self,
        flag: str,
        kind: str,
        help: str,
        *,
        group: str,
        metavar: str = "",
        choices: tuple[str, ...] = (),
        default: object = None,
        off: str = "",
    ) -> None:
        self.flag = flag
        self.dest = flag[2:].replace("-", "_")
        self.kind = kind
        self.help = help
        self.group = group
        self.metavar = metavar
        self.choices = choices
        if kind == "list":
            default = []
        elif kind == "flag":
            default = None if off else False
        self.default = default
        self.off = off


_RULES = "Rule selection"
_TARGET = "Target stack"
_FILES = "File selection"
_CACHE = "Cache"
_OUTPUT = "Output"

OPTIONS: tuple[Option, ...] = (
    Option(
        "--select",
        "list",
        "Rules to run instead of the default set: codes, prefixes of codes, names, or ALL.",
        group=_RULES,
        metavar="RULES",
    ),
    Option("--extend-select", "list", "Rules to run besides the set.", group=_RULES, metavar="RULES"),
    Option("--ignore", "list", "Rules not to run.", group=_RULES, metavar="RULES"),
    Option(
        "--per-file-ignores",
        "list",
        "Rules not to run in some files, as PATTERN:RULE.",
        group=_RULES,
        metavar="PATTERN:RULE",
    ),
    Option("--torch-npu", "value", "Release of torch_npu the code is for.", group=_TARGET, metavar="VERSION"),
    Option("--cann", "value", "Version of CANN the code is for.", group=_TARGET, metavar="VERSION"),
    Option("--soc", "value", "Product the code is for: A2, A3, 310P or 950.", group=_TARGET, metavar="SOC"),
    Option(
        "--exclude",
        "list",
        "Patterns of files and folders to skip, instead of the default ones.",
        group=_FILES,
        metavar="PATTERN",
    ),
    Option("--extend-exclude", "list", "More patterns to skip.", group=_FILES, metavar="PATTERN"),
    Option(
        "--force-exclude",
        "flag",
        "Skip excluded files even when they are passed by name.",
        group=_FILES,
        off="--no-force-exclude",
    ),
    Option(
        "--respect-gitignore",
        "flag",
        "Skip what .gitignore files name (the default).",
        group=_FILES,
        off="--no-respect-gitignore",
    ),
    Option(
        "--stdin-filename",
        "value",
        "Name of the file whose text comes from standard input.",
        group=_FILES,
        metavar="PATH",
    ),
    Option(
        "--config",
        "list",
        "Set a key of [tool.kvlint], as KEY=VALUE; wins over pyproject.toml.",
        group=_FILES,
        metavar="KEY=VALUE",
    ),
    Option("--isolated", "flag", "Read no pyproject.toml.", group=_FILES),
    Option(
        "--no-cache",
        "flag",
        "Neither use nor keep what earlier runs found; so does KVLINT_NO_CACHE=1.",
        group=_CACHE,
    ),
    Option(
        "--cache-dir",
        "value",
        "Where it is kept; so does KVLINT_CACHE_DIR [default: .kvlint_cache of the project].",
        group=_CACHE,
        metavar="FOLDER",
    ),
    Option(
        "--output-format",
        "value",
        "How findings are printed.",
        group=_OUTPUT,
        choices=("text", "concise", "json"),
        default="text",
    ),
    Option(
        "--color",
        "value",
        "Whether to colour text output; auto also honours NO_COLOR and FORCE_COLOR.",
        group=_OUTPUT,
        choices=("auto", "always", "never"),
        default="auto",
    ),
    Option("--statistics", "flag", "Count findings per rule instead of printing each one.", group=_OUTPUT),
    Option(
        "--coverage",
        "flag",
        "Add a table of how many obligations were proved, violated and undecided.",
        group=_OUTPUT,
    ),
    Option(
        "--undecided",
        "flag",
        "List the obligations that stay undecided and where knowledge ended.",
        group=_OUTPUT,
    ),
    Option("--show-files", "flag", "Print the files that would be checked, and stop.", group=_OUTPUT),
    Option("--show-settings", "flag", "Print the settings of the first path, and stop.", group=_OUTPUT),
    Option("--exit-zero", "flag", "Exit with 0 even when there are findings.", group=_OUTPUT),
)

EXIT_CODES = (
    "Exit codes: 0 no findings; 1 findings, or a file that could not be read or parsed; "
    "2 wrong usage, wrong configuration or an internal error."
)


def defaults() -> Values:
    """The values of an empty command line."""
    values: Values = {"paths": []}
    for option in OPTIONS:
        values[option.dest] = list(option.default) if isinstance(option.default, list) else option.default
    return values


def parse(argv: Sequence[str]) -> Values | None:
    """Reads a plain command line; None when it takes the full application to understand it.

    What this returns is exactly what the application would have read; anything doubtful (an unknown
    option, a missing or dash-led value, a call for help) is left to the application.
    """
    by_flag = {option.flag: option for option in OPTIONS}
    by_off = {option.off: option for option in OPTIONS if option.off}
    values = defaults()
    paths: list[str] = []
    position, size = 0, len(argv)
    while position < size:
        word = argv[position]
        position += 1
        if word == "--":
            paths.extend(argv[position:])
            break
        if word == "-" or not word.startswith("-"):
            paths.append(word)
            continue
        flag, equals, value = word.partition("=")
        if not equals and flag in by_off:
            values[by_off[flag].dest] = False
            continue
        option = by_flag.get(flag)
        if option is None:
            return None
        if option.kind == "flag":
            if equals:
                return None
            values[option.dest] = True
            continue
        if not equals:
            if position == size:
                return None
            value = argv[position]
            position += 1
            if value.startswith("-"):
                return None
        if option.choices and value not in option.choices:
            return None
        if option.kind == "value":
            values[option.dest] = value
        else:
            held = values[option.dest]
            assert isinstance(held, list)
            held.append(value)
    values["paths"] = paths
    return values
