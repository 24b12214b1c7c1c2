"""What every cache mode shares: storages full of poison, a shadow of what must be in them, and the
comparison.

A cache mode allocates, writes through the operators that user code calls, and hands the attention call its
key-side arguments. Beside the real storages it keeps the expected ones, written by plain indexing, so that a
write that lands in a wrong slot is seen whether or not the attention output shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..scenario import Scenario

Indices = tuple[Tensor, Tensor]
#: role (see calls.ROLES) -> value, for the attention call
KeyArguments = dict[str, Any]
#: one operator call: key-side arguments -> (out, lse)
AttentionCall = Callable[[KeyArguments], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor: ``role`` in the call, ``width`` of a row and head, and how to cut it from (k, v)
    rows."""

    role: str
    width: int
    cut: Callable[[Tensor, Tensor], Tensor]


def parts_of(scenario: Scenario) -> list[Part]:
    """Key and value, or for MLA the compressed part (key and value in one) and the rope part."""
    case = scenario.case
    if case.rope_dim and case.latent:
        return [
            Part("key", case.dim, lambda k, v: k[..., : case.dim]),
            Part("key_rope", case.rope_dim, lambda k, v: k[..., case.dim :]),
        ]
    found = [
        Part("key", case.dim, lambda k, v: k[..., : case.dim]),
        Part("value", case.value_dim, lambda k, v: v),
    ]
    if case.rope_dim:
        found.append(Part("key_rope", case.rope_dim, lambda k, v: k[..., case.dim :]))
    return found


@dataclass(slots=True)
class CacheReport:
    """Comparison of storages with their shadow. ``wrong``: named slots whose content is not the token's row;
    ``stray``: slots nobody named that changed. Each entry is a readable line."""

    wrong: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.wrong or self.stray or self.order)

    def lines(self) -> list[str]:
        return [*self.order, *self.wrong, *self.stray]


def poison(shape: Sequence[int], dtype: torch.dtype, gen: torch.Generator, offset: float = 0.0) -> Tensor:
    """Finite random content for slots nobody has written: reading one shows in the output, and being
    bit-exact afterwards proves that nobody wrote it. Not NaN: kernels may read whole blocks and mask
    later."""
    if dtype.is_floating_point:
        return (1.2 * torch.randn(tuple(shape), generator=gen) + offset).to(dtype)
    low, high = (-128, 128) if dtype == torch.int8 else (-(2**31), 2**31 - 1)
    return torch.randint(low, high, tuple(shape), generator=gen).to(dtype)


