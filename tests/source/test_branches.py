"""Which values meet at a call: branches, early returns, loops, exceptions, and what stays correlated."""

from __future__ import annotations

import pytest
from support.examples import calls_of
from support.probe import OP, only, within

from kvlint.contract.call import Call
from kvlint.contract.paths import Cond
from kvlint.contract.rule import Outcome, find_rule, judge
from kvlint.contract.values import Choice

CALL = f"torch_npu.{OP}(q, k, v, sparse_mode=mode, atten_mask=mask)"
NO_MASK = find_rule("KV201")


def verdict(call: Call) -> Outcome:
    """What the rule "modes 2 to 4 need a mask" says."""
    assert NO_MASK is not None
    return judge(NO_MASK, call)[0].outcome


def modes(call: Call) -> set[object] | None:
    values = call.arg("sparse_mode").constant.values
    return None if values is None else set(values)


IN_STEP = {
    "one if for both": "if c:\n    mode, mask = 3, a.bool()\nelse:\n    mode, mask = 0, None",
    "two ifs on one test": """
mode, mask = 0, None
if c:
    mode = 3
n()
if c:
    mask = a.bool()
""",
    "two ternaries": "mode = 3 if c else 0\nmask = a.bool() if c else None",
    "negated ternary": "mode = 3 if c else 0\nmask = None if not c else a.bool()",
    "test kept in a variable": """
masked = c is not None
mode = 3 if masked else 0
mask = c.bool() if masked else None
""",
    "same test written twice": "mode = 3 if n > 1 else 0\nmask = a.bool() if n > 1 else None",
    "opposite comparison": "mode = 3 if n > 1 else 0\nmask = None if n <= 1 else a.bool()",
    "swapped comparison": "mode = 3 if n > 1 else 0\nmask = a.bool() if 1 < n else None",
    "implied comparison": "mode = 3 if n > 4 else 0\nmask = a.bool() if n > 1 else None",
    "equality and its negation": "mode = 3 if n == 'on' else 0\nmask = None if n != 'on' else a.bool()",
    "mode by the mask": "mask = a.bool() if c else None\nmode = 0 if mask is None else 3",
    "both parts of a test": "mode = 3 if c and n else 0\nmask = a.bool() if c and n else None",
    "one part is enough": "mode = 3 if c and n else 0\nmask = a.bool() if c else None",
    "attribute": "mode = 3 if b.causal else 0\nmask = a.bool() if b.causal else None",
    "match": """
match n:
    case "causal":
        mode, mask = 3, a.bool()
    case _:
        mode, mask = 0, None
""",
    "raise on the rest": """
if c:
    mode, mask = 3, a.bool()
elif n:
    mode, mask = 0, None
else:
    raise ValueError(c)
""",
    "walrus": "mode = 3 if (masked := c) else 0\nmask = a.bool() if masked else None",
    "or with a default": "mask = a or b.bool()\nmode = 3",
    "default mask": "mask = c\nif mask is None:\n    mask = a.bool()\nmode = 3",
    "assert": "mask = a.bool() if c else None\nassert mask is not None\nmode = 3",
}


@pytest.mark.parametrize("form", IN_STEP)
def test_mask_and_mode_picked_in_step(form: str) -> None:
    assert verdict(within(f"{IN_STEP[form]}\n{CALL}")) is not Outcome.VIOLATED


WRONG = {
    "None on one side": "mode = 3\nmask = a.bool() if c else None",
    "None by default": "mode, mask = 3, None\nif c:\n    mask = a.bool()",
    "the wrong way round": "mode = 0 if c else 3\nmask = a.bool() if c else None",
    "test under a test": "mode = 0\nmask = None\nif c:\n    mode = 3\n    if n:\n        mask = a.bool()",
    "elif without a mask": """
mode, mask = 0, None
if c == 1:
    mode, mask = 3, a.bool()
elif c == 2:
    mode = 3
""",
}


@pytest.mark.parametrize("form", WRONG)
def test_a_path_without_a_mask_is_found(form: str) -> None:
    assert verdict(within(f"{WRONG[form]}\n{CALL}")) is Outcome.VIOLATED


INDEPENDENT = {
    "two parameters": "mode = 3 if c else 0\nmask = a.bool() if n else None",
    "two ifs": "mode, mask = 0, None\nif c:\n    mode = 3\nif n:\n    mask = a.bool()",
    "changed in between": "mode = 3 if c else 0\nc = n\nmask = a.bool() if c else None",
    "implied the wrong way": "mode = 3 if n > 1 else 0\nmask = a.bool() if n > 4 else None",
    "different constants": "mode = 3 if n == 1 else 0\nmask = a.bool() if n != 2 else None",
}


