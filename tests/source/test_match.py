"""``match`` statements: each case is a path, like the arms of ``if`` and ``elif``."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest
from support.examples import findings

from kvlint.contract.rule import all_rules

RULES = [rule for rule in all_rules() if rule.code == "KV201"]
HEADER = """\
import torch, torch_npu
from enum import Enum


class Phase(Enum):
    PREFILL = 1
    DECODE = 2


def attend(q, k, v, lens, kind, other, m):
"""
CALL = """
return torch_npu.npu_fused_infer_attention_score(
    q, k, v, num_heads=8, num_key_value_heads=8, input_layout="TND", scale=0.1, sparse_mode=mode,
    atten_mask=mask, actual_seq_lengths=lens, actual_seq_lengths_kv=lens)[0]
"""


def violated(body: str) -> bool:
    return bool(findings(HEADER + indent(body.strip("\n") + CALL, "    "), RULES))


FORMS = {
    "literal": ("match kind:\n    case 1:\n        {a}\n    case _:\n        {b}"),
    "string": ("match kind:\n    case 'x':\n        {a}\n    case 'y':\n        {b}\n"
               "    case _:\n        raise"),
    "enum": ("match kind:\n    case Phase.PREFILL:\n        {a}\n    case Phase.DECODE:\n        {b}\n"
             "    case _:\n        raise ValueError"),
    "None": ("match kind:\n    case None:\n        {a}\n    case _:\n        {b}"),
    "or": ("match kind:\n    case 1 | 2 | 3:\n        {a}\n    case _:\n        {b}"),
    "name": ("match kind:\n    case 1 as n:\n        {a}\n    case n:\n        {b}"),
    "guard": ("match kind:\n    case n if other:\n        {a}\n    case _:\n        {b}"),
    "literal and guard": ("match kind:\n    case 1 if other:\n        {a}\n    case _:\n        {b}"),
    "type": ("match kind:\n    case int():\n        {a}\n    case _:\n        {b}"),
    "class": ("match kind:\n    case Phase(value=1):\n        {a}\n    case _:\n        {b}"),
    "pair": ("match kind, other:\n    case 1, 2:\n        {a}\n    case _:\n        {b}"),
    "sequence": ("match kind:\n    case [first, *rest]:\n        {a}\n    case _:\n        {b}"),
    "mapping": ("match kind:\n    case {{'x': 1, **rest}}:\n        {a}\n    case _:\n        {b}"),
    "no case fits": ("{b}\nmatch kind:\n    case 1:\n        {a}"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", [True, False])
def test_a_case_with_a_mode_that_needs_the_mask_it_lacks(form: str, first: bool) -> None:
    wrong, right = "mode, mask = 3, None", "mode, mask = 3, m"
    a, b = (wrong, right) if first else (right, wrong)
    assert violated(FORMS[form].format(a=a, b=b))


@pytest.mark.parametrize("form", FORMS)
def test_mode_and_mask_of_each_case_stay_together(form: str) -> None:
    assert not violated(FORMS[form].format(a="mode, mask = 3, m", b="mode, mask = 0, None"))


@pytest.mark.parametrize("form", FORMS)
def test_two_matches_of_one_value_pick_in_step(form: str) -> None:
    modes = FORMS[form].format(a="mode = 3", b="mode = 0")
    masks = FORMS[form].format(a="mask = m", b="mask = None")
    assert not violated(f"{modes}\n{masks}")


def test_a_match_and_a_test_of_the_same_value_pick_in_step() -> None:
    masks = "match kind:\n    case 1:\n        mask = m\n    case _:\n        mask = None"
    assert not violated(f"mode = 3 if kind == 1 else 0\n{masks}")


def test_a_case_that_cannot_be_reached() -> None:
    body = "match 2:\n    case 1:\n        mode, mask = 3, None\n    case 2:\n        mode, mask = 3, m"
    assert not violated(body)
    assert violated(body.replace("match 2", "match 1"))


def test_captured_values() -> None:
    body = "match 3, {mask}:\n    case mode, mask:\n        pass"
    assert violated(body.format(mask="None"))
    assert not violated(body.format(mask="m"))


def test_results_of_a_helper_that_matches() -> None:
    helper = """
        def pick(kind, m):
            match kind:
                case 1:
                    return m, 3
                case _:
                    return {rest}
        mask, mode = pick(kind, m)
    """
    assert violated(dedent(helper).format(rest="None, 3"))
    assert not violated(dedent(helper).format(rest="None, 0"))
