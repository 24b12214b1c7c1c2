"""Static reader: from source text to operator calls with facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvlint.contract.call import Scope, Target


class SourceError(Exception):
    """A file that cannot be read as Python. ``line`` is 1-based, 0 when there is none."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Analysis:
    """What one module contains: scopes with operator calls and events, in source order."""

    scopes: tuple[Scope, ...]


def relevant(source: bytes) -> bool:
    """Whether the text can contain an operator call at all (cheap byte test)."""
    raise NotImplementedError


class Project:
    """The files that questions may be answered from.

    Args:
        roots: folders that absolute imports are looked up in.
        target: the stack that the code is meant for.
    """

    def __init__(self, roots: Iterable[str], target: Target) -> None:
        self.roots = tuple(roots)
        self.target = target

    def read(self, path: str, source: bytes) -> Analysis:
        """Analyses one module. Raises :class:`SourceError` when it does not decode or parse."""
        raise NotImplementedError
