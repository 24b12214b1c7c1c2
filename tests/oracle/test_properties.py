"""Reference-free checks: they hold for a right operator and break for a wrong one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from kvlint.oracle import properties
from kvlint.oracle.errors import OracleError
from kvlint.oracle.kernels import KERNELS
from torch import Tensor

FIA = KERNELS["npu_fused_infer_attention_score"]
MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
SCALE = 0.125


def tensors(rows: int = 12, keys: int = 40, batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    make = lambda s, n: torch.randn(batch, s, n, 64, generator=gen).bfloat16()  # noqa: E731
    return make(rows, 8), make(keys, 2), make(keys, 2)


def fia(q: Tensor, k: Tensor, v: Tensor, **kwargs: object) -> tuple[Tensor, Tensor]:
    return FIA(q, k, v, num_heads=8, num_key_value_heads=2, scale=SCALE, input_layout="BSND", **kwargs)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.shape[1] == 1:
        return fia(q, k, v)[0]
    return fia(q, k, v, sparse_mode=3, atten_mask=MASK)[0]


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fia(q, k, v)[0]


def window(width: int):  # type: ignore[no-untyped-def]
    return lambda q, k, v: fia(q, k, v, sparse_mode=4, atten_mask=MASK, pre_tokens=width - 1, next_tokens=0)[
        0
    ]


def padded(q: Tensor, k: Tensor, v: Tensor, lens: Sequence[int]) -> Tensor:
    return fia(q, k, v, actual_seq_lengths_kv=list(lens))[0]


def test_right_operator_holds() -> None:
    q, k, v = tensors()
    assert properties.causality(causal, q, k, v)
    assert properties.window_invariance(window(9), q, k, v, window=9)
    assert properties.padding_invariance(padded, q, k, v, kv_lens=[40, 25, 13])
    assert properties.batch_permutation(causal, q, k, v)
    assert properties.prefill_decode_equality(causal, causal, q, k, v)
    assert properties.split_kv_equality(lambda *x: _bns(fia(*x, softmax_lse_flag=True)), q, k, v, parts=3)


def _bns(found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return found[0], found[1][..., 0]


def test_split_with_more_parts_than_keys() -> None:
    q, k, v = tensors(2, 3)
    assert properties.split_kv_equality(lambda *x: _bns(fia(*x, softmax_lse_flag=True)), q, k, v, parts=5)


def test_wrong_operators_break() -> None:
    q, k, v = tensors()
    found = properties.causality(full, q, k, v)
    assert not found and "a later key changed an earlier output" in found.detail
    assert "request 0, token 0" in found.detail
    assert not properties.window_invariance(window(10), q, k, v, window=9)
    assert "too narrow" in properties.window_invariance(window(8), q, k, v, window=9).detail
    assert not properties.padding_invariance(lambda q, k, v, n: full(q, k, v), q, k, v, kv_lens=[40, 25, 13])
    assert not properties.batch_permutation(lambda q, k, v: causal(q, k[:1].expand_as(k), v), q, k, v)
    assert not properties.prefill_decode_equality(full, causal, q, k, v)
    assert not properties.split_kv_equality(lambda *x: (fia(*x)[0], torch.zeros(3, 8, 12)), q, k, v), (
        "averaging partial results is not merging them"
    )


def test_an_operator_that_ignores_new_keys_breaks_causality() -> None:
    q, k, v = tensors(12, 12)
    stale = lambda q, k, v: causal(q, k * 0, v * 0)  # noqa: E731
    assert "not read" in properties.causality(stale, q, k, v).detail


def test_nan_is_a_difference() -> None:
    q, k, v = tensors()
    calls = iter([1.0, float("nan")])
    found = properties.batch_permutation(lambda q, k, v: full(q, k, v) * next(calls), q, k, v)
    assert not found


def test_impossible_questions_are_refused() -> None:
    q, k, v = tensors(12, 8)
    with pytest.raises(OracleError, match="12 queries but only 8 keys"):
        properties.causality(causal, q, k, v)
    with pytest.raises(OracleError, match="no key lies outside"):
        properties.window_invariance(window(9), q, k, v, window=99)
