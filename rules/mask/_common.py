"""What the rules about masks and sparse modes share."""

from __future__ import annotations

import re

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Atom, Num
from kvlint.contract.paths import Cond
from kvlint.contract.tri import Fact, Tri, tri
from kvlint.contract.values import Choice, Join, Tensor, Unknown, Value

COMPRESSED = (2, 3, 4)
SIDE = 2048

# Token limits from here on are written to mean "no limit" (65535 is the usual spelling in vision models).
UNLIMITED = 65535


def one_token_path(call: Call) -> bool:
    """Whether a test on this path says that the queries are one token long: nothing is there to hide."""
    for cond, holds in call.assumed.items():
        if not holds or not re.search(r"q|len|tok|seq|step", cond.label.lower()):
            continue
        limit = {"le": 1, "lt": 2, "eq": 1}.get(cond.kind)
        if limit is not None and cond.const == limit:
            return True
    return False


def absorbed(call: Call) -> Tri:
    """Whether this is absorbed MLA, as the author means it: rope parts passed on, head dim 512."""
    dim = constant_length(call.head_dim)
    if dim is None:
        return Tri(None, call.head_dim.notes)
    return tri(dim == 512, *call.head_dim.notes) & (call.arg("query_rope").meant | call.arg("key_rope").meant)


def mode_among(call: Call, *modes: int) -> Tri:
    """Whether sparse_mode is certainly (not) one of ``modes``."""
    return call.arg("sparse_mode").constant.among(modes)


def sparse_mode(call: Call) -> object:
    """The value of sparse_mode for a message."""
    return call.arg("sparse_mode").constant.get("?")


def constant_dim(arg: Arg, axis: int) -> int | None:
    """The size of an axis when it is one known integer."""
    size = arg.dim(axis)
    return size.value.integer if size.known else None


def constant_length(size: Fact[Num]) -> int | None:
    """A sequence length when it is one known integer."""
    return size.value.integer if size.known else None


def runtime_atoms(call: Call) -> frozenset[Atom]:
    """The numbers that the shapes of query and key are made of."""
    found: set[Atom] = set()
    for role in ("query", "key", "value"):
        for option in call.arg(role).options:
            if isinstance(option, Tensor):
                for size in option.shape or ():
                    if size is not None:
                        found |= size.atoms()
    return frozenset(found)


def follows_query(call: Call, size: Num) -> bool:
    """Whether a mask axis is sized by what the tensors of this very call are sized by."""
    names = [
        option.label
        for role in ("query", "key", "value")
        for option in call.arg(role).options
        if isinstance(option, (Tensor, Unknown)) and option.label.isidentifier()
    ]
    atoms = size.atoms()
    if atoms & runtime_atoms(call):
        return True
    return any(atom.label.startswith((f"{name}.shape", f"{name}.size(")) for atom in atoms for name in names)


def ever(value: Value, kind: type[Value]) -> bool:
    """Whether a value has an alternative of a kind on any path, feasible here or not."""
    if isinstance(value, Choice):
        return ever(value.yes, kind) or ever(value.no, kind)
    if isinstance(value, Join):
        return any(ever(option, kind) for option in value.options)
    return isinstance(value, kind)


def alternatives(value: Value) -> list[Value]:
    """Every alternative on any path, feasible here or not."""
    if isinstance(value, Choice):
        return [*alternatives(value.yes), *alternatives(value.no)]
    if isinstance(value, Join):
        return [leaf for option in value.options for leaf in alternatives(option)]
    return [value]


def conditions(value: Value) -> list[Cond]:
    """The tests that choose between the alternatives."""
    if isinstance(value, Choice):
        return [value.cond, *conditions(value.yes), *conditions(value.no)]
    if isinstance(value, Join):
        return [cond for option in value.options for cond in conditions(option)]
    return []
