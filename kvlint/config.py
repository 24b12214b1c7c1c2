"""Settings: ``[tool.kvlint]`` of the nearest pyproject.toml, ``--config``, and the flags, in rising order.

Kept free of heavy imports: a run whose files hold no operator call still reads settings.
"""

from __future__ import annotations

import os

from .globs import Globs, relative

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .options import Values

DEFAULT_EXCLUDE = (
    ".*/",
    "__pycache__/",
    "__pypackages__/",
    "_build/",
    "buck-out/",
    "build/",
    "dist/",
    "node_modules/",
    "site-packages/",
    "venv/",
)
SOCS = ("A2", "A3", "310P", "950")

# What each key of [tool.kvlint] holds.
KEYS = {
    "select": "strings",
    "extend-select": "strings",
    "ignore": "strings",
    "per-file-ignores": "table",
    "torch-npu": "string",
    "cann": "string",
    "soc": "string",
    "src": "strings",
    "cache-dir": "string",
    "exclude": "strings",
    "extend-exclude": "strings",
    "force-exclude": "bool",
    "respect-gitignore": "bool",
}
_KIND_NAMES = {
    "strings": "a list of strings",
    "table": "a table of PATTERN = [RULES]",
    "string": "a string",
    "bool": "true or false",
}


class ConfigError(Exception):
    """Settings or arguments that cannot be used; the text is one line for the user."""


class Layer:
    """One source of rule selections. A ``select`` here replaces everything that came before."""

    __slots__ = ("extend", "ignore", "origin", "select")

    def __init__(
        self, origin: str, select: Sequence[str] | None, extend: Sequence[str], ignore: Sequence[str]
    ) -> None:
        self.origin = origin
        self.select = select
        self.extend = extend
        self.ignore = ignore

    def selectors(self) -> Iterable[str]:
        """Every selector that is mentioned."""
        yield from self.select or ()
        yield from self.extend
        yield from self.ignore


class Settings:
    """What holds for one file.

    Attributes:
        source: the pyproject.toml that was read, or None.
        base: the folder that patterns of the configuration are relative to.
        layers: rule selections, weakest first.
        per_file_ignores: patterns with the selectors they switch off.
        ignores_origin: where ``per_file_ignores`` was said.
        src: folders that imports are looked up in, as written; None for the default.
        cache_dir: where the cache is kept, as written; None for the default.
    """

    __slots__ = (
        "base",
        "cache_dir",
        "cann",
        "exclude",
        "exclude_patterns",
        "force_exclude",
        "ignores_origin",
        "layers",
        "per_file_ignores",
        "respect_gitignore",
        "soc",
        "source",
        "src",
        "torch_npu",
    )

    def __init__(self, source: str | None, base: str, table: Mapping[str, object], flags: Flags) -> None:
        self.source = source
        self.base = base
        origin = show(source, flags.cwd) if source else "--config"
        select = table.get("select")
        self.layers = [
            Layer(
                origin,
                None if select is None else _strings(select),
                _strings(table.get("extend-select")),
                _strings(table.get("ignore")),
            ),
            flags.layer,
        ]
        self.torch_npu = flags.torch_npu or _string(table.get("torch-npu"))
        self.cann = flags.cann or _string(table.get("cann"))
        self.soc = flags.soc or _string(table.get("soc"))
        written = table.get("src")
        self.src = None if written is None else _strings(written)
        self.cache_dir = _string(table.get("cache-dir"))
        self.force_exclude = _first_bool(flags.force_exclude, table.get("force-exclude"), False)
        self.respect_gitignore = _first_bool(flags.respect_gitignore, table.get("respect-gitignore"), True)

        excluded = table.get("exclude")
        own = list(DEFAULT_EXCLUDE) if excluded is None else _strings(excluded)
        own = [*([] if flags.exclude else own), *_strings(table.get("extend-exclude"))]
        self.exclude = [
            globs
            for globs in (Globs(base, own), Globs(flags.cwd, [*flags.exclude, *flags.extend_exclude]))
            if globs
        ]
        self.exclude_patterns = [*own, *flags.exclude, *flags.extend_exclude]

        ignores = table.get("per-file-ignores")
        if flags.per_file_ignores:
            pairs, self.ignores_origin, folder = flags.per_file_ignores, "--per-file-ignores", flags.cwd
        else:
            rows = ignores.items() if isinstance(ignores, dict) else ()
            pairs, self.ignores_origin, folder = [(key, _strings(held)) for key, held in rows], origin, base
        self.per_file_ignores = [(Globs(folder, [pattern]), rules) for pattern, rules in pairs]

    def excluded(self, path: str, is_dir: bool) -> bool:
        """Whether ``exclude`` names this very file or folder."""
        for globs in self.exclude:
            below = relative(path, globs.base)
            if below is None:  # elsewhere: only patterns on names can match
                below = os.path.basename(path)
            if globs.match(below, is_dir):
                return True
        return False

    def ignored_in(self, path: str) -> list[str]:
        """The selectors that ``per-file-ignores`` switches off for a file."""
        found: list[str] = []
        for globs, rules in self.per_file_ignores:
            below = relative(path, globs.base)
            if globs.covers(below if below is not None else os.path.basename(path)):
                found.extend(rules)
        return found

    def lines(self) -> list[str]:
        """The settings in the form of a configuration file."""
        import json

        def say(value: object) -> str:
            return json.dumps(value, ensure_ascii=False)

        shown = [f"# from {self.source or 'defaults and flags'}", f"# patterns are relative to {self.base}"]
        for layer in self.layers:
            if layer.select is not None:
                shown.append(f"select = {say(list(layer.select))}")
            if layer.extend:
                shown.append(f"extend-select = {say(list(layer.extend))}")
            if layer.ignore:
                shown.append(f"ignore = {say(list(layer.ignore))}")
        for key, value in (("torch-npu", self.torch_npu), ("cann", self.cann), ("soc", self.soc)):
            shown.append(f"{key} = {say(value)}" if value else f"# {key}: any")
        shown.append(f"exclude = {say(self.exclude_patterns)}")
        shown.append(f"force-exclude = {say(self.force_exclude)}")
        shown.append(f"respect-gitignore = {say(self.respect_gitignore)}")
        if self.src is not None:
            shown.append(f"src = {say(self.src)}")
        if self.cache_dir is not None:
            shown.append(f"cache-dir = {say(self.cache_dir)}")
        return shown


