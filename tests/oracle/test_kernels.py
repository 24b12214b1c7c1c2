"""Simulated kernels on their own: what they ignore, refuse and round, and the small operators."""

from __future__ import annotations

import ast
from pathlib import Path

import kvlint.oracle.kernels as kernels
import pytest
import torch
from kvlint.oracle.kernels import KERNELS, KernelError
from torch import Tensor

V1 = KERNELS["npu_fused_infer_attention_score"]
V2 = KERNELS["npu_fused_infer_attention_score_v2"]
MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_kernels_do_not_import_the_reference() -> None:
    for path in Path(kernels.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1, f"{path.name} imports {node.module} from outside the kernels"
                assert not (node.module or "").startswith("kvlint")


def test_a_transposed_compressed_mask_gives_garbage_as_on_the_device() -> None:
    q, k, v = (rand(1, 2, 300, 32, seed=s).bfloat16() for s in range(3))
    right = V1(q, k, v, num_heads=2, input_layout="BNSD", scale=0.2, sparse_mode=3, atten_mask=MASK)[0]
    wrong = V1(q, k, v, num_heads=2, input_layout="BNSD", scale=0.2, sparse_mode=3, atten_mask=MASK.T)[0]
    assert not torch.allclose(right, wrong, atol=0.1)


def test_one_token_decode_ignores_tokens_and_reads_mask_row_zero() -> None:
    q, k, v = (
        rand(1, 2, 1, 32).bfloat16(),
        rand(1, 2, 40, 32, seed=1).bfloat16(),
        rand(1, 2, 40, 32, seed=2).bfloat16(),
    )
    call = dict(num_heads=2, input_layout="BNSD", scale=0.2)
    plain = V1(q, k, v, **call)[0]
    assert torch.equal(plain, V1(q, k, v, pre_tokens=5, sparse_mode=4, **call)[0])
    assert torch.equal(V1(q, k, v, sparse_mode=3, atten_mask=MASK, **call)[0], v[:, :, :1])


def test_masked_out_rows_are_averages_until_corrected() -> None:
    q, k, v = (rand(1, 1, 4, 32, seed=s).bfloat16() for s in range(3))
    hidden = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    call = dict(num_heads=1, input_layout="BNSD", sparse_mode=1, atten_mask=hidden)
    garbage = V1(q, k, v, **call)[0]
    torch.testing.assert_close(
        garbage.float(), v.float().mean(2, keepdim=True).expand_as(v), atol=0.02, rtol=0.02
    )
    assert not V1(q, k, v, inner_precise=2, **call)[0].any()


def test_empty_keys_have_two_spellings_of_no_lse() -> None:
    q, k = rand(2, 2, 1, 32).bfloat16(), rand(2, 2, 8, 32).bfloat16()
    out, lse = V1(
        q, k, k, num_heads=2, input_layout="BNSD", actual_seq_lengths_kv=[0, 8], softmax_lse_flag=True
    )
    assert not out[0].any() and bool((lse[0] < -3e38).all()) and bool(torch.isfinite(lse[1]).all())


def test_out_form_fills_the_buffers() -> None:
    q, k, v = (rand(1, 2, 9, 32, seed=s).bfloat16() for s in range(3))
    out, lse = torch.empty_like(q), torch.empty(1, 2, 9, 1)
    call = dict(num_heads=2, input_layout="BNSD", softmax_lse_flag=True)
    KERNELS["npu_fused_infer_attention_score.out"](q, k, v, out=[out, lse], **call)
    want = V1(q, k, v, **call)
    assert torch.equal(out, want[0]) and torch.equal(lse, want[1])
    with pytest.raises(KernelError, match="attention_out buffer"):
        KERNELS["npu_fused_infer_attention_score.out"](q, k, v, out=[out[:, :1], lse], **call)
    assert KERNELS["_npu_fused_infer_attention_score_get_max_workspace"](q, k, v, **call).numel() == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_layout": "BSHD"}, "not supported"),
        ({"input_layout": "TND"}, "dims for layout TND"),
        ({"sparse_mode": 3}, "needs atten_mask"),
        ({"sparse_mode": 3, "atten_mask": torch.ones(4, 4, dtype=torch.bool)}, "2048x2048"),
        ({"atten_mask": torch.zeros(9, 9)}, "bool, int8 or uint8"),
        ({"sparse_mode": 99, "atten_mask": MASK}, "out of range"),
        ({"actual_seq_lengths_kv": [99]}, "exceed S2"),
        ({"num_heads": 3}, "2 heads"),
        ({"query_rope": torch.zeros(1, 2, 9, 64)}, "together"),
        ({"block_table": torch.zeros(1, 1, dtype=torch.int64), "actual_seq_lengths_kv": [3]}, "int32"),
    ],
)
def test_bad_calls_are_refused(changes: dict[str, object], message: str) -> None:
    q, k, v = (rand(1, 2, 9, 32, seed=s).bfloat16() for s in range(3))
    with pytest.raises(KernelError, match=message):
        V1(q, k, v, **({"num_heads": 2, "input_layout": "BNSD"} | changes))


