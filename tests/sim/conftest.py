"""Tests of the simulator. They need torch; the route is the wheel's where torch_npu is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kvlint.sim")
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
torch = pytest.importorskip("torch")

from kvlint.sim import simulate  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def simulation() -> Iterator[Any]:
    """One simulation for all tests: starting it by the wheel's route takes seconds."""
    with simulate() as found:
        yield found


@pytest.fixture
def torch_npu(simulation: Any) -> Any:
    """The module as a program imports it."""
    import torch_npu

    torch.manual_seed(0)
    return torch_npu
