"""What torch expressions tell: dtype, shape, elements and memory order."""

from __future__ import annotations

import pytest
from support.probe import of, possible, sizes

from kvlint.contract.values import Polarity


@pytest.mark.parametrize(
    ("expression", "dtype"),
    [
        ("torch.ones(4, dtype=torch.bool)", "bool"),
        ("torch.ones(4, dtype=torch.half)", "float16"),
        ("torch.full((4,), True)", "bool"),
        ("torch.full((4,), 3)", "int64"),
        ("torch.arange(8)", "int64"),
        ("torch.arange(8, dtype=torch.int32)", "int32"),
        ("torch.tensor([1, 2])", "int64"),
        ("torch.tensor([1, 2], dtype=torch.int32)", "int32"),
        ("x.bool()", "bool"),
        ("x.to(torch.int8)", "int8"),
        ("x.to(dtype=torch.int8)", "int8"),
        ("x.to('npu', torch.int8)", "int8"),
        ("x.type(torch.bfloat16)", "bfloat16"),
        ("x.half().float()", "float32"),
        ("x.int().npu().contiguous().view(-1)", "int32"),
        ("x.long()[0]", "int64"),
        ("~x.bool()", "bool"),
        ("x.int() == 0", "bool"),
        ("x.half() != y", "bool"),
        ("torch.logical_not(x.int())", "bool"),
        ("x.bool() & y.bool()", "bool"),
        ("x.bool() | y.bool()", "bool"),
        ("torch.tril(x.int())", "int32"),
        ("torch.zeros_like(x.int())", "int32"),
        ("torch.ones_like(x.int(), dtype=torch.bool)", "bool"),
        ("x.int().new_zeros(3)", "int32"),
        ("torch.cat([x.int(), y.int()])", "int32"),
        ("torch.stack([x.int(), y.int()])", "int32"),
        ("torch.where(x, y.half(), z.half())", "float16"),
        ("torch.empty(3, dtype=x.int().dtype)", "int32"),
        ("x.int().masked_fill(y, 0)", "int32"),
        ("torch.cumsum(x.int(), 0, dtype=torch.int32)", "int32"),
        # Promotion
        ("x.int() + y.int()", "int32"),
        ("x.int() + y.long()", "int64"),
        ("x.int() * 128", "int32"),
        ("x.int() * 128 + torch.arange(4)", "int64"),
        ("x.int() + 0.5", "float32"),
        ("x.int() // 2", "int32"),
        ("x.half() * 2", "float16"),
        ("x.half() + y.float()", "float32"),
        ("x.bool() + 1", "int64"),
        ("x.int().cumsum(0)", "int64"),
        ("x.int().sum()", "int64"),
    ],
)
def test_dtype(expression: str, dtype: str) -> None:
    assert possible(of(expression).dtype) == {dtype}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "expression", ["torch.zeros(4)", "torch.full((4,), 1.5)", "torch.arange(8.0)", "torch.tensor([1.0, 2.0])"]
)
def test_a_float_tensor_has_the_default_dtype_which_the_program_may_set(expression: str) -> None:
    assert possible(of(expression).dtype) == {"float32", "float16", "bfloat16"}  # type: ignore[arg-type]


@pytest.mark.parametrize("expression", ["x", "x + 1", "x.to(y.dtype)", "x.to(q)", "f(x)", "x.view(2, 3)"])
def test_dtype_that_is_not_visible_is_unknown(expression: str) -> None:
    assert of(expression).dtype.values is None


