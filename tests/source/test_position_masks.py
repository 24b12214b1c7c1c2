"""Masks made by comparing positions: which triangle they are, and what turns them round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.probe import of, possible, sizes

from kvlint.contract.values import Content, Polarity, Triangle

I = "i = torch.arange(16)\nj = torch.arange(16, dtype=torch.int32)"  # noqa: E741
Region = Callable[[int, int], bool]


def content(expression: str, before: str = I) -> Content:
    fact = of(expression, before).content
    return fact.values[0] if fact.values else Content()


def covers(triangle: Triangle | None) -> Region:
    assert triangle is not None
    offset = triangle.diagonal.integer
    assert offset is not None
    return lambda row, column: column - row >= offset if triangle.upper else column - row <= offset


TRIANGLES: dict[str, Region] = {
    "i[None, :] <= i[:, None]": lambda r, c: c <= r,
    "i[:, None] <= i[None, :]": lambda r, c: r <= c,
    "i[None] < j[:, None]": lambda r, c: c < r,
    "i[:, None] >= i": lambda r, c: r >= c,
    "i[:, None] > i[None, :]": lambda r, c: r > c,
    "i.unsqueeze(1) >= i.unsqueeze(0)": lambda r, c: r >= c,
    "i.unsqueeze(-1) < j.unsqueeze(-2)": lambda r, c: r < c,
    "i.view(1, -1) <= i.view(-1, 1)": lambda r, c: c <= r,
    "i.reshape(16, 1) <= i.reshape(1, 16)": lambda r, c: r <= c,
    "i.view(1, 1, 1, -1) > i.view(1, 1, -1, 1)": lambda r, c: c > r,
    "(i[None, :] <= i[:, None])[None, None]": lambda r, c: c <= r,
    "~(i[None, :] <= i[:, None])": lambda r, c: c > r,
    "torch.logical_not(i[None, :] <= i[:, None])": lambda r, c: c > r,
    "(i[None, :] <= i[:, None]) == 0": lambda r, c: c > r,
    "(i[None, :] <= i[:, None]).to(torch.int8)": lambda r, c: c <= r,
    "(i[None, :] <= i[:, None]).T": lambda r, c: r <= c,
    "torch.ones(16, 16).tril(-1).transpose(0, 1)": lambda r, c: c - r >= 1,
    "torch.ones(2, 16, 16).tril(2).mT": lambda r, c: c - r >= -2,
    "i[None, :] <= i[:, None] + 3": lambda r, c: c <= r + 3,
    "i[None, :] - 2 > i[:, None]": lambda r, c: c - 2 > r,
    "torch.arange(4, 20)[:, None] >= torch.arange(20)[None]": lambda r, c: r + 4 >= c,
    "torch.arange(0, 16, 1)[:, None] >= i": lambda r, c: r >= c,
    "i[2:][:, None] >= i": lambda r, c: r + 2 >= c,
    "i[:, None] - i[None, :] >= 0": lambda r, c: r - c >= 0,
    "0 > i[:, None] - i[None, :]": lambda r, c: r - c < 0,
    "i.unsqueeze(0).T >= i": lambda r, c: r >= c,
    "torch.ge(i[:, None], i[None, :])": lambda r, c: r >= c,
    "(i[None] <= i[:, None]) & (i[None] <= i[:, None] - 4)": lambda r, c: c <= r - 4,
    "(i[None] > i[:, None]) | (i[None] > i[:, None] + 4)": lambda r, c: c > r,
    "i.float()[None, :] <= i.long()[:, None]": lambda r, c: c <= r,
    "torch.zeros(16, 16).masked_fill(i[None] > i[:, None], float('-inf'))": lambda r, c: c > r,
    "torch.where(i[None] <= i[:, None], 0.0, float('-inf'))": lambda r, c: c > r,
    "i[:, None].expand(16, 16) >= i": lambda r, c: r >= c,
}


@pytest.mark.parametrize("expression", TRIANGLES)
def test_triangle(expression: str) -> None:
    region = covers(content(expression).triangle)
    for row in range(12):
        for column in range(12):
            assert region(row, column) == TRIANGLES[expression](row, column), (row, column)


@pytest.mark.parametrize(
    "expression",
    [
        "i[None] < lens[:, None]",
        "i[None, :] == i[:, None]",
        "i[None, :] * 2 <= i[:, None]",
        "i[None, :] // 4 <= i[:, None] // 4",
        "i[None, :] <= x[:, None]",
        "torch.arange(0, 16, 2)[None] <= i[:, None]",
        "torch.arange(0.5, 16.5)[None] <= i[:, None]",
        "i.to(torch.bool)[None] <= i[:, None]",
        "i.repeat(2)[None] <= i[:, None]",
        "i.flip(0)[None] <= i[:, None]",
        "i[::2][None] <= i[:, None]",
        "i[-4:][:, None] >= i",
        "i[None, :, None] <= i[:, None]",
        "i.view(4, 4) <= i[:, None]",
        "i[:, None, None] >= i",
        "i + x[:, None] >= i[:, None]",
        "i[x][None] <= i[:, None]",
    ],
)
def test_no_triangle(expression: str) -> None:
    assert content(expression).triangle is None


def test_offset_by_a_length() -> None:
    """Queries at the end of longer keys: the diagonal is the number of cached tokens."""
    before = "q_len, kv_len = q.shape[1], k.shape[1]\npast = kv_len - q_len"
    found = content("torch.arange(kv_len)[None] > torch.arange(q_len)[:, None] + past", before).triangle
    assert found is not None and found.upper and found.diagonal.integer is None
    assert found.covers_diagonal is None


def test_windows() -> None:
    near = "(i[None] <= i[:, None]) & (i[None] > i[:, None] - {size})"
    for size in ("8", "len(x)"):
        kept = content(near.format(size=size))
        assert kept.strip and not kept.band and kept.polarity is Polarity.KEEP and kept.triangle is None
        hidden = content(f"~({near.format(size=size)})")
        assert hidden.band and not hidden.strip and hidden.polarity is Polarity.HIDE
    around = content("(i[None] > i[:, None]) | (i[None] < i[:, None] - 8)")
    assert around.band and around.triangle is None
    # Neither says which of the two it is.
    assert content("(i[None] < i[:, None]) & (i[None] > i[:, None] - 8)").polarity is None


def test_values_written_in_place_are_no_positions() -> None:
    assert content("i[None, :] <= i[:, None]", f"{I}\ni += x").triangle is None
    assert content("i[None, :] <= i[:, None]", f"{I}\ni.clamp_(max=3)").triangle is None


def test_shape_and_dtype() -> None:
    mask = of("torch.arange(n)[None, :] <= torch.arange(m)[:, None]")
    assert sizes(mask) == ["m", "n"]
    assert possible(mask.dtype) == {"bool"}
