"""Cache modes: every write lands where it must, every misplaced one is seen and explained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kvlint.oracle.backends import Simulator
from kvlint.oracle.caches import CACHES, CopyQueue, make_cache
from kvlint.oracle.caches.base import within
from kvlint.oracle.caches.paged import Sliding
from kvlint.oracle.caches.parallel import SequenceParallel
from kvlint.oracle.cases import Case, matrix
from kvlint.oracle.kernels import KERNELS, KernelError
from kvlint.oracle.scenario import build

CASES = {name: next(c for c in matrix() if c.cache == name and c.quick) for name in CACHES}
WRITING = [name for name in CACHES if name != "none"]


@pytest.mark.parametrize("name", WRITING)
def test_every_slot_is_right_after_a_step(name: str) -> None:
    cache = make_cache(build(CASES[name]), Simulator().ops)
    cache.fill()
    cache.step()
    cache.finish()
    assert cache.check().lines() == []
    assert all(bool(n.any()) for n in cache.named.values())


@pytest.mark.parametrize("name", WRITING)
def test_a_dropped_write_is_reported(name: str) -> None:
    backend = Simulator()
    cache = make_cache(build(CASES[name]), backend.ops)
    cache.fill()
    for writer in ("scatter_update_", "npu_scatter_nd_update_", "npu_scatter_pa_kv_cache",
    "npu_kv_rmsnorm_rope_cache",
                   "_npu_reshape_and_cache"):  # fmt: skip
        setattr(backend.ops, writer, lambda *a, **k: None)
    cache.step()
    cache.finish()
    assert cache.check().wrong


def test_a_shifted_write_names_the_slots() -> None:
    case = CASES["paged-bnbsh"]
    correct = KERNELS["npu_scatter_nd_update_"]

    def shifted(data: Any, index: Any, rows: Any) -> Any:
        return correct(data, (index + 1) % len(data), rows)

    backend = Simulator({"npu_scatter_nd_update_": shifted})
    cache = make_cache(build(case), backend.ops)
    cache.fill()
    cache.step()
    report = cache.check()
    assert any("holds the row of slot" in line or "never written" in line for line in report.wrong)
    assert report.stray


def test_reading_code_and_writing_code_agree_on_positions() -> None:
    """The rows found by plain indexing are the rows the scenario says were stored."""
    for name in (
        "contiguous",
        "paged-bnbsh",
        "paged-bnnbsd",
        "paged-nz",
        "paged-atb",
        "kv-parallel-sequence",
    ):
        case = CASES[name]
        scenario = build(case)
        cache = make_cache(scenario, Simulator().ops)
        cache.fill()
        cache.step()
        for b in range(scenario.batch):
            k, v = cache.truth_rows(b, True)
            assert torch.equal(k, scenario.stored[b][0]) and torch.equal(v, scenario.stored[b][1]), name


def test_sliding_pages_are_recycled() -> None:
    case = CASES["sliding"]
    cache = make_cache(build(case), Simulator().ops)
    assert isinstance(cache, Sliding)
    cache.fill()
    cache.step()
    held = sum(len(p) for p in cache.pages)
    ever = sum(-(-n // case.block_size) for n in case.kv_lens)
    assert held < ever, "nothing was recycled"
    lens = cache.key_arguments()["kv_lens"]
    assert all(a <= b for a, b in zip(lens, case.kv_lens, strict=True)) and lens != list(case.kv_lens)


@pytest.mark.parametrize("total", range(0, 70))
def test_sequence_parallel_lengths_add_up(total: int) -> None:
    cache = make_cache(build(CASES["kv-parallel-sequence"]), Simulator().ops)
    assert isinstance(cache, SequenceParallel)
    owners = [(p // cache.size) % cache.ranks for p in range(total)]
    for rank in range(cache.ranks):
        assert cache.local_length(0, rank, total) == owners.count(rank)


def test_offloading_without_waiting_is_caught() -> None:
    case = CASES["offloaded"]
    cache = make_cache(build(case), Simulator().ops)
    cache.fill()
    tickets = cache.copy_in()  # type: ignore[attr-defined]
    for role, storage in cache.storages.items():
        cache.queue.use(storage, f"attention over {role}")  # type: ignore[attr-defined]
    report = cache.check()
    assert any("nobody waited" in line for line in report.order)
    assert any("never waited for" in line for line in report.order)
    assert len(tickets) == 2


def test_copy_queue_runs_a_copy_only_when_waited_for() -> None:
    queue, source, target = CopyQueue(), torch.ones(3), torch.zeros(3)
    ticket = queue.submit(target, source, "in")
    source.fill_(2)
    assert not target.any()
    queue.use(target, "read")
    queue.wait(ticket, "in")
    assert target.tolist() == [2.0, 2.0, 2.0] and queue.faults == [
        "read while filled by a copy nobody waited for"
    ]


def test_cache_of_another_length_keeps_foreign_slots() -> None:
    """Capacity beyond the tokens stays poison, bit by bit."""
    case = replace(CASES["contiguous"], q_lens=(1, 1), kv_lens=(5, 9), name="spare", seed=5)
    cache = make_cache(build(case), Simulator().ops)
    cache.fill()
    cache.step()
    for role, storage in cache.storages.items():
        grid, initial = cache.grid(storage, role), cache.grid(cache.initial[role], role)
        assert torch.equal(grid[0, 5:], initial[0, 5:]) and torch.equal(grid[1, 9:], initial[1, 9:])


def test_one_ulp() -> None:
    x = torch.tensor([1.0, -1.0, 0.0], dtype=torch.bfloat16)
    up = torch.nextafter(x, torch.full_like(x, 9.0))
    assert within(x, up, 1).all() and not within(x, x + 0.5, 1).any()
    assert within(torch.tensor([-0.0]), torch.tensor([0.0]), 0).all()


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("scatter_update_", (torch.zeros(1, 4, 2), torch.tensor([3]), torch.zeros(1, 2, 2), 1)),
        ("npu_scatter_nd_update_", (torch.zeros(4, 2), torch.tensor([[4]]), torch.zeros(1, 2))),
        ("npu_scatter_nd_update_", (torch.zeros(4, 2), torch.tensor([[-1]]), torch.zeros(1, 2))),
        ("npu_scatter_nd_update_", (torch.zeros(4, 2), torch.tensor([1]), torch.zeros(1, 2))),
    ],
)
def test_stray_writes_are_errors_in_the_simulator(op: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(KernelError):
        KERNELS[op](*args)


def test_functional_writers_leave_the_cache_alone() -> None:
    data = torch.zeros(1, 4, 2)
    KERNELS["scatter_update"](data, torch.tensor([1]), torch.ones(1, 1, 2), 1)
    KERNELS["npu_scatter_nd_update"](data[0], torch.tensor([[2]]), torch.ones(1, 2))
    assert not data.any()


def test_case_names_its_cache_mode() -> None:
    from kvlint.oracle.errors import CaseSelectionError

    case: Case = replace(CASES["contiguous"], cache="nope")
    with pytest.raises(CaseSelectionError, match="no cache mode 'nope'"):
        make_cache(build(case), Simulator().ops)
