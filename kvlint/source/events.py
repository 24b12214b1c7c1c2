"""Things the code around operator calls does that no call shows: lifecycle events.

Found on the module index, because they are about statements of whole classes; only modules that can
contain operator calls are looked at.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from kvlint.contract.call import Call, Event
from kvlint.contract.values import Absent

from .chunk import LineSite
from .module import ModuleIndex
from .objects import ClassRef
from .syntax import ast_dotted
from .walk import nodes_of

_LENGTH = re.compile(
    r"_?((kv|key|past|cache|context|ctx|seq|cur|current|history|cached)_?(seq_?)?(len|lens|length|lengths|pos|position|positions)"
    r"|kv_?cache_?(len|length|pos)|seen_tokens|num_(seen|cached|computed)_tokens|cache_position|seqlens?|kvlens?"
    r"|actual_seq_(lengths_kv|kvlen))(_kv|_cpu|_list|_tensor|_device)?"
)
_LENGTH_ARGUMENT = re.compile(r"actual_seq_(lengths(_kv)?|kvlen)|context_lens|seq_lens?")
_LAYER = re.compile(r"(Attention|Attn|Layer|Block|MLA|Mla|Cache|Mixer|SelfAttn|KVStore)", re.ASCII)
_RUNNER = re.compile(
    r"(Runner|Engine|Worker|Scheduler|Manager|Executor|Server|Model|ForCausalLM|Pipeline|Builder|Tests?|Request|Batch)$"
)
_LAYER_GUARD = re.compile(r"(layer_?(idx|id|index|num|no)|first_layer|last_layer|is_first|is_last)")
# A layer's own number, when it is compared.
_LAYER_NUMBER = re.compile(r"_?(idx|index|layer|(layer|block)_?(id|idx|index|num|no))")
_MASK_PARAMETER = re.compile(r"((attn|atten|attention|causal|padding|key_padding)_)?mask")
_WRITERS = frozenset(
    (
        "scatter_update_", "npu_scatter_nd_update_", "npu_kv_rmsnorm_rope_cache",
        "npu_kv_rmsnorm_rope_cache_v2", "npu_scatter_pa_kv_cache", "npu_scatter_pa_cache",
        "_npu_reshape_and_cache", "_npu_reshape_and_cache_siso", "npu_quant_scatter_", "npu_mla_prolog",
        "npu_mla_prolog_v2", "npu_mla_prolog_v3",
    )
)  # fmt: skip
_OUTPUT_PARAMETER = frozenset(
    ("out", "output", "attn_out", "attn_output", "result_buffer", "out_buffer", "output_buffer")
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def class_events(
    module: ModuleIndex, operators: frozenset[str], resolve: Callable[[str], ClassRef | None]
) -> Iterator[tuple[str, Event]]:
    """Length increments inside layers: (method name, event). ``resolve`` finds a class by its name here."""
    for cls, index in module.classes.items():
        if _RUNNER.search(cls.name):
            continue
        calls_operator = any(_mentions(method, operators) for method in index.methods.values())
        if not (_LAYER.search(cls.name) or calls_operator):
            continue
        for method in index.methods.values():
            if method.name in ("__init__", "reset", "reset_parameters") or not _reaches(
                method, index.methods, operators, cls.name
            ):
                continue
            yield from ((method.name, event) for event in _increments(module, method, operators))
            if _LAYER.search(cls.name) and "Cache" not in cls.name and _mentions(method, operators):
                found = _advanced_by_calls(module, method, operators, resolve)
                yield from ((method.name, event) for event in found)


def _advanced_by_calls(
    module: ModuleIndex,
    method: Function,
    operators: frozenset[str],
    resolve: Callable[[str], ClassRef | None],
) -> Iterator[Event]:
    """Lengths that come from a method that advances them, of an object that the layer is given."""
    annotated = {
        a.arg: ast_dotted(a.annotation)
        for a in _arguments(method)
        if isinstance(a.annotation, (ast.Name, ast.Attribute))
    }
    named = {
        node.targets[0].id: node.value
        for node in nodes_of(method)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    }
    for call in nodes_of(method):
        if not isinstance(call, ast.Call) or not _mentions(call.func, operators):
            continue
        for keyword in call.keywords:
            value = keyword.value
            value = named.get(value.id, value) if isinstance(value, ast.Name) else value
            if not _LENGTH_ARGUMENT.fullmatch(keyword.arg or "") or not isinstance(value, ast.Call):
                continue
            function = value.func
            if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
                continue
            owner = resolve(annotated[function.value.id]) if function.value.id in annotated else None
            helper = owner.index.methods.get(function.attr) if owner is not None else None
            # One that is told which layer asks may keep a length for each.
            told = any(_tests_layer(argument) for argument in value.args) or value.keywords
            if helper is None or told or not _advances_what_it_returns(helper):
                continue
            detail = {"name": ast.unparse(function), "how": "advanced", "method": method.name}
            yield Event("length-incremented", _site(module, value), detail)


def _advances_what_it_returns(method: Function) -> bool:
    """Whether a method adds to an attribute of its object, in every layer alike, and returns that."""
    returned = {
        node.value.attr
        for node in nodes_of(method)
        if isinstance(node, ast.Return)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id == "self"
    }
    for node, guarded in _statements(method.body, False):
        if guarded or not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add):
            continue
        target = node.target.value if isinstance(node.target, ast.Subscript) else node.target
        if isinstance(target, ast.Attribute) and target.attr in returned:
            return isinstance(target.value, ast.Name) and target.value.id == "self"
    return False


def _reaches(method: Function, methods: dict[str, Function], operators: frozenset[str], owner: str) -> bool:
    """Whether a method runs once per layer: it calls an operator, serves one that does, updates a cache."""
    if _mentions(method, operators):
        return True
    if "Cache" in owner or "KVStore" in owner:
        return method.name in (
            "update",
            "append",
            "write",
            "store",
            "put",
            "update_cache",
            "forward",
            "__call__",
            "save",
        )
    called = _attributes(method)
    if any(name in called and _mentions(other, operators) for name, other in methods.items()):
        return True
    return any(
        _mentions(other, operators) and method.name in _attributes(other) for other in methods.values()
    )


@lru_cache(maxsize=1 << 14)
def _attributes(node: ast.AST) -> frozenset[str]:
    return frozenset(n.attr for n in nodes_of(node) if isinstance(n, ast.Attribute))


@lru_cache(maxsize=1 << 14)
def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in nodes_of(node) if isinstance(n, ast.Name))


def _mentions(node: ast.AST, names: frozenset[str]) -> bool:
    return not (names.isdisjoint(_attributes(node)) and names.isdisjoint(_names(node)))


def _increments(module: ModuleIndex, method: Function, operators: frozenset[str]) -> Iterator[Event]:
    tensors = _tensor_parameters(method, operators)
    for node, guarded in _statements(method.body, False):
        if guarded:
            continue
        target: ast.expr | None = None
        how = ""
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            target, how = node.target, "incremented"
            base = target.value if isinstance(target, ast.Subscript) else target
            shared = tensors if _entry(target) is None else _parameters(method)
            if isinstance(base, ast.Name) and base.id not in shared:
                # A local number or copy: the next layer starts from its own.
                continue
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            entry = _entry(target) is not None and _entry_owner(target) in _parameters(method)
            if not ((isinstance(target, ast.Attribute) or entry) and _is_sum_with(node.value, target)):
                continue
            how = "incremented"
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
        ):
            if node.value.func.attr not in ("add_", "copy_") or (
                node.value.func.attr == "copy_" and not node.value.args
            ):
                continue
            target = node.value.func.value
            if node.value.func.attr == "copy_" and not _is_sum_with(node.value.args[0], target):
                continue
            how = "incremented in place"
            if isinstance(target, ast.Name) and target.id not in _parameters(method):
                continue
        if target is None:
            continue
        bare = target.value if isinstance(target, ast.Subscript) else target
        name = bare.attr if isinstance(bare, ast.Attribute) else bare.id if isinstance(bare, ast.Name) else ""
        if not _LENGTH.fullmatch(_entry(target) or name):
            continue
        yield Event(
            "length-incremented",
            _site(module, node),
            {"name": ast.unparse(target), "how": how, "method": method.name},
        )


def _statements(body: list[ast.stmt], guarded: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Statements with whether a test on the layer number guards them."""
    for node in body:
        yield node, guarded
        inside = guarded
        if isinstance(node, ast.If):
            inside = guarded or _tests_layer(node.test)
            left = isinstance(node.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
            # What follows only runs in the layers that went on.
            guarded = guarded or (inside and left)
        for part in ("body", "orelse", "finalbody"):
            inner = getattr(node, part, None)
            if isinstance(inner, list) and not isinstance(
                node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
            ):
                yield from _statements(inner, inside)
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body, guarded)


