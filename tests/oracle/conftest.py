import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny tensors on several threads are slower, and the machine may be shared."""
    torch.set_num_threads(1)
