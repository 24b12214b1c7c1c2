"""Stand-ins for the CANN libraries, so that the real torch_npu wheel loads on a machine without CANN.

What is missing is computed from the wheel, never listed by hand. The result is cached per wheel, under the
hash of its RECORD.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvlint.sim import elf
from kvlint.sim.errors import SimulationError

#: torch_npu 2.7 and 2.8 open these by name while they load.
OPENED_BY_NAME: Final = ("libopapi.so", "libcust_opapi.so")
#: Needs libatb.so, and nothing loads it until an ATB operator is called.
_SKIPPED: Final = "atb"
_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """Libraries to write, and the symbols that the first of them defines."""

    libraries: tuple[str, ...]
    symbols: tuple[str, ...]


def package_dir(name: str) -> Path | None:
    """Where a package is installed; it is not imported."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def plan(npu: Path, torch: Path) -> Plan:
    """What the libraries of the wheel need and nothing on this machine has."""
    own = [p for folder in (npu / "lib", npu) for p in sorted(folder.glob("*.so")) if _SKIPPED not in p.name]
    own += sorted((npu.parent / "torch_npu.libs").glob("*.so*"))
    known = {p.name: p for p in [*sorted((torch / "lib").glob("*.so*")), *own]}
    undefined: set[str] = set()
    defined: set[str] = set()
    missing: list[str] = []
    queue, seen = list(own), set[Path]()
    while queue:
        path = queue.pop(0)
        if path in seen:
            continue
        seen.add(path)
        library = elf.read(path)
        defined |= library.defined
        if path in own:
            undefined |= library.undefined
        for name in library.needed:
            found = known.get(name) or _system_library(name)
            if found is not None:
                queue.append(found)
            elif path in own and name not in missing:
                missing.append(name)
    wanted = {s for s in undefined - defined if not s.startswith(("Py", "_Py"))}
    return Plan((*missing, *(n for n in OPENED_BY_NAME if n not in missing)), tuple(sorted(wanted)))


def _system_library(name: str) -> Path | None:
    triple = f"{os.uname().machine}-linux-gnu"
    folders = [f"/lib/{triple}", f"/usr/lib/{triple}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    folders += [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    folders.append(os.path.join(sys.base_prefix, "lib"))
    return next((Path(f, name) for f in folders if os.path.exists(os.path.join(f, name))), None)


def wheel_key() -> str:
    """Identifies the installed wheels: hash of the RECORD of torch_npu, and the torch version."""
    try:
        distribution = importlib.metadata.distribution("torch_npu")
        record = distribution.read_text("RECORD") or distribution.version
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        raise SimulationError(f"the real torch_npu cannot be used: {error} is not installed") from error
    return hashlib.sha256(f"{_FORMAT}\n{torch_version}\n{record}".encode()).hexdigest()[:16]


def cache_root() -> Path:
    """``$KVLINT_CACHE_DIR``, else the user's cache folder."""
    chosen = os.environ.get("KVLINT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvlint"


def prepare(root: Path | None = None) -> list[Path]:
    """The stand-in libraries of the installed wheel, in the order in which to load them."""
    base = root or cache_root()
    folder = base / "stubs" / wheel_key()
    manifest = folder / "manifest.json"
    try:
        names = json.loads(manifest.read_text(encoding="utf-8"))["libraries"]
        paths = [folder / name for name in names]
        if all(p.is_file() for p in paths):
            return paths
    except (OSError, ValueError, KeyError):
        pass  # not there, or cut short by a kill: write it again
    return _write(folder)


def _write(folder: Path) -> list[Path]:
    npu, torch = package_dir("torch_npu"), package_dir("torch")
    if npu is None or torch is None:
        raise SimulationError("the real torch_npu cannot be used: torch or torch_npu is not installed")
    try:
        wanted = plan(npu, torch)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            folder = Path(tempfile.mkdtemp(prefix="kvlint-stubs-"))
        for i, name in enumerate(wanted.libraries):
            elf.write(folder / name, name, wanted.symbols if i == 0 else ())
        scratch = folder / f"manifest.json.{os.getpid()}"
        scratch.write_text(json.dumps({"libraries": wanted.libraries}), encoding="utf-8")
        os.replace(scratch, folder / "manifest.json")
    except (elf.ElfError, OSError) as error:
        raise SimulationError(f"no stand-in CANN libraries: {error}") from error
    return [folder / name for name in wanted.libraries]


def preload(root: Path | None = None) -> None:
    """Loads the stand-ins; ``import torch_npu`` works afterwards."""
    # Without this, `import torch` loads torch_npu by itself, before the stand-ins are there.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch  # noqa: F401  # first, so that no stand-in can shadow one of its symbols

    for path in prepare(root):
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise SimulationError(f"a stand-in CANN library does not load: {error}") from error
