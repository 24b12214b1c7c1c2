"""Sparse attention on packed int8 rows, its indexer, several rotary sections, fused qkv writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlint.oracle.kernels import KERNELS, KernelError

SFA = KERNELS["npu_kv_quant_sparse_flash_attention"]
INDEXER = KERNELS["npu_quant_lightning_indexer"]
MROPE = KERNELS["npu_mrope"]
MODES = dict(key_quant_mode=2, value_quant_mode=2, attention_mode=2)


def packed_rows(rows: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(656-byte rows [rows, 656], what they mean: nope [rows, 512], rope [rows, 64])."""
    source = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-127, 128, (rows, 512), generator=source, dtype=torch.int8)
    scales = torch.rand(rows, 4, generator=source) * 0.02 + 0.001
    rope = torch.randn(rows, 64, generator=source).to(dtype)
    nope = numbers.double() * scales.double().repeat_interleave(128, 1)
    return torch.cat([numbers, rope.view(torch.int8), scales.view(torch.int8)], 1), nope, rope.double()


def expected(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Softmax attention in float64; q [N, D], keys [n, D], values [n, Dv]."""
    return ((q.double() @ keys.T) * scale).softmax(-1) @ values


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("paged", [False, True])
def test_packed_rows_are_dequantised_and_selected(dtype: torch.dtype, paged: bool) -> None:
    keys, count, block, scale = 29, 3, 2, 0.04
    packed, nope, rope = packed_rows(32, dtype, 0)
    q = torch.randn(1, count, 4, 576, generator=torch.Generator().manual_seed(1)).to(dtype)
    # Blocks of two tokens; the last one of the second row reaches past what the row may see.
    chosen = torch.tensor([[0, 5, -1], [3, 13, -1], [14, 2, 7]], dtype=torch.int32)[None, :, None]
    lens = dict(
        actual_seq_lengths_query=torch.tensor([count], dtype=torch.int32),
        actual_seq_lengths_kv=torch.tensor([keys], dtype=torch.int32),
    )
    if paged:
        table = torch.tensor([[1, 0]], dtype=torch.int32)
        cache = packed.view(2, 16, 1, 656)[[1, 0]].contiguous()
        lens |= dict(block_table=table)
    else:
        cache = packed[None, :, None]
    out = SFA(
        q, cache, cache, chosen, scale, sparse_block_size=block, layout_kv="PA_BSND" if paged else "BSND",
        **MODES, **lens,
    )  # fmt: skip
    for i, blocks in enumerate(([0, 5], [3, 13], [14, 2, 7])):
        tokens = [t for b in blocks for t in (2 * b, 2 * b + 1) if t <= keys - count + i]
        full = torch.cat([nope, rope], 1)[tokens]
        want = expected(q[0, i], full, nope[tokens], scale)
        assert torch.allclose(out[0, i].double(), want, atol=2e-2 if dtype == torch.bfloat16 else 3e-3)
    assert out.dtype == dtype and out.shape == (1, count, 4, 512)


@pytest.mark.parametrize(
    ("changes", "identity"),
    [
        ({"attention_mode": 0}, "SP-01"),
        ({"key_quant_mode": 0}, "contract 4"),
        ({"tile_size": 64}, "contract 4"),
        ({"sparse_mode": 4}, "contract 4"),
        ({"sparse_block_size": 3}, "contract 4"),
        ({"key_dequant_scale": torch.ones(1)}, "SP-14"),
        ({"sparse_indices": torch.zeros(1, 1, 1, 1, dtype=torch.int64)}, "SP-05"),
        ({"query": torch.zeros(1, 1, 2, 512).half()}, "contract 4"),
        ({"query": torch.zeros(1, 1, 2, 576)}, "contract 4"),
        ({"layout_query": "TND"}, "SP-12"),
    ],
)
def test_bad_packed_calls_are_refused(changes: dict[str, Any], identity: str) -> None:
    cache = torch.zeros(1, 4, 1, 656, dtype=torch.int8)
    call: dict[str, Any] = dict(
        query=torch.zeros(1, 1, 2, 576).half(), key=cache, value=cache, scale_value=1.0,
        sparse_indices=torch.zeros(1, 1, 1, 1, dtype=torch.int32), **MODES,
    )  # fmt: skip
    assert SFA(**call).shape == (1, 1, 2, 512)
    with pytest.raises(KernelError, match=identity):
        SFA(**call | changes)


def test_the_indexer_ranks_by_the_documented_score() -> None:
    source = torch.Generator().manual_seed(2)
    q = torch.randint(-127, 128, (5, 8, 128), generator=source, dtype=torch.int8)
    k = torch.randint(-127, 128, (3, 16, 1, 128), generator=source, dtype=torch.int8)
    w, qs = (torch.rand(5, 8, generator=source).half() * 0.05 for _ in range(2))
    ks = (torch.rand(3, 16, 1, generator=source) + 0.5).half()
    table = torch.tensor([[2, 0], [1, 1]], dtype=torch.int32)
    found = INDEXER(
        q, k, w, qs, ks, 0, 0, layout_query="TND", layout_key="PA_BSND", block_table=table, sparse_count=6,
        actual_seq_lengths_query=torch.tensor([2, 5], dtype=torch.int32),
        actual_seq_lengths_key=torch.tensor([20, 4], dtype=torch.int32),
    )  # fmt: skip
    assert found.shape == (5, 1, 6) and found.dtype == torch.int32
    for b, rows, keys in ((0, [0, 1], 20), (1, [2, 3, 4], 4)):
        pages = table[b].long()
        kk, kks = k[pages].reshape(-1, 128)[:keys].double(), ks[pages].reshape(-1)[:keys].double()
        for i, row in enumerate(rows):
            seen = keys - len(rows) + i + 1
            score = w[row].double() * qs[row].double() @ (q[row].double() @ kk.T).relu() * kks
            ranked = score[:seen].argsort(descending=True)[:6].tolist()
            got = [j for j in found[row, 0].tolist() if j >= 0]
            # Rounding to float16 may exchange neighbours, never bring in a key that scores far less.
            assert len(got) == min(6, seen) and set(got) <= set(range(seen))
            assert score[got].min() >= score[ranked].min() * 0.99
            assert found[row, 0, len(got) :].eq(-1).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"query_quant_mode": 1},
        {"sparse_count": 2049},
        {"sparse_mode": 1},
        {"next_tokens": 0},
        {"query": torch.zeros(1, 2, 4, 128).half()},
        {"weights": torch.zeros(1, 2, 4)},
    ],
)
def test_bad_indexer_calls_are_refused(changes: dict[str, Any]) -> None:
    call: dict[str, Any] = dict(
        query=torch.zeros(1, 2, 4, 128, dtype=torch.int8), key=torch.zeros(1, 8, 1, 128, dtype=torch.int8),
        weights=torch.zeros(1, 2, 4).half(), query_dequant_scale=torch.zeros(1, 2, 4).half(),
        key_dequant_scale=torch.zeros(1, 8, 1).half(), query_quant_mode=0, key_quant_mode=0,
    )  # fmt: skip
    assert INDEXER(**call).shape == (1, 2, 1, 2048)
    with pytest.raises(KernelError, match="contract 4"):
        INDEXER(**call | changes)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    mode=st.sampled_from(["half", "interleave"]),
    tokens=st.integers(1, 5),
    rest=st.sampled_from([0, 4]),
)
def test_rotation_keeps_lengths_and_depends_on_position_differences_only(
    seed: int, mode: str, tokens: int, rest: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    angles = torch.arange(32)[:, None] * torch.rand(4, generator=source)[None]
    cache = torch.cat([angles.cos(), angles.sin()], -1)
    x, y = (torch.randn(tokens, 2 * (8 + rest), generator=source) for _ in range(2))
    at, shift = torch.randint(0, 16, (tokens,), generator=source), 7

    def turn(positions: Tensor) -> tuple[Tensor, Tensor]:
        return MROPE(positions, x, y, cache, 8 + rest, rotary_mode=mode)

    (a, b), (c, d) = turn(at), turn(at + shift)
    assert torch.allclose(a.norm(dim=-1), x.norm(dim=-1), atol=1e-4)
    assert torch.allclose((a * b).sum(-1), (c * d).sum(-1), atol=1e-3)
    tail = slice(8, 8 + rest)
    assert torch.equal(a.view(tokens, 2, -1)[..., tail], x.view(tokens, 2, -1)[..., tail])


def test_sections_take_their_columns_from_their_own_positions() -> None:
    """Column by column, against a rotation with the angle that the section's position gives."""
    sections, tokens = [1, 2, 1], 3
    angles = torch.rand(20, 4, generator=torch.Generator().manual_seed(3))
    cache = torch.cat([angles.cos(), angles.sin()], -1)
    at = torch.tensor([[0, 1, 2], [5, 6, 7], [9, 11, 13]])
    x = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(4))
    for cache_mode, owner in (("default", [0, 1, 1, 2]), ("interleave", [0, 1, 2, 0])):
        got, _ = MROPE(at, x, x, cache, 8, mrope_section=sections, cache_mode=cache_mode)
        for t in range(tokens):
            for column, section in enumerate(owner):
                angle = angles[at[section, t], column]
                a, b = x[t, column], x[t, column + 4]
                assert torch.allclose(got[t, column], a * angle.cos() - b * angle.sin(), atol=1e-5)
                assert torch.allclose(got[t, column + 4], b * angle.cos() + a * angle.sin(), atol=1e-5)
    for bad in ({"mrope_section": [1, 2]}, {"cache_mode": "x"}, {"rotary_mode": "x"}):
        with pytest.raises(KernelError, match="npu_mrope"):
            MROPE(at, x, x, cache, 8, **{"mrope_section": sections, **bad})


