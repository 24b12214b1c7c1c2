"""How lists of lengths count, and what slot arithmetic computes, by the way they are built."""

from __future__ import annotations

import pytest
from support.examples import calls_of
from support.probe import OP, of, within

from kvlint.contract.call import Arg
from kvlint.contract.values import LengthForm

CUMULATIVE, EACH = LengthForm.CUMULATIVE, LengthForm.PER_SEQUENCE


def lengths(expression: str, before: str = "") -> Arg:
    body = f"{before}\ntorch_npu.{OP}(q, k, v, actual_seq_lengths={expression})"
    return within(body).arg("q_lens")


FORMS = {
    # Running sums
    "cumsum": ("lens.cumsum(0)", "", CUMULATIVE),
    "torch.cumsum": ("torch.cumsum(lens, dim=0)", "", CUMULATIVE),
    "cumsum as a list": ("lens.cumsum(0).tolist()", "", CUMULATIVE),
    "cumsum cast and moved": ("lens.cumsum(0).to(torch.int32).cpu()", "", CUMULATIVE),
    "cumsum cut": ("lens.cumsum(0)[:n]", "", CUMULATIVE),
    "cumsum of a tensor of a list": ("torch.tensor(lens).cumsum(-1).tolist()", "", CUMULATIVE),
    "numpy": ("np.cumsum(lens)", "import numpy as np", CUMULATIVE),
    "accumulate": ("list(itertools.accumulate(lens))", "", CUMULATIVE),
    "accumulate from an import": (
        "list(accumulate(lens))",
        "from itertools import accumulate",
        CUMULATIVE,
    ),
    "leading zero padded": ("F.pad(lens.cumsum(0), (1, 0))", "", CUMULATIVE),
    "leading zero cut off": ("F.pad(lens.cumsum(0), (1, 0))[1:]", "", CUMULATIVE),
    "running sum": (
        "ends",
        "ends, total = [], 0\nfor t in lens:\n    total += t\n    ends.append(total)",
        CUMULATIVE,
    ),
    "running sum written out": (
        "ends",
        "ends, total = [], 0\nfor t in x:\n    total = total + t.shape[0]\n    ends.append(total)",
        CUMULATIVE,
    ),
    "field of flash attention": ("x.cu_seqlens_q.int()", "", CUMULATIVE),
    "name cut": ("x.cu_seqlens[1:].tolist()", "", CUMULATIVE),
    # Sizes
    "neighbours": ("x[1:] - x[:-1]", "", EACH),
    "neighbours as a list": ("(x[1:] - x[:-1]).tolist()", "", EACH),
    "diff": ("torch.diff(x)", "", EACH),
    "diff method": ("x.diff().cpu().tolist()", "", EACH),
    "neighbours in a comprehension": ("[x[i + 1] - x[i] for i in range(n)]", "", EACH),
    "neighbours by zip": ("[b - a for a, b in zip(x[:-1], x[1:])]", "", EACH),
    "neighbours by short zip": ("[b - a for a, b in zip(x, x[1:])]", "", EACH),
    "neighbours by pairwise": ("[b - a for a, b in itertools.pairwise(x)]", "", EACH),
    "sizes of parts": ("[part.shape[0] for part in x]", "", EACH),
    "lengths of parts": ("[len(part) for part in x]", "", EACH),
    "appended sizes": ("sizes", "sizes = []\nfor part in x:\n    sizes.append(part.shape[0])", EACH),
    "appended differences": (
        "sizes",
        "sizes = []\nfor i in range(n):\n    sizes.append(x[i + 1] - x[i])",
        EACH,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_length_form(form: str) -> None:
    expression, before, expected = FORMS[form]
    found = lengths(expression, before).length_form
    assert found.get(None) is expected, found.notes


@pytest.mark.parametrize(
    "expression",
    [
        "lens",
        "x.lens",
        "x.tolist()",
        "[f(t) for t in x]",
        "x[1:] - y[:-1]",
        "x[1:] - x[1:]",
        "x + 1",
        "[n, m]",
    ],
)
def test_length_form_that_is_not_visible(expression: str) -> None:
    assert not lengths(expression).length_form.known


def test_a_running_sum_that_is_reset_is_no_running_sum() -> None:
    before = "ends, total = [], 0\nfor t in lens:\n    total = t\n    ends.append(total)"
    assert lengths("ends", before).length_form.get(None) is not CUMULATIVE


def test_a_literal_list_is_known_by_its_numbers() -> None:
    found = lengths("[3, 5, 9]")
    assert found.integers.value == (3, 5, 9) and found.length.value.integer == 3


def test_entries_of_one_list_are_different_numbers() -> None:
    differ = lengths("[sizes[1] - sizes[0], 4]", "sizes = [part.shape[0] for part in x]")
    assert not differ.integers.known


def test_a_list_that_was_changed_is_not_what_it_was() -> None:
    assert not lengths("ends", "ends = list(itertools.accumulate(lens))\nends[0] = n").length_form.known
    assert not lengths("ends", "ends = list(itertools.accumulate(lens))\nends.sort()").integers.known


SLOTS = {
    "table by position": "table[a, b // 128] * 128 + b % 128",
    "other order": "b % 128 + 128 * table[a, b // 128]",
    "gather": "table.gather(1, b // n) * n + b % n",
    "gather with tensors": "table.int().gather(1, b.long() // 128) * 128 + b.long() % 128",
    "flattened": "(table[a, b // 128] * 128 + b % 128).flatten()",
    "cast": "(table[a, b // 128] * 128 + b % 128).view(-1).to(torch.int32)",
    "offsets of an arange": "table.int()[0] * 128 + torch.arange(8) % 128",
}


@pytest.mark.parametrize("form", SLOTS)
def test_slot_formula(form: str) -> None:
    found = of(SLOTS[form]).content.get(None)
    assert found is not None and found.slots == "token"
    assert found.slot_block is not None and found.slot_block.label == ("n" if "n)" in SLOTS[form] else "128")


@pytest.mark.parametrize(
    "expression",
    ["table[a] * 128 + b % 64", "table[a] * 128 + b", "table[a] + b % 128", "a * 128", "b % 128", "x"],
)
def test_what_is_no_slot_formula(expression: str) -> None:
    found = of(expression).content.get(None)
    assert found is None or found.slots != "token"


def test_slots_computed_by_a_helper_method() -> None:
    (call,) = calls_of(f"""
import torch, torch_npu
class Table:
    block = 128
    def slots(self, rows, positions):
        return (self.table[rows, positions // self.block] * self.block + positions % self.block).view(-1)
    def put(self, q, rows, positions):
        torch_npu.{OP}(q, q, q, atten_mask=self.slots(rows, positions))
""")
    found = call.arg("mask").content.get(None)
    assert found is not None and found.slots == "token"
