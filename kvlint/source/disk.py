"""What a run sees of the file system, each thing looked at once.

Imports nothing heavy: a run that only has to find that nothing changed gets by with this.
"""

from __future__ import annotations

import os
import stat
from time import time_ns

try:
    # hashlib loads OpenSSL, which costs more than hashing a small project.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Size, modification and change time in nanoseconds, inode.
Signature = tuple[int, int, int, int]
# A kind of search through all files, and the names that are searched for.
Question = tuple[str, ...]
# A time stamp this near to the moment of reading may be that of a later change, too.
TICK = 2_000_000_000
# A longer file is no source that anybody wrote; its text is never looked at.
MAX_BYTES = 4_000_000
LARGE = "large"
_TOP_MARKS = (".git", "pyproject.toml", "setup.py")


def digest_of(data: bytes) -> str:
    """A short name for some content."""
    return str(blake2b(data, digest_size=10).hexdigest())


def digest_of_lines(lines: Iterable[str]) -> str:
    """A short name for a list of texts."""
    return digest_of("\0".join(lines).encode("utf-8", "surrogatepass"))


class Disk:
    """Files and folders as they were at the first look.

    Args:
        known: path -> (signature, digest) from an earlier run; such a file is not read again to know
            what is in it. None when nobody asks for digests.
    """

    def __init__(self, known: Mapping[str, Sequence[object]] | None = None) -> None:
        self.known = known
        self.torn = False
        """Whether a file changed while the run looked at it, so that nothing may be remembered."""
        self.digests: dict[str, str] = {}
        """Path -> digest, of every file whose content was asked for; "" when it cannot be read."""
        self.read_at: dict[str, int] = {}
        """Path -> when it was read."""
        self._signatures: dict[str, Signature | None] = {}
        self._folders: dict[str, list[os.DirEntry[str]]] = {}
        self._are_files: dict[str, bool] = {}
        self._are_folders: dict[str, bool] = {}
        self._are_tops: dict[str, bool] = {}

    def scan(self, folder: str) -> list[os.DirEntry[str]]:
        """What is in a folder. Raises OSError when it cannot be listed."""
        found = self._folders.get(folder)
        if found is None:
            with os.scandir(folder) as entries:
                found = self._folders[folder] = list(entries)
        return found

    def is_file(self, path: str) -> bool:
        """Whether there is a file of that name."""
        found = self._are_files.get(path)
        if found is None:
            found = self._are_files[path] = os.path.isfile(path)
        return found

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder of that name."""
        found = self._are_folders.get(path)
        if found is None:
            found = self._are_folders[path] = os.path.isdir(path)
        return found

    def is_top(self, folder: str) -> bool:
        """Whether absolute imports start no further up than in this folder."""
        found = self._are_tops.get(folder)
        if found is None:
            found = any(os.path.exists(os.path.join(folder, mark)) for mark in _TOP_MARKS)
            self._are_tops[folder] = found
        return found

    def signature(self, path: str) -> Signature | None:
        """What changes when the file does; None when there is none."""
        if path in self._signatures:
            return self._signatures[path]
        found: Signature | None = None
        try:
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                found = _signature(status)
        except (OSError, ValueError):
            pass
        self._signatures[path] = found
        return found

    def unchanged(self, path: str) -> bool:
        """Whether the file is known, and is what it was then, by its signature."""
        row = self.known.get(path) if self.known is not None else None
        return row is not None and self.signature(path) == tuple(row[:4])

    def read(self, path: str) -> bytes:
        """The content of a file. Raises OSError."""
        data = self.peek(path)
        if self.known is not None:
            self.note(path, data)
        return data

    def peek(self, path: str) -> bytes:
        """The same for who may not care for the digest: :meth:`note` adds it."""
        with open(path, "rb", 0) as file:
            if self.known is not None:
                # In this order, so that a change from here on has a later time stamp.
                now = time_ns()
                signature = _signature(os.fstat(file.fileno()))
                before = self._signatures.setdefault(path, signature)
                if before is not None and before != signature:
                    self.torn = True
                self.read_at.setdefault(path, now)
            return file.read()

    def note(self, path: str, data: bytes) -> None:
        """Takes the content that a file has."""
        digest = digest_of(data) if len(data) <= MAX_BYTES else LARGE
        if self.digests.setdefault(path, digest) != digest:
            self.torn = True

    def digest(self, path: str) -> str:
        """The digest of a file; "" when it cannot be read, ``LARGE`` when it is too long to be."""
        found = self.digests.get(path)
        if found is not None:
            return found
        signature = self.signature(path)
        if signature is None:
            found = ""
        elif self.unchanged(path) and self.known is not None and (digest := self.known[path][4]):
            found = str(digest)
        elif signature[0] > MAX_BYTES:
            found = LARGE
        else:
            try:
                self.read(path)
                found = self.digests[path]
            except OSError:
                found = ""
        self.digests[path] = found
        return found

    def settled(self, path: str) -> bool:
        """Whether a later change of the file is bound to change its signature."""
        signature = self.signature(path)
        if signature is None:
            return False
        read_at = self.read_at.get(path)
        return read_at is None or max(signature[1], signature[2]) < read_at - TICK


def _signature(status: os.stat_result) -> Signature:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Trace:
    """What the answer about a file depends on, noted while it is worked out."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        """Paths whose content was asked for, whether or not there is such a file."""
        self.imports: dict[tuple[str, str, int], str | None] = {}
        """(Folder, dotted name, level) -> the file that was found."""
        self.tops: dict[str, str | None] = {}
        """Folder -> top of its project."""
        self.asked: set[tuple[str, Question]] = set()
        """(Top, question) of the searches through all files."""