def test_stray_block_ids_are_refused() -> None:
    cache = torch.zeros(4, 16, 64).bfloat16()
    for bad in (-1, 4):
        with pytest.raises(KernelError, match="block id"):
            V2(
                torch.zeros(1, 2, 32).bfloat16(), cache, cache, num_query_heads=2, num_key_value_heads=2,
                input_layout="TND", actual_seq_qlen=[1], actual_seq_kvlen=[20], block_size=16,
                block_table=torch.tensor([[0, bad]], dtype=torch.int32),
            )  # fmt: skip


def test_fusion_versions_agree() -> None:
    q, k, v = (rand(20, 4, 32, seed=s).bfloat16() for s in range(3))
    lens = [8, 20]
    v1 = KERNELS["npu_fusion_attention"](
        q, k, v, 4, "TND", scale=0.2, actual_seq_qlen=lens, actual_seq_kvlen=lens
    )
    v2 = KERNELS["npu_fusion_attention_v2"](
        q, k, v, 4, "TND", scale=0.2, actual_seq_qlen=lens, actual_seq_kvlen=lens
    )
    tensor = torch.tensor(lens)
    v3 = KERNELS["npu_fusion_attention_v3"](
        q, k, v, 4, "TND", scale=0.2, actual_seq_qlen=tensor, actual_seq_kvlen=tensor
    )
    assert (
        torch.equal(v1[0], v2[0]) and torch.equal(v1[0], v3[0]) and (len(v1), len(v2), len(v3)) == (7, 7, 6)
    )
    with pytest.raises(KernelError, match="CPU tensor"):
        KERNELS["npu_fusion_attention_v3"](q, k, v, 4, "TND", actual_seq_qlen=lens, actual_seq_kvlen=lens)


def test_ring_merge_equals_one_attention() -> None:
    q, k, v = (rand(6, 2, 32, seed=s) for s in range(3))
    fusion = KERNELS["npu_fusion_attention"]
    whole = fusion(q, k, v, 2, "TND", scale=0.2, actual_seq_qlen=[6], actual_seq_kvlen=[6])
    parts = [
        fusion(q, k[a:b], v[a:b], 2, "TND", scale=0.2, actual_seq_qlen=[6], actual_seq_kvlen=[b - a])
        for a, b in ((0, 2), (2, 6))
    ]
    merged = KERNELS["npu_ring_attention_update"](*parts[0][:3], *parts[1][:3], input_layout="TND")
    torch.testing.assert_close(merged[0], whole[0])
    torch.testing.assert_close(merged[1], whole[1])
    torch.testing.assert_close(merged[2], whole[2])


def test_attention_update_ignores_ranks_without_keys() -> None:
    out, lse = rand(3, 8), rand(3, seed=1)
    for absent in (float("inf"), -3.4e38):
        nothing = torch.full((3,), absent)
        merged, total = KERNELS["npu_attention_update"](
            [lse, nothing], [out, torch.full((3, 8), float("nan"))], 1
        )
        torch.testing.assert_close(merged, out)
        torch.testing.assert_close(total, lse)


def test_rotary_operators() -> None:
    x, angle = rand(1, 1, 2, 64), rand(1, 1, 2, 32, seed=1)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    # Rotation keeps the length of every pair.
    half = KERNELS["npu_rotary_mul"](x, cos, sin)
    torch.testing.assert_close(half[..., :32] ** 2 + half[..., 32:] ** 2, x[..., :32] ** 2 + x[..., 32:] ** 2)
    interleaved = KERNELS["npu_interleave_rope"](x, cos, sin)
    torch.testing.assert_close(
        interleaved[..., :32] ** 2 + interleaved[..., 32:] ** 2, x[..., ::2] ** 2 + x[..., 1::2] ** 2
    )
    query, key = x.clone(), x.clone()
    got = KERNELS["npu_apply_rotary_pos_emb"](query, key, cos, sin)
    assert got[0] is query and torch.equal(query, half), "rotates in place, as the wrapper does"
    with pytest.raises(KernelError):
        KERNELS["npu_interleave_rope"](rand(1, 1, 2, 32), cos, sin)


def test_indexer_prefers_what_scores_highest() -> None:
    q, k, w = rand(1, 3, 2, 8), rand(1, 9, 1, 8, seed=1), rand(1, 3, 2, seed=2).abs()
    indices, values = KERNELS["npu_lightning_indexer"](q, k, w, sparse_count=4, return_value=True)
    for i in range(3):
        scores = (torch.relu(q[0, i] @ k[0, : 7 + i, 0].T) * w[0, i][:, None]).sum(0)
        best = scores.topk(4)
        torch.testing.assert_close(values[0, i, 0], best.values)
        assert set(indices[0, i, 0].tolist()) == set(best.indices.tolist())


def test_unfilled_outputs_are_recognisable() -> None:
    """is_output_kv=False leaves the last two results unfilled on the device; here they are NaN, not
    plausible."""
    kv, gamma = rand(1, 1, 3, 576).bfloat16(), torch.ones(512).bfloat16()
    cos = sin = torch.ones(1, 1, 3, 64).bfloat16()
    caches = torch.zeros(1, 1, 8, 64).bfloat16(), torch.zeros(1, 1, 8, 512).bfloat16()
    found = KERNELS["npu_kv_rmsnorm_rope_cache"](kv, gamma, cos, sin, torch.tensor([[0, 1, 2]]), *caches)
    assert found[0] is caches[0] and bool(torch.isnan(found[2].float()).all())