class Cache:
    """Base of the cache modes. Subclasses set :attr:`tolerance` and implement the allocation, write and
    read."""

    name: ClassVar[str] = ""
    #: how far a stored element may lie from the shadow: 0 for copies, 1 ulp / 1 step for computed writers
    tolerance: ClassVar[int] = 0

    def __init__(self, scenario: Scenario, ops: Any, device: torch.device | str = "cpu") -> None:
        self.scenario, self.ops, self.device = scenario, ops, torch.device(device)
        self.case = scenario.case
        self.gen = torch.Generator().manual_seed(self.case.seed ^ 0x5EED)
        self.storages: dict[str, Tensor] = {}
        self.expected: dict[str, Tensor] = {}
        self.named: dict[str, Tensor] = {}
        self.initial: dict[str, Tensor] = {}
        #: what the storages held right before this step's write
        self.before: dict[str, Tensor] = {}
        self.allocate()

    # ------------------------------------------------------------------ for subclasses

    def allocate(self) -> None:
        """Create :attr:`storages` with :meth:`add_storage`."""

    def add_storage(self, role: str, shape: Sequence[int], dtype: torch.dtype) -> None:
        content = poison(shape, dtype, self.gen, 3.0 if role == "value" else 0.0)
        self.initial[role] = content
        self.expected[role] = content.clone()
        self.named[role] = torch.zeros(self.grid(content, role).shape[:2], dtype=torch.bool)
        self.storages[role] = content.clone().to(self.device)

    def grid(self, storage: Tensor, role: str) -> Tensor:
        """A view whose two leading axes address one row of all heads: (batch, position) or (block,
        offset)."""
        raise NotImplementedError

    def where(self, b: int, positions: Tensor) -> Indices:
        """Address of the rows of request b at ``positions`` on the grid."""
        raise NotImplementedError

    def write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        """Write tokens ``starts[b]..stops[b]`` of every request through the operators under test."""
        raise NotImplementedError

    def key_arguments(self) -> KeyArguments:
        """Key-side roles of the attention call."""
        raise NotImplementedError

    def expected_rows(self, b: int, positions: Tensor, role: str) -> Tensor:
        """Rows ``[n, N, width]`` as they must be stored."""
        k, v = self.scenario.stored[b]
        part = next(p for p in parts_of(self.scenario) if p.role == role)
        return part.cut(k[positions], v[positions])

    # ------------------------------------------------------------------ life of a step

    def fill(self) -> None:
        """Cache everything before this step."""
        self.note_write(
            [0] * self.scenario.batch, [self.scenario.past(b) for b in range(self.scenario.batch)]
        )

    def step(self) -> None:
        """Cache the new tokens of this step."""
        self.before = {role: shadow.clone() for role, shadow in self.expected.items()}
        self.note_write([self.scenario.past(b) for b in range(self.scenario.batch)], list(self.case.kv_lens))

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Run the attention of this step; modes that need several calls override it."""
        return call(self.key_arguments())

    def finish(self) -> None:
        """Work after the attention, such as copying out."""

    def note_write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        """Write, and record in the shadow what the write must do."""
        if all(a >= b for a, b in zip(starts, stops, strict=True)):
            return
        for b, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            if stop > start:
                self.expect(b, torch.arange(start, stop))
        self.write(starts, stops)

    def expect(self, b: int, positions: Tensor) -> None:
        at = self.where(b, positions)
        for role, shadow in self.expected.items():
            grid = self.grid(shadow, role)
            rows = self.expected_rows(b, positions, role)
            grid[at] = rows.reshape(len(positions), *grid.shape[2:]).to(shadow.dtype)
            self.named[role][at] = True

    # ------------------------------------------------------------------ checks and reads

    def check(self) -> CacheReport:
        """Compare every slot of every storage with the shadow."""
        report = CacheReport()
        for role, storage in self.storages.items():
            real = self.grid(storage.detach().cpu(), role)
            want = self.grid(self.expected[role], role)
            named = self.named[role]
            same = (real == want).flatten(2).all(-1)
            if self.tolerance:
                same = same | (within(real, want, self.tolerance).flatten(2).all(-1) & named)
            for a, o in (~same & named).nonzero().tolist()[:8]:
                report.wrong.append(
                    f"{role}: slot ({a}, {o}) does not hold its token: {self.explain(role, real, a, o)}"
                )
            for a, o in (~same & ~named).nonzero().tolist()[:8]:
                report.stray.append(f"{role}: slot ({a}, {o}) was written although no token maps there")
        return report

    def explain(self, role: str, real: Tensor, a: int, o: int) -> str:
        """What a wrong slot holds: nothing, another token, or something else."""
        row = real[a, o]
        if torch.equal(row, self.grid(self.initial[role], role)[a, o]):
            return "never written"
        twins = (self.grid(self.expected[role], role) == row).flatten(2).all(-1).nonzero().tolist()
        return f"holds the row of slot ({twins[0][0]}, {twins[0][1]})" if twins else "other content"

    def rows(self, b: int, role: str, storage: Tensor | None = None) -> Tensor:
        """Rows ``[L, N, width]`` of request b as stored (by plain indexing)."""
        source = self.storages[role].detach().cpu() if storage is None else storage
        length = self.case.kv_lens[b]
        grid = self.grid(source, role)
        return grid[self.where(b, torch.arange(length))].reshape(length, self.case.kv_heads, -1)

    def truth_rows(self, b: int, trusted: bool) -> tuple[Tensor, Tensor]:
        """(k, v) ``[L, Nk, D]`` that the attention must read: the stored ones if the cache is right
        (``trusted``), so that a computed writer's last bit does not count against the attention; else the
        intended ones."""
        source = self.storages if trusted else self.expected
        k = self.rows(b, "key", source["key"].cpu())
        v = (
            self.rows(b, "value", source["value"].cpu())
            if "value" in source
            else k[..., : self.case.value_dim]
        )
        if "key_rope" in source:
            k = torch.cat([k, self.rows(b, "key_rope", source["key_rope"].cpu())], -1)
        return k, v

    def first_position(self, b: int) -> int:
        """First position of request b that the call can read (pages behind a window are given back)."""
        return 0

    def content_rows(self, b: int, storages: dict[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """(k, v) ``[n, Nk, D]`` that ``storages`` hold at all readable positions of request b, written or
        not; None for an integer or absent cache."""
        if "key" not in storages or not storages["key"].dtype.is_floating_point:
            return None
        positions = torch.arange(self.first_position(b), self.reach(b))
        at = self.where(b, positions)
        rows = {
            role: self.grid(t, role)[at].reshape(len(positions), self.case.kv_heads, -1)
            for role, t in storages.items()
        }
        k = torch.cat([rows["key"], rows["key_rope"]], -1) if "key_rope" in rows else rows["key"]
        return k, rows["value"] if "value" in rows else rows["key"][..., : self.case.value_dim]

    def unwritten_rows(self, b: int) -> tuple[Tensor, Tensor] | None:
        """(k, v) of all readable positions before anything of request b was written, as far as it is
        known."""
        return self.content_rows(b, self.initial)

    def shifted_rows(self, by: int) -> list[tuple[Tensor, Tensor]] | None:
        """(k, v) of every request had this step's rows gone ``by`` slots further, physically."""
        if not self.before:
            return None
        moved = {role: t.clone() for role, t in self.before.items()}
        for role, storage in moved.items():
            grid = self.grid(storage, role)
            count, width = grid.shape[:2]
            for b in range(self.scenario.batch):
                positions = torch.arange(self.scenario.past(b), self.case.kv_lens[b])
                a, o = self.where(b, positions)
                slot = a * width + o + by
                inside = (slot >= 0) & (slot < count * width)
                rows = self.expected_rows(b, positions[inside], role)
                slot = slot[inside]
                grid[slot // width, slot % width] = rows.reshape(len(slot), *grid.shape[2:])
        found = [self.content_rows(b, moved) for b in range(self.scenario.batch)]
        return [rows for rows in found if rows is not None]

    def coefficients(
        self, b: int
    ) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]] | None:
        """(scale, offset) of key and of value rows of an integer cache, broadcastable to ``[L, Nk, D]``."""
        return None

    def reach(self, b: int) -> int:
        """Number of positions of request b that have a slot."""
        return self.case.kv_lens[b]


def within(a: Tensor, b: Tensor, steps: int) -> Tensor:
    """Elementwise: at most ``steps`` representable numbers apart."""
    if not a.dtype.is_floating_point:
        return (a.to(torch.int64) - b.to(torch.int64)).abs() <= steps
    as_int = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]

    def ordered(x: Tensor) -> Tensor:
        bits = x.contiguous().view(as_int).to(torch.int64)
        return torch.where(bits < 0, -(bits & (2 ** (8 * x.element_size() - 1) - 1)), bits)

    return (ordered(a) - ordered(b)).abs() <= steps
