"""Changes to other modules that can be taken back."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

_ABSENT: Final = object()


class Patches:
    """Sets attributes and modules, and restores what was there before in reverse order."""

    def __init__(self) -> None:
        self._attributes: list[tuple[Any, str, Any]] = []
        self._modules: list[tuple[str, ModuleType | None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """``owner.name = value``."""
        self._attributes.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def module(self, name: str, value: ModuleType) -> None:
        """``import name`` gives ``value``."""
        self._modules.append((name, sys.modules.get(name)))
        sys.modules[name] = value

    def undo(self) -> None:
        """Everything as it was."""
        while self._attributes:
            owner, name, old = self._attributes.pop()
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
        while self._modules:
            name, module = self._modules.pop()
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
