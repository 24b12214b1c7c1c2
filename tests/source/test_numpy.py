"""Arrays of NumPy on their way to tensors: its own default dtypes and promotion, its own axes."""

from __future__ import annotations

import pytest
from support.probe import of, only, possible, sizes

from kvlint.contract.call import Arg
from kvlint.contract.values import LengthForm

N = "import numpy as np"


def array(expression: str, before: str = "") -> Arg:
    """The tensor in an array's memory."""
    return of(f"torch.from_numpy({expression})", f"{N}\n{before}")


@pytest.mark.parametrize(
    ("expression", "dtype"),
    [
        ("np.zeros(4)", "float64"),
        ("np.ones((4, 4), dtype=bool)", "bool"),
        ("np.empty(4, np.int32)", "int32"),
        ("np.zeros(4, dtype='int64')", "int64"),
        ("np.full((2, 2), 7)", "int64"),
        ("np.full((2, 2), 7.0)", "float64"),
        ("np.full((2, 2), True)", "bool"),
        ("np.arange(8)", "int64"),
        ("np.arange(8, dtype=np.int32)", "int32"),
        ("np.arange(0.0, 8.0)", "float64"),
        ("np.arange(n)", None),
        ("np.arange(len(x))", "int64"),
        ("np.array([1, 2])", "int64"),
        ("np.array([[1, 2.5]])", "float64"),
        ("np.array([a, b])", None),
        ("np.array([a, b], dtype=np.int32)", "int32"),
        ("np.asarray(a, dtype=np.int64)", "int64"),
        ("np.array([1, 2]).astype(np.int32)", "int32"),
        ("np.zeros(4).astype('float32')", "float32"),
        ("np.zeros(4).astype(bool)", "bool"),
        ("np.zeros_like(np.arange(4))", "int64"),
        ("np.ones_like(np.arange(4), dtype=np.int8)", "int8"),
        ("np.arange(4) > 2", "bool"),
        ("~(np.arange(4) > 2)", "bool"),
        ("np.logical_not(np.zeros(4))", "bool"),
        ("np.cumsum(np.zeros(4, np.int32))", "int64"),
        ("np.cumsum(np.zeros(4, np.int32), dtype=np.int32)", "int32"),
        ("np.concatenate([[0], np.arange(4)])", "int64"),
        ("np.concatenate([np.zeros(1), np.arange(4)])", "float64"),
        ("np.where(np.arange(4) > 2, 1, 0)", "int64"),
        ("np.where(np.arange(4) > 2, 1.0, 0.0)", "float64"),
        # Promotion is not that of torch.
        ("np.arange(4) / 2", "float64"),
        ("np.arange(4) * 0.5", "float64"),
        ("np.arange(4, dtype=np.int32) * 2", "int32"),
        ("np.zeros(4, np.float32) * 0.5", "float32"),
        ("np.zeros(4, np.float32) + np.zeros(4, np.int32)", "float64"),
        ("np.zeros(4, np.int32) + np.arange(4)", "int64"),
        ("(np.arange(4) > 2) + 1", "int64"),
        ("np.zeros(4, np.int32) + n", None),
        ("np.zeros(4, np.int32) + x", None),
    ],
)
def test_dtype(expression: str, dtype: str | None) -> None:
    assert possible(array(expression).dtype) == (None if dtype is None else {dtype})


@pytest.mark.parametrize(
    ("expression", "shape"),
    [
        ("np.zeros((2, 3))", ["2", "3"]),
        ("np.zeros(5)", ["5"]),
        ("np.zeros((2, 3)).T", ["3", "2"]),
        ("np.zeros((2, 3, 4)).T", ["4", "3", "2"]),
        ("np.zeros((2, 3, 4)).transpose(2, 0, 1)", ["4", "2", "3"]),
        ("np.zeros((2, 3, 4)).transpose()", ["4", "3", "2"]),
        ("np.zeros(12).reshape(3, 4)", ["3", "4"]),
        ("np.zeros((3, 4)).reshape((2, 6))", ["2", "6"]),
        ("np.zeros((3, 4))[None, :2]", ["1", "2", "4"]),
        ("np.expand_dims(np.zeros(4), 0)", ["1", "4"]),
        ("np.concatenate([[0], np.arange(4)])", ["5"]),
        ("np.array([[1, 2, 3]])", ["1", "3"]),
        ("np.array(a)", None),
        ("np.repeat(np.arange(4), 2)", ["8"]),
    ],
)
def test_shape(expression: str, shape: list[str] | None) -> None:
    assert sizes(array(expression)) == shape


@pytest.mark.parametrize(
    ("expression", "upper", "diagonal"),
    [
        ("np.tril(np.ones((8, 8)))", False, 0),
        ("np.triu(np.ones((8, 8), dtype=bool), k=1)", True, 1),
        ("np.triu(np.ones((8, 8)), 1).astype(bool)", True, 1),
        ("~np.tril(np.ones((8, 8), dtype=bool))", True, 1),
        ("np.logical_not(np.tril(np.ones((8, 8))))", True, 1),
        ("np.tril(np.ones((8, 8))) == 0", True, 1),
        ("np.arange(8)[None, :] <= np.arange(8)[:, None]", False, 0),
        ("np.less_equal(np.arange(8)[None, :], np.arange(8)[:, None])", False, 0),
    ],
)
@pytest.mark.parametrize("way", ["torch.from_numpy({})", "torch.tensor({})", "torch.as_tensor({}).bool()"])
def test_triangle(way: str, expression: str, upper: bool, diagonal: int) -> None:
    found = of(way.format(expression), N).triangle
    assert found.known
    assert (found.value.upper, found.value.diagonal.integer) == (upper, diagonal)


@pytest.mark.parametrize(
    "write",
    [
        "t.numpy()[0] = 1",
        "t.data[0] = 1",
        "view = t.numpy()\nview[...] = x",
        "t.numpy().fill(0)",
        "np.copyto(t.numpy(), x)",
        "np.add(t.numpy(), 1, out=t.numpy())",
        "t.detach().cpu().numpy()[...] = 0",
    ],
)
def test_a_write_to_the_memory_of_a_tensor(write: str) -> None:
    before = f"{N}\nt = torch.ones(8, 8).tril()\n"
    assert of("t", before).triangle.known
    assert not of("t", before + write).triangle.known


def test_a_write_to_the_array_that_a_tensor_was_made_of() -> None:
    before = f"{N}\na = np.tril(np.ones((8, 8)))\nt = torch.{{}}(a)\na[0] = 1\n"
    assert not of("t", before.format("from_numpy")).triangle.known
    assert of("t", before.format("tensor")).triangle.known


def test_lengths() -> None:
    source = f"""
        {N}
        def function(q, k, v, lens):
            ends = np.cumsum(np.array(lens, dtype=np.int32))
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, actual_seq_lengths=ends.tolist(), actual_seq_lengths_kv=np.diff(ends).tolist())
    """
    call = only(source)
    assert possible(call.arg("q_lens").length_form) == {LengthForm.CUMULATIVE}
    assert possible(call.arg("kv_lens").length_form) == {LengthForm.PER_SEQUENCE}


def test_a_dtype_of_numpy_is_none_of_torch() -> None:
    before = f"{N}\nt = torch.zeros(2, dtype=torch.int32)\n"
    before += "mask = x.bool() if t.dtype == np.int32 else x.int()"
    assert possible(of("mask", before).dtype) == {"int32"}