def _tests_layer(test: ast.expr) -> bool:
    """Whether a test asks which layer this is: only one layer of a step passes it."""
    if _LAYER_GUARD.search(ast.unparse(test)):
        return True
    for node in nodes_of(test):
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            for part in nodes_of(node):
                name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
                if _LAYER_NUMBER.fullmatch(name):
                    return True
    return False


def _entry(target: ast.expr) -> str | None:
    """The key in ``metadata["kv_len"]``."""
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return target.slice.value if isinstance(target.slice.value, str) else None
    return None


def _entry_owner(target: ast.expr) -> str:
    return target.value.id if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) else ""


def _is_sum_with(value: ast.expr, target: ast.expr) -> bool:
    """``target + n``, for ``target = target + n``."""
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)):
        return False
    wanted = ast.dump(_loaded(target))
    return any(ast.dump(side) == wanted for side in (value.left, value.right))


def _loaded(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def _parameters(method: Function) -> set[str]:
    return {a.arg for a in _arguments(method)} - {"self", "cls"}


def _arguments(method: Function) -> list[ast.arg]:
    return [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]


def _tensor_parameters(method: Function, operators: frozenset[str]) -> set[str]:
    """Parameters that are certainly tensors: index of a cache write, or annotated so.

    ``x += 1`` on one changes the caller's tensor, which every layer shares.
    """
    found: set[str] = set()
    parameters = _parameters(method)
    for arg in _arguments(method):
        if arg.annotation is not None and ast.unparse(arg.annotation).endswith("Tensor"):
            found.add(arg.arg)
    for node in nodes_of(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in operators and node.func.attr.startswith(
                ("scatter_update", "npu_scatter_nd_update")
            ):
                found.update(a.id for a in node.args[1:2] if isinstance(a, ast.Name))
            elif node.func.attr in (
                "tolist",
                "unsqueeze",
                "cumsum",
                "to",
                "cpu",
                "add_",
                "view",
                "item",
            ) and isinstance(node.func.value, ast.Name):
                found.add(node.func.value.id)
    rebound = {n.id for n in nodes_of(method) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    augmented = {
        n.target.id
        for n in nodes_of(method)
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }
    assigned = {
        t.id
        for n in nodes_of(method)
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    return (found & parameters) - ((rebound - augmented) | assigned)


def function_events(module: ModuleIndex, node: Function, calls: list[Call]) -> Iterator[Event]:
    """Events of one function with the operator calls in it."""
    yield from _unused_mask(module, node, calls)


_REQUEST_LENGTHS = re.compile(r"(query|q|seq|context|kv|ctx)_?(seq_?)?lens?(_cpu|_list|_tensor)?")
_TABLE = re.compile(r"(block_?)?tables?(_tensor)?")


def module_events(module: ModuleIndex, operators: frozenset[str]) -> Iterator[tuple[str, Event]]:
    """Events of any function of a module: (function name, event)."""
    builders = _buffer_methods(module)
    carriers = operators | {
        node.name
        for node in nodes_of(module.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name not in ("forward", "__call__", "__init__", "run")
        and _mentions(node, operators)
    }
    for node in nodes_of(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for found in (
                _mixed_slices(module, node),
                _aliased_views(module, node),
                _collected_views(module, node, builders),
                _self_overwrites(module, node),
                _rebound_output(module, node, carriers),
            ):
                yield from ((node.name, event) for event in found)
    yield from _ignored_attention_types(module)
    yield from _ignored_strings(module)
    yield from _shared_entries(module, operators)
    yield from _captured_lists(module)
    yield from _caches_without_dtype(module)


def _mixed_slices(module: ModuleIndex, node: Function) -> Iterator[Event]:
    """Lengths cut at a token count beside a block table cut at a request count."""
    # Rows up to a bound may as well be one per token, so such cuts are compared within one call.
    bound = _bounds(node)
    yield from _mixed(module, (_cut(item, False, bound) for item in nodes_of(node)))
    for item in nodes_of(node):
        if isinstance(item, ast.Call):
            given = (*item.args, *(keyword.value for keyword in item.keywords))
            yield from _mixed(module, (_cut(argument, True, bound) for argument in given))


def _bounds(node: Function) -> dict[str, str]:
    """Local names of counts, ``n = meta.num_decode_tokens``, by what they stand for."""
    found: dict[str, str] = {}
    stored = [n.id for n in nodes_of(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for item in nodes_of(node):
        if isinstance(item, ast.Assign) and isinstance(item.value, (ast.Name, ast.Attribute)):
            for target in item.targets:
                if isinstance(target, ast.Name) and stored.count(target.id) == 1:
                    found[target.id] = ast.unparse(item.value)
    return found


def _cut(item: ast.AST, upper: bool, bounds: dict[str, str]) -> tuple[str, str, ast.Subscript] | None:
    """Name and bound of ``name[bound:]``, or of ``name[:bound]``."""
    while isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and upper:
        # Casts and copies of what is cut.
        item = item.func.value
    if not isinstance(item, ast.Subscript):
        return None
    first = item.slice.elts[0] if isinstance(item.slice, ast.Tuple) and item.slice.elts else item.slice
    if not isinstance(first, ast.Slice) or first.step is not None:
        return None
    used, other = (first.upper, first.lower) if upper else (first.lower, first.upper)
    if other is not None or not isinstance(used, (ast.Name, ast.Attribute)):
        return None
    name = item.value.attr if isinstance(item.value, ast.Attribute) else getattr(item.value, "id", "")
    text = ast.unparse(used)
    return name, bounds.get(text, text), item


def _mixed(module: ModuleIndex, cuts: Iterable[tuple[str, str, ast.Subscript] | None]) -> Iterator[Event]:
    found = [cut for cut in cuts if cut is not None]
    tables = {bound for name, bound, _ in found if _TABLE.fullmatch(name)}
    if len(tables) != 1:
        return
    other = next(iter(tables))
    for name, bound, item in found:
        if (
            _REQUEST_LENGTHS.fullmatch(name)
            and bound != other
            and "tok" in bound.lower()
            and "tok" not in other.lower()
        ):
            yield Event(
                "token-sliced-lengths", _site(module, item), {"name": name, "bound": bound, "other": other}
            )


def _base(node: ast.expr) -> ast.expr:
    """What a chain of subscripts starts from."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _written_buffer(node: ast.stmt) -> ast.expr | None:
    """The attribute that a statement writes in place: ``E[...] = x``, ``E[...].copy_(x)``, ``E.fill_(x)``."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
        return _base(node.targets[0])
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
    ) and node.value.func.attr in ("copy_", "fill_", "zero_"):
        return _base(node.value.func.value)
    return None


def _view_of(node: ast.expr) -> str | None:
    """The attribute that ``E[...]`` slices without copying it; not an entry picked by a variable."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Slice, ast.Tuple))):
        return None
    inner = node.value
    while isinstance(inner, ast.Subscript):
        if not isinstance(inner.slice, (ast.Slice, ast.Constant)):
            return None
        inner = inner.value
    return ast.unparse(inner) if isinstance(inner, ast.Attribute) else None


def _aliased_views(module: ModuleIndex, node: Function) -> Iterator[Event]:
    """A loop that refills one buffer and keeps a view of it for every round."""
    for loop in nodes_of(node):
        if not isinstance(loop, ast.For):
            continue
        varies = {n.id for n in nodes_of(loop.target) if isinstance(n, ast.Name)}
        written: set[str] = set()
        for item in loop.body:
            buffer = _written_buffer(item)
            if isinstance(buffer, ast.Attribute) and not varies & {
                n.id for n in nodes_of(buffer) if isinstance(n, ast.Name)
            }:
                written.add(ast.unparse(buffer))
            stored: ast.expr | None = None
            if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Subscript):
                key = {n.id for n in nodes_of(item.targets[0].slice) if isinstance(n, ast.Name)}
                stored = (
                    item.value if key & varies and not isinstance(item.targets[0].slice, ast.Slice) else None
                )
            elif (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Call)
                and isinstance(item.value.func, ast.Attribute)
            ):
                stored = item.value.args[0] if item.value.func.attr == "append" and item.value.args else None
            name = _view_of(stored) if stored is not None else None
            if name is not None and name in written:
                yield Event(
                    "aliased-buffer-views", _site(module, item), {"buffer": name, "function": node.name}
                )


def _buffer_methods(module: ModuleIndex) -> dict[str, str]:
    """Methods that fill a buffer of their object and return a view of it: name -> buffer."""
    found: dict[str, str] = {}
    for index in module.classes.values():
        for name, method in index.methods.items():
            written = {
                ast.unparse(b)
                for s in nodes_of(method)
                if isinstance(s, ast.stmt)
                for b in [_written_buffer(s)]
                if isinstance(b, ast.Attribute)
            }
            locals_ = {
                s.targets[0].id: s.value
                for s in nodes_of(method)
                if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name)
            }
            for item in nodes_of(method):
                if isinstance(item, ast.Return) and item.value is not None:
                    for part in _kept_parts(item.value, locals_):
                        view = _view_of(part)
                        if (
                            view is not None
                            and view.startswith("self.")
                            and view in written
                            and "[" not in view
                        ):
                            found.setdefault(name, view)
    return found


def _kept_parts(value: ast.expr, locals_: dict[str, ast.expr]) -> Iterator[ast.expr]:
    """What an object that is returned holds as it is: entries, items, arguments of its constructor."""
    if isinstance(value, ast.Name) and value.id in locals_:
        value = locals_[value.id]
    parts: list[ast.expr] = [value]
    if isinstance(value, (ast.Tuple, ast.List)):
        parts = list(value.elts)
    elif isinstance(value, ast.Dict):
        parts = list(value.values)
    elif isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        if name[:1].isupper() or name == "dict":
            parts = [*value.args, *(keyword.value for keyword in value.keywords)]
    for part in parts:
        yield locals_.get(part.id, part) if isinstance(part, ast.Name) else part


def _collected_views(module: ModuleIndex, node: Function, builders: dict[str, str]) -> Iterator[Event]:
    """``[builder.build(x) for x in ...]`` where every result is a view of the same buffer."""
    for item in nodes_of(node):
        kept: list[tuple[ast.expr, ast.expr | ast.stmt]] = []
        if isinstance(item, (ast.ListComp, ast.DictComp)) and len(item.generators) == 1:
            target = item.generators[0].target
            kept.append((item.elt if isinstance(item, ast.ListComp) else item.value, item))
        elif isinstance(item, ast.For):
            target = item.target
            kept.extend(_kept_in_round(item))
        varies: set[str] | None = None
        for call, place in kept:
            if not (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in builders
            ):
                continue
            if varies is None:
                varies = {n.id for n in nodes_of(target) if isinstance(n, ast.Name)}
                if isinstance(item, ast.For):
                    varies |= {
                        n.id
                        for n in nodes_of(item)
                        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                    }
            owner = {n.id for n in nodes_of(call.func.value) if isinstance(n, ast.Name)}
            if not varies & owner:
                buffer = builders[call.func.attr]
                yield Event(
                    "aliased-buffer-views",
                    _site(module, place),
                    {"buffer": buffer, "function": call.func.attr},
                )


def _kept_in_round(loop: ast.For) -> Iterator[tuple[ast.expr, ast.stmt]]:
    """What a round of a loop adds to a list or stores under a key of its own."""
    locals_: dict[str, ast.expr] = {}
    varies = {n.id for n in nodes_of(loop.target) if isinstance(n, ast.Name)}
    for item in loop.body:
        if isinstance(item, ast.Assign) and len(item.targets) == 1:
            target = item.targets[0]
            if isinstance(target, ast.Name):
                locals_[target.id] = item.value
                continue
            if not isinstance(target, ast.Subscript) or not varies & {
                n.id for n in nodes_of(target.slice) if isinstance(n, ast.Name)
            }:
                continue
            stored = item.value
        elif (
            isinstance(item, ast.Expr)
            and isinstance(item.value, ast.Call)
            and isinstance(item.value.func, ast.Attribute)
            and item.value.func.attr == "append"
            and len(item.value.args) == 1
        ):
            stored = item.value.args[0]
        else:
            continue
        yield (locals_.get(stored.id, stored) if isinstance(stored, ast.Name) else stored), item


_SHARED = re.compile(
    r"(\w+_)?(lens|lengths|seqlens|kvlens|slots|slot_mapping|slot_ids|positions)(_tensor|_device|_npu)?"
)
_STEP_METHODS = ("add_", "sub_", "mul_")


def _self_overwrites(module: ModuleIndex, node: Function) -> Iterator[Event]:
    """A view of the caller's metadata whose entries are moved within itself or advanced."""
    parameters = _parameters(node)
    views: dict[str, str] = {}
    builds = re.match(r"_?(build|make|prepare|assemble|create)", node.name) is not None
    for item in nodes_of(node):
        advanced: ast.expr | None = None
        if isinstance(item, ast.AugAssign) and isinstance(item.op, (ast.Add, ast.Sub, ast.Mult)):
            if not isinstance(item.value, (ast.List, ast.Tuple, ast.ListComp)):
                advanced = item.target
        elif (
            isinstance(item, ast.Expr)
            and isinstance(item.value, ast.Call)
            and isinstance(item.value.func, ast.Attribute)
            and item.value.func.attr in _STEP_METHODS
        ):
            advanced = item.value.func.value
        if advanced is not None:
            base = _base(advanced)
            if builds and isinstance(base, ast.Name) and base.id in views and isinstance(item, ast.stmt):
                yield Event(
                    "metadata-overwritten",
                    _site(module, item),
                    {"buffer": views[base.id], "name": base.id, "function": node.name, "how": "advanced"},
                )
            continue
        if not isinstance(item, ast.Assign) or len(item.targets) != 1:
            continue
        target = item.targets[0]
        if isinstance(target, ast.Name):
            view = _view_of(item.value)
            if view is None and builds and isinstance(item.value, ast.Attribute):
                view = ast.unparse(item.value) if _SHARED.fullmatch(item.value.attr) else None
            root = view.split(".")[0] if view is not None else ""
            if view is not None and root in parameters:
                views[target.id] = view
            else:
                views.pop(target.id, None)
        elif (
            isinstance(target, ast.Subscript)
            and isinstance(target.value, ast.Name)
            and target.value.id in views
        ):
            name = target.value.id
            reads = any(
                isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id == name
                for n in nodes_of(item.value)
            )
            if reads:
                yield Event(
                    "metadata-overwritten",
                    _site(module, item),
                    {"buffer": views[name], "name": name, "function": node.name, "how": "moved"},
                )


_ENCODER_KIND = re.compile(r"(.*_)?(ENCODER(_ONLY)?|BIDIRECTIONAL|NON_?CAUSAL)", re.I)


def _ignored_attention_types(module: ModuleIndex) -> Iterator[tuple[str, Event]]:
    """An enum knows encoder-only layers, layers carry it, and nothing ever looks at it."""
    for cls, index in module.classes.items():
        bases = {ast.unparse(b).rsplit(".", 1)[-1] for b in cls.bases}
        member = next((m for m in index.fields if _ENCODER_KIND.fullmatch(m)), None)
        constants = (
            not index.methods and len(index.fields) > 1 and all(map(_is_constant, index.fields.values()))
        )
        if member is None or not (bases & {"Enum", "IntEnum", "StrEnum"} or (not bases and constants)):
            continue
        loads = [
            n
            for n in nodes_of(module.tree)
            if isinstance(n, ast.Name) and n.id == cls.name and isinstance(n.ctx, ast.Load)
        ]
        if any(id(n) not in _accepting(module, cls.name, member) for n in loads):
            continue
        for owner, holder in module.classes.items():
            for attribute, writers in holder.writers.items():
                if writers != ["__init__"] or _kind_name(cls.name) not in (
                    _kind_name(attribute),
                    f"attn{_kind_name(attribute)}",
                ):
                    continue
                read = any(
                    isinstance(n, ast.Attribute) and n.attr == attribute and isinstance(n.ctx, ast.Load)
                    for n in nodes_of(module.tree)
                )
                if not read:
                    yield (
                        owner.name,
                        Event(
                            "attention-type-ignored",
                            _site(module, index.fields[member][0]),
                            {"enum": cls.name, "member": member, "attribute": attribute, "owner": owner.name},
                        ),
                    )


_MAKES_TENSOR = frozenset(
    ("zeros", "empty", "ones", "full", "randn", "rand", "zeros_like", "empty_like", "tensor")
)


def _shared_entries(module: ModuleIndex, operators: frozenset[str]) -> Iterator[tuple[str, Event]]:
    """``[torch.zeros(...)] * n``: one tensor under every index, where each entry is written by itself."""
    assigned: dict[str, list[tuple[Function, ast.Assign]]] = {}
    for node in nodes_of(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for item in nodes_of(node):
                if isinstance(item, ast.Assign):
                    for target in item.targets:
                        for part in _parts(target):
                            assigned.setdefault(_stored_name(part), []).append((node, item))
    for name, places in assigned.items():
        if len(places) != 1:
            # Another list may be meant.
            continue
        (node, item) = places[0]
        if len(item.targets) == 1 and isinstance(item.targets[0], ast.Attribute):
            scope: ast.AST = module.tree
        elif len(item.targets) == 1 and isinstance(item.targets[0], ast.Name):
            scope = node
        else:
            continue
        if _is_one_tensor(item.value, node) and _entry_written(scope, name, operators):
            detail = {"buffer": ast.unparse(item.targets[0]), "function": node.name, "how": "entries"}
            yield node.name, Event("aliased-buffer-views", _site(module, item), detail)


def _stored_name(node: ast.expr) -> str:
    """``.k`` for an attribute, ``k`` for a variable."""
    return f".{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_one_tensor(value: ast.expr, node: Function) -> bool:
    """Whether a list or dict holds the same new tensor several times."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        sides = (value.left, value.right)
        listed = next((s for s in sides if isinstance(s, ast.List)), None)
        count = next((s for s in sides if not isinstance(s, ast.List)), None)
        if listed is None or len(listed.elts) != 1 or (isinstance(count, ast.Constant) and count.value == 1):
            return False
        return _new_tensor(listed.elts[0], node)
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "dict.fromkeys" and len(value.args) == 2:
        return _new_tensor(value.args[1], node)
    if isinstance(value, (ast.ListComp, ast.DictComp)) and len(value.generators) == 1:
        entry = value.elt if isinstance(value, ast.ListComp) else value.value
        return isinstance(entry, ast.Name) and _new_tensor(entry, node)
    return False


def _new_tensor(value: ast.expr, node: Function) -> bool:
    if isinstance(value, ast.Name):
        made = [
            item.value
            for item in nodes_of(node)
            if isinstance(item, ast.Assign)
            and any(isinstance(p, ast.Name) and p.id == value.id for t in item.targets for p in _parts(t))
        ]
        if len(made) != 1 or value.id in _parameters(node):
            return False
        value = made[0]
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(_new_tensor(part, node) for part in value.elts)
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr in _MAKES_TENSOR:
            return _base_name(value.func.value) in ("torch", "np", "numpy")
        value = value.func.value
    return False


def _base_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _entry_written(scope: ast.AST, name: str, operators: frozenset[str]) -> bool:
    """Whether code writes to the entry of a list or dict that a variable picks."""

    def picked(node: ast.expr) -> bool:
        while isinstance(node, ast.Subscript):
            inner = node.value
            if _stored_name(inner) == name:
                return not isinstance(node.slice, (ast.Constant, ast.Slice))
            node = inner
        return False

    for item in nodes_of(scope):
        if isinstance(item, ast.Assign):
            if any(
                isinstance(t, ast.Subscript) and picked(t.value)
                for target in item.targets
                for t in _parts(target)
            ):
                return True
        elif isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute):
            function = item.func
            if function.attr in ("copy_", "fill_", "zero_", "index_copy_") and picked(function.value):
                return True
            if function.attr in operators and function.attr in _WRITERS:
                given = (*item.args, *(k.value for k in item.keywords))
                if any(picked(argument) for argument in given):
                    return True
    return False


def _ignored_strings(module: ModuleIndex) -> Iterator[tuple[str, Event]]:
    """A layer accepts "encoder_only" as its attention type, keeps it, and nothing ever looks at it."""
    for owner, holder in module.classes.items():
        method = holder.methods.get("__init__")
        for attribute, writers in holder.writers.items() if method is not None else ():
            if writers != ["__init__"] or _kind_name(attribute) != "attntype":
                continue
            read = any(
                isinstance(n, ast.Attribute) and n.attr == attribute and isinstance(n.ctx, ast.Load)
                for n in nodes_of(module.tree)
            )
            for test in nodes_of(method) if method is not None and not read else ():
                # Let in: ``assert x in (...)``, ``if x not in (...): raise``.
                if not (isinstance(test, (ast.Assert, ast.If)) and isinstance(test.test, ast.Compare)):
                    continue
                wanted = ast.In if isinstance(test, ast.Assert) else ast.NotIn
                choices = test.test.comparators[0]
                member = next(
                    (
                        n.value
                        for n in nodes_of(choices)
                        if isinstance(n, ast.Constant)
                        and isinstance(n.value, str)
                        and _ENCODER_KIND.fullmatch(n.value)
                    ),
                    None,
                )
                if member is not None and isinstance(test.test.ops[0], wanted):
                    detail = {"member": repr(member), "enum": "", "attribute": attribute, "owner": owner.name}
                    yield owner.name, Event("attention-type-ignored", _site(module, test.test), detail)


def _accepting(module: ModuleIndex, enum: str, member: str) -> set[int]:
    """The names in the defaults of constructors, and in checks that let the encoder-only member pass."""
    found: set[int] = set()
    for index in module.classes.values():
        method = index.methods.get("__init__")
        if method is None:
            continue
        parts: list[ast.AST] = [*method.args.defaults, *(d for d in method.args.kw_defaults if d is not None)]
        parts += [
            a.annotation for a in (*method.args.args, *method.args.kwonlyargs) if a.annotation is not None
        ]
        for node in nodes_of(method):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.NotIn):
                allowed = ast.unparse(node.comparators[0])
                if f"{enum}.{member}" in allowed:
                    parts.append(node)
        found.update(id(n) for part in parts for n in nodes_of(part))
    return found


def _kind_name(name: str) -> str:
    """``AttentionType``, ``attn_type`` and ``attention_type`` name one thing."""
    return name.lower().replace("_", "").replace("attention", "attn")


def _is_constant(statements: list[ast.stmt]) -> bool:
    return all(
        isinstance(item, (ast.Assign, ast.AnnAssign)) and isinstance(item.value, ast.Constant)
        for item in statements
    )


def _captured_lists(module: ModuleIndex) -> Iterator[tuple[str, Event]]:
    """A list of lengths that is passed while a graph is captured, and only changed in place for a replay."""
    if "graph(" not in module.text or re.search("graph_task|cpu_update_input|auto_dispatch", module.text):
        return
    for cls, index in module.classes.items():
        lists = {
            f"self.{target.attr}"
            for method in index.methods.values()
            for item in nodes_of(method)
            if isinstance(item, ast.Assign) and _is_list(item.value)
            for target in item.targets
            if isinstance(target, ast.Attribute) and _LENGTH.fullmatch(target.attr)
        }
        refilled = {
            ast.unparse(target.value)
            for method in index.methods.values()
            if _calls_method(method, "replay")
            for item in nodes_of(method)
            if isinstance(item, (ast.Assign, ast.AugAssign))
            for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
            if isinstance(target, ast.Subscript)
        }
        for name, method in index.methods.items():
            for block in nodes_of(method):
                if not isinstance(block, ast.With) or not any(
                    isinstance(i.context_expr, ast.Call)
                    and ast.unparse(i.context_expr.func).endswith("npu.graph")
                    for i in block.items
                ):
                    continue
                for call in nodes_of(block):
                    if not isinstance(call, ast.Call):
                        continue
                    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                        text = ast.unparse(argument) if isinstance(argument, ast.Attribute) else ""
                        if text in lists & refilled:
                            detail = {"name": text, "class": cls.name}
                            yield name, Event("lengths-captured", _site(module, argument), detail)


def _is_list(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return isinstance(value.left, ast.List) or isinstance(value.right, ast.List)
    return isinstance(value, (ast.List, ast.ListComp))


def _calls_method(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == name
        for n in nodes_of(node)
    )


def _caches_without_dtype(module: ModuleIndex) -> Iterator[tuple[str, Event]]:
    """``if n > self.n: self.mask = make(n, dtype)`` in a getter that is asked for several dtypes."""
    for index in module.classes.values():
        for name, method in index.methods.items():
            parameters = [a.arg for a in (*method.args.posonlyargs, *method.args.args)][1:]
            if "dtype" not in parameters or name == "__init__":
                continue
            guard = next(
                (
                    item
                    for item in method.body
                    if isinstance(item, ast.If) and not _reads(item.test, "dtype") and not item.orelse
                ),
                None,
            )
            if guard is None or any(_reads(item, "dtype") for item in method.body if item is not guard):
                continue
            kept = {
                t.attr
                for item in nodes_of(guard)
                if isinstance(item, ast.Assign) and _reads(item.value, "dtype")
                for t in item.targets
                if isinstance(t, ast.Attribute) and _MASK_ATTRIBUTE.search(t.attr)
            }
            returned = [item.value for item in nodes_of(method) if isinstance(item, ast.Return)]
            if not kept or not any(
                isinstance(n, ast.Attribute) and n.attr in kept
                for v in returned
                if v is not None
                for n in nodes_of(v)
            ):
                continue
            asked: dict[str, set[str]] = {}
            for call in nodes_of(module.tree):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.func.attr == name
                ):
                    given = {k.arg: k.value for k in call.keywords if k.arg}
                    position = parameters.index("dtype")
                    value = given.get("dtype") or (call.args[position] if position < len(call.args) else None)
                    text = ast.unparse(value) if value is not None else ""
                    if re.fullmatch(r"torch\.[a-z]+\d*", text):
                        asked.setdefault(ast.unparse(call.func.value), set()).add(text)
            for owner, dtypes in asked.items():
                if len(dtypes) > 1:
                    detail = {"method": name, "owner": owner, "dtypes": " and ".join(sorted(dtypes))}
                    yield name, Event("cache-without-dtype", _site(module, guard.test), detail)


_MASK_ATTRIBUTE = re.compile(r"mask", re.I)


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in nodes_of(node))


def _unused_mask(module: ModuleIndex, node: Function, calls: list[Call]) -> Iterator[Event]:
    wanting = [
        call
        for call in calls
        if call.has("mask")
        and call.opaque is None
        and not call.trail
        and all(isinstance(call.arg(role).value, Absent) for role in ("mask", "q_lens", "kv_lens"))
    ]
    if not wanting:
        return
    reads = {n.id for n in nodes_of(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    if "locals" in reads:
        return
    ordinary = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    idle = [arg.arg for arg in ordinary if arg.arg not in reads and arg.arg not in ("self", "cls")]
    if sum(1 for name in idle if not _MASK_PARAMETER.fullmatch(name)) > 1:
        # A signature that is shared with other implementations, most of which this one has no use for.
        return
    documented = ast.get_docstring(node) or ""
    for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if _MASK_PARAMETER.fullmatch(arg.arg) and arg.arg not in reads:
            if re.search(
                rf"\b{arg.arg}\b[^:]*:?\s*(\n\s*)?[^\n]*\b(reserved|unused|ignored|not used|unsupported)",
                documented,
                re.I,
            ):
                continue
            yield Event(
                "mask-parameter-unused",
                _site(module, arg),
                {"name": arg.arg, "function": node.name, "operator": wanting[0].operator.full_name},
            )


def _rebound_output(module: ModuleIndex, node: Function, carriers: frozenset[str]) -> Iterator[Event]:
    """``output, _ = op(...)`` where ``output`` is the caller's buffer and nothing writes into it.

    ``carriers`` are the names of operators and of the functions that call one.
    """
    parameters = sorted(_parameters(node) & _OUTPUT_PARAMETER)
    if not parameters or not _mentions(node, carriers):
        return
    assigns = [item for item in nodes_of(node) if isinstance(item, ast.Assign)]
    results = _derived(assigns, carriers)
    returns = [n for n in nodes_of(node) if isinstance(n, ast.Return) and n.value is not None]
    for name in parameters:
        if _is_optional(node, name) or _filled(node, name):
            # An optional buffer is made here when it is missing.
            continue
        rebound = next(
            (
                item
                for item in assigns
                if any(isinstance(p, ast.Name) and p.id == name for t in item.targets for p in _parts(t))
                and (
                    _mentions(item.value, carriers)
                    or (
                        # Made of a result and never looked at: it was meant to reach the caller.
                        not returns
                        and _mentions(item.value, frozenset(results - {name}))
                        and not _read_after(node, name, item)
                    )
                )
            ),
            None,
        )
        if rebound is not None and not _read_before(node, name, rebound):
            yield Event("output-rebound", _site(module, rebound), {"parameter": name, "function": node.name})


def _parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _derived(assigns: list[ast.Assign], carriers: frozenset[str]) -> set[str]:
    """The variables that hold the result of an operator, or what is made of it."""
    found: set[str] = set()
    for item in sorted(assigns, key=lambda item: item.lineno):
        if _mentions(item.value, carriers) or _mentions(item.value, frozenset(found)):
            found.update(p.id for t in item.targets for p in _parts(t) if isinstance(p, ast.Name))
    return found


def _filled(node: Function, name: str) -> bool:
    """Whether something is written into a buffer."""
    for item in nodes_of(node):
        if isinstance(item, (ast.Assign, ast.AugAssign)):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            if any(isinstance(t, ast.Subscript) and _base_name(_base(t)) == name for t in targets):
                return True
        elif isinstance(item, ast.Call):
            function = item.func
            if (
                isinstance(function, ast.Attribute)
                and _base_name(_base(function.value)) == name
                and function.attr.endswith("_")
            ):
                return True
            if any(
                k.arg in ("out", "output", "attn_out")
                and any(isinstance(n, ast.Name) and n.id == name for n in nodes_of(k.value))
                for k in item.keywords
            ):
                return True
    return False


def _is_optional(node: Function, name: str) -> bool:
    """Whether a parameter may be None, by its default or its annotation."""
    for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if (
            arg.arg == name
            and arg.annotation is not None
            and re.search(r"Optional|None", ast.unparse(arg.annotation))
        ):
            return True
    positional = [*node.args.posonlyargs, *node.args.args]
    for arg, default in zip(reversed(positional), reversed(node.args.defaults), strict=False):
        if arg.arg == name:
            return isinstance(default, ast.Constant) and default.value is None
    for arg, default_or_none in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=False):
        if arg.arg == name:
            return isinstance(default_or_none, ast.Constant) and default_or_none.value is None
    return False


def _read_after(node: Function, name: str, rebound: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Name)
        and n.id == name
        and isinstance(n.ctx, ast.Load)
        and n.lineno > (rebound.end_lineno or rebound.lineno)
        for n in nodes_of(node)
    )


def _read_before(node: Function, name: str, rebound: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Name)
        and n.id == name
        and isinstance(n.ctx, ast.Load)
        and n.lineno <= rebound.lineno
        for n in nodes_of(node)
    )


def _site(module: ModuleIndex, node: ast.stmt | ast.expr | ast.arg) -> LineSite:
    """The place of an ``ast`` node; its columns count bytes, ours count characters."""

    def column(line: int, offset: int) -> int:
        return len(module.lines[line - 1].encode()[:offset].decode(errors="replace")) + 1

    site = LineSite(module.path, node.lineno, column(node.lineno, node.col_offset))
    site.end_line = node.end_lineno or node.lineno
    site.end_column = column(site.end_line, node.end_col_offset or 0)
    return site
