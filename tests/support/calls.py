"""Hand-built calls for rule tests that need no source text.

    call("npu_fused_infer_attention_score", tensor(2, "heads", 16, 64), num_heads=named("heads"))

Plain Python values become constants and lists; :func:`tensor`, :func:`named`, :func:`anything` and
:func:`either` make the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from kvlint.contract.call import Call, Target, Use, bind
from kvlint.contract.catalogue import find
from kvlint.contract.num import Num
from kvlint.contract.paths import Cond
from kvlint.contract.rule import Outcome, Rule, judge
from kvlint.contract.tri import Note
from kvlint.contract.values import (
    ABSENT,
    NO_CONTENT,
    Choice,
    Const,
    Content,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

_fresh = count()

Size = int | str | Num | None


def size(value: Size) -> Num | None:
    """A dimension: a constant, a quantity the author named, a number, or unknown."""
    if isinstance(value, str):
        return Num.atom(value, value, declared=True)
    return Num.of(value) if isinstance(value, int) else value


def tensor(
    *shape: Size,
    dtype: str | None = None,
    key: str | None = None,
    content: Content = NO_CONTENT,
    strided: bool = False,
    device: str | None = None,
) -> Tensor:
    """A tensor; without sizes even its rank is unknown."""
    return Tensor(
        key=key or next(_fresh),
        dtypes=(dtype,) if dtype else None,
        shape=tuple(size(dim) for dim in shape) if shape else None,
        content=content,
        strided=Note("it is transposed") if strided else None,
        device=device,
    )


def named(label: str) -> Unknown:
    """A number or object that the author named: a parameter, an attribute, a configuration entry."""
    return Unknown(label, label, "it is a parameter", declared=True)


def anything(label: str = "value") -> Unknown:
    """A value nothing is known of."""
    return Unknown((label, next(_fresh)), label, "it comes from an unknown call")


def number(value: Num) -> Number:
    """A symbolic number."""
    return Number(value)


def either(condition: str, yes: object, no: object = ABSENT) -> Choice:
    """``yes if condition else no``."""
    return Choice(Cond("truth", condition, label=condition), value_of(yes), value_of(no))


def value_of(item: object) -> Value:
    """The abstract value of a Python object."""
    if isinstance(item, Value):
        return item
    if isinstance(item, (list, tuple)):
        return Sequence(tuple(value_of(part) for part in item), type(item).__name__)
    return Const(item)


def call(
    operator: str,
    *positional: object,
    target: Target | None = None,
    opaque: bool = False,
    use: Use | None = None,
    **keywords: object,
) -> Call:
    """A call of an operator, named ``name`` or ``name.overload``."""
    name, _, overload = operator.partition(".")
    found = find(name, overload, target.torch_npu if target else None)
    if found is None:
        raise LookupError(operator)
    passed: Mapping[str, tuple[Value, None]] = {key: (value_of(item), None) for key, item in keywords.items()}
    note = Note("the caller's own keywords are passed on") if opaque else None
    binding = bind(found, [(value_of(item), None) for item in positional], passed, note)
    return Call(found, binding, target or Target(), None, use=use or Use())


def outcomes(rule: Rule, judged: Call) -> list[Outcome]:
    """What the rule says about the call over every path."""
    return [verdict.outcome for verdict in judge(rule, judged)]


def outcome(rule: Rule, judged: Call) -> Outcome:
    """The worst of :func:`outcomes`."""
    found = outcomes(rule, judged)
    order = (Outcome.VIOLATED, Outcome.UNDECIDED, Outcome.PROVED, Outcome.NOT_APPLICABLE)
    return next((item for item in order if item in found), Outcome.NOT_APPLICABLE)