def test_fused_qkv_writes_normed_rotated_quantised_rows(torch_npu: Any) -> None:
    tokens, dim, heads, size = 4, 64, [4, 2, 2], 4
    qkv = torch.randn(tokens, sum(heads) * dim, dtype=torch.float16)
    gq, gk = torch.rand(dim).half(), torch.rand(dim).half()
    angle = torch.rand(tokens, dim // 2).repeat(1, 2)
    cos, sin = angle.cos().half(), angle.sin().half()
    slots = torch.tensor([5, -1, 0, 3])
    ks, vs = torch.rand(2, dim) * 0.02 + 0.01, torch.rand(2, dim) * 0.02 + 0.01
    q_out = torch.full((tokens, 4 * dim), 7.0).half()
    caches = [torch.full((2, 2 * dim // 32, size, 32), 9, dtype=torch.int8) for _ in range(2)]
    call = dict(qkv_size=[2, 2, sum(heads), dim], head_nums=heads, k_scale=ks, v_scale=vs)
    before = [t.clone() for t in (q_out, *caches)]
    functional = torch_npu.npu_qkv_rms_norm_rope_cache_functional(
        qkv, gq, gk, cos, sin, slots, q_out, *caches, **call
    )
    assert all(torch.equal(a, b) for a, b in zip((q_out, *caches), before, strict=True))
    q, k, v = torch_npu.npu_qkv_rms_norm_rope_cache(
        qkv, gq, gk, cos, sin, slots, q_out, *caches, is_output_qkv=True, **call
    )
    assert all(torch.equal(a, b) for a, b in zip((q_out, *caches), functional[3:], strict=True))
    assert all(t.isnan().all() for t in functional[:3])
    x = qkv.double().view(tokens, -1, dim)

    def turned(part: Tensor, gamma: Tensor) -> Tensor:
        y = part / (part.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gamma.double()
        a, b = y.chunk(2, -1)
        c, s = (t.double()[:, None, : dim // 2] for t in (cos, sin))
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    want_q, want_k, want_v = turned(x[:, :4], gq), turned(x[:, 4:6], gk), x[:, 6:]
    for got, want in ((q, want_q), (k, want_k), (v, want_v), (q_out, want_q)):
        assert torch.allclose(got.double().view(tokens, -1, dim), want, atol=4e-3)
    for cache, want, scale in ((caches[0], want_k, ks), (caches[1], want_v, vs)):
        # Pages hold [N * D / 32, Bs, 32].
        rows = cache.permute(0, 2, 1, 3).reshape(8, 2, dim)
        exact = (want / scale.double()).clamp(-128, 127)
        for t, slot in enumerate(slots.tolist()):
            if slot >= 0:
                assert (rows[slot].double() - exact[t]).abs().max() <= 0.51
        assert (rows[[1, 2, 4, 6, 7]] == 9).all()
    for bad, why in (({"cache_mode": "Norm"}, "PA_NZ"), ({"k_scale": None}, "go together")):
        with pytest.raises(KernelError, match=why):
            torch_npu.npu_qkv_rms_norm_rope_cache(
                qkv, gq, gk, cos, sin, slots, q_out, *caches, **{**call, **bad}
            )
