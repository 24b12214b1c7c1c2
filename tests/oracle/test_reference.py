"""The reference against the formula, over layouts, modes, lengths and special arguments."""

from __future__ import annotations

import re

import pytest
import torch
from formula import attention, seen_matrix
from hypothesis import given, settings
from hypothesis import strategies as st
from kvlint.oracle import attention as core
from kvlint.oracle.errors import OracleError
from kvlint.oracle.kv import Dense, pack_int4, unpack_int4
from kvlint.oracle.layouts import LAYOUTS, join_heads, split_heads
from kvlint.oracle.reference import output_shape, reference
from kvlint.oracle.visibility import causal
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fold(x: Tensor, axes: str) -> Tensor:
    """[B, N, S, D] (or [N, T, D]) to a layout, written out here."""
    if axes == "BNSD":
        return x
    if axes == "BSND":
        return x.transpose(1, 2)
    if axes == "BSH":
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)
    if axes == "SBH":
        return x.permute(2, 0, 1, 3).reshape(x.shape[2], x.shape[0], -1)
    if axes == "NBSD":
        return x.transpose(0, 1)
    return x.transpose(0, 1) if axes == "TND" else x


@given(
    st.sampled_from([(1, 1), (4, 2), (6, 2), (4, 4), (4, 1)]),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=3),
    st.sampled_from(["causal", "full", "window"]),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from(["TND", "TND_NTD", "NTD", "NTD_TND"]),
    st.integers(0, 2**20),
)
@settings(max_examples=60, deadline=None)
def test_packed_layouts_follow_the_formula(
    heads: tuple[int, int],
    lens: list[tuple[int, int]],
    masking: str,
    window: int,
    with_sink: bool,
    layout: str,
    seed: int,
) -> None:
    n, nk = heads
    q_lens = [q for q, _ in lens]
    kv_lens = [q + past for q, past in lens]
    q, k, v = (
        rand(n, sum(q_lens), 8, seed=seed),
        rand(nk, sum(kv_lens), 8, seed=seed + 1),
        rand(nk, sum(kv_lens), 6, seed=seed + 2),
    )
    sink = rand(n, seed=seed + 3) if with_sink else None
    left, _, right = layout.partition("_")
    right = right or left
    mode = {
        "causal": {"sparse_mode": 3},
        "full": {},
        "window": {"sparse_mode": 4, "pre_tokens": window - 1, "next_tokens": 0},
    }
    answer = reference(
        V2, fold(q, left), fold(k, left), fold(v, left), num_query_heads=n, num_key_value_heads=nk,
        softmax_scale=0.3,
        input_layout=layout, actual_seq_qlen=torch.tensor(q_lens).cumsum(0).tolist(),
        actual_seq_kvlen=torch.tensor(kv_lens).cumsum(0).tolist(), learnable_sink=sink,
        atten_mask=None if masking == "full" else MASK, return_softmax_lse=True, **mode[masking],
    )  # fmt: skip
    out, lse = answer.pack()
    assert (tuple(out.shape), tuple(lse.shape)) == output_shape(answer.call)
    a = b = 0
    for rows, keys in zip(q_lens, kv_lens, strict=True):
        seen = seen_matrix(masking, rows, keys, window=window)
        want, want_lse = attention(
            q[:, a : a + rows], k[:, b : b + keys], v[:, b : b + keys], seen, 0.3, sink=sink
        )
        torch.testing.assert_close(fold(out, "TND" if right == "TND" else "NTD")[:, a : a + rows], want)
        torch.testing.assert_close(lse[a : a + rows, :, 0].T, want_lse)
        a, b = a + rows, b + keys


