"""What ``with ... as name`` binds."""

from __future__ import annotations

import libcst as cst

from kvlint.contract.values import Unknown, Value

from .chunk import Site
from .objects import Bound, Func, Instance, Manager
from .patterns import Patterns
from .state import Frame
from .syntax import decorators_of
from .torchlib import key_of, label_of


class Contexts(Patterns):
    """Context managers."""

    def entered(self, manager: Value, node: cst.WithItem, frame: Frame) -> Value:
        """The value a context manager gives: what its generator yields, what ``__enter__`` returns."""
        return self.lift(lambda leaf: self._entered(leaf, node, frame), [manager], frame)

    def _entered(self, manager: Value, node: cst.WithItem, frame: Frame) -> Value:
        site = Site(frame.chunk, node)
        if isinstance(manager, Manager):
            return manager.value
        if isinstance(manager, Instance):
            bound = self.instance_attribute(manager, "__enter__", site, frame)
            if isinstance(bound, Bound):
                return self._invoke(bound.func, [manager], {}, site, frame, statement=True)
        key = ("with", key_of(manager))
        return Unknown(key, label_of(manager), "it comes from a context manager", place=site)

    def generated(self, func: Func, frame: Frame) -> Value:
        """The result of a function that yields."""
        if "contextmanager" in decorators_of(func.node) and len(frame.yielded) == 1:
            return Manager(frame.yielded[0], place=func.place)
        return Unknown(("generator", id(func.node)), func.name, "it is a generator", place=func.place)
