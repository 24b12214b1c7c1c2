"""A cache that lives in host memory and visits the device for each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..scenario import Scenario
from .base import AttentionCall, Cache, CacheReport, KeyArguments, poison
from .contiguous import Contiguous
from .paged import Paged


@dataclass(slots=True)
class CopyQueue:
    """Copies on a side stream.

    On a CPU a submitted copy is carried out when it is waited for, and not before: code that forgets to
    wait, or waits for the wrong ticket, computes with old data here every time, which on a device happens
    only sometimes."""

    stream: Any = None
    pending: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    count: int = 0

    def submit(self, target: Tensor, source: Tensor, what: str) -> int:
        """Queue ``target.copy_(source)``; returns the ticket to wait for."""
        self.count += 1
        self.log.append(("submit", what))
        self.pending[self.count] = (target, source)
        return self.count

    def wait(self, ticket: int, what: str) -> None:
        """Make the copy visible to whatever runs next."""
        target, source = self.pending.pop(ticket)
        target.copy_(source)
        self.log.append(("done", what))

    def use(self, tensor: Tensor, what: str) -> None:
        """Declare that ``tensor`` is about to be read or written by compute."""
        self.log.append(("use", what))
        for target, source in self.pending.values():
            for side, other in (("filled", target), ("copied out", source)):
                if other.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                    self.faults.append(f"{what} while {side} by a copy nobody waited for")


class Offloaded(Cache):
    """Wraps a device cache mode: copy in, compute, copy the step's result out; the device copy is worthless
    between steps (it is overwritten with poison, as by the next layer)."""

    name = "offloaded"
    inner_type: type[Cache] = Contiguous

    def __init__(self, scenario: Scenario, ops: Any, device: torch.device | str = "cpu") -> None:
        self.inner = self.inner_type(scenario, ops, device)
        self.queue = CopyQueue()
        self.host: dict[str, Tensor] = {}
        super().__init__(scenario, ops, device)

    def allocate(self) -> None:
        self.storages, self.expected = self.inner.storages, self.inner.expected
        self.named, self.initial = self.inner.named, self.inner.initial
        self.host = {role: torch.empty_like(s, device="cpu") for role, s in self.storages.items()}

    def fill(self) -> None:
        self.inner.fill()
        self.copy_out()
        self.evict()

    def evict(self) -> None:
        for role, storage in self.storages.items():
            storage.copy_(poison(storage.shape, storage.dtype, self.gen, 5.0 if role == "value" else 0.0))

    def copy_in(self) -> list[tuple[int, str]]:
        return [(self.queue.submit(s, self.host[r], f"copy in of {r}"), r) for r, s in self.storages.items()]

    def step(self) -> None:
        for ticket, role in self.copy_in():
            self.queue.wait(ticket, f"copy in of {role}")
        for role, storage in self.storages.items():
            self.queue.use(storage, f"write to {role}")
        self.inner.step()
        self.before = self.inner.before

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        for role, storage in self.storages.items():
            self.queue.use(storage, f"attention over {role}")
        return self.inner.attend(call)

    def copy_out(self) -> None:
        tickets = [
            (self.queue.submit(self.host[r], s, f"copy out of {r}"), r) for r, s in self.storages.items()
        ]
        for ticket, role in tickets:
            self.queue.wait(ticket, f"copy out of {role}")

    def finish(self) -> None:
        self.copy_out()

    def check(self) -> CacheReport:
        report = self.inner.check()
        for role, storage in self.storages.items():
            if not torch.equal(self.host[role], storage.cpu()):
                report.wrong.append(f"{role}: the host copy differs from the device cache after the copy out")
        report.order.extend(self.queue.faults)
        report.order.extend(f"{what} was queued and never waited for" for what in self._unfinished())
        return report

    def _unfinished(self) -> list[str]:
        done = [what for event, what in self.queue.log if event == "done"]
        left = [what for event, what in self.queue.log if event == "submit"]
        for what in done:
            left.remove(what)
        return left

    def grid(self, storage: Tensor, role: str) -> Tensor:
        return self.inner.grid(storage, role)

    def where(self, b: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.where(b, positions)

    def reach(self, b: int) -> int:
        return self.inner.reach(b)

    def first_position(self, b: int) -> int:
        return self.inner.first_position(b)

    def key_arguments(self) -> KeyArguments:
        return self.inner.key_arguments()


class OffloadedPaged(Offloaded):
    """The same over a paged device cache."""

    name = "offloaded-paged"
    inner_type = Paged
