"""What the rules about quantisation and the sink share."""

from __future__ import annotations

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.tri import NO, YES, Fact, Tri, any_of

FLOATS = ("float16", "bfloat16")
INT4 = ("int32", "quint4x2")
"""Containers of packed int4 values."""


def decode_engine(call: Call) -> Tri:
    """Whether the decode engine serves the call (contract 1.6); PFA and IFA have one engine each."""
    if call.operator.family == "ifa":
        return YES
    return call.decode_engine if call.operator.family == "fia" else NO


def kv_scale(call: Call) -> Tri:
    """Whether any scale for a quantised key or value is passed."""
    roles = ("key_quant_scale", "value_quant_scale", "merged_quant_scale")
    return any_of(call.arg(role).present for role in roles)


def whole(fact: Fact[Num]) -> int | None:
    """The size when it is one integer constant."""
    return fact.value.integer if fact.known else None


def shown(arg: Arg) -> str:
    """The dtype for a message."""
    return arg.dtype.get("of unknown dtype")
