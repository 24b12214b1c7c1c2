"""Injects known misuses into correct operator calls, one at a time.

A kind of misuse is a function from a call to the edits that make it wrong; it answers None where it does
not apply, or where what it changes could not be known from the file. Every kind names the rules that
should answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import libcst as cst

from kvlint.contract.rule import find_rule

from .source import Argument, Call, Edit, Predicate, Source, called, constant

Edits = list[Edit]


@dataclass
class Change:
    """The edits of one misuse.

    ``also`` are further places where the misuse may be reported: the other half of a contradiction.
    """

    edits: Edits
    also: list[cst.CSTNode] = field(default_factory=list)


Inject = Callable[[Call], "Change | Edits | None"]


@dataclass(frozen=True)
class Kind:
    """A kind of misuse."""

    name: str
    codes: frozenset[str]
    inject: Inject
    local: bool
    """Whether only the call itself is looked at and changed."""
    elsewhere: bool
    """Whether the rule judges something else than the call: another call, or the code around it."""


@dataclass(frozen=True)
class Mutant:
    """A file with one misuse in it."""

    kind: Kind
    operator: str
    line: int
    text: str
    lines: frozenset[int]
    """Where it may be reported."""


KINDS: list[Kind] = []


def kind(name: str, *codes: str, local: bool = False, elsewhere: bool = False) -> Callable[[Inject], Inject]:
    """Registers a kind."""

    def register(inject: Inject) -> Inject:
        KINDS.append(Kind(name, frozenset(codes), inject, local, elsewhere))
        return inject

    return register


def mutants(text: str, kinds: list[Kind] | None = None) -> Iterator[Mutant]:
    """Every misuse of every call of a file, in a fixed order."""
    source = Source(text)
    calls = source.calls()
    for item in KINDS if kinds is None else kinds:
        rules = [rule for rule in map(find_rule, sorted(item.codes)) if rule is not None]
        seen: set[str] = set()
        for call in calls:
            served = item.elsewhere or any(rule.applies_to(call.operator) for rule in rules)
            if call.opened or not served:
                continue
            change = item.inject(call)
            if isinstance(change, list):
                change = Change(change)
            if change is None or not change.edits:
                continue
            result = source.apply(change.edits)
            if result == text or result in seen:
                continue
            seen.add(result)
            nodes = [source.statement(call.node), call.node, *change.also]
            nodes = [node for node in nodes if not isinstance(node, (cst.FunctionDef, cst.If))]
            nodes += [source.statement(argument.node) for argument in call.arguments.values()]
            nodes += [_holder(source, edit) for edit in change.edits]
            yield Mutant(
                item,
                call.op,
                source.raw.count(b"\n", 0, source.span(call.node)[0]) + 1,
                result,
                source.lines(nodes, change.edits),
            )


def _holder(source: Source, edit: Edit) -> cst.CSTNode:
    around = [
        node
        for node in source.nodes
        if isinstance(node, cst.SimpleStatementLine)
        and source.span(node)[0] <= edit.start
        and edit.end <= source.span(node)[1] + 1
    ]
    return around[-1]


# -- questions about a call ---------------------------------------------------------------------------


def layout(call: Call) -> object:
    """The layout of the queries."""
    found = call.constant("layout") if call.arg("layout") else call.constant("layout_q")
    return found if found is not None or call.arg("layout") else "BSH"


def mode(call: Call) -> object:
    """The literal sparse mode, 0 when it is not passed."""
    return call.constant("sparse_mode") if call.arg("sparse_mode") else 0


def named(*names: str) -> Predicate:
    """Whether an expression calls a function with one of these names."""
    return lambda node: called(node) in names


def spelled(source: Source, *texts: str) -> Predicate:
    """Whether an expression is written so."""
    return lambda node: source.text(node) in texts


def one_token(call: Call) -> bool:
    """Whether the query visibly has one token per sequence, in a layout with a batch axis."""
    axis = {"BSH": 1, "BSND": 1, "BNSD": 2}.get(str(layout(call)))
    view = call.find("query", named("view", "reshape"))
    if axis is None or not isinstance(view, cst.Call) or len(view.args) <= axis:
        return False
    return call.source.text(view.args[axis].value) == "1"


def boolean(call: Call) -> bool:
    """Whether the mask is visibly boolean."""
    is_bool = spelled(call.source, "torch.bool")
    return (
        call.find("mask", is_bool) is not None or call.find("mask", named("bool", "logical_not")) is not None
    )


def absorbed(call: Call) -> bool:
    """Whether the call has split rope parts and a query that is visibly 512 wide."""
    if call.arg("query_rope") is None:
        return False
    view = call.find("query", named("view", "reshape"))
    if not isinstance(view, cst.Call):
        return False
    return constant(call.source, view.args[-1].value) == 512


def triangle(call: Call) -> cst.Call | None:
    """The call of triu or tril that makes the mask."""
    found = call.find("mask", named("triu", "tril"))
    return found if isinstance(found, cst.Call) else None


def function_name(node: cst.Call) -> cst.CSTNode:
    """The last name of what is called."""
    return node.func.attr if isinstance(node.func, cst.Attribute) else node.func


def _value(call: Call, name: str) -> cst.BaseExpression:
    found = call.arg(name)
    assert found is not None
    return found.value


def swap(call: Call, one: str, other: str) -> Edits | None:
    """Exchanges two arguments."""
    first, second = call.arg(one), call.arg(other)
    if first is None or second is None or call.text(one) == call.text(other):
        return None
    return [
        call.source.replace(first.value, call.text(other)),
        call.source.replace(second.value, call.text(one)),
    ]


def peers(call: Call) -> list[cst.CSTNode]:
    """The other operator calls of the same class."""
    owner = call.source.above(call.node, cst.ClassDef)
    return [
        item.node
        for item in call.source.calls()
        if owner is not None
        and item.node is not call.node
        and call.source.above(item.node, cst.ClassDef) is owner
    ]


# -- names, heads, scale ------------------------------------------------------------------------------


@kind("scale left out", "KV101", "KV112", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("scale")


_OTHER_NAMES = {
    "fia v1": {
        "scale": "softmax_scale",
        "num_heads": "num_query_heads",
        "actual_seq_lengths_kv": "actual_seq_kvlen",
    },
    "fia v2": {
        "softmax_scale": "scale",
        "num_query_heads": "num_heads",
        "actual_seq_kvlen": "actual_seq_lengths_kv",
    },
    "pfa": {"scale_value": "scale", "num_heads": "num_query_heads"},
    "ifa": {"scale_value": "scale", "actual_seq_lengths": "actual_seq_lengths_kv"},
    "fusion": {"actual_seq_qlen": "actual_seq_lengths", "scale": "scale_value"},
    "atb": {"num_kv_heads": "num_key_value_heads", "scale_value": "scale"},
    "sparse": {"layout_kv": "layout_key"},
    "indexer": {"layout_key": "layout_kv"},
}


def _renamed(call: Call, index: int) -> Edits | None:
    family = f"{call.family} {call.operator.version}".strip()
    table = list((_OTHER_NAMES.get(family) or _OTHER_NAMES.get(call.family) or {}).items())
    if index >= len(table):
        return None
    old, new = table[index]
    found = call.arguments.get(old)
    if found is None or found.key is None:
        return None
    text = f'"{new}"' if isinstance(found.key, cst.SimpleString) else new
    return [call.source.replace(found.key, text)]


@kind("keyword of the other version", "KV102", local=True)
def _(call: Call) -> Edits | None:
    return _renamed(call, 0)


@kind("second keyword of the other version", "KV102", local=True)
def _(call: Call) -> Edits | None:
    return _renamed(call, 1)


@kind("keyword misspelt", "KV102", local=True)
def _(call: Call) -> Edits | None:
    found = call.arg("mask") or call.arg("kv_lens") or call.arg("cache_mode")
    if found is None or found.key is None:
        return None
    text = call.source.text(found.key)
    return [call.source.replace(found.key, text.replace("a", "e", 1))]


@kind("heads left out", "KV103", "KV112", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("q_heads")


@kind("KV heads left out", "KV104", "KV505", "KV112")
def _(call: Call) -> Edits | None:
    # Packed keys without a block table show their heads themselves.
    if call.text("kv_heads") == call.text("q_heads") or (
        layout(call) == "TND" and not call.arg("block_table")
    ):
        return None
    return call.drop("kv_heads")


@kind("query and KV heads exchanged", "KV105", "KV106", "KV118", "KV119", "KV505")
def _(call: Call) -> Edits | None:
    return swap(call, "q_heads", "kv_heads")


@kind("scale of all heads together", "KV108", "KV109")
def _(call: Call) -> Edits | None:
    found = call.find("scale", lambda node: isinstance(node, cst.BinaryOperation | cst.Call))
    if found is None or call.find("query", named("view", "reshape")) is None or call.arg("query_rope"):
        return None
    match = re.fullmatch(r"(?:1\.0 / math\.sqrt\((.+)\)|(.+)\*\*-0\.5)", call.source.text(found))
    if match is None:
        return None
    dim = match.group(1) or match.group(2)
    return [call.source.replace(found, f"({call.text('q_heads')} * {dim}) ** -0.5")]


@kind("scale of the absorbed width", "KV109", "KV108")
def _(call: Call) -> Edits | None:
    return call.set("scale", "(512 + 64) ** -0.5") if absorbed(call) or call.family == "sparse" else None


@kind("scale falls back to 1.0", "KV107")
def _(call: Call) -> Edits | None:
    name, function = call.text("scale"), call.source.function(call.node)
    for node in call.source.nodes:
        if (
            isinstance(node, cst.If)
            and call.source.function(node) is function
            and call.source.text(node.test) == f"{name} is None"
        ):
            for value in call.source.origins(_value(call, "scale")):
                if call.source.above(value, cst.If) is node:
                    return [call.source.replace(value, "1.0")]
    return None


@kind("required argument left out", "KV112", local=True)
def _(call: Call) -> Edits | None:
    for name in ("weights", "slots", "updates", "kv_heads", "value"):
        found = call.arg(name)
        param = call.operator.param(found.name) if found else None
        if found is not None and param is not None and param.required:
            last = (
                found.key is None and found.node is not [a for a in call.node.args if a.keyword is None][-1]
            )
            return None if last else [call.source.remove(found.node)]
    return None


@kind("keyword-only argument passed by position", "KV111", local=True)
def _(call: Call) -> Edits | None:
    keywords = [arg for arg in call.node.args if arg.keyword is not None]
    if not keywords or not isinstance(keywords[0].keyword, cst.Name):
        return None
    param = call.operator.param(keywords[0].keyword.value)
    if param is None or param.position is not None or any(arg.star for arg in call.node.args):
        return None
    return [call.source.replace(keywords[0], call.source.text(keywords[0].value))]


@kind("layout misspelt", "KV115", local=True)
def _(call: Call) -> Edits | None:
    for role in ("layout", "layout_q", "layout_kv"):
        text = call.text(role)
        if re.fullmatch(r'"\w+"', text):
            return call.set(role, f'"{text[1]}{text[2:-1][::-1]}"')
    return None


@kind("another layout of the same tensors", "KV116", "KV105", "KV106", "KV120", "KV507", "KV405", "KV407")
def _(call: Call) -> Edits | None:
    view = call.find("query", named("view"))
    other = {"TND": "BSND", "BNSD": "BSH", "BSND": "TND"}.get(str(layout(call)))
    if other is None or not isinstance(view, cst.Call) or call.arg("layout") is None:
        return None
    return call.set("layout", f'"{other}"')


@kind("result unpacked into too many names", "KV131", local=True)
def _(call: Call) -> Edits | None:
    statement = call.source.above(call.node, cst.Assign)
    if not isinstance(statement, cst.Assign) or statement.value is not call.node:
        return None
    target = statement.targets[0].target
    if not isinstance(target, cst.Tuple) or any(isinstance(e, cst.StarredElement) for e in target.elements):
        return None
    end = call.source.span(target)[1]
    return [Edit(end, end, ", _more")]


@kind("result of an operator without one", "KV132")
def _(call: Call) -> Edits | None:
    if call.operator.returns or not isinstance(call.source.above(call.node, cst.Expr), cst.Expr):
        return None
    start, end = call.source.span(call.node)
    statement = call.source.statement(call.node)
    indent = " " * (start - call.source.raw.rfind(b"\n", 0, start) - 1)
    assert isinstance(statement, cst.SimpleStatementLine)
    return [Edit(start, start, "result = "), Edit(end, end, f"\n{indent}result.add_(1)")]


@kind("query in float32", "KV126", "KV125", local=True)
def _(call: Call) -> Edits | None:
    return call.wrap("query", "{}.float()") if call.family in ("fia", "pfa", "ifa") else None


@kind("transposed cache", "KV114", "KV405", "KV406", "KV411", "KV116", "KV106", "KV127")
def _(call: Call) -> Edits | None:
    if call.find("key", named("view", "zeros")) is None or call.family != "fia":
        return None
    return call.wrap("key", "{}.transpose(1, 2)")


@kind("list where a tensor is read", "KV113", local=True)
def _(call: Call) -> Edits | None:
    name = "block_table" if call.arg("block_table") else "slots"
    return call.wrap(name, "{}.tolist()") if call.arg(name) else None


@kind("string where an integer is read", "KV113", local=True)
def _(call: Call) -> Edits | None:
    return call.set("sparse_mode", '"3"') if call.arg("sparse_mode") else None


@kind("keep_prob is the dropout", "KV134")
def _(call: Call) -> Edits | None:
    match = re.fullmatch(r"1\.0 - (.+)", call.text("keep_prob"))
    return call.set("keep_prob", match.group(1)) if match else None


@kind("attention_mode left out", "KV138", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("attention_mode")


@kind("output buffer of another width", "KV133")
def _(call: Call) -> Edits | None:
    buffer, view = call.find("out", named("empty_like")), call.find("query", named("view"))
    if buffer is None or not isinstance(view, cst.Call) or len(view.args) != 3:
        return None
    heads, dim = (call.source.text(arg.value) for arg in view.args[1:])
    return call.set("out", f"query.new_empty(query.shape[0], {heads}, 2 * {dim})")


# -- mask and sparse mode -----------------------------------------------------------------------------


@kind("float mask", "KV202")
def _(call: Call) -> Edits | None:
    return call.wrap("mask", "{}.to(torch.float32)") if call.arg("mask") else None


@kind("boolean mask for ATB", "KV213", "KV203")
def _(call: Call) -> Edits | None:
    return call.wrap("mask", "{}.bool()") if call.arg("mask") and call.family == "atb" else None


@kind("lower for upper triangle", "KV203", "KV205", "KV212")
def _(call: Call) -> Edits | None:
    found = triangle(call)
    if found is None:
        return None
    name = function_name(found)
    return [call.source.replace(name, "tril" if call.source.text(name) == "triu" else "triu")]


@kind("mask inverted once more", "KV203", "KV212", "KV205")
def _(call: Call) -> Edits | None:
    if triangle(call) is None or call.family == "atb":
        return None
    return call.wrap("mask", "~{}" if boolean(call) else "({} == 0)")


@kind("mask hides the diagonal", "KV205", "KV212", "KV203")
def _(call: Call) -> Edits | None:
    found = triangle(call)
    if found is None:
        return None
    if called(found) == "triu":
        offset = [arg for arg in found.args if arg.keyword and arg.keyword.value == "diagonal"]
        return [call.source.replace(offset[0].value, "0")] if offset else None
    last = call.source.span(found.args[-1])[1]
    return [Edit(last, last, ", diagonal=-1")]


@kind("compressed mask of another size", "KV204", "KV217", "KV321", "KV316")
def _(call: Call) -> Edits | None:
    ones = call.find("mask", named("ones"))
    if not isinstance(ones, cst.Call) or mode(call) not in (2, 3, 4):
        return None
    sizes = [
        node
        for arg in ones.args
        for node in (
            [e.value for e in arg.value.elements] if isinstance(arg.value, cst.List) else [arg.value]
        )
        if isinstance(node, cst.Integer) and node.value == "2048"
    ]
    return [call.source.replace(node, "1024") for node in sizes] or None


@kind("no mask in a mode that needs one", "KV201", "KV211", local=True)
def _(call: Call) -> Edits | None:
    return call.set("mask", "None") if call.arg("mask") and mode(call) in (2, 3, 4) else None


@kind("mask left out in a mode that needs one", "KV201", "KV211", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("mask") if mode(call) in (2, 3, 4) else None


def _bad_mode(call: Call, value: int) -> Edits | None:
    if call.name_of("sparse_mode") is None or (call.family == "fusion" and value < 9):
        return None
    return call.set("sparse_mode", str(value))


_MODE_CODES = ("KV208", "KV209", "KV225", "KV201", "KV235", "KV238")


@kind("sparse mode 5", *_MODE_CODES, local=True)
def _(call: Call) -> Edits | None:
    return _bad_mode(call, 5)


@kind("sparse mode 99", *_MODE_CODES, local=True)
def _(call: Call) -> Edits | None:
    return _bad_mode(call, 99)


@kind("next_tokens=0 for a causal mask", "KV207", "KV211")
def _(call: Call) -> Edits | None:
    if call.family not in ("fia", "pfa") or one_token(call) or call.arg("block_table"):
        return None
    names = [name for name in ("mask", "sparse_mode", "pre_tokens") if call.arg(name)]
    edits = call.drop(*names)
    if edits is None or triangle(call) is None or (call.family == "pfa" and not call.arg("next_tokens")):
        return None
    return edits if call.arg("next_tokens") else edits + call.set("next_tokens", "0")


@kind("left-up mode over a paged cache", "KV209", "KV210", "KV225")
def _(call: Call) -> Edits | None:
    if mode(call) != 3 or not call.arg("block_table") or not call.arg("mask"):
        return None
    return call.set("sparse_mode", "2")


@kind("mode 1 with packed tokens", "KV209", "KV225", local=True)
def _(call: Call) -> Edits | None:
    if mode(call) != 3 or layout(call) != "TND" or call.family != "fia":
        return None
    return call.set("sparse_mode", "1")


@kind("mask without mode in TND", "KV220", "KV225", local=True)
def _(call: Call) -> Edits | None:
    if layout(call) != "TND" or call.family != "fia" or not call.arg("mask"):
        return None
    return call.drop("sparse_mode")


@kind("compressed mask for one token", "KV206", "KV225", "KV224")
def _(call: Call) -> Edits | None:
    if call.family != "fia" or not one_token(call) or call.arg("mask"):
        return None
    mask = "torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)"
    modes = call.set("sparse_mode", f"3, atten_mask={mask}")
    return modes if not absorbed(call) else None


@kind("window in the causal mode", "KV218")
def _(call: Call) -> Edits | None:
    return call.set("sparse_mode", "3") if mode(call) == 4 and call.arg("pre_tokens") else None


@kind("no band between the token limits", "KV221", "KV226")
def _(call: Call) -> Edits | None:
    if mode(call) != 4 or not call.arg("pre_tokens"):
        return None
    return call.set("pre_tokens", "-1") + call.set("next_tokens", "-1")


@kind("mode absorbed attention does not have", "KV225", "KV209", "KV201", local=False)
def _(call: Call) -> Edits | None:
    return call.set("sparse_mode", "1") if absorbed(call) else None


# -- lengths ------------------------------------------------------------------------------------------


@kind("key lengths left out with a block table", "KV304", "KV305", "KV112", "KV301", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("kv_lens") if call.arg("block_table") else None


@kind("running sums of keys with a block table", "KV303", "KV307", local=True)
def _(call: Call) -> Edits | None:
    if not call.arg("block_table") or not call.arg("kv_lens") or call.family == "atb":
        return None
    return call.wrap("kv_lens", "torch.cumsum(torch.as_tensor({}), 0)")


@kind("query ends passed as key lengths", "KV303")
def _(call: Call) -> Edits | None:
    sums = call.find("q_lens", named("cumsum", "accumulate"))
    if sums is None or not call.arg("block_table") or not call.arg("kv_lens"):
        return None
    return call.set("kv_lens", call.text("q_lens"))


@kind("running sums for ATB", "KV306", "KV308")
def _(call: Call) -> Edits | None:
    return call.wrap("q_lens", "torch.cumsum({}, 0)") if call.arg("q_lens") else None


@kind("lengths on the device for ATB", "KV308")
def _(call: Call) -> Edits | None:
    return call.wrap("q_lens", "{}.npu()") if call.arg("q_lens") else None


@kind("differences for packed queries", "KV302", local=True)
def _(call: Call) -> Edits | None:
    if layout(call) != "TND" or call.arg("q_lens") is None or call.family not in ("fia", "fusion", "sparse"):
        return None
    return call.wrap("q_lens", "torch.diff(torch.as_tensor({}))")


@kind("lengths that are summed elsewhere, for packed queries", "KV302")
def _(call: Call) -> Edits | None:
    found = call.find("q_lens", named("cumsum", "accumulate"))
    if layout(call) != "TND" or not isinstance(found, cst.Call):
        return None
    if called(found) == "cumsum" and isinstance(found.func, cst.Attribute):
        torch_call = call.source.text(found.func.value) == "torch"
        inner = found.args[0].value if torch_call else found.func.value
    else:
        inner = found.args[0].value
    function = call.source.function(call.node)
    if call.source.function(found) is not function or call.text("q_lens") == call.source.text(inner):
        return None
    return call.set("q_lens", call.source.text(inner)) if call.text("q_lens").isidentifier() else None


@kind("query lengths left out in TND", "KV301", "KV305", "KV112", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("q_lens") if layout(call) == "TND" else None


@kind("running sums in a layout with a batch axis", "KV307", "KV303")
def _(call: Call) -> Edits | None:
    if layout(call) not in ("BSH", "BNSD", "BSND") or not call.arg("kv_lens") or call.arg("block_table"):
        return None
    return call.wrap("kv_lens", "torch.cumsum(torch.as_tensor({}), 0)")


@kind("lengths left on the host for sparse attention", "KV330")
def _(call: Call) -> Edits | None:
    moved = call.find("kv_lens", named("npu"))
    if call.family not in ("sparse", "indexer") or not isinstance(moved, cst.Call):
        return None
    assert isinstance(moved.func, cst.Attribute)
    return [call.source.replace(moved, call.source.text(moved.func.value))]


@kind("64-bit lengths", "KV309", "KV308")
def _(call: Call) -> Edits | None:
    role = "kv_lens" if call.arg("kv_lens") else "q_lens"
    dtype = call.find(role, spelled(call.source, "torch.int32"))
    if call.family not in ("sparse", "indexer", "atb") or dtype is None:
        return None
    return [call.source.replace(dtype, "torch.int64")]


@kind("cache read without lengths", "KV319", "KV304")
def _(call: Call) -> Edits | None:
    if call.find("key", named("zeros")) is None or call.arg("mask") or call.arg("block_table"):
        return None
    return call.drop("kv_lens")


# -- paged cache --------------------------------------------------------------------------------------


@kind("64-bit block table", "KV401", local=True)
def _(call: Call) -> Edits | None:
    return call.wrap("block_table", "{}.long()") if call.arg("block_table") else None


@kind("flat block table", "KV402", local=True)
def _(call: Call) -> Edits | None:
    return call.wrap("block_table", "{}.flatten()") if call.arg("block_table") else None


@kind("block size left out", "KV403", "KV112", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("block_size") if call.arg("block_table") else None


@kind("block size 100", "KV404", "KV406", local=True)
def _(call: Call) -> Edits | None:
    return call.set("block_size", "100") if call.arg("block_size") and call.arg("block_table") else None


@kind("block size of another cache", "KV406", "KV404")
def _(call: Call) -> Edits | None:
    size = call.constant("block_size")
    if not isinstance(size, int) or call.find("key", named("view", "zeros")) is None:
        return None
    return call.set("block_size", str(size * 2))


@kind("cache as (blocks, block, heads, dim)", "KV405")
def _(call: Call) -> Edits | None:
    view = call.find("key", named("view"))
    if not isinstance(view, cst.Call) or len(view.args) != 3 or call.arg("query_rope"):
        return None
    last = view.args[-1].value
    if not isinstance(last, cst.BinaryOperation) or not call.arg("block_table"):
        return None
    left, right = call.source.text(last.left), call.source.text(last.right)
    return [call.source.replace(last, f"{left}, {right}")]


@kind("slots of another block size", "KV618")
def _(call: Call) -> Edits | None:
    found = call.find("slots", lambda node: called(node).startswith("slots"))
    if not isinstance(found, cst.Call) or found.args[-1].keyword is not None:
        return None
    return [call.source.replace(found.args[-1].value, "64")]


# -- latent attention ---------------------------------------------------------------------------------


@kind("rope part of the query left out", "KV501", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("query_rope")


@kind("rope part of the key left out", "KV501", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("key_rope")


@kind("rope part half as wide", "KV502", "KV503")
def _(call: Call) -> Edits | None:
    view = call.find("query_rope", named("view"))
    return call.wrap("query_rope", "{}[..., :32]") if view is not None else None


@kind("latent and rope cache exchanged", "KV514", "KV506", "KV502", "KV504")
def _(call: Call) -> Edits | None:
    return swap(call, "key", "key_rope")


@kind("value is the rope cache", "KV506")
def _(call: Call) -> Edits | None:
    return call.set("value", call.text("key_rope")) if call.arg("key_rope") and call.arg("value") else None


@kind("two KV heads in absorbed attention", "KV505", "KV106", "KV411")
def _(call: Call) -> Edits | None:
    return call.set("kv_heads", "2") if absorbed(call) else None


@kind("KV layout left out with a block table", "KV440", local=True)
def _(call: Call) -> Edits | None:
    return call.drop("layout_kv") if call.arg("block_table") else None


@kind("sparse modes of indexer and attention differ", "KV234", "KV208", "KV225")
def _(call: Call) -> Change | None:
    if call.family != "sparse" or mode(call) != 3:
        return None
    return Change(call.set("sparse_mode", "0"), peers(call))


# -- cache writes -------------------------------------------------------------------------------------


def _cache(call: Call, *roles: str) -> Argument | None:
    if not isinstance(call.source.above(call.node, cst.Expr), cst.Expr):
        return None  # What was written to may be used as the result.
    return next((found for role in roles if (found := call.arg(role))), None)


@kind("rope and nope cache exchanged", "KV608", "KV619")
def _(call: Call) -> Edits | None:
    return swap(call, "rope_cache", "nope_cache")


@kind("sin and cos exchanged", "KV609")
def _(call: Call) -> Edits | None:
    return swap(call, "cos", "sin")


@kind("cache mode misspelt", "KV605", local=True)
def _(call: Call) -> Edits | None:
    text = call.text("cache_mode")
    if not re.fullmatch(r'"\w+"', text):
        return None
    return call.set("cache_mode", text.replace("_", "-").replace("Norm", "norm"))


@kind("cache mode of another operator", "KV605", local=True)
def _(call: Call) -> Edits | None:
    text = call.text("cache_mode")
    other = {'"PA_NZ"': '"PA_BSND"', '"Norm"': '"PA"', '"PA_BSND"': '"PA"'}.get(text)
    return call.set("cache_mode", other) if other else None


@kind("writer and reader in different formats", "KV650", elsewhere=True)
def _(call: Call) -> Change | None:
    other = {'"PA_NZ"': '"PA"', '"PA_BSND"': '"PA_NZ"'}.get(call.text("cache_mode"))
    if other is None or call.arg("rope_cache") is None:
        return None
    return Change(call.set("cache_mode", other), peers(call))


@kind("NZ mode on a plain cache", "KV606")
def _(call: Call) -> Edits | None:
    return call.set("cache_mode", '"PA_NZ"') if call.text("cache_mode") == '"Norm"' else None


@kind("cache mode left to PA_NZ on a plain cache", "KV606")
def _(call: Call) -> Edits | None:
    return call.drop("cache_mode") if call.text("cache_mode") == '"Norm"' else None


@kind("slots of a dtype that is not read", "KV603", local=True)
def _(call: Call) -> Edits | None:
    role = "slots" if call.arg("slots") else "indices"
    if not call.arg(role):
        return None
    cast = {"_npu_reshape_and_cache": "long", "npu_scatter_nd_update_": "float", "scatter_update_": "float"}
    other = "short" if "scatter_pa" in call.op else "int"
    return call.wrap(role, f"{{}}.{cast.get(call.op, other)}()")


@kind("functional instead of in-place writer", "KV601", local=True, elsewhere=True)
def _(call: Call) -> Edits | None:
    if not call.op.endswith("update_") or not isinstance(call.source.above(call.node, cst.Expr), cst.Expr):
        return None
    return [call.source.replace(function_name(call.node), call.op[:-1])]


@kind("scatter along another axis", "KV610", "KV611")
def _(call: Call) -> Edits | None:
    other = {1: "2", 2: "1"}.get(call.constant("axis"))  # type: ignore[call-overload]
    return call.set("axis", other) if other else None


@kind("write into a clone", "KV602", local=True)
def _(call: Call) -> Edits | None:
    found = _cache(call, "data", "key_cache", "nope_cache")
    return call.wrap(found.name, "{}.clone()") if found else None


@kind("write into a contiguous copy", "KV602", "KV610", "KV611", local=True)
def _(call: Call) -> Edits | None:
    found = _cache(call, "data", "key_cache", "nope_cache")
    return call.wrap(found.name, "{}.transpose(0, 1).contiguous()") if found else None


@kind("write into rows that were picked", "KV602", local=True)
def _(call: Call) -> Edits | None:
    found = _cache(call, "data", "key_cache", "nope_cache")
    return call.wrap(found.name, "{}[[0, 1]]") if found else None


@kind("length advanced inside the layer", "KV701", elsewhere=True)
def _(call: Call) -> Edits | None:
    owner = call.source.above(call.node, cst.ClassDef)
    function = call.source.function(call.node)
    name = call.text("indices")
    if call.op != "scatter_update_" or function is None or not isinstance(owner, cst.ClassDef):
        return None
    if not any(base in owner.name.value for base in ("Attention", "Layer")):
        return None
    if "len" not in name or name not in [param.name.value for param in function.params.params]:
        return None
    start, end = call.source.span(call.node)
    indent = " " * (start - call.source.raw.rfind(b"\n", 0, start) - 1)
    return [Edit(end, end, f"\n{indent}{name} += 1")]


@kind("scale for one of key and value", "KV808", "KV807")
def _(call: Call) -> Edits | None:
    name = call.name_of("key_quant_scale")
    if call.family != "fia" or name is None or call.arg("query_rope"):
        return None
    return call.set(name, "torch.ones(8)")
