"""What the static reader knows of one value, for tests of the reader.

of("torch.zeros(2, 3)").shape        # the facts of a mask argument written that way
of("m", "m = torch.ones(4)\\nm = m[None]")
"""

from __future__ import annotations

from textwrap import dedent, indent

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.tri import Fact
from support.examples import calls_of

OP = "npu_fused_infer_attention_score"
IMPORTS = (
    "import functools, itertools, math\nimport torch, torch_npu, torchair\nimport torch.nn.functional as F\n"
)
PARAMETERS = "q, k, v, x, y, z, a, b, c, n, m, heads, table, positions, lens"


def only(source: str) -> Call:
    """The only operator call of a module."""
    (call,) = calls_of(IMPORTS + dedent(source))
    return call


def within(body: str, parameters: str = PARAMETERS) -> Call:
    """The only operator call of a function with this body."""
    text = indent(dedent(body).strip("\n"), "    ")
    return only(f"def function({parameters}):\n{text}\n")


def of(expression: str, before: str = "") -> Arg:
    """The facts of a value, passed as a mask."""
    body = dedent(before).strip("\n")
    return within(f"{body}\ntorch_npu.{OP}(q, k, v, atten_mask={expression})").arg("mask")


def sizes(arg: Arg) -> list[str] | None:
    """The shape by labels; a question mark for an unknown size."""
    shape = arg.shape.get(None)
    return None if shape is None else [label(size) for size in shape]


def label(size: Num | None) -> str:
    """How a size reads in a message."""
    return "?" if size is None else size.label


def possible(fact: Fact[object]) -> set[object] | None:
    """The possible values of a fact, None when nothing is known."""
    return None if fact.values is None else set(fact.values)
