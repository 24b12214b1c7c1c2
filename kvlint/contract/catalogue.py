"""The operator catalogue: the schema of every attention and KV-cache operator in every torch_npu release.

Schemas are read from ``data/schemas.json``, which ``tests/tools/build_catalogue.py`` takes out of the
released wheels. Releases are kept in *train order*: the order in which they were built, which is not the
order of their numbers (2.7.1.post11 is newer than 2.10.0). Neither torch nor torch_npu is imported.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypedDict

from kvlint.contract.data.roles import ENTRIES, Entry, role_of

_SCHEMAS: Final = Path(__file__).parent / "data" / "schemas.json"


class _Required(Enum):
    """The type of :data:`REQUIRED`."""

    REQUIRED = "required"

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required.REQUIRED
"""The default of a parameter that has none; None is a default of its own."""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a schema."""

    name: str
    type: str
    """The schema type as written, with its alias annotation: ``Tensor(a!)``, ``SymInt[]?``, ``float``."""
    position: int | None
    """Index among the positional parameters, None when keyword-only."""
    required: bool
    default: object
    """The default as a Python value, or :data:`REQUIRED`."""
    role: str | None
    """The meaning this parameter shares with its family, see ``data/roles.py``."""
    mutated: bool
    """The schema declares that the operator writes into this argument."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One schema of one operator overload, and the releases that carry exactly this schema."""

    name: str
    overload: str
    namespace: str
    family: str
    version: str
    params: tuple[Param, ...]
    returns: int
    """Number of results."""
    releases: tuple[str, ...]
    """torch_npu releases with exactly this schema, in train order."""
    schema: str

    @property
    def full_name(self) -> str:
        """``name``, or ``name.overload`` for a named overload."""
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @property
    def repeats_arguments(self) -> bool:
        """Whether this is a workspace or shape query with the arguments of the real call."""
        return self.name.endswith(("_get_max_workspace", "_infer_output", "_get_workspace"))

    def param(self, name: str) -> Param | None:
        """The parameter of that name."""
        return next((p for p in self.params if p.name == name), None)

    def by_role(self, role: str) -> Param | None:
        """The parameter with that role, whatever this operator calls it."""
        return next((p for p in self.params if p.role == role), None)


def operators(release: str | None = None) -> tuple[Operator, ...]:
    """Every operator overload: its newest schema, or the one that a release carries."""
    chosen = (find(name, overload, release) for name, overloads in _index().items() for overload in overloads)
    return tuple(operator for operator in chosen if operator is not None)


def find(name: str, overload: str = "", release: str | None = None) -> Operator | None:
    """The schema of an operator, or None where the release does not have it.

    Without a release, the newest schema. ``"2.7"`` and ``"2.7.1"`` mean the newest matching release,
    ``"2.7.1.post11"`` that one. A few operators have no default overload; the plain name then means the
    only overload there is, as it does in a call. ``"default"`` is another way to say ``""``.
    """
    known = variants(name, overload)
    if release is None:
        return known[-1] if known else None
    exact = resolve_release(release)
    return next((operator for operator in known if exact in operator.releases), None)


def variants(name: str, overload: str = "") -> tuple[Operator, ...]:
    """Every schema an operator overload ever had, oldest first."""
    overloads = _index().get(name)
    if overloads is None:
        return ()
    overload = "" if overload == "default" else overload
    if not overload and "" not in overloads and len(overloads) == 1:
        overload = next(iter(overloads))
    return _parsed(name, overload) if overload in overloads else ()


def overloads(name: str) -> tuple[str, ...]:
    """The overload names of an operator, ``""`` for the default one."""
    return tuple(_index().get(name, ()))


def dispatched(name: str, overload: str, positional: int, keywords: Collection[str]) -> str:
    """The overload that a call reaches: one that has all its keywords, where the default one has not."""
    default = find(name, overload)
    if overload or default is None or all(default.param(keyword) is not None for keyword in keywords):
        return overload
    fitting: dict[str, int] = {}
    for other in overloads(name):
        schema = find(name, other)
        if schema is not None and all(schema.param(keyword) is not None for keyword in keywords):
            given = [p for p in schema.params if p.position is not None and p.position < positional]
            fitting[other] = sum(
                p.required and p not in given and p.name not in keywords for p in schema.params
            )
    return min(fitting, key=lambda other: fitting[other], default=overload)