@pytest.mark.parametrize(
    "layout", [name for name, lay in LAYOUTS.items() if not lay.packed and name not in ("NSD", "SBH")]
)
@pytest.mark.parametrize("masking", ["full", "causal", "left-up", "window", "all"])
def test_batch_layouts_follow_the_formula(layout: str, masking: str) -> None:
    q_lens, kv_lens, n, nk = [5, 9, 2], [9, 12, 4], 6, 2
    q, k, v = rand(3, n, 9, 8), rand(3, nk, 12, 8, seed=1), rand(3, nk, 12, 8, seed=2)
    hidden = rand(3, 9, 12, seed=3) > 0.5
    hidden[..., 0] = False
    bias = rand(3, n, 9, 12, seed=4)
    left, _, right = layout.partition("_")
    kwargs = {
        "full": {},
        "causal": {"sparse_mode": 3, "atten_mask": MASK},
        "left-up": {"sparse_mode": 2, "atten_mask": MASK},
        "window": {"sparse_mode": 4, "atten_mask": MASK, "pre_tokens": 3, "next_tokens": 0},
        "all": {"sparse_mode": 1, "atten_mask": hidden.unsqueeze(1)},
    }[masking]
    answer = reference(
        V1, fold(q, left), fold(k, left), fold(v, left), num_heads=n, num_key_value_heads=nk, scale=0.4,
        pse_shift=bias,
        input_layout=layout, actual_seq_lengths=q_lens, actual_seq_lengths_kv=kv_lens,
        softmax_lse_flag=True, **kwargs,
    )  # fmt: skip
    out, lse = answer.pack()
    assert (tuple(out.shape), tuple(lse.shape)) == output_shape(answer.call)
    got = split_heads(out, right or left, n)
    for b, (rows, keys) in enumerate(zip(q_lens, kv_lens, strict=True)):
        seen = seen_matrix(masking, rows, keys, window=4, hidden=hidden[b])
        want, want_lse = attention(
            q[b, :, :rows], k[b, :, :keys], v[b, :, :keys], seen, 0.4, bias=bias[b, :, :rows, :keys]
        )
        torch.testing.assert_close(got[b, :, :rows], want)
        torch.testing.assert_close(lse[b, :, :rows, 0], want_lse)
        assert not got[b, :, rows:].any()
        assert torch.isinf(lse[b, :, rows:]).all()


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_paged_layouts_read_the_same_rows(rank: int) -> None:
    size, blocks, nk, dim = 16, 12, 2, 32
    rows = rand(blocks * size, nk, dim).to(torch.float16)
    pages = rows.view(blocks, size, nk, dim)
    cache = {
        3: pages.reshape(blocks, size, nk * dim),
        4: pages.transpose(1, 2).contiguous(),
        5: pages.reshape(blocks, size, nk, 2, 16).permute(0, 2, 3, 1, 4).contiguous(),
    }[rank]
    table = torch.tensor([[7, 3, 5, 0], [2, 9, 1, 4]], dtype=torch.int32)
    q = rand(5, 4, dim, seed=1).to(torch.float16)
    answer = reference(
        V2, q, cache, cache.flip(-1), num_query_heads=4, num_key_value_heads=nk, input_layout="TND",
        sparse_mode=3,
        softmax_scale=0.2, atten_mask=MASK, actual_seq_qlen=[2, 5], actual_seq_kvlen=[33, 50],
        block_table=table, block_size=size,
    )  # fmt: skip
    value = pages.flip(-1) if rank != 3 else pages.reshape(blocks, size, -1).flip(-1).view_as(pages)
    if rank == 5:
        value = cache.flip(-1).permute(0, 3, 1, 2, 4).reshape(blocks, size, nk, dim)
    for b, (first, count, keys) in enumerate([(0, 2, 33), (2, 3, 50)]):
        at = torch.arange(keys)
        blk = table[b][at // size].long()
        k = torch.stack([pages[blk[t], t % size] for t in range(keys)]).transpose(0, 1)
        v = torch.stack([value[blk[t], t % size] for t in range(keys)]).transpose(0, 1)
        want, _ = attention(
            q[first : first + count].transpose(0, 1), k, v, seen_matrix("causal", count, keys), 0.2
        )
        torch.testing.assert_close(answer.sequences[b].out, want)


def test_dead_rows_are_zero_and_have_no_lse() -> None:
    answer = reference(
        V1, rand(1, 2, 6, 8), rand(1, 2, 3, 8), rand(1, 2, 3, 8), num_heads=2, input_layout="BNSD",
        sparse_mode=3,
        atten_mask=MASK, softmax_lse_flag=True,
    )  # fmt: skip
    out, lse = answer.pack()
    assert not out[:, :, :3].any() and out[:, :, 3:].any(-1).all()
    assert torch.isinf(lse[:, :, :3]).all() and torch.isfinite(lse[:, :, 3:]).all()


def test_fully_masked_rows_are_undefined_until_corrected() -> None:
    hidden = torch.zeros(1, 1, 4, 5, dtype=torch.bool)
    hidden[..., 2, :] = True
    call = dict(num_heads=2, input_layout="BNSD", sparse_mode=1, atten_mask=hidden)
    x = (rand(1, 2, 4, 8), rand(1, 2, 5, 8), rand(1, 2, 5, 8))
    open_rows = reference(V1, *x, **call)
    assert open_rows.sequences[0].undefined.tolist() == [False, False, True, False]
    assert any(n.startswith("H03") for n in open_rows.notes)
    fixed = reference(V1, *x, inner_precise=2, **call)
    assert not fixed.sequences[0].undefined.any() and not fixed.sequences[0].out[:, 2].any()


def test_band_that_disagrees_with_the_mask_is_undefined() -> None:
    x = (rand(1, 2, 6, 8), rand(1, 2, 6, 8), rand(1, 2, 6, 8))
    lower = torch.ones(1, 1, 6, 6, dtype=torch.bool).triu(1)
    agree = reference(V1, *x, num_heads=2, input_layout="BNSD", atten_mask=lower, next_tokens=0)
    assert not agree.notes and not agree.sequences[0].undefined.any()
    nothing_hidden = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    leak = reference(V1, *x, num_heads=2, input_layout="BNSD", atten_mask=nothing_hidden, next_tokens=0)
    assert leak.sequences[0].undefined.tolist() == [True] * 5 + [False]


def test_prompt_attention_defaults_next_tokens_to_zero_only_with_a_mask() -> None:
    x = (rand(1, 2, 6, 8), rand(1, 2, 6, 8), rand(1, 2, 6, 8))
    lower = torch.ones(6, 6, dtype=torch.bool).triu(1)
    masked = reference("npu_prompt_flash_attention", *x, num_heads=2, input_layout="BNSD", atten_mask=lower)
    want, _ = attention(x[0][0], x[1][0], x[2][0], seen_matrix("causal", 6, 6), 1.0)
    torch.testing.assert_close(masked.sequences[0].out, want)
    plain = reference("npu_prompt_flash_attention", *x, num_heads=2, input_layout="BNSD")
    want, _ = attention(x[0][0], x[1][0], x[2][0], seen_matrix("full", 6, 6), 1.0)
    torch.testing.assert_close(plain.sequences[0].out, want)


def test_one_token_decode_reads_row_zero_of_a_compressed_mask() -> None:
    x = (rand(1, 2, 1, 8), rand(1, 2, 30, 8), rand(1, 2, 30, 8))
    answer = reference(V1, *x, num_heads=2, input_layout="BNSD", sparse_mode=3, atten_mask=MASK)
    assert any(n.startswith("C13") for n in answer.notes)
    torch.testing.assert_close(answer.sequences[0].out, x[2][0][:, :1])


def test_pre_tokens_is_a_window_in_bsh_paged_decode_only() -> None:
    cache = rand(4, 16, 16).to(torch.float16)
    table = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    common = dict(
        num_heads=2,
        num_key_value_heads=2,
        actual_seq_lengths_kv=[40],
        block_table=table,
        block_size=16,
        pre_tokens=7,
    )
    q = rand(1, 1, 16).to(torch.float16)
    bsh = reference(V1, q, cache, cache, input_layout="BSH", **common)
    flat = cache[table[0].long()].reshape(-1, 2, 8)[:40].transpose(0, 1)
    want, _ = attention(q.view(2, 1, 8), flat[:, -7:], flat[:, -7:], torch.ones(1, 7, dtype=torch.bool), 1.0)
    torch.testing.assert_close(bsh.sequences[0].out, want)
    bsnd = reference(V1, q.view(1, 1, 2, 8), cache, cache, input_layout="BSND", **common)
    want, _ = attention(q.view(2, 1, 8), flat, flat, torch.ones(1, 40, dtype=torch.bool), 1.0)
    torch.testing.assert_close(bsnd.sequences[0].out, want)


def test_shared_prefix_and_left_padding() -> None:
    q, k, v = rand(2, 2, 4, 8), rand(2, 2, 6, 8, seed=1), rand(2, 2, 6, 8, seed=2)
    pre_k, pre_v = rand(1, 2, 5, 8, seed=3), rand(1, 2, 5, 8, seed=4)
    answer = reference(
        V1, q, k, v, num_heads=2, input_layout="BNSD", key_shared_prefix=pre_k, value_shared_prefix=pre_v,
        actual_shared_prefix_len=[3], actual_seq_lengths_kv=[6, 4],
    )  # fmt: skip
    for b, n in enumerate([6, 4]):
        kk, vv = torch.cat([pre_k[0, :, :3], k[b, :, :n]], 1), torch.cat([pre_v[0, :, :3], v[b, :, :n]], 1)
        want, _ = attention(q[b], kk, vv, torch.ones(4, 3 + n, dtype=torch.bool), 1.0)
        torch.testing.assert_close(answer.sequences[b].out, want)
    padded = reference(
        V1, q, k, v, num_heads=2, input_layout="BNSD", actual_seq_lengths=[4, 2],
        actual_seq_lengths_kv=[3, 4],
        query_padding_size=torch.tensor([0]), kv_padding_size=torch.tensor([1]),
    )  # fmt: skip
    for b, (rows, keys) in enumerate([(4, 3), (2, 4)]):
        at = slice(6 - 1 - keys, 5)
        want, _ = attention(
            q[b, :, 4 - rows :], k[b, :, at], v[b, :, at], torch.ones(rows, keys, dtype=torch.bool), 1.0
        )
        torch.testing.assert_close(padded.sequences[b].out, want)


def test_fusion_attention_adds_pse_before_scaling_and_knows_prefixes() -> None:
    q, k, v, bias = (
        rand(1, 2, 5, 8),
        rand(1, 2, 7, 8, seed=1),
        rand(1, 2, 7, 8, seed=2),
        rand(1, 2, 5, 7, seed=3),
    )
    v1 = reference("npu_fusion_attention", q, k, v, 2, "BNSD", pse=bias, scale=0.25)
    full = torch.ones(5, 7, dtype=torch.bool)
    torch.testing.assert_close(
        v1.sequences[0].out, attention(q[0], k[0], v[0], full, 0.25, bias=bias[0] * 0.25)[0]
    )
    v2 = reference("npu_fusion_attention_v2", q, k, v, 2, "BNSD", pse=bias, scale=0.25, pse_type=0)
    torch.testing.assert_close(v2.sequences[0].out, attention(q[0], k[0], v[0], full, 0.25, bias=bias[0])[0])
    prefix = reference(
        "npu_fusion_attention",
        q,
        k,
        v,
        2,
        "BNSD",
        atten_mask=torch.ones(5, 7, dtype=torch.bool),
        sparse_mode=5,
        prefix=[4],
    )
    seen = seen_matrix("causal", 5, 7)
    seen[:, :4] = True
    torch.testing.assert_close(prefix.sequences[0].out, attention(q[0], k[0], v[0], seen, 1.0)[0])


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_integer_caches_are_dequantised(mode: int) -> None:
    gen = torch.Generator().manual_seed(mode)
    k = torch.randint(-128, 128, (2, 2, 20, 32), generator=gen).to(torch.int8)
    v = torch.randint(-128, 128, (2, 2, 20, 32), generator=gen).to(torch.int8)
    shape = {0: (2, 1, 32), 1: (2, 20), 2: (2,), 3: (2, 2, 20)}[mode]
    s_k, s_v = (torch.rand(shape, generator=gen) * 0.02 + 0.01 for _ in range(2))
    q = rand(2, 4, 1, 32)
    answer = reference(
        V1, q, k, v, num_heads=4, num_key_value_heads=2, input_layout="BNSD", scale=0.2,
        key_antiquant_scale=s_k,
        value_antiquant_scale=s_v, key_antiquant_mode=mode, value_antiquant_mode=mode,
        actual_seq_lengths_kv=[20, 13],
    )  # fmt: skip
    for b, n in enumerate([20, 13]):

        def spread(s: Tensor, b: int = b, n: int = n) -> Tensor:
            if mode == 0:
                return s.expand(2, n, 32)
            if mode == 1:
                return s[b, :n].view(1, n, 1)
            return s.view(2, 1, 1) if mode == 2 else s[b, :, :n].unsqueeze(-1)

        want, _ = attention(
            q[b], k[b, :, :n].double() * spread(s_k).double(), v[b, :, :n].double() * spread(s_v).double(),
            torch.ones(1, n, dtype=torch.bool), 0.2,
        )  # fmt: skip
        torch.testing.assert_close(answer.sequences[b].out, want)


@given(st.lists(st.integers(-8, 7), min_size=8, max_size=64).filter(lambda x: len(x) % 8 == 0))
def test_int4_packing_round_trip(values: list[int]) -> None:
    data = torch.tensor(values, dtype=torch.int8)
    assert unpack_int4(pack_int4(data)).tolist() == values


@pytest.mark.parametrize("budget", [1 << 6, 1 << 10, 1 << 23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiling_does_not_change_the_answer(
    monkeypatch: pytest.MonkeyPatch, budget: int, dtype: torch.dtype
) -> None:
    q, k, v = rand(4, 50, 16), rand(2, 70, 16, seed=1), rand(2, 70, 16, seed=2)
    want, want_lse = attention(q, k, v, seen_matrix("causal", 50, 70), 0.25)
    monkeypatch.setattr(core, "SCORE_BUDGET", budget)
    monkeypatch.setattr(core, "_ROW_BLOCK", 16)
    monkeypatch.setattr(core, "_KEY_BLOCK", 32)
    found = core.attend([core.Request(q, Dense(k), Dense(v), causal(50, 70))], 0.25, dtype=dtype)[0]
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    assert float((found.out - want).abs().max()) < tolerance
    assert float((found.lse - want_lse).abs().max()) < tolerance
    weights = (
        (torch.einsum("nsd,ntd->nst", q, k.repeat_interleave(2, 0)) * 0.25)
        .masked_fill(~seen_matrix("causal", 50, 70), -torch.inf)
        .softmax(-1)
    )
    torch.testing.assert_close(found.spread.double(), weights.norm(dim=-1), rtol=1e-4, atol=1e-6)


def test_sampled_rows_are_rows_of_the_whole() -> None:
    q, k, v = rand(4, 600, 16), rand(2, 700, 16, seed=1), rand(2, 700, 16, seed=2)
    whole = core.attend([core.Request(q, Dense(k), Dense(v), causal(600, 700))], 0.25)[0]
    rows = torch.tensor([0, 1, 77, 255, 256, 599])
    some = core.attend([core.Request(q, Dense(k), Dense(v), causal(600, 700), rows)], 0.25)[0]
    torch.testing.assert_close(some.out, whole.out[:, rows])
    torch.testing.assert_close(some.lse, whole.lse[:, rows])


class _Largest(TorchDispatchMode):
    """Largest tensor any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not any(
            out is a
            or (isinstance(a, Tensor) and a.untyped_storage().data_ptr() == out.untyped_storage().data_ptr())
            for a in args
        ):
            self.elements = max(self.elements, out.numel())
        return out


def test_keys_are_neither_repeated_nor_gathered_whole() -> None:
    heads, kv_heads, keys, dim, size = 32, 2, 32768, 64, 128
    cache = torch.zeros(keys // size, size, kv_heads * dim, dtype=torch.bfloat16)
    table = torch.arange(keys // size, dtype=torch.int32).view(1, -1)
    q = torch.zeros(1, heads, dim, dtype=torch.bfloat16)
    with _Largest() as largest:
        reference(
            V2, q, cache, cache, num_query_heads=heads, num_key_value_heads=kv_heads, input_layout="TND",
            actual_seq_qlen=[1], actual_seq_kvlen=[keys], block_table=table, block_size=size,
            dtype=torch.float32,
        )  # fmt: skip
    assert largest.elements < kv_heads * keys * dim, "the whole cache was copied"
    assert largest.elements < heads * keys * dim // 4, "KV heads were repeated for the query heads"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_layout": "TDN"}, "input_layout 'TDN' is not one of"),
        ({"softmax_scale": 1.0}, "has no argument 'softmax_scale'"),
        ({"sparse_mode": 3}, "needs an atten_mask"),
        ({"sparse_mode": 3, "atten_mask": torch.ones(4, 4)}, "2048x2048"),
        ({"sparse_mode": 7, "atten_mask": MASK}, "sparse_mode 7 is not supported"),
        ({"actual_seq_lengths_kv": [99]}, "key length 99"),
        ({"actual_seq_lengths_kv": [3, 3, 3], "actual_seq_lengths": [1]}, None),
        ({"num_heads": 3}, "3 heads|key heads|multiple"),
        ({"atten_mask": torch.zeros(4, 5)}, "must be bool, int8 or uint8"),
        ({"query_rope": torch.zeros(2, 2, 4, 4)}, "without key_rope"),
        ({"block_table": torch.zeros(2, 1, dtype=torch.int32)}, "without key lengths"),
        ({"dequant_scale1": torch.ones(1)}, "not modelled"),
    ],
)
def test_bad_calls_are_refused_in_one_line(changes: dict[str, object], message: str | None) -> None:
    q, k = rand(2, 2, 4, 8), rand(2, 2, 5, 8)
    kwargs: dict[str, object] = {"num_heads": 2, "input_layout": "BNSD"} | changes
    if message is None:
        reference(V1, q, k, k, **kwargs)
        return
    with pytest.raises(OracleError) as caught:
        reference(V1, q, k, k, **kwargs)
    assert re.search(message, str(caught.value)) and "\n" not in str(caught.value)


def test_block_table_outside_the_cache_is_refused() -> None:
    cache = torch.zeros(4, 16, 16)
    with pytest.raises(OracleError, match="names block 9, the cache has 4"):
        reference(
            V1, torch.zeros(1, 1, 16), cache, cache, num_heads=2, actual_seq_lengths_kv=[20],
            block_table=torch.tensor([[1, 9]], dtype=torch.int32), block_size=16,
        )  # fmt: skip


@given(
    st.sampled_from(sorted({a for lay in LAYOUTS.values() for a in (lay.inputs, lay.output)} - {"NSD"})),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_split_and_join_are_inverse(axes: str, batch: int, heads: int, tokens: int) -> None:
    shape = (heads, tokens, 4) if "T" in axes else (batch, heads, tokens, 4)
    x = rand(*shape)
    torch.testing.assert_close(split_heads(join_heads(x, axes), axes, heads), x)
    torch.testing.assert_close(join_heads(x, axes), fold(x, axes))