@pytest.mark.parametrize(
    ("expression", "shape"),
    [
        ("torch.zeros(2, 3)", "2 3"),
        ("torch.zeros((2, 3))", "2 3"),
        ("torch.zeros([2, n])", "2 n"),
        ("torch.zeros(2, n * 4)", "2 4*n"),
        ("torch.full((2, 3), 1)", "2 3"),
        ("torch.arange(8)", "8"),
        ("torch.arange(n)", "n"),
        ("torch.arange(1, n + 1)", "n"),
        ("torch.tensor([1, 2, 3])", "3"),
        ("x.view(2, 3)", "2 3"),
        ("x.view(n, 8, m)", "n 8 m"),
        ("x.view((2, 3))", "2 3"),
        ("torch.zeros(4, 6).view(2, -1)", "2 12"),
        ("torch.zeros(n, 6).view(n, 2, -1)", "n 2 3"),
        ("torch.zeros(n, m).reshape(-1)", "m*n"),
        ("x.reshape(2, 3).view(-1, 1, 3)", "2 1 3"),
        ("x.view(2, 3, 4).transpose(1, 2)", "2 4 3"),
        ("x.view(2, 3, 4).transpose(-1, 0)", "4 3 2"),
        ("x.view(2, 3, 4).permute(2, 0, 1)", "4 2 3"),
        ("x.view(2, 3, 4).permute((2, 0, 1))", "4 2 3"),
        ("x.view(2, 3, 4).flatten()", "24"),
        ("x.view(2, 3, 4).flatten(1)", "2 12"),
        ("x.view(2, 3, 4).flatten(0, 1)", "6 4"),
        ("x.view(2, 12).unflatten(1, (3, 4))", "2 3 4"),
        ("x.view(2, 1, 4).squeeze(1)", "2 4"),
        ("x.view(2, 4).unsqueeze(1)", "2 1 4"),
        ("x.view(2, 4).unsqueeze(-1)", "2 4 1"),
        ("x.view(2, 4)[None]", "1 2 4"),
        ("x.view(2, 4)[:, None, :]", "2 1 4"),
        ("x.view(2, 4)[0]", "4"),
        ("x.view(2, 4)[:1]", "1 4"),
        ("x.view(2, 4)[..., :3]", "2 3"),
        ("x.view(2, 4)[:, 1:]", "2 3"),
        ("x.view(2, 4).expand(3, 2, 4)", "3 2 4"),
        ("x.view(2, 1).expand(-1, n)", "2 n"),
        ("x.view(2, 4).repeat(3, 1)", "6 4"),
        ("x.view(2, 4).repeat_interleave(3, dim=0)", "6 4"),
        ("torch.cat([x.view(2, 4), y.view(3, 4)])", "5 4"),
        ("torch.cat([x.view(2, 4), y.view(2, n)], dim=-1)", "2 4 + n"),
        ("torch.stack([x.view(2, 4), y.view(2, 4)])", "2 2 4"),
        ("torch.stack([x.view(2, 4), y.view(2, 4)], dim=-1)", "2 4 2"),
        ("x.view(2, 6).chunk(3, dim=-1)[0]", "2 2"),
        ("x.view(2, 6).split(2, dim=-1)[1]", "2 2"),
        ("x.view(2, 6).split([4, 2], dim=-1)[1]", "2 2"),
        ("torch.split(x.view(n, 6), [4, 2], dim=1)[0]", "n 4"),
        ("x.view(3, 2, 4).unbind(0)[1]", "2 4"),
        ("torch.zeros_like(x.view(2, 3))", "2 3"),
        ("torch.empty(x.view(2, 3).shape)", "2 3"),
        ("torch.zeros(x.view(2, 3).shape[0], 7)", "2 7"),
        ("torch.zeros(x.view(2, 3).size(1))", "3"),
        ("torch.zeros(*x.view(2, 3).shape[:1], 5)", "2 5"),
        ("x.view(2, 4).T", "4 2"),
        ("x.view(2, 3, 4).mT", "2 4 3"),
        ("x.view(2, 4) + y.view(1, 4)", "2 4"),
        ("x.view(2, 3).to(torch.int32).contiguous().clone()", "2 3"),
        ("torch.ones(2, 3).triu(1)", "2 3"),
        ("torch.nn.functional.pad(x.view(2, 3), (0, 5))", "2 8"),
        ("F.pad(x.view(2, 3), (1, 2, 0, 4))", "6 6"),
        ("x.view(2, 3).select(0, 1)", "3"),
        ("x.view(4, 3).narrow(0, 1, 2)", "2 3"),
    ],
)
def test_shape(expression: str, shape: str) -> None:
    expected = shape.replace(" + ", "+").split(" ")
    found = sizes(of(expression))
    assert found is not None
    assert [size.replace(" + ", "+") for size in found] == expected


@pytest.mark.parametrize(
    "expression",
    ["x", "x.view(*y)", "x.reshape(y.shape)", "x.expand(b.shape)", "torch.zeros(new_shape)", "f(x)", "x[y]"],
)
def test_shape_that_is_not_visible_is_unknown(expression: str) -> None:
    assert of(expression).shape.values is None


def test_one_size_can_be_unknown() -> None:
    assert sizes(of("x.view(2, 3)[y > 0]")) in (None, ["?", "3"], ["?"])