def names() -> frozenset[str]:
    """The name of every operator, without parsing a schema."""
    return frozenset(_index())


@cache
def releases() -> tuple[str, ...]:
    """Every torch_npu release that was read, oldest train first."""
    return tuple(release for train in trains() for release in train.releases)


@dataclass(frozen=True, slots=True)
class Train:
    """Releases built together, for several torch versions, from one branch of the operator sources."""

    built: str
    """Year and month."""
    op_plugin: str | None
    """The op-plugin branch, where it is known."""
    releases: tuple[str, ...]


@cache
def trains() -> tuple[Train, ...]:
    """The release trains, oldest first."""
    return tuple(Train(t["built"], t["op_plugin"], tuple(t["releases"])) for t in _document()["trains"])


def resolve_release(text: str) -> str:
    """The release that a version, or the beginning of one, means.

    ``2.7`` and ``2.7.1`` mean the newest release of that line, ``2.7.1.post2`` that release, and ``==2.7.1``
    the release without a post number. Raises ValueError with one line that names the lines there are.
    """
    wanted = text.strip().split("+", 1)[0]
    exact = wanted.removeprefix("==").strip()
    matching = [r for r in releases() if r == exact or (r.startswith(f"{exact}.") and exact == wanted)]
    if matching:
        return matching[-1]
    raise ValueError(
        f"no torch_npu release {text!r} in the catalogue; it has {', '.join(_lines())} "
        "and their post releases"
    )


def release_ranges(carried: Collection[str]) -> str:
    """Releases as a reader thinks of them: per line, from which post release on.

    ``"2.7.1.post4+, 2.8.0.post4+, 2.9.1 and later"`` where ``+`` covers the rest of its line.
    """
    parts: list[str] = []
    open_since: str | None = None
    for line, members in _lines().items():
        inside = [release for release in members if release in carried]
        if inside == list(members):
            open_since = open_since or line
            parts.append(line if len(members) == 1 else f"{line}+")
            continue
        open_since = None
        if inside and inside == list(members[-len(inside) :]):
            parts.append(f"{inside[0]}+" if len(inside) > 1 else inside[0])
        elif inside:
            parts.append(inside[0] if len(inside) == 1 else f"{inside[0]} to {inside[-1]}")
    if open_since is not None:
        first = next(i for i, part in enumerate(parts) if part.rstrip("+") == open_since)
        parts[first:] = [f"{open_since} and later"]
    return ", ".join(parts)


@cache
def _lines() -> dict[str, tuple[str, ...]]:
    """The releases of every X.Y.Z line in order of their post number, lines in order of their number."""
    found: dict[str, list[str]] = {}
    for release in releases():
        found.setdefault(release.split(".post", 1)[0], []).append(release)
    return {line: tuple(found[line]) for line in sorted(found, key=lambda r: [int(n) for n in r.split(".")])}


V1_TO_V2: Final[Mapping[str, str | None]] = MappingProxyType(
    {
        **{
            name: name
            for name in (
                "query",
                "key",
                "value",
                "query_rope",
                "key_rope",
                "pse_shift",
                "atten_mask",
                "block_table",
                "num_key_value_heads",
                "pre_tokens",
                "next_tokens",
                "input_layout",
                "sparse_mode",
                "inner_precise",
                "block_size",
                "workspace",
                "out",
            )
        },
        "actual_seq_lengths": "actual_seq_qlen",
        "actual_seq_lengths_kv": "actual_seq_kvlen",
        "num_heads": "num_query_heads",
        "scale": "softmax_scale",
        "softmax_lse_flag": "return_softmax_lse",
        "quant_scale2": "quant_scale_out",
        "quant_offset2": "quant_offset_out",
        "key_antiquant_scale": "dequant_scale_key",
        "key_antiquant_offset": "dequant_offset_key",
        "key_antiquant_mode": "key_quant_mode",
        "value_antiquant_scale": "dequant_scale_value",
        "value_antiquant_offset": "dequant_offset_value",
        "value_antiquant_mode": "value_quant_mode",
        "key_rope_antiquant_scale": "dequant_scale_key_rope",
        **dict.fromkeys(
            (
                "dequant_scale1",
                "quant_scale1",
                "dequant_scale2",
                "antiquant_scale",
                "antiquant_offset",
                "antiquant_mode",
                "query_padding_size",
                "kv_padding_size",
                "key_shared_prefix",
                "value_shared_prefix",
                "actual_shared_prefix_len",
            )
        ),
    }
)
"""What FIA v2 calls each parameter of FIA v1; None where v2 has no equivalent."""