@pytest.mark.parametrize("form", INDEPENDENT)
def test_independent_tests_prove_nothing(form: str) -> None:
    assert verdict(within(f"{INDEPENDENT[form]}\n{CALL}")) in (Outcome.UNDECIDED, Outcome.PROVED)


class TestLeaving:
    def test_after_an_early_return_its_test_is_false(self) -> None:
        call = only(f"""
            def f(q, k, v, mask, mode=3):
                if mask is None:
                    return q
                torch_npu.{OP}(q, k, v, atten_mask=mask)
        """)
        assert call.arg("mask").is_none.no

    def test_after_a_raise_its_test_is_false(self) -> None:
        call = only(f"""
            def f(q, k, v, mode):
                if mode != 3:
                    raise ValueError
                torch_npu.{OP}(q, k, v, sparse_mode=mode)
        """)
        assert modes(call) == {3}

    def test_under_a_test_for_none_it_is_none(self) -> None:
        call = only(f"""
            def f(q, k, v, mask):
                if mask is None:
                    torch_npu.{OP}(q, k, v, atten_mask=mask, sparse_mode=3)
        """)
        assert verdict(call) is Outcome.VIOLATED

    def test_a_continue_leaves_the_round(self) -> None:
        call = within(f"""
            mask = None
            for t in a:
                if t is None:
                    continue
                torch_npu.{OP}(q, k, v, atten_mask=t)
        """)
        assert call.arg("mask").is_none.no

    def test_code_after_a_return_is_not_reached(self) -> None:
        source = f"import torch_npu\ndef f(q):\n    return q\n    torch_npu.{OP}(q, q, q)"
        assert calls_of(source) == []

    def test_a_constant_test_drops_the_other_arm(self) -> None:
        call = within(f"mode = 0\nif False:\n    mode = 3\nmask = None\n{CALL}")
        assert modes(call) == {0}

    def test_type_checking_blocks_do_not_run(self) -> None:
        call = only(f"""
            from typing import TYPE_CHECKING
            MODE = 3
            if TYPE_CHECKING:
                MODE = 0
            def f(q, k, v):
                torch_npu.{OP}(q, k, v, sparse_mode=MODE)
        """)
        assert modes(call) in ({3}, {0, 3}, None)


class TestLoops:
    def test_what_a_loop_sets_may_be_unset(self) -> None:
        call = within(f"mode, mask = 0, None\nfor t in a:\n    mode = 3\n{CALL}")
        assert call.arg("sparse_mode").constant.equals(3).unknown

    def test_what_a_loop_leaves_alone_is_known_in_it(self) -> None:
        call = within(f"mode = 3\nfor mask in a:\n    {CALL}")
        assert modes(call) == {3}

    def test_what_a_round_changes_is_unknown_in_the_next(self) -> None:
        call = within(f"mode, mask = 0, None\nwhile n():\n    {CALL}\n    mode = mode + 1")
        assert not call.arg("sparse_mode").constant.known

    @pytest.mark.parametrize("jump", ["break", "continue"])
    def test_what_is_set_before_a_jump_counts_after_the_loop(self, jump: str) -> None:
        call = within(f"""
            mode, mask = 3, None
            for t in a:
                if t.good:
                    mask = t.mask
                    {jump}
                n()
            {CALL}
        """)
        assert call.arg("mask").is_none.unknown
        assert verdict(call) is not Outcome.VIOLATED

    def test_a_break_skips_the_else_of_the_loop(self) -> None:
        call = within(f"""
            for mask in a:
                if mask:
                    mode = 3
                    break
            else:
                return
            {CALL}
        """)
        assert modes(call) == {3}

    def test_an_endless_loop_is_left_by_its_breaks_alone(self) -> None:
        call = within(f"mode, mask = 0, None\nwhile True:\n    mode = 3\n    if n():\n        break\n{CALL}")
        assert modes(call) == {3}

    def test_a_jump_in_an_inner_loop_stays_there(self) -> None:
        call = within(f"""
            mask = None
            for t in a:
                for s in t:
                    break
                mode = 3
            else:
                mode = 3
            {CALL}
        """)
        assert modes(call) == {3}

    def test_else_of_a_loop(self) -> None:
        call = within(f"mask = None\nfor t in a:\n    pass\nelse:\n    mode = 3\n{CALL}")
        assert modes(call) == {3}

    def test_a_mask_made_in_a_round_belongs_to_its_test(self) -> None:
        call = within(f"""
            for t in a:
                mode = 3 if t else 0
                mask = b.bool() if t else None
                {CALL}
        """)
        assert verdict(call) is not Outcome.VIOLATED

    def test_with_and_async_forms_run_their_body(self) -> None:
        call = only(f"""
            async def f(q, k, v):
                async with lock as held:
                    async for mask in held:
                        torch_npu.{OP}(q, k, v, sparse_mode=3)
        """)
        assert modes(call) == {3}


