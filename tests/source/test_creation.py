"""Tensors made from Python data: rank, sizes and dtype, or nothing when the data does not tell."""

from __future__ import annotations

import pytest
from support.probe import of, possible, sizes


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ("[1, 2, 3]", ["3"]),
        ("[]", ["0"]),
        ("[[1, 2, 3], [4, 5, 6]]", ["2", "3"]),
        ("[[[1], [2]]]", ["1", "2", "1"]),
        ("((1, 2), [3, 4])", ["2", "2"]),
        ("7", []),
        ("[0] * 4", ["4"]),
        ("list(range(n))", ["n"]),
        ("[len(item) for item in x]", ["len(x)"]),
        ("[[0] * 4 for item in x]", ["len(x)", "4"]),
        # The items may be numbers, lists or tensors.
        ("[a, b]", None),
        ("[a + b]", None),
        ("[item.pages for item in x]", None),
        ("[item.pages + [0] for item in x]", ["len(x)", "?"]),
        ("[pad(item) for item in x]", None),
        ("x", None),
        ("x.tolist()", None),
    ],
)
@pytest.mark.parametrize("function", ["tensor", "as_tensor", "asarray"])
def test_shape_of_data(function: str, data: str, shape: list[str] | None) -> None:
    assert sizes(of(f"torch.{function}({data}, dtype=torch.int32)")) == shape


def test_rows_collected_in_a_loop() -> None:
    before = """
        rows = []
        for item in x:
            rows.append({row})
    """
    assert sizes(of("torch.tensor(rows)", before.format(row="item.pages"))) is None
    assert sizes(of("torch.tensor(rows)", before.format(row="0"))) in (None, ["?"])
    padded = of("torch.tensor(rows)", before.format(row="item.pages + [0] * (n - len(item.pages))"))
    assert sizes(padded) == ["?", "?"]
    assert possible(padded.dtype) == {"int64"}


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ("[1, 2]", {"int64"}),
        ("[[1, 2], [3, 4]]", {"int64"}),
        ("[True, False]", {"bool"}),
        ("[True, 2]", {"int64"}),
        ("list(range(n))", {"int64"}),
        ("[1, 0.5]", {"float32", "float16", "bfloat16"}),
        ("[len(x), x.shape[0] + 1]", {"int64"}),
        ("[int(a) // 2]", {"int64"}),
        ("[a, 1]", None),
        ("a + [0] * n", {"int64"}),
        ("[item.pages + [0] * (n - len(item.pages)) for item in x]", {"int64"}),
        ("a + [0.5]", None),
        ("a + b", None),
        ("[len(x) / 2]", None),
        ("[]", None),
    ],
)
def test_dtype_of_data(data: str, dtype: set[str] | None) -> None:
    assert possible(of(f"torch.tensor({data})").dtype) == dtype


def test_a_tensor_given_as_data() -> None:
    assert possible(of("torch.tensor(x.int())").dtype) == {"int32"}
    assert possible(of("torch.as_tensor(x.int(), dtype=torch.int64)").dtype) == {"int64"}
    assert sizes(of("torch.as_tensor(torch.zeros(2, 3))")) == ["2", "3"]


@pytest.mark.parametrize(
    ("expression", "shape", "dtype"),
    [
        ("torch.Tensor()", ["0"], {"float32", "float16", "bfloat16"}),
        ("torch.Tensor([])", ["0"], {"float32", "float16", "bfloat16"}),
        ("torch.Tensor(2, n)", ["2", "n"], {"float32", "float16", "bfloat16"}),
        ("torch.FloatTensor(4)", ["4"], {"float32"}),
        ("torch.LongTensor([1, 2, 3])", ["3"], {"int64"}),
        ("torch.IntTensor([[1, 2], [3, 4]])", ["2", "2"], {"int32"}),
        ("torch.BoolTensor(2, 3)", ["2", "3"], {"bool"}),
        # A size, or the data.
        ("torch.IntTensor(x)", None, {"int32"}),
        ("torch.Tensor(torch.zeros(3))", None, None),
    ],
)
def test_typed_constructors(expression: str, shape: list[str] | None, dtype: set[str] | None) -> None:
    found = of(expression)
    assert sizes(found) == shape
    assert possible(found.dtype) == dtype


def test_elements_of_typed_constructors() -> None:
    assert of("torch.IntTensor([8, 16])").integers.get(None) == (8, 16)
    assert of("torch.IntTensor([8, 16])").device.equals("cpu").yes
