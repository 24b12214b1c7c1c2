"""What the code does with the results of operator calls, wherever evaluation meets them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

from kvlint.contract.keys import origin
from kvlint.contract.num import Num
from kvlint.contract.values import Sequence, Tensor, Unknown, Value

from .algebra import plain_leaves
from .attributes import TENSOR_METHODS
from .chunk import Site
from .names import Names
from .objects import Method, Namespace, OpRef, Ref
from .state import Frame, Record, Touch
from .torchlib import number_of

# What asks a tensor about its form, and needs no element of it.
_HARMLESS = frozenset(
    (
        "shape", "size", "dim", "ndim", "ndimension", "numel", "nelement", "dtype", "device", "stride",
        "element_size", "data_ptr", "storage", "untyped_storage", "is_contiguous", "new_empty",
        "new_zeros", "new_ones", "new_full", "new_tensor", "empty_like", "zeros_like", "ones_like",
        "full_like", "rand_like", "randn_like", "is_tensor", "requires_grad", "requires_grad_",
        "record_stream", "is_floating_point",
    )
)  # fmt: skip
# What takes a tensor for its shape, dtype or device alone.
_LIKE = frozenset(("to", "type_as", "view_as", "reshape_as", "expand_as"))
# What keeps a value for later.
_KEEPS = frozenset(("append", "appendleft", "extend", "insert", "add", "put", "setdefault", "update"))
# What writes every element of a tensor, whatever it held.
_OVERWRITES = frozenset(("copy_", "zero_", "fill_", "normal_", "uniform_", "set_"))
MAX_ITEMS = 8


class Results(Names):
    """Notes where the result of an operator is used."""

    def keep_result(self, record: Record, result: Value) -> None:
        """From now on what happens to the result of a call is noted in its record."""
        items = result.items if isinstance(result, Sequence) and result.items is not None else (result,)
        for index, item in enumerate(items):
            if isinstance(item, (Unknown, Tensor)):
                self.results[item.key] = (record, index)

    def keep_inputs(self, record: Record, inputs: Iterable[Value | None]) -> None:
        """Remembers what an operator changes in place, as results -1, -2 ..., in case it is used again."""
        for index, value in enumerate(inputs):
            if isinstance(value, (Unknown, Tensor)) and not _may_be_copied(value):
                self.results.setdefault(value.key, (record, -1 - index))

    def gets_result(self, values: Iterable[Value]) -> bool:
        """Whether a result of an operator is among the values."""
        return bool(self.results) and any(
            isinstance(value, (Unknown, Tensor)) and value.key in self.results for value in values
        )

    def touched(
        self, value: Value, how: str, name: str, site: Site, frame: Frame, args: Iterable[Value] = ()
    ) -> None:
        """Notes a use of a value, in case it is a result: as a receiver, an operand, an argument."""
        if not self.results or self._watch is not None:
            return
        value = self.simplify(self.force(value), frame.state.assumed)
        if isinstance(value, Ref):
            value = self.deref(value, frame)
        if isinstance(value, Sequence) and value.items is not None and how == "argument":
            for item in value.items[:MAX_ITEMS]:
                if isinstance(item, (Unknown, Tensor)):
                    self._touched(item.key, how, name, site, frame, ())
        elif isinstance(value, (Unknown, Tensor)):
            self._touched(value.key, how, name, site, frame, args)

    def _touched(
        self,
        key: Hashable,
        how: str,
        name: str,
        site: Site,
        frame: Frame,
        args: Iterable[Value],
    ) -> None:
        found = self.results.get(key)
        cast = found is None
        if found is None:
            # Another dtype or device, or a copy.
            found = self.results.get(origin(key))
        if found is None or name in _HARMLESS:
            return
        if how == "argument" and name in _LIKE:
            return
        sizes = self._sizes(args, frame) if how == "method" else None
        record, index = found
        if index < 0 and cast:
            # A clone that was made before.
            return
        if index < 0 and how == "method" and name in _OVERWRITES:
            # From now on it is a buffer for something else.
            del self.results[key]
            return
        state = frame.state
        passed = {*record.path, *record.assumed.items()}
        # A test between the call and the use may be about this very result.
        sure = all(item in passed for item in (*state.assumed.items(), *state.under))
        if len(record.touches) < MAX_ITEMS * MAX_ITEMS:
            record.touches.append(Touch(index, how, name, site, sure, sizes, cast))

    def _note_changes(self, callee: Value, args: list[Value], kwargs: Collection[Value]) -> None:
        """Notes what a call may change in place: a method that ends in ``_``, code that is not visible."""
        changed: list[Value] = []
        if isinstance(callee, Method):
            changed = [callee.receiver] if callee.name.endswith("_") else []
        elif isinstance(callee, Unknown):
            key: Any = callee.key
            if not (isinstance(key, tuple) and len(key) == 3 and key[0] == "attr"):
                changed = [*args, *kwargs]
            elif str(key[2]).endswith("_"):
                self.mutated[key[1]] = len(self.records)
            elif key[2] not in TENSOR_METHODS:
                changed = [*args, *kwargs]
        elif isinstance(callee, OpRef) and callee.name == "npu_advance_step_flashattn":
            changed = [*args, *kwargs]
        for value in changed:
            for leaf in plain_leaves(value):
                if isinstance(leaf, (Unknown, Tensor)):
                    self.mutated[leaf.key] = len(self.records)

    def _sizes(self, args: Iterable[Value], frame: Frame) -> tuple[Num | None, ...] | None:
        """The numbers that a method is called with, ``view(a, b)`` or ``view((a, b))``."""
        found = [self.deref(self.simplify(self.force(a), frame.state.assumed), frame) for a in args]
        if len(found) == 1 and isinstance(found[0], Sequence):
            if found[0].items is None:
                return None
            found = [self.simplify(self.force(a), frame.state.assumed) for a in found[0].items]
        return tuple(number_of(item) for item in found)

    def touched_by_call(
        self, callee: Value, args: list[Value], kwargs: Mapping[str, Value], site: Site, frame: Frame
    ) -> None:
        """Notes the results among what a call gets."""
        if not self.records:
            return
        self._note_changes(callee, args, kwargs.values())
        if not self.results:
            return
        how = "passed"
        name = ""
        if isinstance(callee, Method):
            self.touched(callee.receiver, "method", callee.name, site, frame, args)
            how, name = "argument", callee.name
        elif isinstance(callee, Unknown):
            key: Any = callee.key
            name = callee.label
            if isinstance(key, tuple) and len(key) == 3 and key[0] == "attr":
                name = str(key[2])
                self._touched(key[1], "method", name, site, frame, args)
            elif isinstance(key, tuple) and key[:1] == ("torch",) and str(key[1]).startswith("nn."):
                # A layer that is made here.
                how, name = "argument", str(key[1]).rsplit(".", 1)[-1]
        elif isinstance(callee, Namespace):
            if not callee.name.startswith(("torch.", "torch_npu.")):
                return
            how, name = "argument", callee.name.rsplit(".", 1)[-1]
        elif isinstance(callee, OpRef):
            how, name = "argument", callee.name
        else:
            return
        if name in _KEEPS:
            return
        for value in (*args, *(value for keyword, value in kwargs.items() if keyword != "out")):
            self.touched(value, how, name, site, frame)
        self._overwritten(kwargs.get("out"))

    def _overwritten(self, out: Value | None) -> None:
        """The input of an operator in place that another call writes to holds something else now."""
        for leaf in plain_leaves(self.force(out)) if out is not None else ():
            if isinstance(leaf, (Unknown, Tensor)) and self.results.get(leaf.key, (None, 0))[1] < 0:
                del self.results[leaf.key]


def _may_be_copied(value: Value) -> bool:
    """Whether a value may be what ``contiguous()`` made of another tensor with the same elements."""
    if not isinstance(value, Tensor) or not value.contiguous:
        return False
    memory = value.storage
    return memory is None or (isinstance(memory, tuple) and memory[:2] == ("fresh", "contiguous"))


__all__ = ["Results"]
