"""Finds operator calls in a source text with libcst, and follows their arguments through one file."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, ParentNodeProvider

from kvlint.contract import catalogue

Predicate = Callable[[cst.BaseExpression], bool]
_DEPTH = 12


@dataclass(frozen=True)
class Edit:
    """Bytes ``start:end`` of the source become ``text``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Argument:
    """An argument of a call, wherever the file spells it: in the call, or in a dict passed with ``**``."""

    name: str
    value: cst.BaseExpression
    node: cst.CSTNode
    """The whole entry: argument, dict element or assignment."""
    key: cst.CSTNode | None
    """What holds the name; None for a positional argument."""


class Source:
    """One file, parsed."""

    def __init__(self, text: str) -> None:
        self.raw = text.encode()
        wrapper = MetadataWrapper(cst.parse_module(self.raw))
        self.module = wrapper.module
        self._spans = wrapper.resolve(ByteSpanPositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self.nodes = list(_descendants(self.module))

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Byte offsets of a node, without the comma after it."""
        if isinstance(node, cst.Arg):
            start = self._spans[node.keyword or node.value].start
            value = self._spans[node.value]
            return min(start, self._spans[node].start), value.start + value.length
        if isinstance(node, cst.DictElement):
            value = self._spans[node.value]
            return self._spans[node.key].start, value.start + value.length
        found = self._spans[node]
        return found.start, found.start + found.length

    def text(self, node: cst.CSTNode) -> str:
        """The source of a node."""
        start, end = self.span(node)
        return self.raw[start:end].decode()

    def above(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> cst.CSTNode | None:
        """The nearest node of a kind around a node."""
        current = self._parents.get(node)
        while current is not None and not isinstance(current, kinds):
            current = self._parents.get(current)
        return current

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function that a node is in."""
        found = self.above(node, cst.FunctionDef)
        assert found is None or isinstance(found, cst.FunctionDef)
        return found

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The simple statement that a node is in."""
        return self.above(node, cst.SimpleStatementLine, cst.If, cst.FunctionDef) or node

    def replace(self, node: cst.CSTNode, text: str) -> Edit:
        """The edit that replaces a node."""
        return Edit(*self.span(node), text)

    def remove(self, node: cst.CSTNode) -> Edit:
        """The edit that removes an argument, a dict element or a statement."""
        start, end = self.span(node)
        rest = self.raw[end:]
        blank = len(rest) - len(rest.lstrip())
        if rest[blank : blank + 1] == b",":
            end += blank + 1
            while self.raw[end : end + 1] == b" ":
                end += 1
            line = self.raw.rfind(b"\n", 0, start) + 1
            if not self.raw[line:start].strip() and self.raw[end : end + 1] == b"\n":
                return Edit(line, end + 1, "")
            return Edit(start, end, "")
        before = self.raw[:start].rstrip()
        if before.endswith(b",") and rest[:1] == b")":
            return Edit(len(before) - 1, end, "")
        return Edit(start, end, "pass" if isinstance(node, cst.Assign) else "")

    def apply(self, edits: Iterable[Edit]) -> str:
        """The text after some edits."""
        result, at = b"", 0
        for edit in sorted(edits, key=lambda item: item.start):
            assert edit.start >= at, "edits overlap"
            result += self.raw[at : edit.start] + edit.text.encode()
            at = edit.end
        return (result + self.raw[at:]).decode()

    def lines(self, nodes: Iterable[cst.CSTNode], edits: Iterable[Edit]) -> frozenset[int]:
        """The lines, after the edits, that some nodes of the old text cover."""
        edits = sorted(edits, key=lambda item: item.start)

        def line(offset: int) -> int:
            number = self.raw.count(b"\n", 0, offset) + 1
            for edit in edits:
                if edit.end <= offset:
                    number += edit.text.count("\n") - self.raw.count(b"\n", edit.start, edit.end)
            return number

        found: set[int] = set()
        for node in nodes:
            start, end = self.span(node)
            found.update(range(line(start), line(end) + 1))
        shift = 1
        for edit in edits:
            first = self.raw.count(b"\n", 0, edit.start) + shift
            found.update(range(first, first + edit.text.count("\n") + 1))
            shift += edit.text.count("\n") - self.raw.count(b"\n", edit.start, edit.end)
        return frozenset(found)

    def calls(self) -> list[Call]:
        """Every operator call that is written as ``something.operator(...)``."""
        known = catalogue.names()
        found = []
        for node in self.nodes:
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                name = node.func.attr.value
                operator = catalogue.find(name) if name in known else None
                if operator is not None:
                    found.append(Call(self, node, operator))
        return sorted(found, key=lambda call: self.span(call.node))

    # -- following a value ------------------------------------------------------------------------------

    def origins(self, expression: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Where a name, an attribute or a call of a function of this file gets its value; all of them."""
        if isinstance(expression, cst.Name):
            return self._of_name(expression, expression.value)
        if isinstance(expression, cst.Attribute):
            return self._of_attribute(expression.attr.value)
        if isinstance(expression, cst.Call):
            return self._returned(expression)
        return []

    def find(self, expression: cst.BaseExpression, wanted: Predicate) -> cst.BaseExpression | None:
        """The first expression a value is made from that is wanted; only along unique origins."""
        return self._find(expression, wanted, _DEPTH)

    def _find(
        self, expression: cst.BaseExpression, wanted: Predicate, depth: int
    ) -> cst.BaseExpression | None:
        if wanted(expression):
            return expression
        if depth == 0:
            return None
        origins = self.origins(expression)
        if len(origins) == 1:
            found = self._find(origins[0], wanted, depth - 1)
            if found is not None:
                return found
        if isinstance(expression, (cst.Name, cst.Attribute)):
            return None
        parts: list[cst.BaseExpression] = []
        if isinstance(expression, cst.Call):
            if isinstance(expression.func, cst.Attribute):
                parts.append(expression.func.value)
            if not origins:
                parts.extend(arg.value for arg in expression.args)
        else:
            parts.extend(child for child in expression.children if isinstance(child, cst.BaseExpression))
        for part in parts:
            found = self._find(part, wanted, depth - 1)
            if found is not None:
                return found
        return None

    def _of_name(self, node: cst.CSTNode, name: str) -> list[cst.BaseExpression]:
        function = self.function(node)
        if function is not None:
            if name in {target.value for target in self._loop_targets(function)}:
                return []
            found = self._assigned(function, name)
            if found:
                return found
            parameters = [param.name.value for param in function.params.params]
            if name in parameters:
                return self._passed(function, name, parameters.index(name))
        return [
            value
            for value in self._assigned(self.module, name)
            if self.above(value, cst.FunctionDef, cst.ClassDef) is None
        ]

    def _loop_targets(self, scope: cst.CSTNode) -> Iterator[cst.Name]:
        for node in self.nodes:
            if (
                isinstance(node, (cst.For, cst.AugAssign))
                and isinstance(node.target, cst.Name)
                and self.function(node) is scope
            ):
                yield node.target

    def _assigned(self, scope: cst.CSTNode, name: str) -> list[cst.BaseExpression]:
        found = []
        for node in self.nodes:
            if isinstance(node, cst.Assign) and self._inside(node, scope):
                for target in node.targets:
                    if isinstance(target.target, cst.Name) and target.target.value == name:
                        found.append(node.value)
        return found

    def _inside(self, node: cst.CSTNode, scope: cst.CSTNode) -> bool:
        return scope is self.module or self.function(node) is scope

    def _of_attribute(self, name: str) -> list[cst.BaseExpression]:
        found: list[cst.BaseExpression] = []
        for node in self.nodes:
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    if isinstance(target.target, cst.Attribute) and target.target.attr.value == name:
                        found.append(node.value)
                    if isinstance(target.target, cst.Name) and target.target.value == name:
                        owner = self.above(node, cst.ClassDef, cst.FunctionDef)
                        if isinstance(owner, cst.ClassDef):
                            found.append(node.value)
            elif isinstance(node, cst.Call):
                called = node.func
                if isinstance(called, cst.Attribute) and called.attr.value == "register_buffer":
                    first = node.args[0].value
                    if isinstance(first, cst.SimpleString) and ast.literal_eval(first.value) == name:
                        found.append(node.args[1].value)
                elif isinstance(called, cst.Name) and self._named(cst.ClassDef, called.value):
                    found.extend(a.value for a in node.args if a.keyword and a.keyword.value == name)
        return found

    def _named(self, kind: type[cst.ClassDef] | type[cst.FunctionDef], name: str) -> list[cst.CSTNode]:
        return [node for node in self.nodes if isinstance(node, kind) and node.name.value == name]

    def _passed(self, function: cst.FunctionDef, name: str, index: int) -> list[cst.BaseExpression]:
        first = function.params.params[0].name.value if function.params.params else ""
        found: list[cst.BaseExpression] = []
        for node in self.nodes:
            if not isinstance(node, cst.Call):
                continue
            called = node.func
            if not (
                (isinstance(called, cst.Name) and called.value == function.name.value)
                or (isinstance(called, cst.Attribute) and called.attr.value == function.name.value)
            ):
                continue
            at = index - (first == "self")
            positional = [arg for arg in node.args if arg.keyword is None]
            keyword = [arg for arg in node.args if arg.keyword and arg.keyword.value == name]
            if keyword:
                found.append(keyword[0].value)
            elif 0 <= at < len(positional):
                found.append(positional[at].value)
        return found

    def _returned(self, call: cst.Call) -> list[cst.BaseExpression]:
        called = call.func
        if isinstance(called, cst.Name):
            name = called.value
        elif isinstance(called, cst.Attribute) and isinstance(called.value, cst.Name):
            if called.value.value != "self":
                return []
            name = called.attr.value
        else:
            return []
        functions = self._named(cst.FunctionDef, name)
        if len(functions) != 1:
            return []
        return [
            node.value
            for node in self.nodes
            if isinstance(node, cst.Return) and node.value and self.function(node) is functions[0]
        ]


class Call:
    """An operator call of a source."""

    def __init__(self, source: Source, node: cst.Call, operator: catalogue.Operator) -> None:
        self.source = source
        self.node = node
        self.operator = operator
        self.arguments = {argument.name: argument for argument in self._arguments()}

    @property
    def family(self) -> str:
        """The family of the operator."""
        return self.operator.family

    @property
    def op(self) -> str:
        """The name of the operator."""
        return self.operator.name

    @property
    def opened(self) -> bool:
        """Whether some ``**`` of the call cannot be followed."""
        return any(arg.star == "**" and self._entries(arg.value) is None for arg in self.node.args)

    def arg(self, name: str) -> Argument | None:
        """The argument with a name, or with a role."""
        found = self.arguments.get(name)
        if found is None:
            param = self.operator.by_role(name)
            found = self.arguments.get(param.name) if param else None
        return found

    def name_of(self, role: str) -> str | None:
        """What this operator calls the parameter with a role."""
        param = self.operator.by_role(role)
        return param.name if param else None

    def text(self, name: str) -> str:
        """The source of an argument; "" when it is not passed."""
        found = self.arg(name)
        return self.source.text(found.value) if found else ""

    def constant(self, name: str) -> object:
        """The literal value of an argument, also through unique names; None when it is none."""
        found = self.arg(name)
        return None if found is None else constant(self.source, found.value)

    def set(self, name: str, text: str) -> list[Edit]:
        """The edits that give an argument another value; adds it when it is not passed."""
        found = self.arg(name)
        if found is not None:
            return [self.source.replace(found.value, text)]
        param = self.name_of(name) or name
        positional = [arg for arg in self.node.args if arg.keyword is None and not arg.star]
        if positional:
            end = self.source.span(positional[-1])[1]
            return [Edit(end, end, f", {param}={text}")]
        start = self.source.raw.index(b"(", self.source.span(self.node.func)[1]) + 1
        return [Edit(start, start, f"{param}={text}, ")]

    def wrap(self, name: str, pattern: str) -> list[Edit]:
        """The edits that put an argument's value into a pattern with ``{}``."""
        found = self.arg(name)
        assert found is not None
        return [self.source.replace(found.value, pattern.format(self.source.text(found.value)))]

    def drop(self, *names: str) -> list[Edit] | None:
        """The edits that leave arguments out; None when one of them is not passed by name."""
        edits = []
        for name in names:
            found = self.arg(name)
            if found is None or found.key is None:
                return None
            edits.append(self.source.remove(found.node))
        return edits

    def find(self, name: str, wanted: Predicate) -> cst.BaseExpression | None:
        """What is wanted of what an argument is made from."""
        found = self.arg(name)
        return None if found is None else self.source.find(found.value, wanted)

    def _arguments(self) -> Iterator[Argument]:
        position = 0
        params = [param for param in self.operator.params if param.position is not None]
        for arg in self.node.args:
            if arg.star == "**":
                yield from self._entries(arg.value) or ()
            elif arg.star:
                return
            elif arg.keyword is not None:
                yield Argument(arg.keyword.value, arg.value, arg, arg.keyword)
            elif position < len(params):
                yield Argument(params[position].name, arg.value, arg, None)
                position += 1

    def _entries(self, options: cst.BaseExpression) -> list[Argument] | None:
        if not isinstance(options, cst.Name):
            return None
        origins = self.source.origins(options)
        if len(origins) != 1:
            return None
        origin = origins[0]
        found = []
        if isinstance(origin, cst.Dict):
            for element in origin.elements:
                if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
                    return None
                name = str(ast.literal_eval(element.key.value))
                found.append(Argument(name, element.value, element, element.key))
        elif isinstance(origin, cst.Call) and isinstance(origin.func, cst.Name):
            if origin.func.value != "dict":
                return None
            for arg in origin.args:
                if arg.keyword is None:
                    return None
                found.append(Argument(arg.keyword.value, arg.value, arg, arg.keyword))
        else:
            return None
        scope = self.source.function(self.node)
        for node in self.source.nodes:
            if not isinstance(node, cst.Assign) or self.source.function(node) is not scope:
                continue
            target = node.targets[0].target
            if (
                isinstance(target, cst.Subscript)
                and isinstance(target.value, cst.Name)
                and target.value.value == options.value
                and isinstance(target.slice[0].slice, cst.Index)
                and isinstance(target.slice[0].slice.value, cst.SimpleString)
            ):
                key = target.slice[0].slice.value
                found.append(Argument(str(ast.literal_eval(key.value)), node.value, node, key))
        return found


def constant(source: Source, expression: cst.BaseExpression) -> object:
    """The literal a value is, also through unique names and attributes."""
    for _ in range(_DEPTH):
        try:
            return ast.literal_eval(source.text(expression))
        except (ValueError, SyntaxError):
            pass
        origins = source.origins(expression) if isinstance(expression, (cst.Name, cst.Attribute)) else []
        if len(origins) != 1:
            return None
        expression = origins[0]
    return None


def called(node: cst.CSTNode) -> str:
    """The last name of what is called; "" when the node is no call."""
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute):
            return node.func.attr.value
        if isinstance(node.func, cst.Name):
            return node.func.value
    return ""


def _descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _descendants(child)