TRIED = "try:\n    mode = n()\n    mode = 3\nexcept ValueError:\n    mode = 0"


class TestExceptions:
    def test_try_and_except_both_count(self) -> None:
        call = within(
            f"mask = None\ntry:\n    mode = n()\n    mode = 3\nexcept ValueError:\n    mode = 0\n{CALL}"
        )
        assert modes(call) == {0, 3}

    def test_no_single_arm_of_a_try_is_a_path_of_its_own(self) -> None:
        call = within(
            f"mask = None\ntry:\n    mode = n()\n    mode = 3\nexcept ValueError:\n    mode = 0\n{CALL}"
        )
        assert verdict(call) is not Outcome.VIOLATED

    def test_an_except_that_leaves(self) -> None:
        call = within(f"mask = None\ntry:\n    n()\n    mode = 3\nexcept ValueError:\n    return\n{CALL}")
        assert modes(call) == {3}

    def test_finally_runs_on_every_path(self) -> None:
        call = within(f"mask = None\ntry:\n    mode = n()\nfinally:\n    mode = 3\n{CALL}")
        assert modes(call) == {3}

    def test_calls_in_handlers_are_seen(self) -> None:
        call = within(
            f"try:\n    n()\nexcept (ValueError, KeyError) as error:\n    mode = mask = None\n    {CALL}"
        )
        assert call.arg("mask").is_none.yes


class TestConditions:
    @pytest.mark.parametrize(
        ("test", "kind", "holds"),
        [
            ("c", "truth", True),
            ("not c", "truth", False),
            ("c is None", "none", True),
            ("c is not None", "none", False),
            ("c == 3", "eq", True),
            ("3 == c", "eq", True),
            ("c != 3", "eq", False),
            ("c < 3", "lt", True),
            ("c >= 3", "lt", False),
            ("c <= 3", "le", True),
            ("c > 3", "le", False),
            ("3 > c", "lt", True),
            ("isinstance(c, torch.Tensor)", "isinstance", True),
            ("bool(c)", "truth", True),
        ],
    )
    def test_a_test_is_read_as_a_condition_on_a_value(self, test: str, kind: str, holds: bool) -> None:
        value = within(f"mask = None\nmode = 3 if {test} else 0\n{CALL}").arg("sparse_mode").value
        assert isinstance(value, Choice)
        assert isinstance(value.cond, Cond) and value.cond.kind == kind
        assert getattr(value.yes if holds else value.no, "value", None) == 3

    def test_the_label_is_the_source_of_the_test(self) -> None:
        value = within(f"mask = None\nmode = 3 if b.is_prefill else 0\n{CALL}").arg("sparse_mode").value
        assert isinstance(value, Choice) and value.cond.label == "b.is_prefill"

    def test_the_path_to_the_call_is_kept(self) -> None:
        call = within(f"mode = mask = None\nif c:\n    if not n:\n        {CALL}")
        assert [(cond.label, holds) for cond, holds in call.path] == [("c", True), ("n", False)]


def test_a_choice_by_a_constructor_option_is_a_choice_of_another_method() -> None:
    call = only(f"""
        class A:
            def __init__(self, causal, mask):
                self.mask = mask if causal else None
            def run(self, q, k, v):
                torch_npu.{OP}(q, k, v, sparse_mode=3, atten_mask=self.mask)
    """)
    assert verdict(call) is Outcome.UNDECIDED


def test_mask_and_mode_chosen_by_one_option_in_a_constructor() -> None:
    call = only(f"""
        class A:
            def __init__(self, causal, mask):
                self.mask = mask.bool() if causal else None
                self.mode = 3 if causal else 0
            def run(self, q, k, v):
                torch_npu.{OP}(q, k, v, sparse_mode=self.mode, atten_mask=self.mask)
    """)
    assert verdict(call) in (Outcome.PROVED, Outcome.UNDECIDED)
