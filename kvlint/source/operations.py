"""Operators, comparisons and conditional expressions."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import libcst as cst

from kvlint.contract.num import Num
from kvlint.contract.paths import Cond, negated
from kvlint.contract.values import (
    Choice,
    Const,
    Content,
    DType,
    LengthForm,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

from .algebra import (
    are_neighbours,
    calculate,
    choose,
    fold,
    is_hashable,
    list_content,
    may_be_absent,
    positive,
)
from .chunk import Site
from .objects import (
    ClassRef,
    Func,
    Instance,
    MapValue,
    Namespace,
    Ref,
)
from .result_use import Results
from .state import (
    Frame,
    State,
)
from .syntax import (
    BINARY,
    ORDER,
    text_of,
)
from .torchlib import (
    Test,
    as_tensor,
    compare,
    integer_of,
    invert,
    is_multiple,
    is_whole,
    key_of,
    label_of,
    number_of,
    remainder_of,
    scalar,
    whole_entries,
)
from .transfer import arithmetic


class Operations(Results):
    """Operators, comparisons and conditional expressions."""

    def _unary(self, node: cst.UnaryOperation, frame: Frame) -> Value:
        value = self.expr(node.expression, frame)
        site = Site(frame.chunk, node)
        if not isinstance(node.operator, cst.Not):
            self.touched(value, "operand", "", site, frame)
        if isinstance(node.operator, cst.Not):
            test = self.truth(value, node.expression, frame)
            if isinstance(test, bool):
                return Const(not test, place=site)
            cond, holds = test
            return Choice(cond, Const(not holds), Const(holds), place=site)

        def apply(leaf: Value) -> Value:
            if isinstance(leaf, Const):
                try:
                    if isinstance(node.operator, cst.Minus) and isinstance(leaf.value, (int, float)):
                        return Const(-leaf.value, place=site)
                    if isinstance(node.operator, cst.BitInvert) and isinstance(leaf.value, int):
                        return Const(~leaf.value, place=site)
                except TypeError:
                    pass
            if isinstance(leaf, Number) and isinstance(node.operator, cst.Minus):
                return Number(-leaf.num, leaf.whole, place=site)
            if isinstance(node.operator, cst.BitInvert):
                tensor = as_tensor(leaf)
                if tensor is not None:
                    return invert(tensor, site)
            if isinstance(leaf, Unknown) and isinstance(node.operator, cst.Minus):
                num = number_of(leaf)
                if num is not None:
                    return Number(-num, is_whole(leaf), place=site)
            tensor = as_tensor(leaf) if isinstance(leaf, Tensor) else None
            if tensor is not None:
                return replace(tensor, key=("neg", tensor.key), content=Content())
            return Unknown(
                ("unary", type(node.operator).__name__, key_of(leaf)),
                f"-{label_of(leaf)}",
                "its operand is not known",
                place=site,
            )

        return self.lift(apply, [value], frame)

    def _binary(self, node: cst.BinaryOperation, frame: Frame) -> Value:
        left, right = self.expr(node.left, frame), self.expr(node.right, frame)
        operator = BINARY.get(type(node.operator), "?")
        result = self.binary(left, operator, right, Site(frame.chunk, node), frame)
        if isinstance(result, Sequence) and result.kind == "list":
            # A new list, which may be changed in place later.
            return self._allocate(result, node, frame)
        return result

    def binary(self, left: Value, operator: str, right: Value, site: Site, frame: Frame) -> Value:
        for value in (left, right):
            self.touched(value, "operand", operator, site, frame)

        def apply(a: Value, b: Value) -> Value:
            return self._arithmetic(a, operator, b, site, frame)

        return self.lift(apply, [left, right], frame)

    def _arithmetic(self, a: Value, operator: str, b: Value, site: Site, frame: Frame) -> Value:
        a = a.tensor if isinstance(a, Test) else a
        b = b.tensor if isinstance(b, Test) else b
        if isinstance(a, Const) and isinstance(b, Const):
            found = fold(a.value, operator, b.value)
            if found is not None:
                return Const(found, place=site)
        first, second = self.deref(a, frame), self.deref(b, frame)
        if isinstance(first, MapValue) and operator == "|":
            ref = Ref(("union", self._next()), place=site)
            frame.state.heap[ref.ident] = first
            self._update(ref, b, frame, site)
            return ref
        if isinstance(first, Sequence) or isinstance(second, Sequence):
            return self._combine_sequences(first, operator, second, site)
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            if (
                operator == "-"
                and isinstance(a, Tensor)
                and isinstance(b, Tensor)
                and are_neighbours(a.key, b.key)
            ):
                return replace(
                    a,
                    key=("diff", a.key),
                    content=Content(lengths=LengthForm.PER_SEQUENCE),
                    shape=None if a.shape is None else (None,),
                    label=f"diff({a.label})",
                    place=site,
                    storage=("fresh", "diff", a.key),
                    contiguous=True,
                    strided=None,
                )
            found = arithmetic(a, operator, b, site)
            if found is not None:
                return self._slots(found, a, operator, b, site)
        if not isinstance(a, Tensor) and not isinstance(b, Tensor):
            x, y = number_of(a), number_of(b)
            if x is not None and y is not None:
                result = calculate(x, operator, y)
                if result is not None:
                    closed = operator in ("+", "-", "*", "//", "%") and is_whole(a) and is_whole(b)
                    return scalar(result, site, closed)
        label = f"{label_of(a)} {operator} {label_of(b)}"
        return Unknown(
            ("binary", operator, key_of(a), key_of(b)), label, "its operands are not known", place=site
        )

    def _slots(self, result: Value, a: Value, operator: str, b: Value, site: Site) -> Value:
        """Recognises ``table[...] * block + pos % block``: one slot per token (contract KR-07)."""
        if not isinstance(result, Tensor):
            return result
        if operator == "*":
            for tensor, factor in ((a, b), (b, a)):
                num = number_of(factor) if not isinstance(factor, Tensor) else None
                if isinstance(tensor, Tensor) and num is not None:
                    content = (
                        replace(result.content, slot_block=num, slots="block")
                        if result.content.triangle is None
                        else result.content
                    )
                    return replace(result, content=content)
        if operator == "%":
            num = number_of(b) if not isinstance(b, Tensor) else None
            if num is not None:
                return replace(result, content=Content(slots="offset", slot_block=num))
        if operator == "+":
            for base, offset in ((a, b), (b, a)):
                if isinstance(base, Tensor) and base.content.slots == "block" and isinstance(offset, Number):
                    # The positions are unknown, so their rest was read as a number.
                    block = remainder_of(offset.num)
                    if block is not None and block == base.content.slot_block:
                        return replace(result, content=Content(slots="token", slot_block=block))
                if (
                    isinstance(base, Tensor)
                    and isinstance(offset, Tensor)
                    and base.content.slots == "block"
                    and offset.content.slots == "offset"
                ):
                    return replace(result, content=Content(slots="token", slot_block=base.content.slot_block))
                if isinstance(base, Number) and isinstance(offset, Tensor):
                    # The table is unknown, so table[...] * block was read as a product of numbers.
                    block = offset.content.slot_block
                    if (
                        offset.content.slots == "offset"
                        and block is not None
                        and is_multiple(base.num, block)
                    ):
                        return replace(result, content=Content(slots="token", slot_block=block))
        return result

    def _combine_sequences(self, a: Value, operator: str, b: Value, site: Site) -> Value:
        if operator == "+" and isinstance(a, Sequence) and isinstance(b, Sequence):
            if a.items is not None and b.items is not None:
                items = (*a.items, *b.items)
                return Sequence(
                    items, a.kind, Num.of(len(items)), content=list_content(list(items)), place=site
                )
            length = a.length + b.length if a.length is not None and b.length is not None else None
            key = ("concat", key_of(a), key_of(b))
            return Sequence(None, a.kind, length, whole_entries(a, b), key=key, place=site)
        if operator == "+" and (entries := whole_entries(a, b)) is not None:
            # What a list is added to is a list.
            return Sequence(None, "list", None, entries, key=("concat", key_of(a), key_of(b)), place=site)
        for sequence, count in ((a, b), (b, a)):
            if operator == "*" and isinstance(sequence, Sequence):
                times = integer_of(count)
                if (
                    sequence.items is not None
                    and times is not None
                    and 0 <= times * len(sequence.items) <= 64
                ):
                    items = sequence.items * times
                    return Sequence(
                        items,
                        sequence.kind,
                        Num.of(len(items)),
                        content=list_content(list(items)),
                        place=site,
                    )
                num = number_of(count)
                element = sequence.items[0] if sequence.items else sequence.element
                length = num * sequence.length if num is not None and sequence.length is not None else None
                # The same number for every request is a count per request, unless there is only one.
                content = (
                    Content(lengths=LengthForm.PER_SEQUENCE)
                    if sequence.items is not None and len(sequence.items) == 1
                    else Content()
                )
                return Sequence(
                    None,
                    sequence.kind,
                    length,
                    element,
                    content,
                    key=("times", key_of(sequence), key_of(count)),
                    place=site,
                )
        return Unknown(
            ("binary", operator, key_of(a), key_of(b)),
            "value",
            "it mixes a list with something else",
            place=site,
        )

    def _boolean(self, node: cst.BooleanOperation, frame: Frame) -> Value:
        left = self.expr(node.left, frame)
        test = self.truth(left, node.left, frame)
        both = isinstance(node.operator, cst.And)
        if isinstance(test, bool):
            return self.expr(node.right, frame) if test == both else left
        cond, holds = test
        state = frame.state
        # The right side is only evaluated when the left lets it.
        inner = state.assume(cond, holds if both else not holds)
        if inner is None:
            return left
        inner.path = state.path
        frame.state = inner
        right = self.expr(node.right, frame)
        frame.state = self._leave(state, inner)
        if both:
            return choose(cond, right, left) if holds else choose(cond, left, right)
        return choose(cond, left, right) if holds else choose(cond, right, left)

    def _leave(self, outer: State, inner: State) -> State:
        outer.heap.update({k: v for k, v in inner.heap.items() if k not in outer.heap})
        return outer

    def _comparison(self, node: cst.Comparison, frame: Frame) -> Value:
        site = Site(frame.chunk, node)
        left = self.expr(node.left, frame)
        if len(node.comparisons) != 1:
            result: Value | None = None
            for comparison in node.comparisons:
                right = self.expr(comparison.comparator, frame)
                part = self._compare(left, comparison.operator, right, site, node, frame)
                if result is None:
                    result = part
                else:
                    test = self.truth(result, node, frame)
                    if isinstance(test, bool):
                        result = part if test else result
                    else:
                        cond, holds = test
                        result = (
                            choose(cond, part, Const(False)) if holds else choose(cond, Const(False), part)
                        )
                left = right
            assert result is not None
            return result
        comparison = node.comparisons[0]
        right = self.expr(comparison.comparator, frame)
        return self._compare(left, comparison.operator, right, site, node, frame)

    def _compare(
        self,
        left: Value,
        operator: cst.BaseCompOp,
        right: Value,
        site: Site,
        node: cst.Comparison,
        frame: Frame,
    ) -> Value:
        kind = type(operator)
        return self.lift(
            lambda a, b: self._compare_leaves(a, kind, b, site, node, frame), [left, right], frame
        )

    def _compare_leaves(
        self, a: Value, kind: type, b: Value, site: Site, node: cst.Comparison, frame: Frame
    ) -> Value:
        negative = kind in (cst.NotEqual, cst.IsNot, cst.NotIn)

        def test(cond: Cond, holds: bool = True) -> Value:
            if isinstance(a, Unknown) and a.is_tensor is None and cond.kind in ("eq", "lt", "le", "opaque"):
                symbol = "!=" if kind is cst.NotEqual else "==" if kind is cst.Equal else ORDER.get(kind)
                tensor = as_tensor(a)
                if symbol is not None and tensor is not None:
                    return Test(cond, holds, compare(tensor, symbol, b, site), place=site)
            return Choice(cond, Const(holds), Const(not holds), place=site)

        def label() -> str:
            text = text_of(node)
            return text

        if kind in (cst.Is, cst.IsNot, cst.Equal, cst.NotEqual):
            if isinstance(b, (Const, DType)) and isinstance(a, (Const, DType)):
                first = a.value if isinstance(a, Const) else ("dtype", a.name)
                second = b.value if isinstance(b, Const) else ("dtype", b.name)
                return Const(
                    ((first == second and type(first) is type(second)) or first == second) != negative,
                    place=site,
                )
            if isinstance(a, (Const, DType)):
                a, b = b, a
            if isinstance(b, Const) and b.value is None:
                if (isinstance(a, Unknown) and a.is_tensor is not True) or (
                    isinstance(a, Instance) and a.optional
                ):
                    return test(
                        Cond("none", a.key, label=positive(label(), negative), place=site), not negative
                    )
                return Const(negative, place=site)
            if isinstance(b, Tensor) and not isinstance(a, Tensor) and kind in (cst.Equal, cst.NotEqual):
                a, b = b, a
            if isinstance(a, Tensor) and kind in (cst.Equal, cst.NotEqual):
                return compare(a, "!=" if negative else "==", b, site)
            if isinstance(b, (Const, DType)):
                value: Hashable = b.value if isinstance(b, Const) else ("dtype", b.name)
                key = key_of(a)
                if isinstance(a, Number) and a.num.const is not None:
                    return Const((a.num.const == value) != negative, place=site)
                if isinstance(a, (Unknown, Number)) and is_hashable(value):
                    whole = is_whole(a)
                    text = positive(label(), negative)
                    return test(Cond("eq", key, value, label=text, place=site, whole=whole), not negative)
                if isinstance(a, (Func, ClassRef, Namespace, Sequence, Instance)):
                    return Const(negative, place=site)
            if key_of(a) == key_of(b) and isinstance(a, (Unknown, Number)):
                return Const(not negative, place=site)
            x, y = number_of(a), number_of(b)
            if x is not None and y is not None:
                return test(Cond("eq", x - y, 0, label=positive(label(), negative), place=site), not negative)
            pair = (key_of(a), key_of(b))
            return test(
                Cond(
                    "opaque",
                    ("same", *sorted(pair, key=id)),
                    label=positive(label(), negative),
                    place=site,
                ),
                not negative,
            )
        if kind in ORDER:
            if isinstance(a, Const) and isinstance(b, Const):
                folded = fold(a.value, ORDER[kind], b.value)
                if folded is not None:
                    return Const(folded, place=site)
            if isinstance(a, Tensor):
                return compare(a, ORDER[kind], b, site)
            symbol = ORDER[kind]
            if (isinstance(a, Const) and not isinstance(b, Const)) or isinstance(b, Tensor):
                a, b = b, a
                symbol = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}[symbol]
            if isinstance(a, Tensor):
                return compare(a, symbol, b, site)
            if (
                isinstance(b, Const)
                and isinstance(b.value, (int, float))
                and isinstance(a, (Unknown, Number))
            ):
                key = key_of(a)
                bound: int | float = b.value
                whole = is_whole(a)
                if symbol in ("<", "<="):
                    kind_name = "lt" if symbol == "<" else "le"
                    return test(Cond(kind_name, key, bound, label=label(), place=site, whole=whole))
                kind_name = "le" if symbol == ">" else "lt"
                flipped = negated(label())
                return test(Cond(kind_name, key, bound, label=flipped, place=site, whole=whole), False)
            return test(Cond("opaque", (symbol, key_of(a), key_of(b)), label=label(), place=site))
        if kind in (cst.In, cst.NotIn):
            content = self.deref(b, frame)
            options: list[object] | None = None
            if (
                isinstance(content, Sequence)
                and content.items is not None
                and all(isinstance(i, Const) for i in content.items)
            ):
                options = [i.value for i in content.items if isinstance(i, Const)]
            elif (
                isinstance(content, MapValue)
                and content.open is None
                and not any(may_be_absent(v) for v in content.entries.values())
            ):
                options = list(content.entries)
            if options is not None:
                if isinstance(a, Const):
                    return Const((a.value in options) != negative, place=site)
                parts = tuple((Cond("eq", key_of(a), o), False) for o in options if is_hashable(o))
                if parts and isinstance(a, (Unknown, Number)) and len(parts) <= 8:
                    # "in" is the negation of "equals none of them".
                    cond = Cond(
                        "all", parts, label=f"not ({label()})" if not negative else label(), place=site
                    )
                    return test(cond, negative)
            return test(
                Cond("opaque", ("in", key_of(a), key_of(b)), label=positive(label(), negative), place=site),
                not negative,
            )
        return Unknown(("compare", id(node)), "comparison", "it is not followed", place=site)

    def _ifexp(self, node: cst.IfExp, frame: Frame) -> Value:
        test = self.condition(node.test, frame)
        if isinstance(test, bool):
            return self.expr(node.body if test else node.orelse, frame)
        cond, holds = test
        state = frame.state
        results: list[Value] = []
        ends: list[State] = []
        for arm, wanted in ((node.body, holds), (node.orelse, not holds)):
            inner = state.assume(cond, wanted)
            if inner is None:
                results.append(Unknown(("dead", id(arm)), "value", "this arm cannot run"))
                continue
            inner.path = state.path
            frame.state = inner
            results.append(self.expr(arm, frame))
            ends.append(frame.state)
        if not holds:
            ends.reverse()
        frame.state = self._rejoin(cond, state, ends)
        yes, no = results if holds else reversed(results)
        return choose(cond, yes, no)

    def _rejoin(self, cond: Cond, before: State, ends: list[State]) -> State:
        """The state after both arms of an expression."""
        if not ends:
            return before
        merged = ends[0] if len(ends) == 1 else self.merge(cond, ends[0], ends[1])
        merged.assumed = before.assumed
        merged.path = before.path
        return merged
