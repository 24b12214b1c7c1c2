"""pytest option ``--kvlint-sim``: tests written for an NPU run in the simulator.

Also the fixture ``kvlint_sim``, which simulates for one test and gives the
:class:`~kvlint.sim.session.Simulation`. Without either, torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvlint")
    group.addoption(
        "--kvlint-sim", nargs="?", const="auto", default=None, metavar="ROUTE",
        choices=("auto", "catalogue", "wheel"),
        help="run NPU code on the CPU; ROUTE: catalogue, wheel (the installed torch_npu) or auto",
    )  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # Before any conftest, because those import torch_npu.
    route = early_config.known_args_namespace.kvlint_sim
    if route is not None:
        from kvlint.sim import SimulationError, install

        try:
            install(route, force=True)
        except SimulationError as error:
            raise pytest.UsageError(f"--kvlint-sim: {error}") from error


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.getoption("--kvlint-sim") is not None:
        from kvlint.sim import uninstall

        uninstall()


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--kvlint-sim") is None:
        return None
    from kvlint.sim import active

    simulation = active()
    return None if simulation is None else f"kvlint-sim: {simulation.route}, torch_npu {simulation.release}"


@pytest.fixture
def kvlint_sim() -> Iterator[Any]:
    """A simulation for this test, or the one of ``--kvlint-sim``."""
    from kvlint.sim import simulate

    with simulate() as simulation:
        yield simulation
