"""Identities of run-time values, shared so that comparing two is comparing two pointers.

Identities are built from identities. Written out, one that grew through many operations is
exponentially large; interned, it is one object.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any, final


@final
class Key(tuple[Any, ...]):
    """An interned identity: equal content is the same object."""

    __slots__ = ()

    # Identity: two keys of equal content are one object.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is tuple and intern(other) is self)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return f"<key {id(self):x}>"


_TABLE: dict[tuple[Any, ...], Key] = {}


def intern(key: Hashable) -> Hashable:
    """The shared form of an identity; anything but a tuple is its own."""
    if type(key) is not tuple:
        return key
    for part in key:
        if type(part) is tuple:
            key = tuple([intern(part) if type(part) is tuple else part for part in key])
            break
    found = _TABLE.get(key)
    if found is None:
        found = _TABLE[key] = Key(key)
    return found


def origin(key: Hashable) -> Hashable:
    """The identity under casts, device moves, clones and ``tolist``: what the elements come from."""
    while isinstance(key, tuple) and len(key) == 2:
        step, inner = key
        if step not in ("tolist", "clone") and not (isinstance(step, tuple) and step[:1] == ("to",)):
            break
        key = inner
    return key


def within(key: Hashable, keys: Collection[Hashable]) -> bool:
    """Whether an identity is one of ``keys``, or is read or made from one of them."""
    if not keys:
        return False
    pending, seen = [key], set()
    while pending:
        part = pending.pop()
        if not isinstance(part, tuple) or id(part) in seen:
            continue
        if part in keys:
            return True
        seen.add(id(part))
        pending.extend(part)
    return False


def is_input(key: Hashable) -> bool:
    """Whether a value comes in from outside: a parameter, an attribute, an entry, an undefined name."""
    return isinstance(key, tuple) and key[:1] in (("param",), ("attr",), ("item",), ("free",))
