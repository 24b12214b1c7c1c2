"""Keywords through dicts: what reaches the call on which path, and what is admitted to be unknown."""

from __future__ import annotations

from textwrap import dedent

import pytest
from support.examples import calls_of
from support.probe import IMPORTS, OP, only, within

from kvlint.contract.call import Call
from kvlint.contract.values import Absent, Choice, Const

CALL = f"torch_npu.{OP}(q, k, v, **d)"
SAME = {
    "literal": 'd = {"scale": 0.5, "sparse_mode": 3}',
    "dict()": "d = dict(scale=0.5, sparse_mode=3)",
    "dict of a dict": 'd = dict({"scale": 0.5}, sparse_mode=3)',
    "stores": 'd = {}\nd["scale"] = 0.5\nd["sparse_mode"] = 3',
    "overwritten": 'd = {"scale": 9, "sparse_mode": 3}\nd["scale"] = 0.5',
    "update with a dict": 'd = {"scale": 0.5}\nd.update({"sparse_mode": 3})',
    "update with keywords": 'd = {"scale": 9}\nd.update(scale=0.5, sparse_mode=3)',
    "unpacked in a literal": 'e = {"scale": 0.5}\nd = {**e, "sparse_mode": 3}',
    "overridden in a literal": 'e = {"scale": 9}\nd = {**e, "scale": 0.5, "sparse_mode": 3}',
    "union": 'd = {"scale": 0.5} | {"sparse_mode": 3}',
    "union in place": 'd = {"scale": 9}\nd |= {"scale": 0.5, "sparse_mode": 3}',
    "copy": 'e = {"scale": 0.5, "sparse_mode": 3}\nd = e.copy()\ne["scale"] = 9',
    "dict copy": 'e = {"scale": 0.5, "sparse_mode": 3}\nd = dict(e)\ne["scale"] = 9',
    "alias": 'e = {"scale": 9, "sparse_mode": 3}\nd = e\ne["scale"] = 0.5',
    "pop": 'd = {"scale": 0.5, "sparse_mode": 3, "pre_tokens": 1}\nd.pop("pre_tokens")',
    "pop with default": 'd = {"scale": 0.5, "sparse_mode": 3}\nd.pop("pre_tokens", None)',
    "del": 'd = {"scale": 0.5, "sparse_mode": 3, "pre_tokens": 1}\ndel d["pre_tokens"]',
    "setdefault": 'd = {"scale": 0.5}\nd.setdefault("scale", 9)\nd.setdefault("sparse_mode", 3)',
    "constant key": 'KEY = "scale"\nd = {KEY: 0.5, "sparse_mode": 3}',
    "clear": 'd = {"pre_tokens": 1}\nd.clear()\nd.update(scale=0.5, sparse_mode=3)',
}


@pytest.mark.parametrize("form", SAME)
def test_entries_are_followed(form: str) -> None:
    call = within(f"{SAME[form]}\n{CALL}")
    assert call.opaque is None
    assert [arg.name for arg in call.args()] == ["query", "key", "value", "scale", "sparse_mode"]
    assert call.arg("scale").constant.value == 0.5
    assert call.arg("sparse_mode").constant.value == 3


def test_several_dicts_and_keywords_at_one_call() -> None:
    call = within(
        f'd, e = dict(scale=0.5), {{"sparse_mode": 3}}\ntorch_npu.{OP}(q, k, v, **d, num_heads=8, **e)'
    )
    values = [call.arg(role).constant.value for role in ("scale", "sparse_mode", "q_heads")]
    assert values == [0.5, 3, 8]


def test_a_literal_at_the_call() -> None:
    assert within(f'torch_npu.{OP}(q, k, v, **{{"scale": 0.5}})').arg("scale").constant.value == 0.5


def test_positional_arguments_from_a_list() -> None:
    call = within(f"args = [q, k]\ntorch_npu.{OP}(*args, v, scale=0.5)")
    identities = [call.arg(role).value for role in ("query", "key", "value")]
    assert [getattr(value, "label", None) for value in identities] == ["q", "k", "v"]


