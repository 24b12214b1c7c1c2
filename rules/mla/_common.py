"""What the rules about split rope parts (MLA) share."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.sizes import constant
from kvlint.contract.tri import Tri


def with_rope(call: Call) -> Tri:
    """Whether the rope parts are passed on their own, as the author means it."""
    return call.arg("query_rope").meant | call.arg("key_rope").meant


def absorbed(call: Call) -> Tri:
    """Whether this is absorbed MLA: rope parts and head dim 512."""
    rope = with_rope(call)
    return rope if rope.no else rope & constant(call.head_dim).equals(512)