MASKS = [
    # upper, diagonal
    ("torch.ones(8, 8).triu()", (True, 0)),
    ("torch.triu(torch.ones(8, 8), 1)", (True, 1)),
    ("torch.triu(torch.ones(8, 8), diagonal=1).to(torch.int8)", (True, 1)),
    ("torch.triu(torch.ones(8, 8), diagonal=1).bool()", (True, 1)),
    ("torch.ones(8, 8).tril()", (False, 0)),
    ("~torch.tril(torch.ones(8, 8, dtype=torch.bool))", (True, 1)),
    ("~torch.triu(torch.ones(8, 8, dtype=torch.bool), 1)", (False, 0)),
    ("torch.logical_not(torch.ones(8, 8).tril())", (True, 1)),
    ("torch.tril(torch.ones(8, 8)) == 0", (True, 1)),
    ("torch.tril(torch.ones(8, 8)) != 0", (False, 0)),
    ("torch.tril(torch.ones(8, 8)).logical_not()", (True, 1)),
    ("torch.tril(torch.ones(8, 8), diagonal=-1)", (False, -1)),
    ("torch.full((8, 8), True).triu(1)", (True, 1)),
    ("torch.ones(8, 8).triu_(1)", (True, 1)),
    ("torch.ones(8, 8).triu(1)[None, None]", (True, 1)),
    ("torch.ones(8, 8).triu(1).unsqueeze(0).expand(2, -1, -1)", (True, 1)),
    ("torch.ones(8, 8).triu(1).contiguous().npu()", (True, 1)),
    ("torch.full((8, 8), float('-inf')).triu(1)", (True, 1)),
    ("torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), float('-inf'))", (True, 1)),
    ("torch.where(torch.ones(8, 8).triu(1).bool(), -10000.0, 0.0)", (True, 1)),
    ("torch.where(torch.ones(8, 8).tril().bool(), 0.0, -10000.0)", (True, 1)),
    ("1 - torch.tril(torch.ones(8, 8))", (True, 1)),
]


@pytest.mark.parametrize(("expression", "triangle"), MASKS)
def test_triangle(expression: str, triangle: tuple[bool, int]) -> None:
    found = of(expression).triangle
    assert found.known, found.notes
    assert (found.value.upper, found.value.diagonal.integer) == triangle


@pytest.mark.parametrize(
    "expression",
    [
        "torch.zeros(8, 8).triu(1)",
        "x.triu(1)",
        "torch.rand(8, 8).triu(1)",
        "torch.ones(8, 8).triu(1) + x",
        "torch.ones(8, 8).triu(1).flip(0)",
        "torch.ones(2, 8, 8).tril().T",
        "torch.ones(2, 8, 8).tril().transpose(0, 1)",
        "torch.ones(8, 8).triu(1)[2:, :]",
        "torch.ones(8, 8).triu(1)[:, None]",
        "torch.ones(8, 8).triu(1).view(4, 16)",
        "torch.ones(8, 8).triu(1) * x",
        "torch.ones(8, 8).triu(n).where(x, y)",
    ],
)
def test_triangle_that_is_lost(expression: str) -> None:
    assert not of(expression).triangle.known


def test_an_unknown_diagonal_stays_a_number() -> None:
    found = of("torch.ones(8, 8).triu(n - m + 1)").triangle
    assert found.known and found.value.diagonal.label == "n - m + 1"


@pytest.mark.parametrize(
    ("expression", "additive"),
    [
        ("torch.full((8, 8), float('-inf')).triu(1)", True),
        ("torch.full((8, 8), torch.finfo(torch.float16).min).triu(1)", True),
        ("torch.zeros(8, 8).masked_fill(x, torch.finfo(y.dtype).min)", True),
        ("torch.zeros(8, 8).masked_fill(x, -torch.finfo(y.dtype).max)", True),
        ("torch.zeros(8, 8).masked_fill(x, -1e4)[:, None, None, :]", True),
        ("(1.0 - x.float()) * -10000.0", True),
        ("torch.where(x.bool(), -math.inf, 0.0)", True),
        ("torch.zeros(8, 8).masked_fill(x, 1)", False),
        ("torch.ones(8, 8).triu(1)", False),
    ],
)
def test_a_mask_of_penalties_is_additive(expression: str, additive: bool) -> None:
    found = of(expression).content.get(None)
    assert (found is not None and found.additive) is additive


def test_penalties_read_as_bool_hide() -> None:
    penalties = "torch.zeros(8, 8).masked_fill(x, float('-inf'))"
    assert of(f"{penalties}.bool()").polarity.value is Polarity.HIDE
    assert of(f"{penalties} < 0").polarity.value is Polarity.HIDE
    assert of(f"~{penalties}.bool()").polarity.value is Polarity.KEEP


