"""Which keys a query row may see, as objects that answer for whole tiles (contract 1.7).

A visibility never stores an S1 x S2 matrix unless the user gave one: it answers three questions about a range
of query rows, so that the softmax can skip tiles nobody sees and needs no mask where everybody sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Span = tuple[int, int]
FAR = 1 << 40


class Visibility(Protocol):
    """The allowed (row, key) pairs of one request."""

    @property
    def keys(self) -> int:
        """Number of keys of the request."""

    def span(self, first: int, last: int) -> Span:
        """Half-open key range that holds every key any of the rows ``first..last`` sees."""

    def core(self, first: int, last: int) -> Span:
        """Half-open key range that every one of the rows ``first..last`` sees entirely; may be empty."""

    def tile(self, rows: Tensor, start: int, stop: int) -> Tensor:
        """Bool ``[len(rows), stop - start]``, True where the row sees the key."""


@dataclass(frozen=True, slots=True)
class Band:
    """Row i sees the keys ``i + low .. i + high``, both inclusive, that exist."""

    keys: int
    low: int = -FAR
    high: int = FAR

    def span(self, first: int, last: int) -> Span:
        start = max(0, first + self.low)
        return start, max(start, min(self.keys, last + self.high + 1))

    def core(self, first: int, last: int) -> Span:
        start = max(0, last + self.low)
        return start, max(start, min(self.keys, first + self.high + 1))

    def tile(self, rows: Tensor, start: int, stop: int) -> Tensor:
        offset = torch.arange(start, stop, device=rows.device) - rows[:, None]
        return (offset >= self.low) & (offset <= self.high)


@dataclass(frozen=True, slots=True)
class Columns:
    """Every row sees the first ``count`` keys and no other."""

    keys: int
    count: int

    def span(self, first: int, last: int) -> Span:
        return 0, min(self.keys, self.count)

    def core(self, first: int, last: int) -> Span:
        return self.span(first, last)

    def tile(self, rows: Tensor, start: int, stop: int) -> Tensor:
        return (torch.arange(start, stop, device=rows.device) < self.count).expand(len(rows), -1)


@dataclass(frozen=True, slots=True)
class Hidden:
    """A user mask: bool ``[rows, >= keys]``, True hides (the operators' polarity)."""

    keys: int
    mask: Tensor

    def span(self, first: int, last: int) -> Span:
        return 0, self.keys

    def core(self, first: int, last: int) -> Span:
        return 0, 0

    def tile(self, rows: Tensor, start: int, stop: int) -> Tensor:
        return ~self.mask[rows.to(self.mask.device), start:stop].bool().to(rows.device)


@dataclass(frozen=True, slots=True)
class Tail:
    """sparse_mode 9: all keys before ``offset`` are visible, ``mask`` (True hides) rules the rest."""

    keys: int
    offset: int
    mask: Tensor

    def span(self, first: int, last: int) -> Span:
        return 0, self.keys

    def core(self, first: int, last: int) -> Span:
        return 0, self.offset

    def tile(self, rows: Tensor, start: int, stop: int) -> Tensor:
        seen = torch.ones(len(rows), stop - start, dtype=torch.bool, device=rows.device)
        first = max(start, self.offset)
        if first < stop:
            part = self.mask[rows.to(self.mask.device), first - self.offset : stop - self.offset]
            seen[:, first - start :] = ~part.bool().to(rows.device)
        return seen


@dataclass(frozen=True, slots=True)
class Listed:
    """Row i sees exactly the keys named in ``chosen[i]`` (negative entries are padding)."""

    keys: int
    chosen: Tensor

    def span(self, first: int, last: int) -> Span:
        return 0, self.keys

    def core(self, first: int, last: int) -> Span:
        return 0, 0

    def tile(self, rows: Tensor, start: int, stop: int) -> Tensor:
        wanted = self.chosen[rows.to(self.chosen.device)].long().to(rows.device)
        inside = (wanted >= start) & (wanted < stop)
        seen = torch.zeros(len(rows), stop - start + 1, dtype=torch.bool, device=rows.device)
        seen.scatter_(1, torch.where(inside, wanted - start, stop - start), True)
        return seen[:, :-1]


@dataclass(frozen=True, slots=True)
class Both:
    """Keys that ``a`` and ``b`` both allow."""

    a: Visibility
    b: Visibility

    @property
    def keys(self) -> int:
        return self.a.keys

    def span(self, first: int, last: int) -> Span:
        a, b = self.a.span(first, last), self.b.span(first, last)
        start = max(a[0], b[0])
        return start, max(start, min(a[1], b[1]))

    def core(self, first: int, last: int) -> Span:
        a, b = self.a.core(first, last), self.b.core(first, last)
        start = max(a[0], b[0])
        return start, max(start, min(a[1], b[1]))

    def tile(self, rows: Tensor, start: int, stop: int) -> Tensor:
        return self.a.tile(rows, start, stop) & self.b.tile(rows, start, stop)


@dataclass(frozen=True, slots=True)
class Either:
    """Keys that ``a`` or ``b`` allows (fusion attention modes 5 and 6: causal or inside the prefix)."""

    a: Visibility
    b: Visibility

    @property
    def keys(self) -> int:
        return self.a.keys

    def span(self, first: int, last: int) -> Span:
        a, b = self.a.span(first, last), self.b.span(first, last)
        return min(a[0], b[0]), max(a[1], b[1])

    def core(self, first: int, last: int) -> Span:
        return max(self.a.core(first, last), self.b.core(first, last), key=lambda s: s[1] - s[0])

    def tile(self, rows: Tensor, start: int, stop: int) -> Tensor:
        return self.a.tile(rows, start, stop) | self.b.tile(rows, start, stop)


def everything(keys: int) -> Band:
    """No key is hidden."""
    return Band(keys)


def causal(rows: int, keys: int, anchor: str = "bottom-right") -> Band:
    """Causal visibility; ``anchor`` is ``top-left`` (sparse_mode 2) or ``bottom-right`` (sparse_mode 3)."""
    return Band(keys, high=keys - rows if anchor == "bottom-right" else 0)


def matrix(visible: Visibility, rows: int) -> Tensor:
    """The whole bool ``[rows, keys]`` matrix; for tests and small problems."""
    return visible.tile(torch.arange(rows), 0, visible.keys) if rows else torch.zeros(0, visible.keys).bool()
