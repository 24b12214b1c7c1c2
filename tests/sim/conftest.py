"""Tests of the simulator. They need torch; the route is the wheel's where torch_npu is installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

# The simulator is an extra: without torch its tests are left out.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]

# Set before anything imports torch: with the wheel installed, torch would load it and fail without CANN.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


@pytest.fixture(scope="session")
def simulation() -> Iterator[Any]:
    """One simulation for all tests: starting it by the wheel's route takes seconds."""
    import torch

    from kvlint.sim import simulate

    torch.set_num_threads(1)
    with simulate() as found:
        yield found


@pytest.fixture
def torch_npu(simulation: Any) -> Any:
    """The module as a program imports it."""
    import torch
    import torch_npu

    torch.manual_seed(0)
    return torch_npu