V2_TO_V1: Final[Mapping[str, str | None]] = MappingProxyType(
    {
        **{new: old for old, new in V1_TO_V2.items() if new is not None},
        **dict.fromkeys(
            (
                "dequant_scale_query",
                "query_quant_mode",
                "learnable_sink",
                "quant_scale_p",
                "out_dtype",
                "query_dtype",
                "key_dtype",
                "value_dtype",
                "query_rope_dtype",
                "key_rope_dtype",
                "key_shared_prefix_dtype",
                "value_shared_prefix_dtype",
                "dequant_scale_query_dtype",
                "dequant_scale_key_dtype",
                "dequant_scale_value_dtype",
                "dequant_scale_key_rope_dtype",
            )
        ),
    }
)
"""What FIA v1 calls each parameter of FIA v2; None where v1 has no equivalent."""


_ARGUMENT = re.compile(r"(?P<type>\S+) (?P<name>\w+)(?:=(?P<default>.+))?")
_SEPARATOR = re.compile(r""", (?=(?:[^"']|"[^"]*"|'[^']*')*$)(?![^\[]*\])""")


def _parse(schema: str, namespace: str, entry: Entry, carriers: tuple[str, ...]) -> Operator:
    full_name, rest = schema.split("(", 1)
    name, _, overload = full_name.partition(".")
    arguments, results = rest.rsplit(") -> ", 1)
    params: list[Param] = []
    keyword_only = False
    for text in _SEPARATOR.split(arguments) if arguments else ():
        if text == "*":
            keyword_only = True
            continue
        match = _ARGUMENT.fullmatch(text)
        if match is None:
            raise ValueError(f"cannot read argument {text!r} of {schema}")
        kind, default = match["type"], match["default"]
        params.append(
            Param(
                name=match["name"],
                type=kind,
                position=None if keyword_only else len(params),
                required=default is None,
                default=REQUIRED if default is None else _default(kind, default),
                role=role_of(entry, match["name"]),
                # Several outputs are registered as one list, which carries no alias annotation.
                mutated="!" in kind or (kind == "Tensor[]" and match["name"] == "out"),
            )
        )
    return Operator(
        name,
        overload,
        namespace,
        entry.family,
        entry.version,
        tuple(params),
        _result_count(results),
        carriers,
        schema,
    )


def _default(kind: str, text: str) -> object:
    value: object = ast.literal_eval(text)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, int) and kind.rstrip("?") == "float":
        return float(value)
    return value


def _result_count(results: str) -> int:
    if not results.startswith("("):
        return 1
    return len(_SEPARATOR.split(results[1:-1])) if results != "()" else 0


class _TrainRecord(TypedDict):
    built: str
    op_plugin: str | None
    releases: list[str]


class _VariantRecord(TypedDict):
    schema: str
    releases: list[str]
    """Runs of the train order, each ``first`` or ``first..last``."""


class _Document(TypedDict):
    trains: list[_TrainRecord]
    operators: dict[str, dict[str, dict[str, list[_VariantRecord]]]]
    """Namespace, operator, overload."""


@cache
def _document() -> _Document:
    content: _Document = json.loads(_SCHEMAS.read_text(encoding="utf-8"))
    return content


@cache
def _index() -> dict[str, dict[str, list[_VariantRecord]]]:
    return {
        name: overloads
        for by_name in _document()["operators"].values()
        for name, overloads in by_name.items()
    }


@cache
def _parsed(name: str, overload: str) -> tuple[Operator, ...]:
    namespace = next(n for n, by_name in _document()["operators"].items() if name in by_name)
    entry = ENTRIES[namespace][name]
    found = [
        _parse(record["schema"], namespace, entry, _expand(record["releases"]))
        for record in _index()[name][overload]
    ]
    # By the newest carrier: a release train may have had a schema before an older train got its own.
    order = {release: position for position, release in enumerate(releases())}
    return tuple(sorted(found, key=lambda operator: order[operator.releases[-1]]))


def _expand(spans: list[str]) -> tuple[str, ...]:
    order = releases()
    expanded: list[str] = []
    for span in spans:
        first, _, last = span.partition("..")
        expanded.extend(order[order.index(first) : order.index(last or first) + 1])
    return tuple(expanded)
