"""Errors whose text is meant for the user."""

from __future__ import annotations


class SimulationError(RuntimeError):
    """The simulator cannot do what was asked."""


class MissingKernelError(NotImplementedError):
    """The program called an operator that has a schema but no simulated kernel."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        namespace, _, name = operator.partition("::")
        super().__init__(
            f"{operator} has no simulated kernel. Add one before the program runs: "
            f'@kvlint.sim.kernel("{namespace}::{name}") over a function with the parameters of its schema '
            "(see kvlint.sim.kernel)"
        )


class MissingGradientError(MissingKernelError):
    """A backward pass reached an operator that has no simulated gradient."""

    def __init__(self, operator: str) -> None:
        super().__init__(operator)
        self.args = (
            f"{operator} has no simulated gradient. Add one before the program runs: "
            f'torch.library.register_autograd("{operator}", backward, setup_context=...) '
            "(see torch.library.register_autograd)",
        )
