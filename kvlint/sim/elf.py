"""Just enough of ELF: which symbols a shared library wants, and a library that has them.

Stand-ins for the CANN runtime are written byte by byte, so no compiler is needed. Every symbol of a
stand-in is one function that returns zero.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 1, 4, 5, 6, 10, 11, 14
_SECTION_DYNSYM = 11
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_PAGE: Final = 0x10000  # 64 KiB, the largest page size that Linux uses on aarch64

#: machine -> (ELF machine number, code of "return 0")
MACHINES: Final = {
    "x86_64": (62, b"\x31\xc0\xc3"),
    "aarch64": (183, b"\x00\x00\x80\xd2\xc0\x03\x5f\xd6"),
}


class ElfError(ValueError):
    """The file is no 64-bit little-endian ELF library, or the machine is not known."""


@dataclass(slots=True)
class Library:
    """What the dynamic loader reads of one shared library."""

    path: Path
    needed: list[str] = field(default_factory=list)
    undefined: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)


def read(path: Path) -> Library:
    """Needed libraries, and the symbols that the library defines and lacks."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ElfError(f"{path} is not a 64-bit little-endian ELF file")
    try:
        return _read(path, data)
    except (struct.error, ValueError, IndexError) as error:
        raise ElfError(f"{path} is damaged ({error})") from error


def _read(path: Path, data: bytes) -> Library:
    found = Library(path)
    (at,) = struct.unpack_from("<Q", data, 32)
    (count,) = struct.unpack_from("<H", data, 56)
    loads: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    for i in range(count):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, at + 56 * i)
        if kind == _LOAD:
            loads.append((address, offset, size))
        elif kind == _DYNAMIC:
            dynamic = (offset, size)
    if dynamic is None:
        return found
    tags = list(_tags(data, *dynamic))
    strings = _offset(loads, dict(tags)[_STRTAB])

    def text(index: int) -> str:
        end = data.index(b"\0", strings + index)
        return data[strings + index : end].decode("latin1")

    found.needed = [text(value) for tag, value in tags if tag == _NEEDED]
    for name, info, section in _symbols(data):
        if not name:
            continue
        binding = info >> 4
        if section == 0:
            # A weak reference may stay unresolved.
            if binding == _GLOBAL:
                found.undefined.add(text(name))
        elif binding in (_GLOBAL, _WEAK, _UNIQUE):
            found.defined.add(text(name))
    return found


def _tags(data: bytes, offset: int, size: int) -> Iterable[tuple[int, int]]:
    for at in range(offset, offset + size, 16):
        tag, value = struct.unpack_from("<qQ", data, at)
        if tag == 0:
            return
        yield tag, value


def _offset(loads: list[tuple[int, int, int]], address: int) -> int:
    for start, offset, size in loads:
        if start <= address < start + size:
            return address - start + offset
    raise ValueError(f"address {address:#x} is not loaded")


def _symbols(data: bytes) -> Iterable[tuple[int, int, int]]:
    """(name, info, section) of every dynamic symbol; the section table has their number."""
    (at,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    for i in range(count):
        _, kind, _, _, offset, size = struct.unpack_from("<IIQQQQ", data, at + 64 * i)
        if kind == _SECTION_DYNSYM:
            for name, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[offset : offset + size]):
                yield name, info, section


def write(path: Path, soname: str, symbols: Iterable[str], machine: str | None = None) -> None:
    """A shared library called ``soname`` that defines ``symbols``, put at ``path`` in one step."""
    machine = machine or os.uname().machine
    if machine not in MACHINES:
        raise ElfError(f"no stand-in libraries for {machine}; known: {', '.join(MACHINES)}")
    content = _image(soname, list(symbols), *MACHINES[machine])
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    os.replace(scratch, path)


def _image(soname: str, symbols: list[str], machine: int, code: bytes) -> bytes:
    strings = bytearray(b"\0")
    names: list[int] = []
    for text in [soname, *symbols]:
        names.append(len(strings))
        strings += text.encode() + b"\0"
    count, buckets = len(symbols) + 1, max(1, len(symbols) // 2)
    at_symbols = _align(64 + 56 * 3, 8)
    at_hash = _align(at_symbols + 24 * count, 8)
    at_strings = _align(at_hash + 4 * (2 + buckets + count), 8)
    at_code = _align(at_strings + len(strings), 16)
    at_dynamic = _align(at_code + len(code), 0x1000)

    table = bytearray(24)
    heads, chain = [0] * buckets, [0] * count
    for i, text in enumerate(symbols, 1):
        table += struct.pack("<IBBHQQ", names[i], _GLOBAL << 4 | 2, 0, 1, at_code, len(code))
        slot = _hash(text) % buckets
        chain[i], heads[slot] = heads[slot], i
    dynamic = b"".join(
        struct.pack("<qQ", tag, value)
        for tag, value in (
            (_SONAME, names[0]), (_HASH, at_hash), (_STRTAB, at_strings), (_SYMTAB, at_symbols),
            (_STRSZ, len(strings)), (_SYMENT, 24), (0, 0),
        )
    )  # fmt: skip
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01" + bytes(9),
        3,
        machine,
        1,
        0,
        64,
        0,
        0,
        64,
        56,
        3,
        64,
        0,
        0,
    )
    # The dynamic section is written by the loader: its own writable page, one page further in memory.
    address, text_end, size = at_dynamic + _PAGE, at_code + len(code), len(dynamic)
    programs = b"".join(
        struct.pack("<IIQQQQQQ", *fields)
        for fields in (
            (_LOAD, 5, 0, 0, 0, text_end, text_end, _PAGE),
            (_LOAD, 6, at_dynamic, address, address, size, size, _PAGE),
            (_DYNAMIC, 6, at_dynamic, address, address, size, size, 8),
        )
    )
    image = bytearray(at_dynamic + size)
    for offset, part in (
        (0, header), (64, programs), (at_symbols, table),
        (at_hash, struct.pack(f"<II{buckets}I{count}I", buckets, count, *heads, *chain)),
        (at_strings, strings), (at_code, code), (at_dynamic, dynamic),
    ):  # fmt: skip
        image[offset : offset + len(part)] = part
    return bytes(image)


def _align(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def _hash(text: str) -> int:
    """The System V symbol hash."""
    h = 0
    for byte in text.encode():
        h = (h << 4) + byte
        high = h & 0xF0000000
        h = (h ^ high >> 24) & ~high & 0xFFFFFFFF
    return h