class TestConditional:
    def under(self, body: str) -> Call:
        return within(f"{body}\n{CALL}")

    def test_an_entry_set_under_a_test_is_absent_otherwise(self) -> None:
        value = self.under('d = {"scale": 0.5}\nif c:\n    d["sparse_mode"] = 3').arg("sparse_mode").value
        assert isinstance(value, Choice)
        assert value.cond.label == "c"
        assert value.yes == Const(3) and isinstance(value.no, Absent)

    def test_an_entry_set_on_both_sides(self) -> None:
        mode = self.under('d = {}\nif c:\n    d["sparse_mode"] = 3\nelse:\n    d["sparse_mode"] = 0').arg(
            "sparse_mode"
        )
        assert mode.given.yes
        assert set(mode.constant.values or ()) == {0, 3}

    def test_a_whole_dict_chosen_by_a_test(self) -> None:
        call = self.under('d = {"scale": 0.5, "sparse_mode": 3} if c else {"scale": 0.5}')
        assert call.arg("scale").constant.value == 0.5
        assert call.arg("sparse_mode").given.unknown

    def test_an_update_under_a_test(self) -> None:
        assert self.under("d = {}\nif c:\n    d.update(sparse_mode=3)").arg("sparse_mode").given.unknown

    def test_an_update_with_a_chosen_dict(self) -> None:
        call = self.under('d = {"scale": 0.5}\nd.update({"sparse_mode": 3} if c else {})')
        assert call.arg("scale").given.yes and call.arg("sparse_mode").given.unknown

    def test_an_entry_taken_out_under_a_test(self) -> None:
        assert self.under('d = {"scale": 0.5}\nif c:\n    d.pop("scale")').arg("scale").given.unknown

    def test_a_keyword_that_no_schema_has_is_certain_only_on_every_path(self) -> None:
        always = self.under('d = {"softmax_scale": 0.5}').binding.unexpected
        sometimes = self.under('d = {}\nif c:\n    d["softmax_scale"] = 0.5').binding.unexpected
        assert [keyword.certain for keyword in (*always, *sometimes)] == [True, False]

    def test_a_loop_may_leave_an_entry_out(self) -> None:
        assert self.under('d = {}\nfor i in c:\n    d["sparse_mode"] = 3').arg("sparse_mode").given.unknown

    def test_entries_that_a_helper_made_stay_on_the_other_path(self) -> None:
        call = only(f"""
            def build():
                return {{"scale": 0.5}}
            def f(q, k, v, c):
                d = build()
                if c:
                    d["sparse_mode"] = 3
                {CALL}
        """)
        assert call.arg("scale").constant.value == 0.5
        assert call.arg("sparse_mode").given.unknown


UNKNOWN = {
    "parameter": f"def f(q, k, v, d):\n    {CALL}",
    "keywords of the function": f"def f(q, k, v, **d):\n    {CALL}",
    "result of an unknown call": f"def f(q, k, v):\n    d = options()\n    {CALL}",
    "attribute": f"class A:\n    def f(self, q, k, v):\n        d = self.config.options\n        {CALL}",
    "key of a variable": f"def f(q, k, v, name):\n    d = {{name: 1}}\n    {CALL}",
    "store at a variable": f"def f(q, k, v, name):\n    d = {{}}\n    d[name] = 1\n    {CALL}",
    "comprehension": f"def f(q, k, v, e):\n    d = {{n: x for n, x in e.items()}}\n    {CALL}",
    "update with a parameter": f"def f(q, k, v, e):\n    d = {{}}\n    d.update(e)\n    {CALL}",
    "unpacked parameter": f"def f(q, k, v, e):\n    d = {{**e}}\n    {CALL}",
    "given away": f"def f(q, k, v):\n    d = {{}}\n    fill(d)\n    {CALL}",
    "positional unpacking": f"def f(*d):\n    torch_npu.{OP}(*d)",
}


@pytest.mark.parametrize("form", UNKNOWN)
def test_what_is_not_visible_makes_the_call_opaque(form: str) -> None:
    call = only(UNKNOWN[form])
    assert call.opaque is not None
    assert call.arg("scale").given.unknown and call.arg("mask").is_none.unknown


def test_a_dict_known_in_part_keeps_its_known_entries() -> None:
    call = only(f"""
        def f(q, k, v, **rest):
            d = dict(rest)
            d["scale"] = 0.5
            {CALL}
    """)
    assert call.opaque is not None
    assert call.arg("scale").constant.value == 0.5


def test_the_place_of_an_entry_is_where_it_is_written() -> None:
    call = only(f"""
        def f(q, k, v):
            d = {{"scale": 0.5}}
            d["sparse_mode"] = 3
            {CALL}
    """)
    lines = [place.line for place in (call.arg("scale").place, call.arg("sparse_mode").place) if place]
    first = (
        dedent("""
        def f(q, k, v):
    """).count("\n")
        + 3
    )
    assert lines == [first + 1, first + 2]


class TestAcrossFunctions:
    def test_keywords_passed_on_by_a_helper_are_those_of_its_caller(self) -> None:
        calls = _all(f"""
            def attend(q, k, v, **d):
                return {CALL}
            def run(q, k, v):
                return attend(q, k, v, scale=0.5, sparse_mode=3)
        """)
        scales = [call.arg("scale").constant.get(None) for call in calls]
        assert 0.5 in scales

    def test_module_constants(self) -> None:
        call = only(f"""
            COMMON = {{"scale": 0.5}}
            def f(q, k, v):
                torch_npu.{OP}(q, k, v, **COMMON, sparse_mode=3)
        """)
        assert call.arg("scale").constant.value == 0.5 and call.opaque is None

    def test_attribute_set_in_the_constructor(self) -> None:
        call = only(f"""
            class A:
                def __init__(self, heads):
                    self.options = {{"num_heads": heads, "scale": 0.5}}
                def run(self, q, k, v):
                    torch_npu.{OP}(q, k, v, **self.options)
        """)
        assert call.arg("scale").constant.value == 0.5 and call.opaque is None


def _all(source: str) -> list[Call]:
    return calls_of(IMPORTS + dedent(source))