class Flags:
    """What the command line says about settings."""

    def __init__(self, values: Values, cwd: str) -> None:
        self.cwd = cwd
        select = split(values["select"])
        self.layer = Layer(
            "the command line", select or None, split(values["extend_select"]), split(values["ignore"])
        )
        self.torch_npu = _target("torch-npu", values["torch_npu"], "--torch-npu")
        self.cann = _target("cann", values["cann"], "--cann")
        self.soc = _target("soc", values["soc"], "--soc")
        self.exclude = split(values["exclude"])
        self.extend_exclude = split(values["extend_exclude"])
        self.force_exclude = values["force_exclude"]
        self.respect_gitignore = values["respect_gitignore"]
        self.per_file_ignores = [_pair(item) for item in split(values["per_file_ignores"])]
        self.isolated = bool(values["isolated"])
        self.table = _overrides(values["config"])


class Config:
    """Finds the settings of each folder."""

    def __init__(self, flags: Flags) -> None:
        self.flags = flags
        self._default: Settings | None = None
        self._folders: dict[str, Settings] = {}

    @property
    def default(self) -> Settings:
        """The settings where no configuration file applies."""
        if self._default is None:
            self._default = Settings(None, self.flags.cwd, self.flags.table, self.flags)
        return self._default

    def of(self, folder: str, has_file: bool | None = None) -> Settings:
        """The settings of the files in ``folder``: from it or the nearest folder above.

        ``has_file``: whether the folder holds a pyproject.toml; None when that is not known.
        """
        if self.flags.isolated:
            return self.default
        found = self._folders.get(folder)
        if found is None:
            if has_file is not False:
                found = self._load(folder)
            if found is None:
                above = os.path.dirname(folder)
                found = self.default if above == folder else self.of(above)
            self._folders[folder] = found
        return found

    def _load(self, folder: str) -> Settings | None:
        path = os.path.join(folder, "pyproject.toml")
        try:
            with open(path, "rb", 0) as file:
                data = file.read()
        except OSError:
            return None
        if b"kvlint" not in data:  # most projects: no TOML parser is needed to know
            return None
        shown = show(path, self.flags.cwd)
        table = _table(data, shown)
        if table is None:
            return None
        for key, value in table.items():
            _check(key, value, f"{shown}: [tool.kvlint]")
        return Settings(path, folder, {**table, **self.flags.table}, self.flags)


