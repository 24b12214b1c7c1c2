"""What the code does with the result and the arguments of a call, from the shape of the tree."""

from __future__ import annotations

import re
from functools import cached_property

import libcst as cst

from kvlint.contract.call import Use
from kvlint.contract.tri import Place

from .chunk import Chunk, Site
from .walk import parents, walk


class Usage:
    """Answers for the calls of one chunk."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk

    @cached_property
    def _parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        found: dict[cst.CSTNode, cst.CSTNode] = {}
        for statement in self.chunk.body:
            found.update(parents(statement))
        return found

    @cached_property
    def _order(self) -> dict[cst.CSTNode, int]:
        found: dict[cst.CSTNode, int] = {}
        for statement in self.chunk.body:
            for node in walk(statement):
                found[node] = len(found)
        return found

    @cached_property
    def _reads(self) -> dict[str, list[cst.Name]]:
        found: dict[str, list[cst.Name]] = {}
        for node in self._order:
            if isinstance(node, cst.Name) and not self._stored(node) and not self._is_label(node):
                found.setdefault(node.value, []).append(node)
        return found

    @cached_property
    def _stores(self) -> dict[str, list[cst.Name]]:
        found: dict[str, list[cst.Name]] = {}
        for node in self._order:
            if isinstance(node, cst.Name) and self._stored(node):
                found.setdefault(node.value, []).append(node)
        return found

    def _is_label(self, node: cst.Name) -> bool:
        parent = self._parents.get(node)
        return (
            (isinstance(parent, cst.Attribute) and parent.attr is node)
            or (isinstance(parent, cst.Arg) and parent.keyword is node)
            or (isinstance(parent, (cst.Param, cst.FunctionDef, cst.ClassDef)) and parent.name is node)
        )

    def _stored(self, node: cst.CSTNode) -> bool:
        """Whether a name is an assignment target rather than read."""
        child: cst.CSTNode = node
        parent = self._parents.get(child)
        while isinstance(parent, (cst.Element, cst.StarredElement, cst.Tuple, cst.List)):
            child, parent = parent, self._parents.get(parent)
        if isinstance(
            parent, (cst.AssignTarget, cst.AnnAssign, cst.For, cst.CompFor, cst.NamedExpr, cst.AsName)
        ):
            return getattr(parent, "target", getattr(parent, "name", None)) is child
        return False

    def of(self, node: cst.CSTNode) -> Use:
        """What happens to the result of a call."""
        parent = self._parents.get(node)
        if isinstance(parent, cst.Await):
            parent = self._parents.get(parent)
        if isinstance(parent, cst.Expr):
            return Use(dropped=True, read={})
        if isinstance(parent, cst.Assign) and parent.value is node:
            return self._assigned(parent)
        if isinstance(parent, cst.Subscript) and parent.value is node:
            index = parent.slice[0].slice if len(parent.slice) == 1 else None
            if isinstance(index, cst.Index) and isinstance(index.value, cst.Integer):
                return Use(dropped=False, read={int(index.value.value): Site(self.chunk, parent)})
            return Use(dropped=False)
        if isinstance(parent, cst.Attribute) and parent.value is node:
            return Use(dropped=False, whole=Site(self.chunk, parent))
        if isinstance(parent, cst.BinaryOperation):
            return Use(dropped=False, whole=Site(self.chunk, parent))
        return Use(dropped=False)

    def _assigned(self, assign: cst.Assign) -> Use:
        if len(assign.targets) != 1:
            return Use(dropped=False)
        target = assign.targets[0].target
        if isinstance(target, cst.Name):
            later = self._unpacked_later(target)
            return Use(
                dropped=False,
                unpacked=None if later is None else len(later.elements),
                read=self._indexed_reads(target),
                whole=self._whole_use(target),
            )
        if isinstance(target, cst.Attribute) and self._is_read(target):
            return Use(dropped=False, kept=Site(self.chunk, target))
        if not isinstance(target, (cst.Tuple, cst.List)):
            return Use(dropped=False)
        if any(isinstance(e, cst.StarredElement) for e in target.elements):
            return Use(dropped=False)
        read = self._unpacked(target)
        return Use(dropped=False, unpacked=len(target.elements), read=read)

    def _is_read(self, target: cst.Attribute) -> bool:
        """Whether an attribute of that name is read anywhere in the same class, not just compared."""
        return any(
            isinstance(node, cst.Attribute)
            and node.attr.value == target.attr.value
            and not isinstance(parent, (cst.AssignTarget, cst.AnnAssign, cst.Comparison))
            for node, parent in self._parents.items()
        )

    def _unpacked(self, target: cst.Tuple | cst.List) -> dict[int, Place]:
        """Where the elements of an unpacked result are read first."""
        read: dict[int, Place] = {}
        for index, element in enumerate(target.elements):
            if isinstance(element.value, cst.Name):
                first = self._first_read(element.value.value, element.value)
                if first is not None:
                    read[index] = first
            else:
                read[index] = Site(self.chunk, element)
        return read

    def _whole_use(self, target: cst.Name) -> Place | None:
        """Where a name is computed with as one tensor before it is bound again."""
        start, end = self._span(target)
        for node in self._reads.get(target.value, []):
            indexed = isinstance(self._parents.get(node), cst.Subscript)
            if start < self._order[node] < end and not indexed and self._computes(node):
                return Site(self.chunk, node)
        return None

    def _computes(self, node: cst.CSTNode) -> bool:
        """Whether an expression is used as a tensor here, not just returned, stored or handed on."""
        parent = self._parents.get(node)
        while isinstance(parent, (cst.Element, cst.Tuple, cst.List)):
            parent = self._parents.get(parent)
        if isinstance(parent, (cst.Attribute, cst.Subscript)):
            return parent.value is node
        if isinstance(parent, (cst.BinaryOperation, cst.UnaryOperation)):
            return True
        if isinstance(parent, cst.Arg):
            call = self._parents.get(parent)
            name = call.func if isinstance(call, cst.Call) else None
            while isinstance(name, cst.Attribute):
                name = name.value
            return isinstance(name, cst.Name) and name.value in ("torch", "torch_npu")
        return False

    def _first_read(self, name: str, after: cst.CSTNode) -> Place | None:
        reads = self._reads.get(name, [])
        start = self._order.get(after, 0)
        later = [node for node in reads if self._order[node] > start]
        picked = later[0] if later else reads[0] if reads and self._in_loop(after) else None
        return Site(self.chunk, picked) if picked is not None else None

    def _span(self, target: cst.Name) -> tuple[int, int]:
        """From where to where in the source a name holds what it is given here, tests and loops aside."""
        start = self._order[target]
        bound = [self._order[n] for n in self._stores.get(target.value, []) if self._order[n] > start]
        return start, min(bound, default=len(self._order))

    def _unpacking(self, node: cst.Name) -> cst.Tuple | cst.List | None:
        """The names in ``a, b = r``, for ``r``."""
        assign = self._parents.get(node)
        if not (isinstance(assign, cst.Assign) and assign.value is node and len(assign.targets) == 1):
            return None
        names = assign.targets[0].target
        if isinstance(names, (cst.Tuple, cst.List)) and not any(
            isinstance(element, cst.StarredElement) for element in names.elements
        ):
            return names
        return None

    def _unpacked_later(self, target: cst.Name) -> cst.Tuple | cst.List | None:
        """``r = op(...)`` followed by ``a, b = r``, under the same tests."""
        if len(self._stores.get(target.value, [])) > 1:
            return None
        for node in self._reads.get(target.value, []):
            names = self._unpacking(node) if self._order[node] > self._order[target] else None
            if names is not None and self._branches(node) <= self._branches(target):
                return names
        return None

    def _branches(self, node: cst.CSTNode) -> set[int]:
        """The tests around a node."""
        found: set[int] = set()
        parent = self._parents.get(node)
        while parent is not None:
            if isinstance(
                parent, (cst.If, cst.IfExp, cst.While, cst.BooleanOperation, cst.Match, cst.Try, cst.TryStar)
            ):
                found.add(id(parent))
            parent = self._parents.get(parent)
        return found

    def _indexed_reads(self, target: cst.Name) -> dict[int, Place] | None:
        """``r = op(...)`` followed by ``r[0]`` or ``a, b = r``; None when ``r`` is used in other ways."""
        start = self._order.get(target, 0)
        read: dict[int, Place] = {}
        for node in self._reads.get(target.value, []):
            if self._order[node] < start:
                continue
            parent = self._parents.get(node)
            index = (
                parent.slice[0].slice
                if isinstance(parent, cst.Subscript) and parent.value is node and len(parent.slice) == 1
                else None
            )
            names = self._unpacking(node)
            if isinstance(index, cst.Index) and isinstance(index.value, cst.Integer) and parent is not None:
                read.setdefault(int(index.value.value, 0), Site(self.chunk, parent))
            elif names is not None:
                for position, place in self._unpacked(names).items():
                    read.setdefault(position, place)
            else:
                return None
        return read

    def is_returned(self, node: cst.CSTNode) -> bool:
        """Whether the result of a call is all that its function ever returns."""
        parent = self._parents.get(node)
        if isinstance(parent, cst.Await):
            node, parent = parent, self._parents.get(parent)
        returned: cst.CSTNode | None = parent if isinstance(parent, cst.Return) else None
        if isinstance(parent, cst.Assign) and parent.value is node and len(parent.targets) == 1:
            target = parent.targets[0].target
            if not isinstance(target, cst.Name) or len(self._stores.get(target.value, [])) > 1:
                return False
            reads = self._reads.get(target.value, [])
            above = self._parents.get(reads[0]) if len(reads) == 1 else None
            returned = above if isinstance(above, cst.Return) else None
        if returned is None:
            return False
        function = self._function(returned)
        returns = [item for item in self._order if isinstance(item, cst.Return)]
        return all(item is returned for item in returns if self._function(item) is function)

    def _function(self, node: cst.CSTNode) -> cst.CSTNode | None:
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, (cst.FunctionDef, cst.Lambda)):
            parent = self._parents.get(parent)
        return parent

    def _in_loop(self, node: cst.CSTNode) -> bool:
        parent = self._parents.get(node)
        while parent is not None:
            if isinstance(parent, (cst.For, cst.While)):
                return True
            parent = self._parents.get(parent)
        return False

    def used_later(self, node: cst.CSTNode) -> bool:
        """Whether the variable passed as an argument, or one it is a view of, is read after the call."""
        name = _viewed(node.value if isinstance(node, cst.Arg) else node)
        if name is None:
            return False
        position = self._order.get(name, 0)
        call: cst.CSTNode | None = self._parents.get(node)
        inside = {id(item) for item in walk(call)} if call is not None else set()
        for _ in range(MAX_VIEWS):
            reads = self._reads.get(name.value, [])
            if any(self._order[r] > position and id(r) not in inside for r in reads):
                return True
            stores = [s for s in self._stores.get(name.value, []) if self._order[s] < position]
            target = self._parents.get(stores[-1]) if stores else None
            assign = self._parents.get(target) if isinstance(target, cst.AssignTarget) else None
            source = _viewed(assign.value) if isinstance(assign, cst.Assign) else None
            if source is None:
                return False
            name = source
        return False


_LAYER = re.compile(r"(\w+_)?(proj|projection|linear|norm|layernorm|rmsnorm|mlp|fc|dense)\d*")


def is_layer(name: str) -> bool:
    """Whether an attribute names a layer: what is handed to one is computed with."""
    return bool(_LAYER.fullmatch(name))


MAX_VIEWS = 8
_VIEWS = frozenset(
    (
        "view",
        "view_as",
        "transpose",
        "permute",
        "squeeze",
        "unsqueeze",
        "select",
        "narrow",
        "expand",
        "unflatten",
        "detach",
        "movedim",
    )
)


def _viewed(node: cst.CSTNode) -> cst.Name | None:
    """The variable that an expression is a view of: ``x`` in ``x.view(n, -1)[0]``."""
    while not isinstance(node, cst.Name):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value not in _VIEWS:
                return None
            node = node.func.value
        elif isinstance(node, cst.Subscript):
            node = node.value
        else:
            return None
    return node
