"""Values with very many alternatives keep what these have in common; a variable that is read is bound."""

from __future__ import annotations

from textwrap import dedent

import pytest
from support.examples import calls_of
from support.probe import IMPORTS, OP, of, possible, within

from kvlint.contract.num import Num
from kvlint.contract.rule import Outcome, find_rule, judge

TESTS = [f"a.flag{number}" for number in range(70)]


def chain(name: str, expression: str, count: int = 70) -> str:
    """A variable that one of many tests gives another value; a number in it is written ``#``."""
    lines = [f"{name} = {expression.replace('#', '1')}"]
    for number, test in enumerate(TESTS[:count]):
        lines += [f"if {test}:", f"    {name} = {expression.replace('#', str(number + 2))}"]
    return "\n".join(lines) + "\n"


class TestMany:
    @pytest.mark.parametrize("count", [5, 20, 40, 70])
    def test_common_facts_are_kept(self, count: int) -> None:
        mask = of("m", chain("m", "torch.zeros(#, 2048, dtype=torch.bool)", count))
        assert possible(mask.dtype) == {"bool"}
        assert possible(mask.rank) == {2}
        assert mask.is_none.no

    def test_what_is_made_of_them(self) -> None:
        before = chain("m", "torch.zeros(#, 2048, dtype=torch.bool)")
        turned = of("m.transpose(0, 1).int()", before)
        assert turned.dim(0).get(None) == Num.of(2048)
        assert possible(turned.dtype) == {"int32"}

    def test_of_several_at_once(self) -> None:
        before = chain("m", "torch.zeros(#, 8, dtype=torch.int8)", 12)
        before += chain("w", "torch.zeros(#, 8, dtype=torch.int8)", 12).replace("a.flag", "b.flag")
        joined = of("torch.cat([m, w], dim=-1)", before)
        assert possible(joined.dtype) == {"int8"}
        assert possible(joined.rank) == {2}

    def test_sizes_of_them(self) -> None:
        before = chain("m", "torch.zeros(2, #, 8, dtype=torch.int8)", 30)
        view = of("m.view(*m.shape[:2], 2, 4)", before)
        assert possible(view.rank) == {4}

    def test_alternatives_that_share_nothing(self) -> None:
        before = chain("m", "torch.zeros(#, 8)") + "if x:\n    m = torch.zeros(3, dtype=torch.int64)\n"
        mask = of("m", before)
        assert mask.rank.values is None or len(mask.rank.values) == 2
        assert not mask.dtype.equals("float32").yes

    def test_none_is_not_lost(self) -> None:
        mask = of("m", chain("m", "torch.zeros(#, 8).bool()") + "if x:\n    m = None\n")
        assert mask.is_none.unknown

    def test_a_write_to_one_of_them_counts(self) -> None:
        before = "first = torch.zeros(2048, 2048, dtype=torch.bool)\nm = first\n"
        before += chain("other", "torch.zeros(#, 2048, dtype=torch.bool)")
        before += "if x:\n    m = other\n"
        assert of("m", before).fill.equals(0).yes is False
        assert not of("m", before + "first.fill_(1)\n").fill.equals(0).yes

    def test_no_finding_from_one_of_them(self) -> None:
        source = chain("mask", "torch.zeros(#, 2048)") + "if x:\n    mask = None\n"
        call = within(f"{source}torch_npu.{OP}(q, k, v, num_heads=8, scale=1.0, atten_mask=mask)")
        rule = find_rule("KV202")
        assert rule is not None
        assert all(verdict.outcome is not Outcome.VIOLATED for verdict in judge(rule, call))


class TestBound:
    @pytest.mark.parametrize(
        "before",
        [
            "if c:\n    mask = torch.ones(4).bool()",
            "for i in x:\n    mask = torch.ones(4).bool()",
            "try:\n    mask = torch.ones(4).bool()\nexcept ValueError:\n    pass",
            "if c:\n    mask = torch.ones(4).bool()\nelif n:\n    mask = torch.zeros(5).bool()",
        ],
    )
    def test_a_variable_that_is_read_is_set(self, before: str) -> None:
        assert possible(of("mask", before).dtype) == {"bool"}

    def test_so_is_one_that_is_copied(self) -> None:
        assert possible(of("w", "if c:\n    mask = torch.ones(4).bool()\nw = mask").dtype) == {"bool"}

    def test_never_set(self) -> None:
        assert of("mask", "if c:\n    pass").dtype.values is None

    def test_what_is_around_a_function_counts(self) -> None:
        source = f"""
            def outer(q, k, v, c, mask):
                def inner():
                    nonlocal mask
                    if c:
                        mask = torch.ones(4).bool()
                    torch_npu.{OP}(q, k, v, atten_mask=mask)
                inner()
        """
        calls = calls_of(IMPORTS + dedent(source))
        assert calls
        assert all(call.arg("mask").dtype.values is None for call in calls)

    def test_what_is_deleted_is_not_read(self) -> None:
        assert possible(of("mask", "mask = torch.ones(4).bool()\nif c:\n    del mask").dtype) == {"bool"}


class TestNested:
    def test_choices_within_choices(self) -> None:
        before = "\n".join(f"{'    ' * depth}if {TESTS[depth]}:" for depth in range(9))
        before = "mask = torch.ones(1).bool()\n" + before + f"\n{'    ' * 9}mask = torch.ones(2).bool()\n"
        assert possible(of("mask", before).dtype) == {"bool"}
