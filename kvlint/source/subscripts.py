"""Indexing and slicing of tensors, lists and dicts."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import libcst as cst

from kvlint.contract.num import Num
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    Const,
    Content,
    Join,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

from .algebra import (
    indexed,
    is_hashable,
    list_content,
    may_be_absent,
    one_of,
    same,
    slice_size,
)
from .chunk import Site
from .masks import indexed_ramp
from .modulestate import entry_slot
from .objects import (
    Frozen,
    Instance,
    MapValue,
    Ref,
)
from .operations import Operations
from .state import (
    Frame,
)
from .syntax import (
    ast_dotted,
)
from .torchlib import (
    as_tensor,
    dim_value,
    full_shape,
    integer_of,
    key_of,
    label_of,
    number_of,
)


class Subscripts(Operations):
    """Indexing and slicing of tensors, lists and dicts."""

    def _subscript(self, node: cst.Subscript, frame: Frame) -> Value:
        base = self.expr(node.value, frame)
        site = Site(frame.chunk, node)
        slices = [element.slice for element in node.slice]
        indices: list[Any] = []
        for item in slices:
            if isinstance(item, cst.Index):
                indices.append(self.expr(item.value, frame))
            else:
                assert isinstance(item, cst.Slice)
                bounds = [
                    self.expr(b, frame) if b is not None else None
                    for b in (item.lower, item.upper, item.step)
                ]
                indices.append(tuple(bounds))
        self.touched(base, "index", "", site, frame)
        flat = [value for value in indices if isinstance(value, Value)]
        if len(flat) == len(indices):
            return self.lift(
                lambda value, *keys: self.subscript(value, list(keys), site, frame, node),
                [base, *flat],
                frame,
            )
        return self.lift(lambda value: self.subscript(value, indices, site, frame, node), [base], frame)

    def _subscript_key(self, node: cst.Subscript, frame: Frame) -> Value | None:
        if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
            return self.force(self.expr(node.slice[0].slice.value, frame))
        return None

    def subscript(
        self, value: Value, indices: list[Any], site: Site, frame: Frame, node: cst.Subscript
    ) -> Value:
        """``value[indices]`` for a value without alternatives."""
        content = self.tuple_of(self.deref(value, frame), site, frame)
        single = indices[0] if len(indices) == 1 else None
        if isinstance(content, MapValue):
            stored = frame.state.attrs.get(entry_slot(value, single)) if isinstance(single, Value) else None
            if stored is not None:
                return stored
            if isinstance(single, Const) and is_hashable(single.value) and single.value in content.entries:
                return self._inside(value, content.entries[single.value])
            picked = self.some_entry(content, site) if isinstance(single, (Unknown, Number)) else None
            if picked is not None:
                return self._inside(value, picked)
            return Unknown(
                ("item", key_of(value), key_of(single) if isinstance(single, Value) else id(node)),
                f"{label_of(value)}[...]",
                "the key is not visible in the dict",
                place=site,
            )
        if isinstance(content, Sequence):
            return self._index_sequence(content, single, site, node)
        if isinstance(content, (Tensor, Unknown)):
            return self._index_tensor(content, indices, site)
        if (
            isinstance(content, Const)
            and isinstance(content.value, str)
            and isinstance(single, Const)
            and isinstance(single.value, int)
        ):
            try:
                return Const(content.value[single.value], place=site)
            except IndexError:
                pass
        keys = tuple(key_of(i) if isinstance(i, Value) else id(node) for i in indices)
        return Unknown(
            ("item", key_of(value), *keys),
            f"{label_of(value)}[...]",
            "it is indexed from an unknown value",
            place=site,
        )

    def _inside(self, holder: Value, found: Value) -> Value:
        """An entry of a container that outlived its frame, with the content it had there."""
        if not isinstance(holder, Frozen):
            return found
        if isinstance(found, Join):
            return replace(found, options=tuple(self._inside(holder, option) for option in found.options))
        content = holder.heap.get(found.ident) if isinstance(found, Ref) else None
        return Frozen(content, holder.heap, place=found.place) if content is not None else found

    def tuple_of(self, value: Value, site: Any, frame: Frame) -> Value:
        """The items of a ``NamedTuple`` object; any other value as it is."""
        if not isinstance(value, Instance):
            return value
        node = value.cls.index.node
        if [ast_dotted(base).rsplit(".", 1)[-1] for base in node.bases] != ["NamedTuple"]:
            return value
        names = [
            s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]
        items = tuple(self.instance_attribute(value, name, site, frame) for name in names)
        return Sequence(items, "tuple", Num.of(len(items)), place=value.place)

    def some_entry(self, content: MapValue, site: Site) -> Value | None:
        """An entry of a dict whose keys are all visible, by a key that is not."""
        entries = list(content.entries.values())
        if content.open is not None or not 0 < len(entries) <= 8 or any(map(may_be_absent, entries)):
            return None
        return one_of(entries, entries[0])

    def _index_sequence(self, content: Sequence, index: Any, site: Site, node: cst.Subscript) -> Value:
        if isinstance(index, tuple):
            lower, upper, step = index
            if content.items is not None and all(b is None or integer_of(b) is not None for b in index):
                cut = slice(*(None if b is None else integer_of(b) for b in index))
                items = content.items[cut]
                return Sequence(
                    items, content.kind, Num.of(len(items)), content=list_content(list(items)), place=site
                )
            if isinstance(content.key, tuple) and content.key[:1] == ("shape",) and step is None:
                low = 0 if lower is None else integer_of(lower)
                high = integer_of(upper) if upper is not None else None
                if low is not None and high is not None and 0 <= low <= high:
                    tensor = Tensor(content.key[1], content.label.removesuffix(".shape"))
                    dims = tuple(dim_value(tensor, axis, site) for axis in range(low, high))
                    return Sequence(dims, "tuple", Num.of(len(dims)), place=site)
            kept = content.content if step is None else Content()
            length = number_of(upper) if upper is not None and lower is None and step is None else None
            return Sequence(
                None,
                content.kind,
                length,
                content.element,
                kept,
                key=("slice", content.key, *(key_of(b) if b is not None else None for b in index)),
                label=content.label,
                place=site,
            )
        position = integer_of(index) if isinstance(index, Value) else None
        if position is not None:
            if content.items is not None and -len(content.items) <= position < len(content.items):
                return content.items[position]
            if isinstance(content.key, tuple) and content.key[:1] == ("shape",):
                tensor = Tensor(content.key[1], content.label.removesuffix(".shape"), place=content.place)
                return dim_value(tensor, position, site)
        if content.uneven is not None and isinstance(index, Number):
            key = ("item", content.key, key_of(index))
            return Tensor(
                key,
                f"{content.label}[...]",
                misindexed=content.uneven,
                reason=content.uneven.text,
                place=site,
            )
        if content.element is not None:
            return indexed(content.element, key_of(index) if isinstance(index, Value) else id(node))
        if content.items:
            return (
                Join(content.items, place=site)
                if not all(same(content.items[0], i) for i in content.items)
                else content.items[0]
            )
        key = ("item", content.key or id(content), key_of(index) if isinstance(index, Value) else id(node))
        return Unknown(
            key, f"{content.label}[...]", "it is an item of a list that is not visible", place=site
        )

    def _index_tensor(self, value: Tensor | Unknown, indices: list[Any], site: Site) -> Value:
        tensor = as_tensor(value)
        if tensor is None:
            return Unknown(
                ("item", key_of(value), id(site.node)),
                f"{label_of(value)}[...]",
                "it is an item of an unknown object",
                place=site,
            )
        plain = isinstance(value, Unknown)
        keys = tuple(
            key_of(i)
            if isinstance(i, Value)
            else ("slice", *(key_of(b) if b is not None else None for b in i))
            for i in indices
        )
        if plain and len(indices) == 1 and isinstance(indices[0], Value):
            # A list, dict or tensor: an element of it is all that is known.
            label = f"{value.label}[{label_of(indices[0])}]"
            return Unknown(
                ("item", value.key, keys[0]),
                label,
                f"it is an item of {value.label}",
                declared=isinstance(value, Unknown) and value.declared and isinstance(indices[0], Const),
                place=site,
            )
        expanded: list[Any] = []
        own = full_shape(tensor)
        for index in indices:
            if isinstance(index, Const) and index.value is ...:
                if own is None:
                    tail = indices[len(expanded) + 1 :]
                    return self._index_tail(tensor, tail, keys, site)
                used = sum(
                    1 for i in indices if not (isinstance(i, Const) and (i.value is ... or i.value is None))
                )
                expanded.extend([(None, None, None)] * max(0, len(own) - used))
            else:
                expanded.append(index)
        shape: list[Num | None] | None = [] if own is not None else None
        strided = tensor.strided
        gaps = tensor.gaps
        contiguous = tensor.contiguous
        storage = tensor.storage
        copied = tensor.copied
        content = Content()
        axis = 0
        advanced = False
        for index in expanded:
            if isinstance(index, Const) and index.value is None:
                if shape is not None:
                    shape.append(Num.of(1))
                continue
            size = own[axis] if own is not None and axis < len(own) else None
            if isinstance(index, tuple):
                lower, upper, step = index
                cut = slice_size(size, lower, upper, step)
                if shape is not None:
                    shape.append(cut)
                full = lower is None and upper is None and step is None
                if not full and (axis > 0 or step is not None):
                    strided = Note(
                        f"{tensor.label}[...] slices an inner axis, which leaves a strided view", site
                    )
                    contiguous = False
                    gaps = True
            elif isinstance(index, (Const, Number)) or (
                isinstance(index, Unknown) and index.is_tensor is not True
            ):
                if axis > 0:
                    strided = Note(
                        f"{tensor.label}[...] picks from an inner axis, which leaves a strided view", site
                    )
                    contiguous = False
                    gaps = True
                if isinstance(index, Unknown) and not _is_one_index(index):
                    shape = None
            else:
                advanced = True
            axis += 1
        if shape is not None and own is not None:
            shape.extend(own[axis:])
        only_slice = len(indices) == 1 and isinstance(indices[0], tuple)
        if only_slice and indices[0][2] is None:
            bound = indices[0][1]
            content = replace(
                tensor.content,
                triangle=None,
                values=None,
                ramp=None,
                cut=label_of(bound) if bound is not None else tensor.content.cut,
            )
        elif len(indices) == 2 and all(
            isinstance(i, tuple) and i[0] is None and i[2] is None for i in indices
        ):
            content = tensor.content
        else:
            whole = tensor.content
            content = Content(fill=whole.fill, additive=whole.additive, polarity=whole.polarity)
            if _keeps_matrix(expanded, len(own) if own is not None else None):
                content = replace(content, triangle=whole.triangle, band=whole.band, strip=whole.strip)
        if not advanced and tensor.content.ramp is not None:
            rank = len(own) if own is not None else None
            content = replace(content, ramp=indexed_ramp(tensor.content.ramp, rank, expanded))
        if advanced:
            fresh = isinstance(storage, tuple) and storage[:1] == ("fresh",)
            copied = None if fresh else Note(f"{tensor.label}[...] with an index tensor is a copy", site)
            return replace(
                tensor,
                key=("item", tensor.key, *keys),
                shape=None,
                content=Content(),
                strided=None,
                order=None,
                gaps=False,
                contiguous=True,
                storage=("fresh", "item", tensor.key),
                copied=copied,
                place=site,
                label=f"{tensor.label}[...]",
            )
        return replace(
            tensor,
            key=("item", tensor.key, *keys),
            shape=tuple(shape) if shape is not None else None,
            content=content,
            strided=strided,
            order=tensor.order
            if shape is not None and tensor.shape is not None and len(shape) == len(tensor.shape)
            else None,
            gaps=gaps,
            contiguous=contiguous,
            storage=storage,
            copied=copied,
            axes=any(isinstance(i, tuple) or (isinstance(i, Const) and i.value is None) for i in indices),
            place=site,
            label=f"{tensor.label}[...]" if not only_slice else tensor.label,
        )

    def _index_tail(self, tensor: Tensor, tail: list[Any], keys: tuple[Hashable, ...], site: Site) -> Value:
        """``tensor[..., tail]`` when the rank is not known: only the last axes are."""
        cut = any(isinstance(i, tuple) and any(b is not None for b in i) for i in tail)
        picked = any(
            isinstance(i, (Const, Number)) and not (isinstance(i, Const) and i.value is None) for i in tail
        )
        note = (
            Note(f"{tensor.label}[...] slices the last axis, which leaves a strided view", site)
            if cut or picked
            else tensor.strided
        )
        return replace(
            tensor,
            key=("item", tensor.key, *keys),
            shape=None,
            content=Content(),
            strided=note,
            gaps=tensor.gaps or cut or picked,
            contiguous=False if note else None,
            place=site,
            label=f"{tensor.label}[...]",
        )


def _is_one_index(index: Unknown) -> bool:
    """Whether an index picks a single entry: by its type, or by the name of a layer's number."""
    name = index.label.rsplit(".", 1)[-1]
    return index.is_tensor is False or _LAYER_NUMBER.fullmatch(name) is not None


_LAYER_NUMBER = re.compile(r"(?:(?:self|local|cur|current)_)?layer(?:_?(?:id|idx|index|no|num|number))?")


def _keeps_matrix(indices: list[Any], rank: int | None) -> bool:
    """Whether the last two axes stay the last two, from their beginning on."""
    taken = [i for i, index in enumerate(indices) if not (isinstance(index, Const) and index.value is None)]
    if not taken:
        return True
    if rank is None or rank < 2:
        return False
    for axis in (rank - 2, rank - 1):
        if axis < len(taken):
            index = indices[taken[axis]]
            if not isinstance(index, tuple) or index[0] is not None or index[2] is not None:
                return False
    # A new axis behind the first of them would part them.
    together = len(indices) == taken[-1] + 1 and taken[-1] - taken[min(rank - 2, len(taken) - 1)] < 2
    return len(taken) <= rank - 2 or together
