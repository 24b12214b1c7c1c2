"""Names: variables, module globals, imports."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from kvlint.contract import catalogue
from kvlint.contract.values import (
    Const,
    DType,
    Unknown,
    Value,
    is_none,
)

from . import numpylib
from .algebra import (
    bound,
    one_of,
    weakened,
)
from .attributes import STARTS_AS_NONE, Attributes
from .chunk import Site
from .module import BadSource, Binding, ModuleIndex
from .modulestate import built_once, rebound, slot
from .objects import (
    ClassRef,
    Namespace,
    OpRef,
)
from .state import (
    Frame,
    State,
)
from .syntax import (
    dotted_name,
    wrapping_decorator,
)
from .torchlib import (
    dtype_named,
    key_of,
)

_OP_NAMESPACES = {
    "torch_npu": "npu",
    "torch.ops.npu": "npu",
    "torchair.ops": "npu",
    "torch.ops.atb": "atb",
    "torch_npu.atb": "atb",
    "torch_npu.npu": "",
}


def _canonical(name: str) -> str:
    for short, long in (
        ("np.", "numpy."),
        ("torchair.ops", "torchair.ops"),
        ("torch_npu.dynamo.torchair", "torchair"),
    ):
        if name.startswith(short):
            name = long + name[len(short) :]
    return name


_BUILTINS = frozenset(
    [
        "dict",
        "list",
        "tuple",
        "set",
        "frozenset",
        "getattr",
        "setattr",
        "len",
        "int",
        "float",
        "bool",
        "max",
        "min",
        "isinstance",
        "super",
        "zip",
        "enumerate",
        "reversed",
        "sorted",
        "print",
        "hasattr",
        "id",
        "repr",
        "str",
        "range",
        "sum",
        "any",
        "all",
        "abs",
        "round",
        "type",
        "object",
        "iter",
        "next",
        "map",
        "filter",
    ]
)


_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}


class Names(Attributes):
    """Names: variables, module globals, imports."""

    def name(self, node: cst.Name, frame: Frame) -> Value:
        text = node.value
        if text not in frame.globals_:
            found = frame.state.vars.get(text)
            if found is None and frame.closure is not None:
                found = frame.closure.vars.get(text)
            if found is not None:
                if text in frame.module.global_writes and text not in frame.module.globals:
                    return Unknown(
                        ("nonlocal", key_of(found)), text, "an inner function rebinds it", place=found.place
                    )
                # A function inside another, a class body or a module may read the name from around it.
                outer = frame.node is None or (frame.closure is not None and text in frame.closure.vars)
                return found if outer else bound(found)
        if text in frame.module.global_writes:
            found = frame.state.attrs.get(slot(frame.module, text))
            if found is not None:
                return built_once(found, frame.module, text, frame.node)
            if text in frame.globals_:
                # An earlier run of this or another function may have set it.
                key = ("global", frame.module.path, text)
                reason = "a function rebinds it through global"
                return Unknown(key, text, reason, declared=True, place=Site(frame.chunk, node))
        if text in frame.module.globals:
            return self.global_value(frame.module, text)
        source = self._defining(frame.module, text, set())
        if source is not None:
            return self.global_value(source, text)
        for star in frame.module.stars:
            if _OP_NAMESPACES.get(star.target) is not None and catalogue.find(text) is not None:
                return OpRef(text, place=Site(frame.chunk, node))
        if text in ("True", "False", "None"):
            return Const({"True": True, "False": False, "None": None}[text])
        if text in _BUILTINS:
            return Namespace(f"builtins.{text}")
        return Unknown(
            ("free", frame.module.path, text),
            text,
            "it is not defined in this file",
            declared=True,
            place=Site(frame.chunk, node),
        )

    def _defining(self, module: ModuleIndex, name: str, seen: set[str]) -> ModuleIndex | None:
        """The module that defines a name: this one, or one that it imports everything from."""
        if name in module.globals:
            return module
        seen.add(module.path)
        for star in module.stars:
            source = self.find_module(module, star.target, star.level)
            if source is not None and source.path not in seen:
                found = self._defining(source, name, seen)
                if found is not None:
                    return found
        return None

    def global_value(self, module: ModuleIndex, name: str) -> Value:
        """The value of a module-level name."""
        key = (module.path, name)
        found = self._globals.get(key)
        if found is not None:
            return found
        unknown = Unknown(("global", *key), name, f"it is a module variable of {module.path}", declared=True)
        if key in self._busy:
            return unknown
        self._busy.add(key)
        try:
            bindings = module.globals.get(name, [])
            options: list[Value] = []
            for binding in bindings:
                value = self._bound_value(module, name, binding)
                if is_none(value):
                    # Whoever needs the variable sets it first.
                    value = replace(unknown, reason=STARTS_AS_NONE)
                options.append(value)
            if any(b.kind == "def" for b in bindings) and self._is_replaced(module, name):
                options.append(replace(unknown, reason="other code puts another function in its place"))
            if name in module.global_writes:
                written = rebound(self, module, name)
                options.extend(written or ())
                if written is None:
                    options.append(replace(unknown, reason="a function rebinds it through global"))
            value = one_of(options, unknown)
        finally:
            self._busy.discard(key)
        self._globals[key] = value
        return value

    def _is_replaced(self, module: ModuleIndex, name: str) -> bool:
        corpus = self.files.corpus(module.path)
        return corpus is not None and corpus.replaces(name)

    def _bound_value(self, module: ModuleIndex, name: str, binding: Binding) -> Value:
        if binding.kind == "def":
            func = self.function(module, binding.node)
            if func is None:
                return Unknown(("global", module.path, name), name, "its definition cannot be analysed")
            if wrapping_decorator(func.node):
                return Unknown(("global", module.path, name), name, "it is decorated", place=func.place)
            return func
        if binding.kind == "class":
            index = module.classes.get(binding.node)  # type: ignore[call-overload]
            if index is not None:
                return ClassRef(module, index)
        if binding.kind == "import":
            return self._module_value(module, binding.target, 0)
        if binding.kind == "from":
            return self.imported(module, binding.target, binding.name, binding.level)
        if binding.kind == "assign":
            try:
                chunk = module.chunk(binding.node)
            except BadSource:
                return Unknown(("global", module.path, name), name, "its definition cannot be analysed")
            frame = Frame(module, chunk, "<module>", State(), 1)
            recording, self.recording = self.recording, False
            try:
                self.block(chunk.body, frame, frame.state)
            finally:
                self.recording = recording
            value = frame.state.vars.get(name)
            if value is not None:
                value = self._frozen(value, frame)
                return weakened(value) if name in module.changed else value
        return Unknown(("global", module.path, name), name, "how it is set is not visible", declared=True)

    def _import(self, node: cst.Import | cst.ImportFrom, frame: Frame) -> None:
        if isinstance(node, cst.Import):
            for alias in node.names:
                dotted = dotted_name(alias.name)
                if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                    frame.state.vars[alias.asname.name.value] = self._module_value(frame.module, dotted, 0)
                else:
                    first = dotted.split(".")[0]
                    frame.state.vars[first] = self._module_value(frame.module, first, 0)
            return
        if isinstance(node.names, cst.ImportStar):
            return
        module = dotted_name(node.module) if node.module is not None else ""
        level = len(node.relative)
        for alias in node.names:
            name = dotted_name(alias.name)
            bound = (
                alias.asname.name.value
                if alias.asname is not None and isinstance(alias.asname.name, cst.Name)
                else name
            )
            frame.state.vars[bound] = self.imported(frame.module, module, name, level)

    def _module_value(self, module: ModuleIndex, dotted: str, level: int) -> Value:
        found = self.find_module(module, dotted, level)
        return Namespace(f"project:{found.path}" if found is not None else _canonical(dotted))

    def imported(self, module: ModuleIndex, source: str, name: str, level: int) -> Value:
        """The value of ``from source import name``."""
        found = self.find_module(module, source, level)
        if found is not None:
            source_module = self._defining(found, name, set())
            if source_module is not None:
                return self.global_value(source_module, name)
            submodule = self.find_module(module, f"{source}.{name}" if source else name, level)
            if submodule is not None:
                return Namespace(f"project:{submodule.path}")
        if level:
            return Unknown(
                ("import", module.path, level, source, name),
                name,
                f"it is imported from {'.' * level}{source}",
            )
        submodule = self.find_module(module, f"{source}.{name}", level) if found is None else None
        if submodule is not None:
            return Namespace(f"project:{submodule.path}")
        return self.member(_canonical(source), name)

    def member(self, namespace: str, name: str) -> Value:
        """``namespace.name`` for something outside the code under check."""
        full = f"{namespace}.{name}"
        kind = _OP_NAMESPACES.get(namespace)
        if kind is not None and catalogue.find(name) is not None:
            return OpRef(name)
        if namespace == "torch":
            dtype = dtype_named(name)
            if dtype is not None:
                return DType(dtype)
            if name in ("inf",):
                return Const(float("inf"))
        if namespace == "numpy":
            named = numpylib.dtype_named(name)
            if named is not None:
                return named
        if full == "numpy.newaxis":
            return Const(None)
        if full in ("math.inf", "numpy.inf"):
            return Const(float("inf"))
        if full in ("math.pi",):
            return Const(3.141592653589793)
        if namespace.startswith("torch.finfo(") and name in ("min", "max"):
            # Of an unknown dtype: as large as float32 has it.
            largest = _LARGEST.get(namespace[12:-1], _LARGEST["float32"])
            return Const(largest if name == "max" else -largest)
        return Namespace(_canonical(full))
