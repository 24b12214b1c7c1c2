import importlib.util

import pytest

# The oracle is an extra: without torch its tests are left out.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny tensors on several threads are slower, and the machine may be shared."""
    import torch

    torch.set_num_threads(1)
