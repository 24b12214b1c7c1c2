"""What the rules about cache writers share."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.tri import Tri, tri, unknown
from kvlint.contract.values import Tensor, Unknown, Value

KV_RMSNORM = (
    "npu_kv_rmsnorm_rope_cache",
    "npu_kv_rmsnorm_rope_cache_v2",
    "npu_kv_rmsnorm_rope_cache_v2_functional",
)
SCATTER_PA = ("npu_scatter_pa_kv_cache", "npu_scatter_pa_kv_cache_functional")
RESHAPE = ("_npu_reshape_and_cache", "_npu_reshape_and_cache_siso")
PROLOG = ("npu_mla_prolog", "npu_mla_prolog_v2", "npu_mla_prolog_v3", "npu_mla_prolog_v3_functional")
QUANT_SCATTER = ("npu_quant_scatter", "npu_quant_scatter_")
ND_UPDATE = ("npu_scatter_nd_update", "npu_scatter_nd_update_")
SCATTER = ("scatter_update", "scatter_update_")

# The schemas of these do not say that the caches are written.
_UNDECLARED = {"npu_kv_rmsnorm_rope_cache": ("k_cache", "ckv_cache")}


def targets(call: Call) -> Iterator[Arg]:
    """The tensors the operator writes into."""
    hidden = _UNDECLARED.get(call.operator.name, ())
    for param in call.operator.params:
        if param.mutated or param.name in hidden:
            yield call.named(param.name)


def result_unused(call: Call, index: int | None = None) -> Tri:
    """Whether a result (or every one) is certainly never read."""
    use = call.use
    if use.dropped:
        return tri(True)
    if use.whole is not None:
        return tri(False)
    if use.read is None:
        return unknown("what the code does with the result is not known", call.place)
    return tri(not use.read if index is None else index not in use.read)


def same_dtype(left: Arg, right: Arg) -> Tri:
    """Whether two tensors have one dtype."""
    mine, theirs = left.dtype, right.dtype
    if not (mine.known and theirs.known):
        return Tri(None, mine.notes if not mine.known else theirs.notes)
    return tri(mine.value == theirs.value, *mine.notes, *theirs.notes)


def labels(arg: Arg) -> tuple[str, ...]:
    """How the source names the argument, lower case; empty where it does not."""
    found = []
    for value in arg.options:
        label = _label(value)
        if label is None:
            return ()
        found.append(label.lower())
    return tuple(found)


def _label(value: Value) -> str | None:
    return value.label if isinstance(value, (Tensor, Unknown)) else None


def readers(call: Call, target: Arg) -> Iterator[tuple[Call, Arg]]:
    """Attention calls of the same function whose key or value is the very tensor, in its own shape."""
    if call.scope is None or not target.identity.known:
        return
    for other in call.scope.calls:
        if other.operator.family not in ("fia", "ifa", "pfa"):
            continue
        for role in ("key", "value"):
            cache = other.arg(role)
            if cache.same_as(target).yes:
                yield other, cache
