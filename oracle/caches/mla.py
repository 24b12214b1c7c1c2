"""MLA caches: the compressed part and the rope part, written by npu_kv_rmsnorm_rope_cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..layouts import join_heads
from ..scenario import NORM_EPSILON
from .base import Cache, Indices, KeyArguments, parts_of
from .paged import Paged


def _operands(cache: Cache, b: int, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Raw kv rows ``[n, width]`` and their cos and sin ``[n, 64]`` in the kv dtype."""
    s = cache.scenario
    return s.k[b][positions, 0], s.cos[positions].to(s.dtype), s.sin[positions].to(s.dtype)


class Mla(Cache):
    """Contiguous ``[B, 1, capacity, D]`` caches, cache_mode Norm: offsets inside each batch row, -1 pads."""

    name = "mla"
    tolerance = 1

    @property
    def capacity(self) -> int:
        return max(self.case.kv_lens) + 3

    def allocate(self) -> None:
        for part in parts_of(self.scenario):
            self.add_storage(
                part.role, (self.scenario.batch, 1, self.capacity, part.width), self.scenario.dtype
            )

    def grid(self, storage: Tensor, role: str) -> Tensor:
        return storage.transpose(1, 2)

    def where(self, b: int, positions: Tensor) -> Indices:
        return torch.full_like(positions, b), positions

    def reach(self, b: int) -> int:
        return self.capacity

    def write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        longest = max(e - s for s, e in zip(starts, stops, strict=True))
        batch, case = len(starts), self.case
        kv = torch.zeros(batch, 1, longest, case.dim + case.rope_dim, dtype=self.scenario.dtype)
        cos = torch.zeros(batch, 1, longest, case.rope_dim, dtype=self.scenario.dtype)
        sin, index = torch.zeros_like(cos), torch.full((batch, longest), -1, dtype=torch.int64)
        for b, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            n, at = stop - start, torch.arange(start, stop)
            kv[b, 0, :n], cos[b, 0, :n], sin[b, 0, :n] = _operands(self, b, at)
            index[b, :n] = at
        write_normed(self, kv, cos, sin, index, "Norm")

    def key_arguments(self) -> KeyArguments:
        axes = self.case.layout.partition("_")[0]
        found: KeyArguments = {role: join_heads(s, axes) for role, s in self.storages.items()}
        return found | {"value": found["key"], "kv_lens": list(self.case.kv_lens)}


def write_normed(cache: Cache, kv: Tensor, cos: Tensor, sin: Tensor, index: Tensor, mode: str) -> None:
    gamma = cache.scenario.gamma
    assert gamma is not None
    operands: list[Any] = [t.to(cache.device) for t in (kv, gamma, cos, sin, index)]
    # Rope cache first, compressed cache second: the opposite of mla_prolog (KR-02).
    cache.ops.npu_kv_rmsnorm_rope_cache(
        *operands, cache.storages["key_rope"], cache.storages["key"], epsilon=NORM_EPSILON, cache_mode=mode
    )


class MlaPaged(Paged):
    """ND pages ``[Bn, Bs, 1, D]``, cache_mode PA_BNSD: one global slot per token; read as BnBsH."""

    name = "mla-paged"
    tolerance = 1
    cache_mode = "PA_BNSD"

    def write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        parts = [
            _operands(self, b, torch.arange(s, e)) for b, (s, e) in enumerate(zip(starts, stops, strict=True))
        ]
        kv, cos, sin = (torch.cat(p)[:, None, None] for p in zip(*parts, strict=True))
        write_normed(self, kv, cos, sin, self.batch_slots(starts, stops), self.cache_mode)


class MlaPagedNZ(MlaPaged):
    """The same shapes with NZ bytes inside (cache_mode PA_NZ); the reader must view them as 5-D NZ
    (KR-06)."""

    name = "mla-paged-nz"
    cache_mode = "PA_NZ"

    def _nz(self, storage: Tensor) -> Tensor:
        lane = 32 // storage.element_size()
        blocks, size, _, width = storage.shape
        return storage.view(blocks, 1, width // lane, size, lane)

    def grid(self, storage: Tensor, role: str) -> Tensor:
        return self._nz(storage).permute(0, 3, 1, 2, 4)

    def as_operand(self, storage: Tensor) -> Tensor:
        return self._nz(storage)


class MlaPagedBsnd(MlaPaged):
    """ND pages handed over 4-D ``[Bn, Bs, 1, D]``: the PA_BSND of the sparse operators."""

    name = "mla-paged-bsnd"
    page_layout = "PA_BSND"
