"""Identities of run-time values, shared so that comparing two is comparing two pointers.

Identities are built from identities. Written out, one that grew through many operations is
exponentially large; interned, it is one object.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, final


@final
class Key(tuple[Any, ...]):
    """An interned identity: equal content is the same object."""

    __slots__ = ()

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is tuple:
            return intern(other) is self
        return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return f"<key {id(self):x}>"


_TABLE: dict[tuple[Any, ...], Key] = {}


def intern(key: Hashable) -> Hashable:
    """The shared form of an identity; anything but a tuple is its own."""
    if type(key) is not tuple:
        return key
    flat = tuple(intern(part) if type(part) is tuple else part for part in key)
    found = _TABLE.get(flat)
    if found is None:
        found = _TABLE[flat] = Key(flat)
    return found