@pytest.mark.parametrize(
    ("expression", "fill"),
    [
        ("torch.zeros(4)", 0),
        ("torch.ones(4)", 1),
        ("torch.full((4,), 7)", 7),
        ("torch.zeros(4).bool()", 0),
        ("~torch.zeros(4, dtype=torch.bool)", 1),
        ("torch.zeros(4, 4)[0]", 0),
        ("torch.zeros(16).view(4, 4)", 0),
        ("torch.zeros_like(x)", 0),
    ],
)
def test_fill(expression: str, fill: int) -> None:
    assert of(expression).fill.value == fill


@pytest.mark.parametrize("change", ["t[0] = 1", "t.fill_(5)", "t[:2].copy_(x)", "t.add_(1)", "t |= x"])
def test_a_fill_is_gone_once_something_is_written(change: str) -> None:
    found = of("t", f"t = torch.zeros(4, 4)\n{change}").fill
    assert not (found.known and found.value == 0)


@pytest.mark.parametrize(
    ("expression", "strided"),
    [
        ("x.view(2, 3, 4).transpose(1, 2)", True),
        ("x.view(2, 3, 4).transpose(1, 2).contiguous()", False),
        ("x.view(2, 3, 4).transpose(1, 2).transpose(1, 2)", None),
        ("x.view(2, 3, 4).transpose(1, 2).permute(0, 2, 1)", None),
        ("x.view(2, 1, 4).transpose(1, 2)", None),
        ("x.view(2, 3, 4).permute(1, 0, 2)", True),
        ("x.view(1, 3, 4).permute(1, 0, 2)", None),
        ("x.view(2, 3, 4)[..., :2]", True),
        ("x.view(2, 3, 4)[:, 1]", True),
        ("x.view(2, 3, 4)[1]", None),
        ("x.view(2, 3, 4)[:1]", None),
        ("x.view(2, 6).split(3, dim=-1)[0]", True),
        ("x.view(2, 6).split(1, dim=0)[0]", None),
        ("x.view(2, 6).chunk(2, dim=-1)[1].clone()", None),
        ("torch.zeros(2, 3)", False),
        ("torch.zeros(2, 3).T", True),
        ("x.view(2, 3).T.to(torch.int32).contiguous()", False),
        ("torch.cat([x.view(2, 3).T, y.view(2, 3).T])", False),
        ("x.view(2, 3, 4).transpose(1, 2).reshape(2, 12)", None),
        ("x", None),
    ],
)
def test_memory_order(expression: str, strided: bool | None) -> None:
    found = of(expression).strided.state
    # Unknown and certainly in order are both no finding.
    assert found is strided or (strided is None and found is False), found


@pytest.mark.parametrize(
    ("expression", "shares"),
    [
        ("x.view(2, 3)", True),
        ("x.view(2, 3).transpose(0, 1)", True),
        ("x[:n]", True),
        ("x.view(2, 3).unsqueeze(0).squeeze(0)", True),
        ("x.split(2)[0]", True),
        ("x.detach()", True),
        ("torch.zeros(4)", False),
        ("x.clone()", False),
        ("x.view(2, 3).transpose(0, 1).contiguous()", False),
        ("torch.cat([x, y])", False),
        ("x.view(2, 3).repeat(2, 1)", False),
        ("x.view(2, 3) + 1", False),
    ],
)
def test_views_share_memory_and_copies_do_not(expression: str, shares: bool) -> None:
    source = of("x").storage.value
    found = of(expression).storage
    assert (found.known and found.value == source) is shares


@pytest.mark.parametrize(
    "expression",
    [
        "x.view(2, 3).transpose(0, 1).contiguous()",
        "x.clone()",
        "x.view(4, 2, 3).transpose(0, 1).reshape(-1, 3)",
        "x.view(4, 2, 3)[:, 0].reshape(-1)",
        "x.view(4, 2, 3)[:, 0].flatten()",
    ],
)
def test_what_is_a_copy_of_the_callers_tensor(expression: str) -> None:
    assert of(expression).copied.yes


@pytest.mark.parametrize("expression", ["x.view(2, 3)", "x[:, 0]", "torch.zeros(4)", "x.contiguous()", "x"])
def test_what_is_no_certain_copy(expression: str) -> None:
    assert not of(expression).copied.yes
