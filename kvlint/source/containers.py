"""Displays, comprehensions and the methods of dicts, lists and strings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import libcst as cst

from kvlint.contract.num import MAX_BASE, Num
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    ABSENT,
    Choice,
    Const,
    Content,
    Join,
    LengthForm,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

from .algebra import (
    choose,
    form_of,
    is_hashable,
    joined,
    list_content,
    may_be_absent,
    one_of,
    plain_leaves,
    same,
    with_entries,
)
from .chunk import Site
from .modulestate import forget_entries
from .objects import (
    MapValue,
    Ref,
)
from .state import (
    Frame,
)
from .subscripts import Subscripts
from .syntax import evaluated
from .torchlib import (
    key_of,
    label_of,
    number_of,
    select,
    whole_entries,
)


def _is_same_number(element: Value, item: Value) -> bool:
    """Whether an element is the item it is made from, at most converted to a number."""
    return number_of(element) is not None and number_of(element) == number_of(item)


class Containers(Subscripts):
    """Displays, comprehensions and the methods of dicts, lists and strings."""

    def _literal(self, node: Any, frame: Frame) -> Value:
        site = Site(frame.chunk, node)
        try:
            value = evaluated(node)
            if value is None:
                return self._opaque(node, "it is a formatted string", frame)
        except (ValueError, SyntaxError):
            return self._opaque(node, "its literal does not evaluate", frame)
        if isinstance(value, int) and abs(value) > MAX_BASE:
            return self._opaque(node, "it is a huge number", frame)
        return Const(value, place=site)

    def _ellipsis(self, node: Any, frame: Frame) -> Value:
        return Const(..., place=Site(frame.chunk, node))

    def _formatted(self, node: cst.FormattedString, frame: Frame) -> Value:
        text = ""
        for part in node.parts:
            if isinstance(part, cst.FormattedStringText):
                text += part.value
                continue
            if not isinstance(part, cst.FormattedStringExpression):
                return self._opaque(node, "it is a formatted string", frame)
            plain = part.conversion is None and part.format_spec is None and part.equal is None
            shown = self.simplify(self.force(self.expr(part.expression, frame)), frame.state.assumed)
            if not plain or not isinstance(shown, Const) or type(shown.value) not in (str, int):
                return self._opaque(node, "it is a formatted string", frame)
            text += str(shown.value)
        if "\\" in text or "{{" in text or "}}" in text or len(text) > 200:
            return self._opaque(node, "it is a formatted string", frame)
        return Const(text, place=Site(frame.chunk, node))

    def _tuple(self, node: cst.Tuple | cst.List, frame: Frame) -> Value:
        items: list[Value] | None = []
        for element in node.elements:
            if isinstance(element, cst.StarredElement):
                inner = self.deref(self.force(self.expr(element.value, frame)), frame)
                if isinstance(inner, Sequence) and inner.items is not None and items is not None:
                    items.extend(inner.items)
                elif (
                    isinstance(inner, Sequence)
                    and isinstance(inner.key, tuple)
                    and inner.key[:1] == ("slice-shape",)
                    and items is not None
                ):
                    items = None
                else:
                    items = None
            else:
                value = self.expr(element.value, frame)
                if items is not None:
                    items.append(value)
        kind = "tuple" if isinstance(node, cst.Tuple) else "list"
        site = Site(frame.chunk, node)
        sequence = Sequence(
            tuple(items) if items is not None else None,
            kind,
            Num.of(len(items)) if items is not None else None,
            content=list_content(items),
            key=None if items is not None else ("display", id(node), id(frame)),
            place=site,
        )
        return sequence if kind == "tuple" else self._allocate(sequence, node, frame)

    def _dict(self, node: cst.Dict, frame: Frame) -> Value:
        ref = self._allocate(MapValue({}), node, frame)
        for element in node.elements:
            if isinstance(element, cst.DictElement):
                key = self.force(self.expr(element.key, frame))
                value = self.expr(element.value, frame)
                content = frame.state.heap[ref.ident]
                assert isinstance(content, MapValue)
                if isinstance(key, Const) and is_hashable(key.value):
                    frame.state.heap[ref.ident] = MapValue(
                        {**content.entries, key.value: value}, content.open
                    )
                    self._entry_sites[ref.ident, key.value] = Site(frame.chunk, element.value)
                else:
                    frame.state.heap[ref.ident] = MapValue(
                        content.entries,
                        content.open or Note("a key is not visible", Site(frame.chunk, element)),
                    )
            else:
                self._update(ref, self.expr(element.value, frame), frame, Site(frame.chunk, element))
        return ref

    def _set(self, node: Any, frame: Frame) -> Value:
        items = [self.expr(element.value, frame) for element in node.elements]
        found = self.constants(tuple(items), Site(frame.chunk, node))
        return found or self._opaque(node, "it is a set", frame)

    def constants(self, items: tuple[Value, ...] | None, site: Site) -> Value | None:
        """A set of different constants; None for any other."""
        plain = [item.value for item in items or () if isinstance(item, Const) and is_hashable(item.value)]
        if items is None or len(plain) != len(items) or len(set(plain)) != len(plain):
            return None
        return Sequence(items, "set", Num.of(len(items)), place=site)

    def _update(self, ref: Ref, other: Value, frame: Frame, site: Site) -> None:
        """``ref.update(other)``."""
        content = self.deref(ref, frame)
        if not isinstance(content, MapValue):
            return

        other = self.simplify(self.force(other), frame.state.assumed)
        if isinstance(other, Choice):
            # The keys of each arm count under its test.
            before = content
            self._update(ref, other.yes, frame, site)
            yes = self.deref(ref, frame)
            frame.state.heap[ref.ident] = before
            self._update(ref, other.no, frame, site)
            no = self.deref(ref, frame)
            assert isinstance(yes, MapValue) and isinstance(no, MapValue)
            entries = {}
            for key in [*yes.entries, *(k for k in no.entries if k not in yes.entries)]:
                a, b = yes.entries.get(key, ABSENT), no.entries.get(key, ABSENT)
                entries[key] = a if same(a, b) else choose(other.cond, a, b)
            frame.state.heap[ref.ident] = MapValue(entries, yes.open or no.open)
            return
        if isinstance(other, Join) and len(other.options) <= 8:
            # One of several dicts, which no test tells apart.
            made = []
            for option in other.options:
                frame.state.heap[ref.ident] = content
                self._update(ref, option, frame, site)
                made.append(self.deref(ref, frame))
            frame.state.heap[ref.ident] = self._any_of([m for m in made if isinstance(m, MapValue)])
            return
        source = self.deref(other, frame)
        if isinstance(source, MapValue):
            entries = dict(content.entries)
            for key, value in source.entries.items():
                entries[key] = self._over(entries.get(key, ABSENT), value)
            frame.state.heap[ref.ident] = MapValue(entries, content.open or source.open)
        else:
            note = Note(f"keys of {label_of(other)} are not visible", site)
            frame.state.heap[ref.ident] = MapValue(content.entries, content.open or note)

    def _any_of(self, options: list[MapValue]) -> MapValue:
        """One of several dicts."""
        keys = dict.fromkeys(key for option in options for key in option.entries)
        entries: dict[Hashable, Value] = {}
        for key in keys:
            found = [option.entries.get(key, ABSENT) for option in options]
            entries[key] = one_of(found, found[0])
        return MapValue(entries, next((o.open for o in options if o.open is not None), None))

    def _iterate(self, iterable: Value, node: Any, frame: Frame) -> tuple[Value, tuple[Value, ...] | None]:
        site = Site(frame.chunk, node)
        value = self.deref(self.force(iterable), frame)
        if isinstance(value, (Choice, Join)):
            lists = [self.deref(leaf, frame) for leaf in plain_leaves(value)]
            # An empty one gives no round.
            filled = [item for item in lists if not (isinstance(item, Sequence) and item.items == ())]
            if filled and all(isinstance(item, Sequence) for item in filled):
                rounds = [self._iterate(item, node, frame)[0] for item in filled]
                return one_of(rounds, rounds[0]), None
        if isinstance(value, Sequence):
            if value.items is not None and value.items:
                first = value.items[0]
                if all(same(first, item) for item in value.items):
                    return first, value.items
                return Join(value.items), value.items
            if value.element is not None:
                return value.element, None
        tensor = value if isinstance(value, Tensor) else None
        if tensor is not None:
            return select(tensor, 0, site, ("each", id(node))), None
        return Unknown(
            ("each", key_of(value), id(node)),
            f"an item of {label_of(value)}",
            "it comes from an iteration",
            place=site,
        ), None

    def _entries_of(self, clause: cst.CompFor, frame: Frame) -> MapValue | None:
        """The dict in ``for k, v in d.items()``."""
        call = clause.iter
        if (
            clause.inner_for_in is not None
            or not isinstance(call, cst.Call)
            or not isinstance(call.func, cst.Attribute)
            or call.func.attr.value != "items"
            or not isinstance(clause.target, cst.Tuple)
            or len(clause.target.elements) != 2
        ):
            return None
        base = self.simplify(self.force(self.expr(call.func.value, frame)), frame.state.assumed)
        content = self.deref(base, frame)
        return content if isinstance(content, MapValue) and len(content.entries) <= 64 else None

    def _mapped_dict(self, node: cst.DictComp, source: MapValue, frame: Frame) -> Value:
        """A dict made of another by filtering or renaming its entries."""
        clause, note = node.for_in, Note("it is built by a comprehension", Site(frame.chunk, node))
        assert isinstance(clause.target, cst.Tuple)
        _, held = (element.value for element in clause.target.elements)
        plain = isinstance(node.value, cst.Name) and isinstance(held, cst.Name)
        plain = plain and node.value.value == held.value  # type: ignore[attr-defined]
        state, entries, opened = frame.state, dict[Hashable, Value](), source.open
        frame.state = state.copy()
        for key, value in source.entries.items():
            self.assign(clause.target, Sequence((Const(key), value), "tuple"), frame)
            tests = [self.condition(guard.test, frame) for guard in clause.ifs]
            if any(test is False for test in tests):
                continue
            made = self.simplify(self.force(self.expr(node.key, frame)), frame.state.assumed)
            if not isinstance(made, Const) or not is_hashable(made.value):
                opened = opened or note
                continue
            result = value if plain else self.expr(node.value, frame)
            if may_be_absent(value) and not plain:
                opened, result = opened or note, Unknown(("mapped", id(node), key), str(key), note.text)
            for test in tests:
                if isinstance(test, tuple):
                    result = choose(test[0], *((result, ABSENT) if test[1] else (ABSENT, result)))
            entries[made.value] = self._over(entries.get(made.value, ABSENT), result)
        frame.state = self._leave(state, frame.state)
        return self._allocate(MapValue(entries, opened), node, frame)

    def _comprehension(self, node: Any, frame: Frame) -> Value:
        site = Site(frame.chunk, node)
        source = self._entries_of(node.for_in, frame) if isinstance(node, cst.DictComp) else None
        if source is not None:
            return self._mapped_dict(node, source, frame)
        state = frame.state
        frame.state = state.copy()
        clause = node.for_in
        iterable = self.expr(clause.iter, frame)
        value = self.deref(self.force(iterable), frame)
        simple = clause.inner_for_in is None and not clause.ifs
        items: list[Value] | None = None
        element: Value | None = None
        length: Num | None = None
        if (
            simple
            and isinstance(value, Sequence)
            and value.items is not None
            and len(value.items) <= 16
            and not isinstance(node, cst.DictComp)
        ):
            items = []
            for item in value.items:
                self.assign(clause.target, item, frame)
                items.append(self.expr(node.elt, frame))
        else:
            item, _ = self._iterate(iterable, node, frame)
            self.assign(clause.target, item, frame)
            inner = clause
            while inner is not None:
                for guard in inner.ifs:
                    self.expr(guard.test, frame)
                inner = inner.inner_for_in
                if inner is not None:
                    nested, _ = self._iterate(self.expr(inner.iter, frame), inner, frame)
                    self.assign(inner.target, nested, frame)
            if isinstance(node, cst.DictComp):
                self.expr(node.key, frame)
                self.expr(node.value, frame)
            else:
                element = self.expr(node.elt, frame)
            if simple:
                length = self._count(value)
        frame.state = self._leave(state, frame.state)
        if isinstance(node, cst.DictComp):
            return self._allocate(MapValue({}, Note("it is built by a comprehension", site)), node, frame)
        if isinstance(node, cst.SetComp):
            return self._opaque(node, "it is a set", frame)
        content = list_content(items)
        key: Hashable = ("comprehension", key_of(value), id(node))
        if element is not None:
            content = replace(content, lengths=form_of(element))
            if simple and isinstance(clause.target, cst.Name) and _is_same_number(element, item):
                # [int(x) for x in entries]: the entries again.
                key = ("tolist", key_of(value))
        kind = "list"
        result = Sequence(
            tuple(items) if items is not None else None,
            kind,
            Num.of(len(items)) if items is not None else length,
            element,
            content,
            key=None if items is not None else key,
            place=site,
        )
        return self._allocate(result, node, frame) if isinstance(node, cst.ListComp) else result

    def _count(self, value: Value) -> Num | None:
        if isinstance(value, Sequence):
            return value.length
        if isinstance(value, Tensor) and value.shape:
            return value.shape[0]
        if isinstance(value, Unknown):
            return Num.atom(("dim", value.key, 0), f"len({value.label})")
        return None

    def _dict_method(
        self,
        receiver: Value,
        content: MapValue,
        name: str,
        args: list[Value],
        kwargs: dict[str, Value],
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value | None:
        if name in ("update", "pop", "popitem", "clear", "setdefault"):
            forget_entries(frame.state.attrs, receiver)
        if name == "update" and isinstance(receiver, Ref):
            for other in args:
                self._update(receiver, other, frame, site)
            if kwargs:
                current = self.deref(receiver, frame)
                assert isinstance(current, MapValue)
                frame.state.heap[receiver.ident] = MapValue(
                    with_entries(current.entries, kwargs), current.open
                )
                self._note_entries(receiver, node, frame)
            return Const(None)
        first = self.force(args[0]) if args else None
        key = first.value if isinstance(first, Const) and is_hashable(first.value) else None
        if name in ("get", "pop", "setdefault") and first is not None:
            default = args[1] if len(args) > 1 else Const(None, place=site)
            if not isinstance(first, Const):
                picked = self.some_entry(content, site) if name == "get" else None
                return joined(picked, default) if picked is not None else None
            found = content.entries.get(key)
            if name == "pop" and isinstance(receiver, Ref):
                frame.state.heap[receiver.ident] = MapValue(
                    {k: v for k, v in content.entries.items() if k != key}, content.open
                )
            if name == "setdefault" and isinstance(receiver, Ref) and found is None and content.open is None:
                frame.state.heap[receiver.ident] = MapValue({**content.entries, key: default}, None)
            if found is not None:
                return self._over(default, found)
            if content.open is None:
                return default
            return Unknown(
                ("get", key_of(receiver), key),
                f"{label_of(receiver)}.get({key!r})",
                content.open.text,
                place=site,
            )
        if name == "copy":
            return self._allocate(content, node, frame)
        if name in ("items", "keys", "values"):
            return Unknown(
                ("view", key_of(receiver), name, id(content)),
                f"dict.{name}()",
                "dict views are not followed",
                is_tensor=False,
                place=site,
            )
        if name == "clear" and isinstance(receiver, Ref):
            frame.state.heap[receiver.ident] = MapValue({})
            return Const(None)
        return None

    def _list_method(
        self,
        receiver: Value,
        content: Sequence,
        name: str,
        args: list[Value],
        kwargs: dict[str, Value],
        site: Site,
        frame: Frame,
        node: cst.Call,
    ) -> Value | None:
        if name in ("append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort") and isinstance(
            receiver, Ref
        ):
            if name == "append" and args:
                frame.state.heap[receiver.ident] = self._appended(content, args[0], node, frame)
            else:
                added = self.deref(self.force(args[0]), frame) if name == "extend" and args else None
                frame.state.heap[receiver.ident] = Sequence(
                    None,
                    content.kind,
                    None,
                    whole_entries(content, added) if added is not None else None,
                    key=("changed", id(node)),
                    label=content.label,
                    place=content.place,
                )
            return Const(None) if name != "pop" else None
        if name == "copy":
            return self._allocate(content, node, frame)
        if name in ("numel", "size") and isinstance(content.key, tuple) and content.key[:1] == ("shape",):
            return Number(Num.atom(("numel", content.key), f"{content.label}.numel()"), True, place=site)
        return None

    def _appended(self, content: Value, value: Value, node: cst.Call, frame: Frame) -> Value:
        """A list with one more element, on every path."""
        if isinstance(content, Choice):
            return Choice(
                content.cond,
                self._appended(content.yes, value, node, frame),
                self._appended(content.no, value, node, frame),
            )
        if isinstance(content, Join):
            options = tuple(self._appended(option, value, node, frame) for option in content.options)
            return replace(content, options=options)
        if not isinstance(content, Sequence):
            return Unknown(("appended", key_of(content), id(node)), "list", "what it held is not known")
        if content.items is not None and len(content.items) < 64:
            items = (*content.items, value)
            return replace(content, items=items, length=Num.of(len(items)), content=list_content(list(items)))
        form, known = form_of(value), content.content.lengths
        begun = isinstance(content.key, tuple) and (
            content.key[:1] == ("grown",)
            or (content.key[:1] == ("extended",) and form is LengthForm.CUMULATIVE)
        )
        if form is None or (form is not known and (known is not None or not begun)):
            form = None
        before = content.element
        # A list is another one in each round, what it holds may be the same.
        kept = before is not None and same(self.deref(before, frame), self.deref(value, frame))
        element = value if kept else None
        # One number that is no length spoils the list for the lengths that follow.
        spoiled = form is None and (known is not None or number_of(value) is not None)
        key: Hashable = ("mixed", id(node)) if spoiled and begun else content.key or ("grown", id(node))
        return replace(
            content, items=None, length=None, content=Content(lengths=form), element=element, key=key
        )

    def _string_method(
        self, text: str, name: str, args: list[Value], site: Site, frame: Frame
    ) -> Value | None:
        plain = [self.force(a) for a in args]
        if name in (
            "upper",
            "lower",
            "strip",
            "startswith",
            "endswith",
            "replace",
            "removeprefix",
            "removesuffix",
        ) and all(isinstance(a, Const) for a in plain):
            try:
                return Const(
                    getattr(text, name)(*(a.value for a in plain if isinstance(a, Const))), place=site
                )
            except (TypeError, ValueError):
                return None
        return None

    def _resolve_items(self, value: Value, frame: Frame, depth: int = 0) -> Value:
        """A list with the contents of the lists in it."""
        if not isinstance(value, Sequence) or depth > 4:
            return value

        def inner(item: Value) -> Value:
            shown = self.simplify(self.force(item), frame.state.assumed)
            return self._resolve_items(self.deref(shown, frame), frame, depth + 1)

        if value.items is not None:
            return replace(value, items=tuple(inner(item) for item in value.items))
        return replace(value, element=inner(value.element)) if value.element is not None else value
