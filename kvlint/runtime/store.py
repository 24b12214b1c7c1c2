"""The capture folder: layout, atomic writing, checked reading.

::

    DIR/capture.json             format version, and what made the capture
    DIR/tensors/HASH.safetensors one tensor each, named by the hash of its content: equal tensors are one file
    DIR/calls/00000000.json      one operator call; refers to tensors by hash

A file appears under its name only when it is complete, and a call only after its tensors. Killing the writer
at any moment therefore leaves a capture that is readable up to the last complete call. Every file holds a
hash of its content, so that damage is found. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

VERSION: Final = 2
_ENTRY: Final = "t"
_CHECK: Final = "hash"


class CaptureError(Exception):
    """The capture cannot be read or written: one line that says which part and why."""


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """One call as it was made.

    ``given`` holds what was passed, by parameter name; ``results`` what came back; ``mutated`` the content,
    after the call, of arguments the operator writes into."""

    number: int
    operator: str
    given: dict[str, Any]
    results: list[Any]
    mutated: dict[str, Any] = field(default_factory=dict)
    place: str = ""
    """``file:line`` of the call."""


class Writer:
    """Appends calls to a capture folder, also to one that an earlier, possibly killed, run has left."""

    def __init__(self, folder: Path, made_by: Mapping[str, Any], limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.skipped = 0
        try:
            (folder / "tensors").mkdir(parents=True, exist_ok=True)
            (folder / "calls").mkdir(exist_ok=True)
            for part in ("tensors", "calls", "."):
                for scrap in (folder / part).glob("*.part"):
                    scrap.unlink()
            head = folder / "capture.json"
            if head.exists():
                _read_head(folder)
            elif any((folder / "calls").iterdir()):
                raise CaptureError(f"capture {folder}: capture.json is missing")
            else:
                _put(head, _sealed({"version": VERSION, **made_by}))
            self.next = max(_numbers(folder), default=-1) + 1
            self._known = {p.stem for p in (folder / "tensors").glob("*.safetensors")}
            self.size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        except OSError as error:
            raise CaptureError(f"capture {folder}: {error.strerror or error}") from error

    def add(self, call: CapturedCall) -> bool:
        """Writes the call under the next number; False if the size limit leaves no room for it."""
        blobs: dict[str, bytes] = {}
        record = {
            "operator": call.operator,
            "given": {k: self._pack(v, blobs) for k, v in call.given.items()},
            "results": [self._pack(v, blobs) for v in call.results],
            "mutated": {k: self._pack(v, blobs) for k, v in call.mutated.items()},
            "place": call.place,
        }
        text = _sealed(record)
        if self.size + len(text) + sum(map(len, blobs.values())) > self.limit:
            self.skipped += 1
            return False
        try:
            for key, data in blobs.items():
                _put(self.folder / "tensors" / f"{key}.safetensors", data)
                self._known.add(key)
                self.size += len(data)
            _put(self.folder / "calls" / f"{self.next:08d}.json", text)
        except OSError as error:
            raise CaptureError(f"capture {self.folder}: {error.strerror or error}") from error
        self.size += len(text)
        self.next += 1
        return True

    def _pack(self, value: Any, blobs: dict[str, bytes]) -> Any:
        if isinstance(value, Tensor):
            data = value.detach().to("cpu").contiguous()
            key = content_hash(data)
            if key not in self._known and key not in blobs:
                blobs[key] = save({_ENTRY: data})
            return {"tensor": key}
        if isinstance(value, (list, tuple)):
            return [self._pack(v, blobs) for v in value]
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if hasattr(value, "__index__"):
            return int(value)
        return {"opaque": repr(value)}


def content_hash(tensor: Tensor) -> str:
    """Of dtype, shape and bytes of a contiguous CPU tensor."""
    digest = hashlib.blake2b(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), digest_size=16)
    if tensor.numel():
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _sealed(record: Mapping[str, Any]) -> bytes:
    """JSON that ends with a hash of what stands before it."""
    return json.dumps({**record, _CHECK: _hash_of(record)}).encode()


def _hash_of(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=16).hexdigest()


def _opened(path: Path) -> dict[str, Any]:
    """What :func:`_sealed` wrote; ValueError if it is not that any more."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def _check(record: dict[str, Any]) -> None:
    if record.pop(_CHECK, None) != _hash_of(record):
        raise ValueError("its content has changed")


def _put(path: Path, data: bytes) -> None:
    scratch = path.with_name(path.name + ".part")
    with open(scratch, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def _read_head(folder: Path) -> dict[str, Any]:
    path = folder / "capture.json"
    try:
        head = _opened(path)
        version = head["version"]
        if version == VERSION:
            _check(head)
    except FileNotFoundError as error:
        raise CaptureError(f"capture {folder}: there is no capture.json") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CaptureError(f"capture {folder}: capture.json is damaged ({_short(error)})") from error
    if version != VERSION:
        raise CaptureError(f"capture {folder}: format version {version}; this kvlint reads version {VERSION}")
    return head


def _numbers(folder: Path) -> list[int]:
    """Of the calls, in order."""
    try:
        return sorted(int(p.stem) for p in (folder / "calls").glob("*.json"))
    except (OSError, ValueError) as error:
        raise CaptureError(f"capture {folder}: calls cannot be listed ({_short(error)})") from error


class Reader:
    """The calls of a capture folder in the order in which they were made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.head = _read_head(folder)
        numbers = _numbers(folder)
        for expected, number in enumerate(numbers):
            if number != expected:
                raise CaptureError(f"capture {folder}: call {expected:08d} is missing")
        self._count = len(numbers)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[CapturedCall]:
        for number in range(self._count):
            yield self.call(number)

    def call(self, number: int) -> CapturedCall:
        """One call, with its tensors."""
        path = self.folder / "calls" / f"{number:08d}.json"
        try:
            record = _opened(path)
            _check(record)
            return CapturedCall(
                number,
                record["operator"],
                {k: self._unpack(v, number) for k, v in record["given"].items()},
                [self._unpack(v, number) for v in record["results"]],
                {k: self._unpack(v, number) for k, v in record["mutated"].items()},
                record["place"],
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CaptureError(
                f"capture {self.folder}: call {number:08d} is damaged ({_short(error)})"
            ) from error

    def _unpack(self, value: Any, number: int) -> Any:
        if isinstance(value, list):
            return [self._unpack(v, number) for v in value]
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            return self._tensor(str(value["tensor"]), number)
        if "dtype" in value:
            dtype = getattr(torch, str(value["dtype"]), None)
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"no dtype {value['dtype']}")
            return dtype
        if "device" in value:
            return torch.device("cpu")
        raise ValueError(f"argument {value.get('opaque', value)} was not captured")

    def _tensor(self, key: str, number: int) -> Tensor:
        where = f"capture {self.folder}: tensor {key} of call {number:08d}"
        if not key.isalnum():
            raise CaptureError(f"{where} has no valid name")
        path = self.folder / "tensors" / f"{key}.safetensors"
        if not path.is_file():
            raise CaptureError(f"{where} is missing")
        try:
            tensor = load_file(path)[_ENTRY]
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise CaptureError(f"{where} is damaged ({_short(error)})") from error
        if content_hash(tensor) != key:
            raise CaptureError(f"{where} is damaged (its content has changed)")
        return tensor


def _short(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
