"""No cache at all, and one preallocated tensor per layer (scatter_update_)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layouts import join_heads
from .base import Cache, Indices, KeyArguments, parts_of, poison


class Fresh(Cache):
    """Keys and values go straight into the call: packed for TND/NTD, padded per request otherwise."""

    name = "none"

    def allocate(self) -> None:
        """Nothing is stored; requests shorter than the longest are padded with poison."""
        shape = (self.scenario.batch, self.case.kv_heads, max(self.case.kv_lens))
        self.padding = {
            part.role: poison(
                (*shape, part.width), self.scenario.dtype, self.gen, 3.0 * (part.role == "value")
            )
            for part in parts_of(self.scenario)
        }

    def fill(self) -> None:
        return

    def step(self) -> None:
        return

    def truth_rows(self, b: int, trusted: bool) -> tuple[Tensor, Tensor]:
        return self.scenario.stored[b]

    def unwritten_rows(self, b: int) -> tuple[Tensor, Tensor] | None:
        if self.case.packed or self.case.rope_dim:
            return None
        return self.padding["key"][b].transpose(0, 1), self.padding["value"][b].transpose(0, 1)

    def key_arguments(self) -> KeyArguments:
        case, scenario = self.case, self.scenario
        axes = case.layout.partition("_")[0]
        found: KeyArguments = {}
        for part in parts_of(scenario):
            rows = [part.cut(k, v).transpose(0, 1) for k, v in scenario.stored]
            if case.packed:
                tensor = join_heads(torch.cat(rows, 1), axes)
            else:
                padded = self.padding[part.role].clone()
                for b, r in enumerate(rows):
                    padded[b, :, : r.shape[1]] = r
                tensor = join_heads(padded, axes)
            found[part.role] = tensor.to(self.device)
        found.setdefault("value", found["key"])
        if case.packed:
            found["kv_lens"] = torch.tensor(case.kv_lens).cumsum(0).tolist()
        else:
            found["kv_lens"] = list(case.kv_lens)
        return found


class Contiguous(Cache):
    """``[B, capacity, ...]`` in the query layout; ``scatter_update_`` along the sequence axis."""

    name = "contiguous"

    @property
    def axes(self) -> str:
        return self.case.layout.partition("_")[0]

    @property
    def capacity(self) -> int:
        return max(self.case.kv_lens) + 3

    @property
    def sequence_axis(self) -> int:
        return -2 if self.axes == "BNSD" else 1

    def allocate(self) -> None:
        for part in parts_of(self.scenario):
            shape = join_heads(
                torch.empty(
                    self.scenario.batch, self.case.kv_heads, self.capacity, part.width, device="meta"
                ),
                self.axes,
            ).shape
            self.add_storage(part.role, shape, self.scenario.dtype)

    def grid(self, storage: Tensor, role: str) -> Tensor:
        if self.axes == "BNSD":
            return storage.transpose(1, 2)
        return storage.view(*storage.shape[:2], self.case.kv_heads, -1) if self.axes == "BSH" else storage

    def where(self, b: int, positions: Tensor) -> Indices:
        return torch.full_like(positions, b), positions

    def reach(self, b: int) -> int:
        return self.capacity

    def write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        counts = {e - s for s, e in zip(starts, stops, strict=True)}
        if len(counts) == 1 and min(starts) >= 0:  # one call for the batch, as a decode step does
            self._update(
                slice(0, len(starts)),
                starts,
                [(b, s, e) for b, (s, e) in enumerate(zip(starts, stops, strict=True))],
            )
            return
        for b, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            if stop > start:
                self._update(slice(b, b + 1), [start], [(b, start, stop)])

    def _update(self, batch: slice, starts: Sequence[int], spans: list[tuple[int, int, int]]) -> None:
        index = torch.tensor(list(starts), dtype=torch.int64, device=self.device)
        for role, storage in self.storages.items():
            rows = torch.stack([self.expected_rows(b, torch.arange(s, e), role) for b, s, e in spans])
            update = join_heads(rows.transpose(1, 2), self.axes).to(self.device)
            self.ops.scatter_update_(storage[batch], index, update.to(storage.dtype), self.sequence_axis)

    def key_arguments(self) -> KeyArguments:
        found: KeyArguments = dict(self.storages)
        found.setdefault("value", found["key"])
        return found | {"kv_lens": list(self.case.kv_lens)}