def _table(data: bytes, shown: str) -> dict[str, object] | None:
    try:
        parsed = _parse_toml(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{shown}: not valid UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"{shown}: not valid TOML: {str(error).splitlines()[0]}") from None
    tool = parsed.get("tool")
    table = tool.get("kvlint") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{shown}: tool.kvlint must be a table")
    return table


def _parse_toml(text: str) -> dict[str, object]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    parsed: dict[str, object] = tomllib.loads(text)
    return parsed


def _check(key: str, value: object, where: str) -> None:
    """Raises :class:`ConfigError` for an unknown key or a value of the wrong kind."""
    kind = KEYS.get(key)
    if kind is None:
        raise ConfigError(f'{where}: unknown key "{key}"{_hint(key)}')
    right = (
        isinstance(value, bool)
        if kind == "bool"
        else isinstance(value, str)
        if kind == "string"
        else _is_strings(value)
        if kind == "strings"
        else isinstance(value, dict) and all(_is_strings(item) for item in value.values())
    )
    if not right:
        raise ConfigError(f'{where}: "{key}" must be {_KIND_NAMES[kind]}')
    if key in ("torch-npu", "cann", "soc"):
        _target(key, value, f'{where}: "{key}"')


def _hint(key: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key.lower().replace("_", "-"), KEYS, 1)
    return f', did you mean "{near[0]}"?' if near else ""


def _overrides(items: object) -> dict[str, object]:
    table: dict[str, object] = {}
    for item in items if isinstance(items, (list, tuple)) else ():
        key, equals, text = str(item).partition("=")
        key, text = key.strip(), text.strip()
        where = "--config"
        if not equals:
            raise ConfigError(f'--config: "{item}" is not KEY=VALUE')
        kind = KEYS.get(key)
        value: object = text
        if kind in ("strings", "table") and text[:1] in ("[", "{"):
            try:
                value = _parse_toml(f"value = {text}")["value"]
            except ValueError:
                raise ConfigError(f'--config: the value of "{key}" is not valid TOML') from None
        elif kind == "strings":
            value = split([text])
        elif kind == "bool":
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif text[:1] == text[-1:] and text[:1] in ("'", '"') and len(text) > 1:
            value = text[1:-1]
        _check(key, value, where)
        table[key] = value
    return table


def _target(key: str, value: object, where: str) -> str | None:
    """A target as the contract writes it. Raises :class:`ConfigError` when it is no such thing."""
    if value is None:
        return None
    text = str(value).strip()
    if key == "soc":
        if text.upper() not in SOCS:
            raise ConfigError(f'{where}: unknown product "{text}" (one of {", ".join(SOCS)})')
        return text.upper()
    example = "2.7.1.post2" if key == "torch-npu" else "8.2.RC1"
    pieces = text.split(".")
    if len(pieces) < 2 or not pieces[0].isdecimal() or not all(_is_piece(piece) for piece in pieces[1:]):
        raise ConfigError(f'{where}: "{text}" is not a version such as {example}')
    return text


def _is_piece(piece: str) -> bool:
    """Whether a dotted piece is a number, or a word such as ``post`` or ``RC`` with an optional one."""
    if piece.isdecimal():
        return True
    head = piece.rstrip("0123456789")
    while head and head[0].isdecimal():  # "0rc1"
        head = head[1:]
    return head.lower() in ("rc", "post", "dev", "alpha", "beta", "a", "b")


def _pair(item: str) -> tuple[str, list[str]]:
    pattern, colon, rule = item.rpartition(":")
    if not colon or not pattern or not rule:
        raise ConfigError(f'--per-file-ignores: "{item}" is not PATTERN:RULE')
    return pattern, [rule.strip()]


def split(items: object) -> list[str]:
    """The entries of a list option: given several times, each with commas."""
    found: list[str] = []
    for item in items if isinstance(items, (list, tuple)) else ():
        found.extend(part.strip() for part in str(item).split(",") if part.strip())
    return found


def show(path: str, cwd: str) -> str:
    """A path as messages print it: relative when it is below the current folder."""
    below = relative(path, cwd)
    return path if below is None else below


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _first_bool(*options: object) -> bool:
    return next(option for option in options if isinstance(option, bool))
