"""Write kvlint/contract/data/schemas.json from the torch_npu wheels of the package index.

    python tests/tools/build_catalogue.py            # every final and post release
    python tests/tools/build_catalogue.py --check    # fail when the committed file is out of date
    python tests/tools/build_catalogue.py --verify   # compare the committed file with the compiled libraries

Nothing is imported from a wheel. Only its ZIP directory and the few members that hold schemas are fetched,
through pip's own session and configuration, so a run costs some tens of megabytes instead of gigabytes:

* the two YAML files that the ``npu::`` operators are generated from,
* ``libop_plugin_atb.so``, whose read-only data holds the ``atb::`` schemas as plain C strings. The aarch64
  build is read: x86_64 compilers inline shorter strings into instructions.

``--verify`` fetches ``libtorch_npu.so`` too (some 1.5 gigabytes in all), whose read-only data holds the
``npu::`` schemas that are registered.
"""
from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import yaml
from pip._internal.commands import create_command
from pip._internal.index.collector import IndexContent, parse_links
from pip._internal.models.link import Link
from pip._internal.network.lazy_wheel import LazyZipOverHTTP
from pip._internal.network.session import PipSession
from pip._vendor.packaging.utils import parse_wheel_filename
from pip._vendor.packaging.version import Version

from kvlint.contract.catalogue import operators
from kvlint.contract.data.roles import ATB, NPU

OUTPUT = Path(__file__).parents[2] / "kvlint" / "contract" / "data" / "schemas.json"
YAMLS = ("torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml",
         "torch_npu/csrc/aten/npu_native_functions.yaml")
ATB_LIBRARY = "torch_npu/lib/libop_plugin_atb.so"
NPU_LIBRARY = "torch_npu/lib/libtorch_npu.so"

# Releases built within two weeks of each other come from one op-plugin branch; the next train is months away.
TRAIN_GAP = timedelta(days=14)
OP_PLUGIN_BRANCH = {
    "2023-12": "5.0.0", "2024-04": "6.0.rc1", "2024-07": "6.0.rc2", "2024-10": "6.0.rc3",
    "2025-01": "6.0.0", "2025-04": "7.0.0", "2025-07": "7.1.0", "2025-10": "7.2.0",
    "2026-01": "7.3.0", "2026-04": "26.0.0", "2026-07": "26.1.0",
}

# The code generator registers ``self`` under the name ``input`` since this train.
SELF_IS_INPUT = date(2024, 10, 1)

# One spelling per meaning, whatever the source or its printer chose, keeps the variants few.
SPELLING = ((re.compile(r"\s+"), " "), (re.compile(r" \? "), "? "), (re.compile(r" ?= ?"), "="),
            (re.compile(r", ?"), ", "), (re.compile(r"'"), '"'), (re.compile(r"=(\d+)\.(?=[,)])"), r"=\1.0"),
            (re.compile(r"=(\d+)e-0?(\d)"), r"=\1e-\2"))


@dataclass
class Release:
    """What one release says: its build date and the schemas of the kept operators, per namespace."""

    version: Version
    built: date
    schemas: dict[str, set[str]] = field(default_factory=dict)


def normalise(schema: str) -> str:
    for pattern, text in SPELLING:
        schema = pattern.sub(text, schema)
    return schema.strip()


def registered(schema: str, built: date) -> str:
    """The schema that the code generator registers for a YAML entry, which is the one that a call must match.

    It folds two or more output arguments into one list named ``out``, and renames ``self``.
    """
    head, arguments, results = re.fullmatch(r"([^(]+)\((.*)\) -> (.*)", schema).groups()  # type: ignore[union-attr]
    outputs = re.findall(r", Tensor\(\w!\) \w+(?=,|$)", arguments) if head.endswith("out") else []
    if len(outputs) > 1:
        arguments = arguments.removesuffix("".join(outputs)) + ", Tensor[] out"
        results = f"({', '.join(['Tensor'] * len(outputs))})"
    if built >= SELF_IS_INPUT:
        arguments = re.sub(r"\bself\b(?=,|$)", "input", arguments)
    return f"{head}({arguments}) -> {results}"


def packet(schema: str) -> str:
    return re.split(r"[.(]", schema, maxsplit=1)[0]


def yaml_schemas(text: str, built: date) -> Iterator[str]:
    """The registered schemas of every section of one file; an entry is a mapping, or only a name."""
    sections: Mapping[str, object] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for entries in sections.values():
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and "(" in entry.get("func", ""):
                yield registered(normalise(entry["func"]), built)


def library_schemas(binary: bytes) -> Iterator[str]:
    for text in binary.split(b"\0"):
        if b"(" in text and b") -> " in text and text.isascii():
            yield normalise(text.decode("ascii"))


def wheels(session: PipSession, locations: Iterable[str]) -> dict[Version, list[Link]]:
    """Every wheel the configured indexes offer, by version."""
    found: dict[Version, list[Link]] = {}
    for location in locations:
        if location.startswith("file:"):
            continue
        response = session.get(location, headers={"Accept": "text/html"})
        response.raise_for_status()
        page = IndexContent(response.content, content_type=response.headers["Content-Type"],
                            encoding=response.encoding, url=response.url)
        for link in parse_links(page):
            if link.is_wheel and not link.is_yanked:
                found.setdefault(parse_wheel_filename(link.filename)[1], []).append(link)
    return found


