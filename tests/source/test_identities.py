"""Which values are the same, what counts up, and what a name or another use of a value tells of it."""

from __future__ import annotations

import pytest
from support.examples import calls_of
from support.probe import IMPORTS, OP, of, only, possible, sizes, within

from kvlint.contract.catalogue import dispatched
from kvlint.contract.values import LengthForm


def test_two_objects_of_a_class_are_two() -> None:
    call = only(f"""
        class A(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.first, self.second = torch.nn.Linear(n, n), torch.nn.Linear(n, n)
            def forward(self, x):
                return torch_npu.{OP}(x, self.first(x), self.second(x))
    """)
    assert call.arg("key").same_as(call.arg("key")).yes
    assert not call.arg("key").same_as(call.arg("value")).yes


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        ("layer_id", ["2", "3"]),
        ("layer.layer_idx", ["2", "3"]),
        ("self_layer", ["2", "3"]),
        ("0", ["2", "3"]),
        ("rows", None),
        ("layer_ids", None),
    ],
)
def test_a_layer_number_picks_one_entry(index: str, shape: list[str] | None) -> None:
    body = f"h = torch.zeros(8, 2, 3)\ntorch_npu.{OP}(q, k, v, atten_mask=h[{index}])"
    assert sizes(within(body, "q, k, v, layer, layer_id, self_layer, rows, layer_ids").arg("mask")) == shape


COUNTER = """
    class A:
        def __init__(self):
            self.length = 0
        def reset(self):
            self.length = {reset}
        def run(self, q, k, v):
            self.length += {step}
            return torch_npu.{op}(q, k, v, actual_seq_lengths_kv=self.length)
"""


@pytest.mark.parametrize(
    ("reset", "step", "counts"),
    [
        ("0", "1", True),
        ("4", "2", True),
        ("0", "k.shape[2]", True),
        ("0", "n", False),
        ("given", "1", False),
    ],
)
def test_a_counter_is_a_single_number(reset: str, step: str, counts: bool) -> None:
    source = COUNTER.format(reset=reset, step=step, op=OP)
    number = only(source).arg("kv_lens").number
    keys = [atom.key for atom in number.value.atoms()] if number.known else []
    assert any(isinstance(key, tuple) and key[0] == "counter" for key in keys) is counts


def test_an_empty_placeholder_gives_way_to_what_is_put_there() -> None:
    call = only(f"""
        class A:
            def __init__(self):
                self.mask = torch.tensor([])
            def fill(self, n):
                self.mask = torch.zeros(n, 8, dtype=torch.int8)
            def run(self, q, k, v):
                return torch_npu.{OP}(q, k, v, atten_mask=self.mask)
    """)
    assert call.arg("mask").storage.known


@pytest.mark.parametrize(
    ("before", "form"),
    [
        ("ends = lens.cumsum(0)", LengthForm.PER_SEQUENCE),
        ("ends = torch.cumsum(lens, dim=0)", LengthForm.PER_SEQUENCE),
        ("ends = list(itertools.accumulate(lens))", LengthForm.PER_SEQUENCE),
        ("ends = m.cumsum(0)", None),
        # What is summed up where it is not yet may be running sums otherwise.
        ("if n:\n    ends = lens.cumsum(0)", None),
    ],
)
def test_what_a_running_sum_is_taken_of(before: str, form: LengthForm | None) -> None:
    call = within(f"{before}\ntorch_npu.{OP}(q, k, v, actual_seq_lengths_kv=lens)")
    assert call.arg("kv_lens").length_form.get(None) is form


def test_the_overload_that_has_the_keywords() -> None:
    assert dispatched("npu_ring_mla", "", 0, ["q_nope", "output", "softmax_lse"]) == "out"
    assert dispatched("npu_ring_mla", "", 0, ["q_nope"]) == ""
    assert dispatched(OP, "", 3, ["num_heads", "out"]) == "out"
    assert dispatched(OP, "", 3, ["num_heads", "softmax_scale"]) == ""
    assert dispatched("npu_multi_head_latent_attention", "", 9, ["output"]) == "out"
    assert dispatched("npu_multi_head_latent_attention", "", 10, ["output", "lse"]) == "lse_out"
    (call,) = calls_of(f"{IMPORTS}torch_npu.atb.npu_paged_cache_load(k, v, t, l, key=a, value=b)")
    assert call.operator.overload == "out"
    assert call.binding.unexpected == ()


FLOATS = {"float16", "bfloat16", "float32", "float64"}


@pytest.mark.parametrize(
    ("expression", "dtypes"),
    [
        ("torch.zeros(2, 2, dtype=n).masked_fill(m, torch.finfo(n).min)", FLOATS),
        # In a bool tensor infinity is True.
        ("torch.zeros(2, 2, dtype=n).masked_fill(m, float('-inf'))", None),
        ("torch.zeros(2, 2, dtype=n).masked_fill(m, 1)", None),
        ("torch.where(m, 0.0, -10000.0)", FLOATS - {"float64"}),
        ("torch.where(m, 0, 1)", None),
    ],
)
def test_additive_masks_are_floats(expression: str, dtypes: set[str] | None) -> None:
    assert possible(of(expression).dtype) == dtypes


def test_rows_picked_by_an_index_tensor_are_a_copy() -> None:
    call = only("""
        class A:
            def __init__(self, n):
                self.k, self.v = torch.zeros(n, 8, 2, 16), torch.zeros(n, 8, 2, 16)
            def write(self, k, v, rows, slots):
                torch_npu._npu_reshape_and_cache(k, v, self.k.index_select(0, rows), self.v, slots)
    """)
    assert call.arg("key_cache").copied.yes
    assert not call.arg("value_cache").copied.yes
