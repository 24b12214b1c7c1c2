"""Key/value sources: where the rows of one request live and how to read a range of them.

The softmax asks for ``[start, stop)`` only, so a 128k context in a paged, quantised cache is never gathered,
dequantised or concatenated as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .errors import OracleError


class Rows(Protocol):
    """A readable ``[heads, length, dim]`` tensor."""

    @property
    def heads(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def dim(self) -> int: ...

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Rows ``start..stop`` as ``[heads, stop - start, dim]`` in ``dtype``."""


@dataclass(frozen=True, slots=True)
class Dense:
    """Rows of one request in a plain tensor ``[heads, length, dim]`` (any strides)."""

    data: Tensor

    @property
    def heads(self) -> int:
        return self.data.shape[0]

    @property
    def length(self) -> int:
        return self.data.shape[1]

    @property
    def dim(self) -> int:
        return self.data.shape[2]

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        return self.data[:, start:stop].to(dtype)


@dataclass(frozen=True, slots=True)
class Paged:
    """Rows of one request in a paged cache; ``pages`` are its block ids in order.

    ``cache``: BnBsH ``[Bn, Bs, N*D]``, BnNBsD ``[Bn, N, Bs, D]``, NZ ``[Bn, N, D/E, Bs, E]`` with E = 32
    bytes, PA_BSND ``[Bn, Bs, N, D]``."""

    cache: Tensor
    pages: Tensor
    length: int
    heads: int
    page_layout: str

    def __post_init__(self) -> None:
        need = -(-self.length // self.page_size)
        if len(self.pages) < need:
            raise OracleError(
                f"block_table has {len(self.pages)} entries for a request of {self.length} tokens, "
                f"{need} are needed at block size {self.page_size}"
            )
        used = self.pages[:need]
        if need and (int(used.min()) < 0 or int(used.max()) >= self.cache.shape[0]):
            bad = int(used.min()) if int(used.min()) < 0 else int(used.max())
            raise OracleError(f"block_table names block {bad}, the cache has {self.cache.shape[0]} blocks")

    @property
    def page_size(self) -> int:
        return self.cache.shape[{"BnBsH": 1, "BnNBsD": 2, "NZ": 3, "PA_BSND": 1}[self.page_layout]]

    @property
    def dim(self) -> int:
        shape = self.cache.shape
        if self.page_layout == "BnBsH":
            return shape[2] // self.heads
        return shape[2] * shape[4] if self.page_layout == "NZ" else shape[3]

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        size = self.page_size
        first = start // size
        found = self.cache[self.pages[first : -(-stop // size)].to(self.cache.device)]
        if self.page_layout == "BnBsH":
            rows = found.reshape(-1, self.heads, self.dim).transpose(0, 1)
        elif self.page_layout == "PA_BSND":
            rows = found.flatten(0, 1).transpose(0, 1)
        elif self.page_layout == "BnNBsD":
            rows = found.transpose(0, 1).flatten(1, 2)
        else:
            rows = found.permute(1, 0, 3, 2, 4).flatten(3).flatten(1, 2)
        return rows[:, start - first * size : stop - first * size].to(dtype)


@dataclass(frozen=True, slots=True)
class Concat:
    """Head dimension of ``a`` followed by that of ``b`` (nope and rope parts of MLA)."""

    a: Rows
    b: Rows

    @property
    def heads(self) -> int:
        return self.a.heads

    @property
    def length(self) -> int:
        return self.a.length

    @property
    def dim(self) -> int:
        return self.a.dim + self.b.dim

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        return torch.cat([self.a.read(start, stop, dtype), self.b.read(start, stop, dtype)], -1)


@dataclass(frozen=True, slots=True)
class Prefixed:
    """A shared prefix ``a`` followed by the request's own rows ``b``."""

    a: Rows
    b: Rows

    @property
    def heads(self) -> int:
        return self.b.heads

    @property
    def length(self) -> int:
        return self.a.length + self.b.length

    @property
    def dim(self) -> int:
        return self.b.dim

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        cut = self.a.length
        parts = []
        if start < cut:
            parts.append(self.a.read(start, min(stop, cut), dtype))
        if stop > cut:
            parts.append(self.b.read(max(start, cut) - cut, stop - cut, dtype))
        return torch.cat(parts, 1)


#: (start, stop, dtype) -> factor or offset that broadcasts against [heads, stop - start, dim].
Coefficient = Callable[[int, int, torch.dtype], Tensor]


@dataclass(frozen=True, slots=True)
class Dequantised:
    """``(x + offset) * scale`` of integer rows; int32 rows hold eight int4 values each, low nibble first."""

    rows: Rows
    scale: Coefficient
    offset: Coefficient | None = None
    packed_int4: bool = False

    @property
    def heads(self) -> int:
        return self.rows.heads

    @property
    def length(self) -> int:
        return self.rows.length

    @property
    def dim(self) -> int:
        return self.rows.dim * (8 if self.packed_int4 else 1)

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        if self.packed_int4:
            x = unpack_int4(self.rows.read(start, stop, torch.int32)).to(dtype)
        else:
            x = self.rows.read(start, stop, dtype)
        if self.offset is not None:
            x = x + self.offset(start, stop, dtype)
        return x * self.scale(start, stop, dtype)


def unpack_int4(packed: Tensor) -> Tensor:
    """int32 ``[..., D/8]`` to int8 ``[..., D]``, low nibble first, two's complement."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    nibbles = (packed.unsqueeze(-1) >> shifts) & 0xF
    return torch.where(nibbles > 7, nibbles - 16, nibbles).to(torch.int8).flatten(-2)


def pack_int4(values: Tensor) -> Tensor:
    """Inverse of :func:`unpack_int4`; values in -8..7, last axis a multiple of 8."""
    nibbles = (values.to(torch.int64) & 0xF).reshape(*values.shape[:-1], -1, 8)
    shifts = torch.arange(0, 32, 4, dtype=torch.int64, device=values.device)
    word = (nibbles << shifts).sum(-1)
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)
