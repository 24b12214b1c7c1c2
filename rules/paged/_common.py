"""What the rules about paged caches share."""

from __future__ import annotations

import re

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.sizes import constant, equal, kept_apart
from kvlint.contract.tri import NO, YES, Fact, Tri, all_of, tri
from kvlint.contract.values import Absent, Unknown


def paged(call: Call) -> Tri:
    """Whether the call reads its keys through a block table, as its author means it.

    A table that is passed on and may be None for other callers counts: the arguments that belong to it are
    there for the calls where it is not.
    """
    table, size = call.arg("block_table"), call.arg("block_size")
    if table.given.unknown and isinstance(table.value, Absent) and size.given.yes:
        # The rest of a partial call: a block size is bound for the table that comes later.
        return ~size.constant.among((0, None)) if size.constant.values else YES
    return table.meant if table.is_none.unknown else table.present


def no_rope(call: Call) -> bool:
    """Whether this is not MLA: no rope parts, and none to come later with a KV head count of its own."""
    if call.opaque is None:
        return call.rope.no
    heads = call.kv_heads
    grouped = heads.known and heads.value.integer not in (0, 1) and call.arg("kv_heads").given.yes
    seen = (call.arg("query_rope").given, call.arg("key_rope").given)
    return grouped and not any(given.yes for given in seen)


def _own_axis(cache: Arg, size: Fact[Num]) -> int | None:
    """Which axis of a tensor of unknown shape a number was read from."""
    if not size.known or size.value.single is None or not isinstance(cache.value, Unknown):
        return None
    found = re.fullmatch(r"(.*)\.shape\[(\d+)\]", size.value.single.label)
    return int(found.group(2)) if found and found.group(1) == cache.value.label else None


def split_heads(call: Call, cache: Arg) -> Tri:
    """Whether a 4-D cache is (blocks, block, heads, dim), the order FIA does not know (contract 1.5).

    The author's own arguments tell: axis 1 is the block size and not the number of KV heads.
    """
    rank = cache.rank.equals(4)
    block, heads = call.arg("block_size").number, call.kv_heads
    if rank.unknown and _own_axis(cache, block) == 1 and _own_axis(cache, heads) == 2:
        return tri(True, *block.notes, *heads.notes)
    if not rank.yes:
        return rank
    is_block = equal(cache.dim(1), block)
    not_heads = kept_apart(cache.dim(1), heads)
    if is_block.yes and (not_heads.yes or equal(cache.dim(2), heads).yes):
        return all_of((rank, is_block)) if not equal(cache.dim(1), cache.dim(2)).yes else NO
    if equal(cache.dim(2), heads).yes and constant(cache.dim(1)).known and not_heads.yes:
        # Heads on axis 2 and a constant on axis 1 that is another number than the heads.
        return all_of((rank, not_heads))
    if equal(cache.dim(1), heads).yes or equal(cache.dim(2), block).yes:
        return NO
    return Tri(None, (*cache.shape.notes, *is_block.notes))
