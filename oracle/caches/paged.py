"""Paged caches: block tables, slot mappings, the four page layouts, recycling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Cache, Indices, KeyArguments, parts_of


class Paged(Cache):
    """Pages of ``block_size`` tokens, scattered over the pool by a random block table.

    ``page_layout``: BnBsH ``[Bn, Bs, N*D]``, BnNBsD ``[Bn, N, Bs, D]``, NZ ``[Bn, N, D/E, Bs, E]``, BnBsND
    ``[Bn, Bs, N, D]`` (the ATB and sparse operators).
    """

    name = "paged-bnbsh"
    page_layout = "BnBsH"
    spare_pages = 3

    @property
    def size(self) -> int:
        return self.case.block_size

    def allocate(self) -> None:
        # Room for two more tokens and one page: a call that reads too far reads this request's own poison.
        needed = [self.pages_of(n + 2) + 1 for n in self.case.kv_lens]
        total = sum(needed) + self.spare_pages
        order = torch.randperm(total, generator=self.gen)
        self.table = torch.zeros(len(needed), max(needed), dtype=torch.int32)
        at = 0
        for b, n in enumerate(needed):
            self.table[b, :n] = order[at : at + n].int()
            # Entries behind a request's pages are never read; a valid foreign id must not matter.
            self.table[b, n:] = order[-1].int()
            at += n
        for part in parts_of(self.scenario):
            self.add_storage(part.role, self.shape(total, part.width), self.storage_dtype(part.role))

    def storage_dtype(self, role: str) -> torch.dtype:
        return self.scenario.dtype

    def pages_of(self, tokens: int) -> int:
        return max(1, -(-tokens // self.size))

    def shape(self, total: int, width: int) -> tuple[int, ...]:
        heads = self.case.kv_heads
        if self.page_layout == "NZ":
            lane = 32 // torch.empty(0, dtype=self.storage_dtype("key")).element_size()
            return (total, heads, width // lane, self.size, lane)
        if self.page_layout == "BnNBsD":
            return (total, heads, self.size, width)
        return (total, self.size, heads, width)

    def grid(self, storage: Tensor, role: str) -> Tensor:
        if self.page_layout == "NZ":
            return storage.permute(0, 3, 1, 2, 4)
        return storage.transpose(1, 2) if self.page_layout == "BnNBsD" else storage

    def where(self, b: int, positions: Tensor) -> Indices:
        return self.table[b][positions // self.size].long(), positions % self.size

    def reach(self, b: int) -> int:
        return self.table.shape[1] * self.size

    def slots(self, b: int, start: int, stop: int) -> Tensor:
        """slot_mapping of positions start..stop: block id * block size + offset."""
        positions = torch.arange(start, stop)
        return self.table[b][positions // self.size].long() * self.size + positions % self.size

    def batch_slots(self, starts: Sequence[int], stops: Sequence[int]) -> Tensor:
        return torch.cat([self.slots(b, s, e) for b, (s, e) in enumerate(zip(starts, stops, strict=True))])

    def batch_rows(self, role: str, starts: Sequence[int], stops: Sequence[int]) -> Tensor:
        spans = zip(starts, stops, strict=True)
        return torch.cat([self.expected_rows(b, torch.arange(s, e), role) for b, (s, e) in enumerate(spans)])

    def write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        """npu_scatter_nd_update_ over a flat view of the pool."""
        slots = self.batch_slots(starts, stops).to(self.device)
        for role, storage in self.storages.items():
            rows = self.batch_rows(role, starts, stops).to(device=self.device, dtype=storage.dtype)
            if self.page_layout == "BnNBsD":
                heads = torch.arange(self.case.kv_heads, device=self.device)
                block, offset = slots // self.size, slots % self.size
                index = torch.stack(
                    [
                        block[:, None].expand(-1, len(heads)),
                        heads.expand(len(slots), -1),
                        offset[:, None].expand(-1, len(heads)),
                    ],
                    -1,
                )
                self.ops.npu_scatter_nd_update_(storage, index, rows)
            else:
                self.ops.npu_scatter_nd_update_(storage.view(-1, *storage.shape[2:]), slots.view(-1, 1), rows)

    def key_arguments(self) -> KeyArguments:
        found: KeyArguments = {role: self.as_operand(storage) for role, storage in self.storages.items()}
        found.setdefault("value", found["key"])
        return found | {
            "block_table": self.table.to(self.device), "block_size": self.size,
            "kv_lens": list(self.case.kv_lens),
        }  # fmt: skip

    def as_operand(self, storage: Tensor) -> Tensor:
        return storage.flatten(2) if self.page_layout == "BnBsH" else storage


class PagedHeadsFirst(Paged):
    """BnNBsD pages, written with three-column indices (block, head, offset)."""

    name = "paged-bnnbsd"
    page_layout = "BnNBsD"


class PagedScatter(Paged):
    """ND pages written by npu_scatter_pa_kv_cache in mode Norm, read as BnBsH."""

    name = "paged-scatter"

    def write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        slots = self.batch_slots(starts, stops).to(self.device)
        rows = [self.batch_rows(r, starts, stops).to(self.device) for r in ("key", "value")]
        self.ops.npu_scatter_pa_kv_cache(
            *rows, self.storages["key"], self.storages["value"], slots, cache_mode="Norm"
        )


class PagedNZ(Paged):
    """NZ pages written by npu_scatter_pa_kv_cache in its default mode, read as 5-D."""

    name = "paged-nz"
    page_layout = "NZ"

    def write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        slots = self.batch_slots(starts, stops).to(self.device)
        rows = [self.batch_rows(r, starts, stops).to(self.device) for r in ("key", "value")]
        pages = [self.storages[r].flatten(1, 2) for r in ("key", "value")]
        self.ops.npu_scatter_pa_kv_cache(*rows, *pages, slots, cache_mode="PA_NZ")


class PagedAtb(Paged):
    """BnBsND pages written by _npu_reshape_and_cache (int32 slots), read 4-D by the ATB operators."""

    name = "paged-atb"
    page_layout = "BnBsND"

    def write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        slots = self.batch_slots(starts, stops).int().to(self.device)
        rows = [self.batch_rows(r, starts, stops).to(self.device) for r in ("key", "value")]
        self.ops._npu_reshape_and_cache(*rows, self.storages["key"], self.storages["value"], slots)


class Sliding(Paged):
    """A windowed layer's pages: those behind the window go back to the pool and are taken again at once.

    The call sees only the kept pages: block table and lengths start at the first kept page.
    """

    name = "sliding"

    def allocate(self) -> None:
        batch = self.scenario.batch
        kept = self.pages_of(self.case.window) + 2 + self.pages_of(max(self.case.q_lens, default=1))
        pool = batch * kept + 1
        self.free = torch.randperm(pool, generator=self.gen).tolist()
        self.pages: list[dict[int, int]] = [{} for _ in range(batch)]
        for part in parts_of(self.scenario):
            self.add_storage(part.role, self.shape(pool, part.width), self.scenario.dtype)

    def where(self, b: int, positions: Tensor) -> Indices:
        # Positions behind the window have no page any more; any page will do, nobody may see them.
        default = next(iter(self.pages[b].values()), 0)
        blocks = [self.pages[b].get(int(p) // self.size, default) for p in positions]
        return torch.tensor(blocks, dtype=torch.int64), positions % self.size

    def slots(self, b: int, start: int, stop: int) -> Tensor:
        block, offset = self.where(b, torch.arange(start, stop))
        return block * self.size + offset

    def reach(self, b: int) -> int:
        return (max(self.pages[b], default=-1) + 1) * self.size

    def fill(self) -> None:
        """The history arrives page by page, so that pages are recycled on the way."""
        for b in range(self.scenario.batch):
            for start in range(0, self.scenario.past(b), self.size):
                starts, stops = [0] * self.scenario.batch, [0] * self.scenario.batch
                starts[b], stops[b] = start, min(self.scenario.past(b), start + self.size)
                self.note_write(starts, stops)

    def note_write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        for b, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            if stop <= start:
                continue
            first_kept = max(0, start + 1 - self.case.window) // self.size
            for page in [p for p in self.pages[b] if p < first_kept]:
                self.free.append(self.pages[b].pop(page))
            for page in range(start // self.size, -(-stop // self.size)):
                if page not in self.pages[b]:
                    self.pages[b][page] = self.free.pop()
        super().note_write(starts, stops)

    def first_page(self, b: int) -> int:
        return min(self.pages[b], default=0)

    def key_arguments(self) -> KeyArguments:
        width = max(len(p) for p in self.pages)
        table = torch.zeros(self.scenario.batch, width, dtype=torch.int32)
        lens = []
        for b, pages in enumerate(self.pages):
            ids = [pages[p] for p in sorted(pages)]
            table[b, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
            lens.append(self.case.kv_lens[b] - self.first_position(b))
        self.table = table
        found: KeyArguments = {role: self.as_operand(s) for role, s in self.storages.items()}
        return found | {"block_table": table.to(self.device), "block_size": self.size, "kv_lens": lens}

    def first_position(self, b: int) -> int:
        return self.first_page(b) * self.size

    def unwritten_rows(self, b: int) -> tuple[Tensor, Tensor] | None:
        # A recycled page holds what its last owner left.
        return self.content_rows(b, self.before)

    def truth_rows(self, b: int, trusted: bool) -> tuple[Tensor, Tensor]:
        k, v = (x.clone() for x in super().truth_rows(b, trusted))
        gone = self.first_position(b)
        k[:gone], v[:gone] = self.scenario.stored[b][0][:gone], self.scenario.stored[b][1][:gone]
        return k, v
