"""Context for whole threads, without a frame of ours in their tracebacks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def within(thread: threading.Thread, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """The thread, which has not started yet, will run inside ``context()``."""
    # What this method calls reports the thread's exception itself: a frame around it is never shown.
    inner = getattr(thread, "_bootstrap_inner", None)
    name = "run" if inner is None else "_bootstrap_inner"
    work = thread.run if inner is None else inner

    def inside() -> None:
        # Contexts may be nested; the outermost one has removed it.
        vars(thread).pop(name, None)
        with context():
            work()

    setattr(thread, name, inside)
