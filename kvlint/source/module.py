"""Index of a module: what is defined where. Built with stdlib ``ast``; trees come by the chunk."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass, field

import libcst as cst

from .chunk import Chunk
from .walk import nodes_of

_NEWLINE = re.compile(r"\r\n|\r|\n")
# Methods that change a list or dict, and calls that never change what they are given.
_MUTATORS = frozenset(
    ("update", "append", "extend", "insert", "setdefault", "pop", "popitem", "clear", "remove", "sort")
)
_CODE = (
    ast.stmt,
    ast.expr,
    ast.ExceptHandler,
    ast.match_case,
    ast.withitem,
    ast.keyword,
    ast.comprehension,
)
_HARMLESS = frozenset(
    (
        "print",
        "debug",
        "info",
        "warning",
        "error",
        "register_buffer",
        "register_parameter",
        "setattr",
        "__init__",
    )
)


class BadSource(Exception):
    """The text is not Python that can be analysed."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def decode(source: bytes) -> str:
    """The text of a Python file, by its byte order mark or coding cookie. Raises ``BadSource``."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        return source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise BadSource(f"cannot be decoded: {str(error).splitlines()[0]}") from None


@dataclass
class ClassIndex:
    """A class: its methods, class-level statements and who writes which attribute."""

    node: ast.ClassDef
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    fields: dict[str, list[ast.stmt]] = field(default_factory=dict)
    writers: dict[str, list[str]] = field(default_factory=dict)
    """Attribute name -> methods that assign ``self.name`` (or register a buffer of that name)."""
    changed: dict[str, set[str]] = field(default_factory=dict)
    """Attribute name -> methods that change its object in place."""
    dynamic: bool = False
    """True when attributes are set by computed names (``setattr(self, name, ...)``)."""


@dataclass
class Binding:
    """One module-level definition of a name."""

    kind: str  # "def", "class", "assign", "import", "from", "other"
    node: ast.stmt
    target: str = ""  # for imports: dotted module; for "from": dotted module
    name: str = ""  # for "from": the imported name
    level: int = 0  # for "from": number of leading dots
    conditional: bool = False


class ModuleIndex:
    """A parsed module with lookups by name; chunks are parsed once, when asked for."""

    def __init__(self, path: str, text: str, name: str = "") -> None:
        self.path = path
        self.name = name
        self.text = text
        self.lines = _NEWLINE.split(text)
        try:
            self.tree = ast.parse(text)
        except SyntaxError as error:
            raise BadSource(f"does not parse: {error.msg}", error.lineno or 0) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise BadSource(f"does not parse: {error}") from None
        self.globals: dict[str, list[Binding]] = {}
        self.classes: dict[ast.ClassDef, ClassIndex] = {}
        self.stars: list[Binding] = []
        self.foreign_writes: set[str] = set()
        """Attribute names assigned on anything but ``self``."""
        self.global_writes: set[str] = set()
        """Names that functions rebind through ``global`` or ``nonlocal``."""
        self.changed: set[str] = set()
        """Names of objects that are changed in place somewhere (``NAME[k] = v``, ``NAME.copy_(x)``)."""
        self.foreign_changes: set[str] = set()
        """Attribute names whose objects are changed in place through anything but ``self``."""
        self.called: list[tuple[ast.stmt, object, frozenset[str]]] = []
        """Outermost functions with their class, and other statements, with the names they call; on demand."""
        self.written: dict[str, list[tuple[ast.stmt, object, list[object] | None]]] | None = None
        """Attribute -> outermost functions that set it on another object, with the constants; on demand."""
        self._chunks: dict[tuple[int, int], Chunk] = {}
        self._scan(self.tree.body, conditional=False)
        self._attribute_writes()

    def _scan(self, body: list[ast.stmt], conditional: bool) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._bind(node.name, Binding("def", node, conditional=conditional))
            elif isinstance(node, ast.ClassDef):
                self._bind(node.name, Binding("class", node, conditional=conditional))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.split(".")[0]
                    target = alias.name if alias.asname else alias.name.split(".")[0]
                    self._bind(bound, Binding("import", node, target, conditional=conditional))
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    binding = Binding(
                        "from", node, node.module or "", alias.name, node.level, conditional=conditional
                    )
                    if alias.name == "*":
                        self.stars.append(binding)
                    else:
                        self._bind(alias.asname or alias.name, binding)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                stores = node.targets if isinstance(node, ast.Assign) else [node.target]
                for store in stores:
                    for name in _names(store):
                        self._bind(name, Binding("assign", node, conditional=conditional))
            elif isinstance(node, ast.If):
                self._scan(node.body, True)
                self._scan(node.orelse, True)
            elif isinstance(node, ast.Try):
                for part in (node.body, node.orelse, node.finalbody, *(h.body for h in node.handlers)):
                    self._scan(part, True)
            elif isinstance(node, (ast.For, ast.While, ast.With)):
                if isinstance(node, ast.For):
                    for name in _names(node.target):
                        self._bind(name, Binding("other", node, conditional=True))
                self._scan(node.body, True)

    def _bind(self, name: str, binding: Binding) -> None:
        self.globals.setdefault(name, []).append(binding)

    def _attribute_writes(self) -> None:
        pending: list[tuple[ast.AST, ClassIndex | None, str, str]] = [(self.tree, None, "", "")]
        while pending:
            node, owner, method, me = pending.pop()
            if isinstance(node, ast.ClassDef):
                index = self.classes[node] = ClassIndex(node)
                for item in node.body:
                    self._index_member(index, item)
                    pending.append((item, index, "", ""))
                continue
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and owner is not None and not method:
                first = (node.args.posonlyargs + node.args.args)[:1]
                static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
                me = first[0].arg if first and not static else ""
                method = node.name
            elif isinstance(
                node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.With, ast.NamedExpr)
            ):
                for target in _targets(node):
                    self._index_store(target, owner, method, me)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                self.global_writes.update(node.names)
            elif isinstance(node, ast.Call):
                self._index_call(node, owner, method, me)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                self._index_statement(node.value, owner, method, me)
            for child in ast.iter_child_nodes(node):
                if isinstance(child, _CODE):
                    pending.append((child, owner, method, me))

    def _index_statement(self, call: ast.Call, owner: ClassIndex | None, method: str, me: str) -> None:
        """A call whose result nobody wants may be there to change what it is given."""
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in _HARMLESS or "npu_" in name or name.startswith("scatter_"):
            return
        # What is unpacked is not handed over itself.
        for argument in (*call.args, *(keyword.value for keyword in call.keywords if keyword.arg)):
            self._index_change(argument, owner, method, me)

    def _index_change(self, node: ast.expr, owner: ClassIndex | None, method: str, me: str) -> None:
        """Notes that the object an expression starts from is changed in place."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name):
            self.changed.add(node.id)
        elif isinstance(node, ast.Attribute):
            if owner is not None and me and isinstance(node.value, ast.Name) and node.value.id == me:
                owner.changed.setdefault(node.attr, set()).add(method)
            else:
                self.foreign_changes.add(node.attr)

    def _index_member(self, index: ClassIndex, item: ast.stmt) -> None:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # A property's setter shares its name; the getter is what a read evaluates.
            if item.name not in index.methods or not _is_setter(item):
                index.methods[item.name] = item
        elif isinstance(item, (ast.Assign, ast.AnnAssign)):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            for target in targets:
                for name in _names(target):
                    index.fields.setdefault(name, []).append(item)

    def _index_store(self, target: ast.expr, owner: ClassIndex | None, method: str, me: str) -> None:
        for node in nodes_of(target):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                self._index_change(node, owner, method, me)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                base = node.value
                if owner is not None and me and isinstance(base, ast.Name) and base.id == me:
                    writers = owner.writers.setdefault(node.attr, [])
                    if method not in writers:
                        writers.append(method)
                else:
                    self.foreign_writes.add(node.attr)

    def _index_call(self, node: ast.Call, owner: ClassIndex | None, method: str, me: str) -> None:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if isinstance(function, ast.Attribute) and (
            name in _MUTATORS or (name.endswith("_") and not name.endswith("__"))
        ):
            self._index_change(function.value, owner, method, me)
        for keyword in node.keywords:
            if keyword.arg == "out":
                self._index_change(keyword.value, owner, method, me)
        if name in ("register_buffer", "register_parameter") and owner is not None and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                owner.writers.setdefault(first.value, []).append(method)
        elif name == "setattr" and len(node.args) >= 2:
            where, what = node.args[0], node.args[1]
            mine = owner is not None and me and isinstance(where, ast.Name) and where.id == me
            if isinstance(what, ast.Constant) and isinstance(what.value, str):
                if mine and owner is not None:
                    owner.writers.setdefault(what.value, []).append(method)
                else:
                    self.foreign_writes.add(what.value)
            elif owner is not None and me and isinstance(where, ast.Name) and where.id == me:
                owner.dynamic = True

    def chunk(self, node: ast.stmt) -> Chunk:
        """The libcst tree of a statement (with its decorators). Raises ``BadSource``."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        last = node.end_lineno or node.lineno
        key = (first, last)
        found = self._chunks.get(key)
        if found is None:
            text = "\n".join(self.lines[first - 1 : last]) + "\n"
            indented = text[:1] in (" ", "\t")
            try:
                found = Chunk(self.path, text, first, indented)
            except (cst.ParserSyntaxError, RecursionError) as error:
                raise BadSource(f"cannot be analysed: {type(error).__name__}", first) from None
            self._chunks[key] = found
        return found


def _is_setter(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(d, ast.Attribute) and d.attr in ("setter", "deleter") for d in node.decorator_list)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.NamedExpr)):
        return [node.target]
    if isinstance(node, ast.With):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return []


def _names(target: ast.expr) -> list[str]:
    return [n.id for n in nodes_of(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