def members(session: PipSession, link: Link, names: Iterable[str]) -> tuple[date, dict[str, bytes]]:
    """The newest date inside a wheel, and the content of those named members that exist."""
    with LazyZipOverHTTP(link.url_without_fragment, session, chunk_size=1 << 20) as remote:
        archive = zipfile.ZipFile(remote)
        infos = {info.filename: info for info in archive.infolist()}
        newest = max(info.date_time for info in infos.values())
        return date(*newest[:3]), {name: archive.read(name) for name in names if name in infos}


def read_release(session: PipSession, version: Version, links: list[Link]) -> Release:
    arm = [link for link in links if "aarch64" in link.filename]
    built, content = members(session, (arm or links)[0], (*YAMLS, ATB_LIBRARY if arm else ""))
    release = Release(version, built)
    for name in YAMLS:
        kept = {s for s in yaml_schemas(content[name].decode(), built) if packet(s) in NPU}
        release.schemas.setdefault("npu", set()).update(kept)
    release.schemas["atb"] = {s for s in library_schemas(content.get(ATB_LIBRARY, b"")) if packet(s) in ATB}
    print(f"{version}  {built}  npu {len(release.schemas['npu'])}  atb {len(release.schemas['atb'])}",
          file=sys.stderr, flush=True)
    return release


def trains(releases: Iterable[Release]) -> list[list[Release]]:
    """Releases grouped by build train, oldest train first; inside a train ordered by version."""
    grouped: list[list[Release]] = []
    for release in sorted(releases, key=lambda r: r.built):
        if not grouped or release.built - grouped[-1][-1].built > TRAIN_GAP:
            grouped.append([])
        grouped[-1].append(release)
    return [sorted(train, key=lambda r: r.version) for train in grouped]


def spans(order: list[str], carriers: set[str]) -> list[str]:
    """Maximal runs of the train order, written ``first`` or ``first..last`` (inclusive)."""
    runs: list[list[str]] = []
    previous = -2
    for position, version in enumerate(order):
        if version not in carriers:
            continue
        if position == previous + 1:
            runs[-1].append(version)
        else:
            runs.append([version])
        previous = position
    return [run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]


def document(grouped: list[list[Release]]) -> dict[str, object]:
    order = [str(release.version) for train in grouped for release in train]
    carriers: dict[tuple[str, str, str], dict[str, set[str]]] = {}
    for train in grouped:
        for release in train:
            for namespace, schemas in release.schemas.items():
                for schema in schemas:
                    name, _, overload = schema.split("(", 1)[0].partition(".")
                    variants = carriers.setdefault((namespace, name, overload), {})
                    variants.setdefault(schema, set()).add(str(release.version))
    operators: dict[str, dict[str, dict[str, list[dict[str, object]]]]] = {"npu": {}, "atb": {}}
    for (namespace, name, overload), variants in sorted(carriers.items()):
        oldest_first = sorted(variants.items(), key=lambda item: order.index(min(item[1], key=order.index)))
        operators[namespace].setdefault(name, {})[overload] = [
            {"schema": schema, "releases": spans(order, versions)} for schema, versions in oldest_first]
    return {
        "trains": [{"built": month, "op_plugin": OP_PLUGIN_BRANCH.get(month),
                    "releases": [str(release.version) for release in train]}
                   for train in grouped for month in [f"{min(r.built for r in train):%Y-%m}"]],
        "operators": operators,
    }


def render(content: Mapping[str, object]) -> str:
    """JSON with one line per train and per variant, so that a diff shows what a release changed."""
    text = json.dumps(content, indent=1, sort_keys=False)
    leaf = re.compile(r"\{\s*(\"(?:schema|built)\"[^{}]*?)\s*\}")
    return leaf.sub(lambda m: "{" + re.sub(r"\s*\n\s*", " ", m.group(1)) + "}", text) + "\n"


def disagreements(session: PipSession, version: Version, links: list[Link]) -> list[str]:
    """The catalogued ``npu::`` schemas of a release that its library does not contain, and the other way."""
    _, content = members(session, next(link for link in links if "aarch64" in link.filename), (NPU_LIBRARY,))
    compiled = {s for s in library_schemas(content[NPU_LIBRARY]) if packet(s) in NPU}
    catalogued = {o.schema for o in operators(f"=={version}") if o.namespace == "npu"}
    print(f"{version}  {len(compiled & catalogued)} schemas agree", file=sys.stderr, flush=True)
    return [f"{version}: only in the library: {s}" for s in sorted(compiled - catalogued)] + [
        f"{version}: only in the catalogue: {s}" for s in sorted(catalogued - compiled)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the operator schemas of every torch_npu release.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    mode.add_argument("--verify", action="store_true", help="compare it with the compiled libraries instead")
    arguments = parser.parse_args()
    command = create_command("download")
    options, _ = command.parse_args([])
    with command.main_context():
        session = command.get_default_session(options)  # type: ignore[attr-defined]
        finder = command._build_package_finder(options, session)  # type: ignore[attr-defined]
        locations = finder._link_collector.search_scope.get_index_urls_locations("torch-npu")
        found = [(v, links) for v, links in sorted(wheels(session, locations).items()) if not v.is_prerelease]
        if arguments.verify:
            wrong = [line for version, links in found for line in disagreements(session, version, links)]
            print("\n".join(wrong) or "the catalogue agrees with every library")
            return 1 if wrong else 0
        releases = [read_release(session, version, links) for version, links in found]
    text = render(document(trains(releases)))
    if arguments.check:
        same = OUTPUT.read_text() == text
        print("up to date" if same else f"{OUTPUT} is out of date")
        return 0 if same else 1
    OUTPUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
