"""Objects of named tuples where their items are used by position; results of ``map``."""

from __future__ import annotations

import pytest
from support.probe import of, only, possible, sizes

PAIR = """
    from typing import NamedTuple

    class Pair(NamedTuple):
        first: torch.Tensor
        second: torch.Tensor

    class Other:
        first: torch.Tensor

    def attend(q, k, v, x, y, n):
        pair = Pair(x.int(), y.bool())
        {before}
        torch_npu.npu_fused_infer_attention_score({call})
"""


@pytest.mark.parametrize(
    ("before", "call", "dtype"),
    [
        ("a, b = pair", "q, k, v, atten_mask=b", {"bool"}),
        ("pass", "q, k, v, atten_mask=pair[0]", {"int32"}),
        ("pass", "q, k, v, atten_mask=pair[-1]", {"bool"}),
        ("b, _ = Pair(first=x.half(), second=y)", "q, k, v, atten_mask=b", {"float16"}),
        ("a, b = Other()", "q, k, v, atten_mask=b", None),
    ],
)
def test_items_of_a_named_tuple(before: str, call: str, dtype: set[str] | None) -> None:
    assert possible(only(PAIR.format(before=before, call=call)).arg("mask").dtype) == dtype


def test_a_named_tuple_unpacked_into_arguments() -> None:
    call = only(PAIR.format(before="pass", call="q, *pair"))
    assert possible(call.arg("key").dtype) == {"int32"}
    assert possible(call.arg("value").dtype) == {"bool"}


@pytest.mark.parametrize(
    ("expression", "before"),
    [
        ("b", "a, b = map(lambda t: t.view(2, 8), [x, y])"),
        ("list(map(lambda t: t.view(2, 8), (x, y)))[0]", ""),
        ("b", "a, b, c = map(shaped, x.chunk(3, dim=-1))"),
    ],
)
def test_results_of_map(expression: str, before: str) -> None:
    helper = "def shaped(t):\n    return t.view(2, 8)\n"
    assert sizes(of(expression, helper + before)) == ["2", "8"]


def test_map_over_what_is_not_visible() -> None:
    assert sizes(of("b", "a, b = map(lambda t: t.view(2, 8), x)")) is None
