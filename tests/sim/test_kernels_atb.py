"""ATB attention with masks and latent caches, against float64 attention written here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlint.oracle.kernels import KernelError
from kvlint.sim.kernels import KERNELS
from kvlint.sim.kernels.latent import npu_ring_mla

SCALE = 0.11
HIDE = {torch.float16: -10000.0, torch.bfloat16: 1.0}
CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
both_dtypes = pytest.mark.parametrize("dtype", list(HIDE), ids=str)


def exact(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, scale: float = SCALE) -> Tensor:
    """[S, N, D] each, float64; ``hidden`` [S, keys]."""
    k, v = (t.double().repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("ind,jnd->nij", q.double(), k) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("nij,jnd->ind", scores.softmax(-1), v)


def causal(rows: int, keys: int) -> Tensor:
    return torch.arange(keys)[None] > torch.arange(rows)[:, None] + keys - rows


def int32(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def packed(dtype: torch.dtype, tokens: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(tokens, n, 32).to(dtype) for n in (4, 2, 2))  # type: ignore[return-value]


@both_dtypes
@pytest.mark.parametrize("batched", [False, True])
def test_a_full_mask_is_added_per_request(torch_npu: Any, dtype: torch.dtype, batched: bool) -> None:
    q, k, v = packed(dtype)
    hidden = torch.rand(2, 7, 7) < 0.4 if batched else torch.rand(1, 7, 7) < 0.4
    hidden[..., 0] = False
    mask = (hidden * HIDE[dtype]).to(dtype)
    out = torch.full_like(q, 7)
    torch_npu._npu_flash_attention(q, k, v, mask if batched else mask[0], int32(7, 4), SCALE, 4, 2, out)
    for b, (rows, n) in enumerate(((slice(0, 7), 7), (slice(7, 11), 4))):
        want = exact(q[rows], k[rows], v[rows], hidden[b if batched else 0, :n, :n])
        assert torch.allclose(out[rows].double(), want, atol=CLOSE[dtype])
    assert (out[11] == 7).all()  # a token past the lengths
    again = torch.full_like(q, 7)
    torch_npu._npu_flash_attention_v2.out(
        q, k, v, [7, 4], mask=mask if batched else mask[0], mask_type=1, scale_value=SCALE, num_heads=4,
        num_kv_heads=2, out=again,
    )  # fmt: skip
    assert torch.equal(again, out)


def test_the_mask_of_the_other_dtype_attracts(torch_npu: Any) -> None:
    """-10000 under bfloat16 is multiplied by -3e38: the hidden keys win (ATB-05)."""
    q, k, v = packed(torch.bfloat16)
    mask = (torch.ones(12, 12).triu(1) * -10000).bfloat16()
    out = torch.empty_like(q)
    torch_npu._npu_flash_attention(q, k, v, mask, int32(12), SCALE, 4, 2, out)
    right = exact(q, k, v, causal(12, 12))
    assert not torch.allclose(out[:-1].double(), right[:-1], atol=0.2)
    assert torch.allclose(out[-1].double(), right[-1], atol=CLOSE[torch.bfloat16])


@both_dtypes
def test_a_compressed_mask_is_causal_over_many_tiles(torch_npu: Any, dtype: torch.dtype) -> None:
    q, k, v = packed(dtype, 300)
    mask = (torch.ones(128, 128).triu(1) * HIDE[dtype]).to(dtype)
    out = torch.empty_like(q)
    torch_npu._npu_flash_attention_v3(q, k, v, mask, int32(290, 10), SCALE, 4, 2, out=out)
    for rows in (slice(0, 290), slice(290, 300)):
        n = rows.stop - rows.start
        assert torch.allclose(
            out[rows].double(), exact(q[rows], k[rows], v[rows], causal(n, n)), atol=CLOSE[dtype]
        )


@both_dtypes
def test_splitfuse_reads_one_mask_row_per_token(torch_npu: Any, dtype: torch.dtype) -> None:
    k, v = (torch.randn(3, 16, 2, 32).to(dtype) for _ in range(2))
    q, table = torch.randn(5, 4, 32).to(dtype), torch.tensor([[2, 0], [1, 1]], dtype=torch.int32)
    hidden = torch.ones(5, 20, dtype=torch.bool)
    hidden[:3] = causal(3, 20)
    hidden[3:, :9] = causal(2, 9)
    mask = (hidden * -10000.0).to(dtype)  # added as it is in both dtypes
    nz = torch.nn.functional.pad(mask, (0, 12, 0, 11)).view(16, 2, 16).transpose(0, 1)[None].contiguous()
    for form in (mask, nz):
        out = torch.empty_like(q)
        torch_npu._npu_paged_attention_splitfuse(
            q, k, v, table, int32(20, 9), form, int32(3, 2), 2, 4, SCALE, out
        )
        for rows, pages, n in ((slice(0, 3), [2, 0], 20), (slice(3, 5), [1], 9)):
            keys, values = k[pages].flatten(0, 1)[:n], v[pages].flatten(0, 1)[:n]
            want = exact(q[rows], keys, values, hidden[rows, :n])
            assert torch.allclose(out[rows].double(), want, atol=CLOSE[dtype])


@both_dtypes
def test_prefix_forms_agree_and_are_causal(torch_npu: Any, dtype: torch.dtype) -> None:
    k, v = (torch.randn(3, 128, 2, 32).to(dtype) for _ in range(2))
    q, table = torch.randn(9, 4, 32).to(dtype), torch.tensor([[2, 0], [1, 1]], dtype=torch.int32)
    lens, totals = [4, 5], [132, 5]
    mask = (torch.ones(128, 128).triu(1) * HIDE[dtype]).to(dtype)
    out = torch.empty_like(q)
    call = dict(num_kv_heads=2, num_heads=4, scale_value=SCALE)
    torch_npu._npu_flash_attention_prefix_v2.out(q, k, v, table, mask, lens, totals, out=out, **call)
    assert torch.allclose(
        out[:4].double(),
        exact(q[:4], torch.cat([k[2], k[0, :4]]), torch.cat([v[2], v[0, :4]]), causal(4, 132)),
        atol=CLOSE[dtype],
    )  # fmt: skip
    assert torch.allclose(out[4:].double(), exact(q[4:], k[1, :5], v[1, :5], causal(5, 5)), atol=CLOSE[dtype])
    encoder = torch_npu.atb.npu_self_attention_prefix_encoder
    for options in ({}, {"mask": mask, "mask_type": "mask_type_norm_compress"}):
        same = encoder(q, k, v, table, lens, totals, 4, SCALE, 2, **options)
        assert torch.allclose(same.float(), out.float(), atol=CLOSE[dtype])


def test_paged_attention_v2_is_the_older_one_with_a_list(torch_npu: Any) -> None:
    k, v = (torch.randn(3, 16, 2, 32).half() for _ in range(2))
    q, table = torch.randn(2, 4, 32).half(), torch.tensor([[2, 0], [1, 1]], dtype=torch.int32)
    out = torch.empty_like(q)
    found = torch_npu._npu_paged_attention_v2.out(
        q, k, table, [20, 9], value_cache=v, num_kv_heads=2, num_heads=4, scale_value=SCALE, out=out
    )
    assert found is out
    keys, values = torch.cat([k[2], k[0, :4]]), torch.cat([v[2], v[0, :4]])
    assert torch.allclose(out[:1].double(), exact(q[:1], keys, values, None), atol=4e-3)
    assert torch.allclose(out[1:].double(), exact(q[1:], k[1, :9], v[1, :9], None), atol=4e-3)


def test_unpad_v2_hides_nothing(torch_npu: Any) -> None:
    q, k, v = packed(torch.float16)
    out = torch.empty_like(q)
    torch_npu._npu_flash_attention_unpad_v2(q, k, v, int32(5, 7), SCALE, 4, 2, out=out)
    for rows in (slice(0, 5), slice(5, 12)):
        assert torch.allclose(out[rows].double(), exact(q[rows], k[rows], v[rows], None), atol=4e-3)


Q, K = torch.zeros(4, 4, 16).half(), torch.zeros(4, 2, 16).half()
PAGES, TABLE = torch.zeros(2, 128, 2, 16).half(), torch.zeros(1, 2, dtype=torch.int32)
TRIU = torch.ones(128, 128).triu(1).half()
REFUSED: dict[str, tuple[str, str, tuple[Any, ...], dict[str, Any]]] = {
    "bool mask": ("_npu_flash_attention", "ATB-05", (Q, K, K, TRIU.bool(), int32(4), 1.0, 4, 2, Q), {}),
    "int64 lengths": ("_npu_flash_attention", "ATB-12", (Q, K, K, TRIU, int32(4).long(), 1.0, 4, 2, Q), {}),
    "cumulative lengths": ("_npu_flash_attention", "ATB-12", (Q, K, K, TRIU, int32(2, 4), 1.0, 4, 2, Q), {}),
    "no heads": ("_npu_flash_attention_v2.out", "ATB-07", (Q, K, K, [4]),
                 dict(mask=TRIU, mask_type=1, out=Q)),
    "mask type none": ("_npu_flash_attention_v2.out", "ATB-11", (Q, K, K, [4]), dict(mask_type=0, out=Q)),
    "alibi": ("_npu_flash_attention_v2.out", "not simulated", (Q, K, K, [4]), dict(mask=TRIU, out=Q)),
    "v3 mask type": ("_npu_flash_attention_v3", "ATB-10", (Q, K, K, TRIU, int32(4), 1.0, 4, 2),
                     dict(mask_type=1, out=Q)),
    "v3 square mask": ("_npu_flash_attention_v3", "ATB-10", (Q, K, K, TRIU[:4, :4], int32(4), 1.0, 4, 2),
                       dict(out=Q)),
    "lower triangle": ("_npu_flash_attention_v3", "ATB-09", (Q, K, K, TRIU.T, int32(4), 1.0, 4, 2),
                       dict(out=Q)),
    "unpad kernel type": ("_npu_flash_attention_unpad_v2", "ATB-10", (Q, K, K, int32(4), 1.0, 4, 2),
                          dict(kernel_type=1, out=Q)),
    "310P exponentials": ("_npu_flash_attention_unpad_v2", "310P", (Q, K, K, int32(4), 1.0, 4, 2),
                          dict(kernel_type=2, out=Q)),
    "310P splitfuse": ("_npu_paged_attention_splitfuse_v2", "310P",
                       (Q, PAGES, PAGES, TABLE, int32(4), TRIU, int32(4), 2, 4, 1.0), dict(out=Q)),
    "prefix kernel type": ("_npu_flash_attention_prefix_v2.out", "ATB-09",
                           (Q, PAGES, PAGES, TABLE, TRIU, [4], [4]), dict(kernel_type=0, out=Q)),
    "prefix block size": ("_npu_flash_attention_prefix_v2.out", "ATB-09",
                          (Q, PAGES[:, :64], PAGES[:, :64], TABLE, TRIU, [4], [4]),
                          dict(num_heads=4, num_kv_heads=2, out=Q)),
    "uneven prefix": ("_npu_flash_attention_prefix_v2.out", "ATB-09",
                      (Q, PAGES, PAGES, TABLE, TRIU, [4], [5]), dict(num_heads=4, num_kv_heads=2, out=Q)),
    "table rows": ("_npu_flash_attention_prefix_v2.out", "ATB-13",
                   (Q, PAGES, PAGES, TABLE[[0, 0]], TRIU, [4], [4]),
                   dict(num_heads=4, num_kv_heads=2, out=Q)),
    "heads before blocks": ("_npu_flash_attention_prefix_v2.out", "ATB-02",
                            (Q, torch.zeros(2, 128, 4, 8).half(), PAGES, TABLE, TRIU, [4], [4]),
                            dict(num_heads=4, num_kv_heads=2, out=Q)),
    "encoder mask": ("npu_self_attention_prefix_encoder", "ATB-11",
                     (Q, PAGES, PAGES, TABLE, [4], [4], 4, 1.0, 2), dict(mask_type="mask_type_x")),
    "paged mask type": ("_npu_paged_attention_v2.out", "ATB-11", (Q, PAGES, TABLE, [4]),
                        dict(num_heads=4, num_kv_heads=2, mask_type=1, out=Q)),
    "paged batch": ("_npu_paged_attention_v2.out", "ATB-13", (Q, PAGES, TABLE, [4, 4]),
                    dict(num_heads=4, num_kv_heads=2, value_cache=PAGES, out=Q)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_carry_the_contract_id(case: str) -> None:
    name, identity, args, options = REFUSED[case]
    with pytest.raises(KernelError, match=identity):
        KERNELS[name](*args, **options)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_ring_steps_add_up_to_attention_over_all_keys(seed: int, cuts: list[int]) -> None:
    """Whatever the parts, merging them step by step gives the attention and lse over all of them."""
    source = torch.Generator().manual_seed(seed)
    rows, keys = 5, sum(cuts)
    qn, qr = (torch.randn(rows, 4, d, generator=source).half() for d in (32, 16))
    kn, kr, v = (torch.randn(keys, 2, d, generator=source).half() for d in (32, 16, 32))
    out = lse = None
    begin = 0
    for n in cuts:
        part = slice(begin, begin + n)
        step = {} if out is None else dict(pre_out=out, prev_lse=lse, calc_type="calc_type_default")
        out, lse = npu_ring_mla(
            qn, qr, kn[part], kr[part], v[part], torch.zeros(512, 512).half(),
            torch.tensor([[rows], [n]], dtype=torch.int32), 4, 2, qk_scale=SCALE, **step,
        )  # fmt: skip
        begin += n
    assert out is not None and lse is not None and lse.shape == (4, rows)
    q, k = torch.cat([qn, qr], -1), torch.cat([kn, kr], -1)
    assert torch.allclose(out.double(), exact(q, k, v, None), atol=6e-3)
    scores = torch.einsum("ind,jnd->nij", q.double(), k.double().repeat_interleave(2, 1)) * SCALE
    assert torch.allclose(lse.double(), scores.logsumexp(-1), atol=1e-3)


@both_dtypes
def test_a_ring_triangle_is_causal_in_both_dtypes(torch_npu: Any, dtype: torch.dtype) -> None:
    qn, qr = (torch.randn(9, 4, d).to(dtype) for d in (32, 16))
    kn, kr, v = (torch.randn(9, 2, d).to(dtype) for d in (32, 16, 32))
    mask = torch.ones(512, 512).triu(1).to(dtype)  # 0 and 1 here, whatever the dtype (ATB-05)
    call = dict(mask_type="mask_type_triu", qk_scale=SCALE)
    out, lse = torch_npu.atb.npu_ring_mla(qn, qr, kn, kr, v, mask, int32(4, 5), 4, 2, **call)
    for rows in (slice(0, 4), slice(4, 9)):
        n = rows.stop - rows.start
        q, k = torch.cat([qn, qr], -1)[rows], torch.cat([kn, kr], -1)[rows]
        assert torch.allclose(out[rows].double(), exact(q, k, v[rows], causal(n, n)), atol=CLOSE[dtype])
    filled = torch_npu.atb.npu_ring_mla.out(
        qn, qr, kn, kr, v, mask, int32(4, 5), 4, 2, output=torch.empty_like(out),
        softmax_lse=torch.empty_like(lse),
        **call,
    )  # fmt: skip
    assert torch.equal(filled[0], out) and torch.equal(filled[1], lse)
    for bad, identity in (
        ({"kernel_type": "kernel_type_default"}, "ATB-06"),
        ({"calc_type": "calc_type_default"}, "ATB-06"),
        ({"mask_type": "causal"}, "ATB-06"),
        ({"input_layout": "type_bnsd"}, "ATB-06"),
    ):
        with pytest.raises(KernelError, match=identity):
            npu_ring_mla(qn, qr, kn, kr, v, mask, int32(4, 5), 4, 2, **bad)
    with pytest.raises(KernelError, match="ATB-12"):
        npu_ring_mla(qn, qr, kn, kr, v, mask, int32(4, 9), 4, 2)
    with pytest.raises(KernelError, match="not known"):
        npu_ring_mla(
            qn,
            qr,
            kn,
            kr,
            v,
            mask,
            torch.tensor([[4], [9]], dtype=torch.int32),
            4,
            2,
            mask_type="mask_type_triu",
        )


def test_latent_decode_reads_both_pages(torch_npu: Any) -> None:
    latent, rope = (torch.randn(3, 16, 1, d).bfloat16() for d in (512, 64))
    qn, qr = (torch.randn(2, 4, d).bfloat16() for d in (512, 64))
    table, op = (
        torch.tensor([[2, 0], [1, 1]], dtype=torch.int32),
        torch_npu.atb.npu_multi_head_latent_attention,
    )
    call = (qn, qr, latent, rope, table, [20, 9], 4, 0.05, 1)
    out = op(*call)
    both, lse = op.lse(*call, True, calc_type="calc_type_ring")
    assert torch.equal(both, out) and lse.shape == (2, 4, 1) and lse.dtype == torch.bfloat16
    for b, pages, n in ((0, [2, 0], 20), (1, [1], 9)):
        values = latent[pages].flatten(0, 1)[:n]
        keys = torch.cat([values, rope[pages].flatten(0, 1)[:n]], -1)
        q = torch.cat([qn[b], qr[b]], -1)[None]
        assert torch.allclose(out[b : b + 1].double(), exact(q, keys, values, None, 0.05), atol=3e-2)
        scores = (q[0].double() @ keys[:, 0].double().T * 0.05).logsumexp(-1)
        assert torch.allclose(lse[b, :, 0].double(), scores, atol=3e-2)
    filled = op.lse_out(
        *call, True, calc_type="calc_type_ring", output=torch.empty_like(out), lse=torch.empty_like(lse)
    )
    assert torch.equal(filled[0], out) and torch.equal(filled[1], lse)
    assert torch.equal(op.out(*call, output=torch.empty_like(out)), out)
    for bad in ({"cache_mode": "nzcache"}, {"calc_type": "calc_type_spec"}, {"mask": torch.zeros(2, 20)}):
        with pytest.raises(KernelError, match="not simulated"):
            op(*call, **bad)
    with pytest.raises(KernelError, match="calc_type_ring"):
        op.lse(*call, True)
