"""Stand-in libraries: what is missing is found, what is written loads, and the cache survives damage."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from kvlint.sim import elf, stubs
from kvlint.sim.errors import SimulationError
from kvlint.sim.session import wheel_installed

NAMES = ["aclInit", "aclrtSetDevice", "HcclCommInitRootInfo"]


def write(folder: Path, name: str = "libkvlintstub.so", symbols: list[str] = NAMES) -> Path:
    elf.write(folder / name, name, symbols)
    return folder / name


@pytest.mark.skipif(os.uname().machine not in elf.MACHINES, reason="no code for this machine")
@pytest.mark.parametrize("count", [0, 1, 3, 500])
def test_a_written_library_loads_and_its_functions_return_zero(tmp_path: Path, count: int) -> None:
    symbols = [f"symbol_{i}" for i in range(count)]
    library = ctypes.CDLL(str(write(tmp_path, f"libkvlint{count}.so", symbols)))
    for name in symbols:
        assert getattr(library, name)() == 0
    with pytest.raises(AttributeError):
        _ = library.no_such_symbol


def test_a_written_library_names_itself(tmp_path: Path) -> None:
    assert b"libkvlintstub.so\0" in write(tmp_path).read_bytes()
    assert elf.read(write(tmp_path)).needed == []


def test_a_system_library_is_read() -> None:
    import _struct

    found = elf.read(Path(_struct.__file__))
    assert "PyInit__struct" in found.defined
    assert "PyLong_FromLong" in found.undefined
    assert any(n.startswith("libc.so") for n in found.needed)


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF\x01\x01" + bytes(80), b"\x7fELF\x02\x01" + bytes(10), b"text" * 99]
)
def test_what_is_no_library_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.so").write_bytes(content)
    with pytest.raises(elf.ElfError, match=r"x\.so"):
        elf.read(tmp_path / "x.so")


def test_an_unknown_machine_is_named(tmp_path: Path) -> None:
    with pytest.raises(elf.ElfError, match="riscv64"):
        elf.write(tmp_path / "x.so", "x.so", [], machine="riscv64")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel whose one library needs another, which is not there. The need is forged: libc is renamed."""
    import _struct

    npu, torch = tmp_path / "torch_npu", tmp_path / "torch"
    (npu / "lib").mkdir(parents=True)
    (torch / "lib").mkdir(parents=True)
    data = Path(_struct.__file__).read_bytes().replace(b"libc.so.6\0", b"libC.so.6\0")
    (npu / "lib" / "libtorch_npu.so").write_bytes(data)
    monkeypatch.setattr(stubs, "package_dir", {"torch_npu": npu, "torch": torch}.get)
    monkeypatch.setattr(stubs, "wheel_key", lambda: "key")
    return tmp_path


def test_what_the_wheel_lacks_is_computed(wheel: Path) -> None:
    wanted = stubs.plan(wheel / "torch_npu", wheel / "torch")
    assert wanted.libraries[0] == "libC.so.6"
    assert wanted.libraries[1:] == stubs.OPENED_BY_NAME
    assert wanted.symbols and not [s for s in wanted.symbols if s.startswith("Py")]


def test_libraries_are_cached_and_repaired(wheel: Path) -> None:
    cache = wheel / "cache"
    first = stubs.prepare(cache)
    stamps = [p.stat().st_mtime_ns for p in first]
    assert stubs.prepare(cache) == first
    assert [p.stat().st_mtime_ns for p in first] == stamps
    first[0].unlink()
    assert stubs.prepare(cache) == first and first[0].is_file()
    (first[0].parent / "manifest.json").write_text("{")
    assert stubs.prepare(cache) == first
    shutil.rmtree(cache)
    assert stubs.prepare(cache) == first


def test_a_folder_that_cannot_be_written_is_replaced(wheel: Path) -> None:
    (wheel / "cache").write_text("a file")
    assert all(p.is_file() for p in stubs.prepare(wheel / "cache"))


def test_a_damaged_wheel_is_named(wheel: Path) -> None:
    library = wheel / "torch_npu" / "lib" / "libtorch_npu.so"
    library.write_bytes(library.read_bytes()[:500])
    with pytest.raises(SimulationError, match=r"libtorch_npu\.so is damaged"):
        stubs.prepare(wheel / "cache")


@pytest.mark.skipif(wheel_installed(), reason="torch_npu is installed")
def test_a_wheel_that_is_not_there() -> None:
    with pytest.raises(SimulationError, match="torch_npu"):
        stubs.wheel_key()
