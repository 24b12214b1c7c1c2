"""Keeps torch from loading a torch_npu that cannot load.

A torch_npu wheel registers itself with torch. Beside it ``import torch`` fails on a machine without CANN,
unless torch is told to leave it alone. Nothing here imports torch.
"""

from __future__ import annotations

import glob
import os


def npu_present() -> bool:
    """This machine has an NPU: its driver made a device file."""
    return bool(glob.glob("/dev/davinci[0-9]*"))


def leave_npu_alone() -> None:
    """From now on ``import torch`` loads no torch_npu by itself, where there is no NPU for it.

    What the environment variable says already stays. With an NPU a program may rely on the automatic load.
    """
    if not npu_present():
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
