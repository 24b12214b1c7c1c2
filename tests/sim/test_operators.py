"""Operators: schemas, kernels, refusals, variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvlint.contract import catalogue
from kvlint.oracle.kernels import KernelError
from kvlint.sim import MissingKernelError, kernel, simulated
from kvlint.sim.registry import has_kernel

FIA = "npu_fused_infer_attention_score"


def qkv(heads: int = 4, tokens: int = 16, dim: int = 64) -> Any:
    return [torch.randn(2, tokens, heads * dim, dtype=torch.float16, device="npu") for _ in range(3)]


def test_every_catalogue_operator_is_reachable(simulation: Any, torch_npu: Any) -> None:
    for operator in catalogue.operators(simulation.release):
        namespace = getattr(torch.ops, operator.namespace)
        assert getattr(getattr(namespace, operator.name), operator.overload or "default")
        place = (
            torch_npu.atb
            if operator.overload in ("out", "lse", "lse_out") and "atb" in str(namespace)
            else torch_npu
        )
        assert hasattr(place, operator.name) or hasattr(torch_npu.atb, operator.name)


def test_an_unknown_operator_is_an_attribute_error(torch_npu: Any) -> None:
    with pytest.raises(AttributeError, match="npu_no_such_operator"):
        torch_npu.npu_no_such_operator(torch.zeros(1))


def test_a_keyword_of_the_other_version_is_a_schema_error(torch_npu: Any) -> None:
    q, k, v = qkv()
    with pytest.raises(RuntimeError, match="softmax_scale"):
        torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=4, softmax_scale=1.0)


def test_an_operator_without_a_kernel_names_itself_and_the_remedy(torch_npu: Any) -> None:
    x = torch.zeros(4, 8)
    with pytest.raises(
        MissingKernelError, match=r"npu::npu_nsa_compress .*@kvlint\.sim\.kernel\(\"npu::npu_nsa"
    ):
        torch_npu.npu_nsa_compress(x, x, 32, 16)


def test_an_unmodelled_argument_is_named(torch_npu: Any) -> None:
    x = torch.zeros(1, 1, 8)
    with pytest.raises(MissingKernelError, match="does not model dst_type_max"):
        torch_npu.npu_dynamic_quant(x, dst_type_max=3.0)


def test_a_program_can_add_a_kernel(torch_npu: Any) -> None:
    @kernel("npu::npu_fast_gelu_v9", schema="npu_fast_gelu_v9(Tensor x, *, float bias=2.0) -> Tensor")
    def fast_gelu_v9(x: torch.Tensor, *, bias: float = 0.0) -> torch.Tensor:
        return x + bias

    # The default of the schema counts, not that of the function.
    assert torch.ops.npu.npu_fast_gelu_v9(torch.ones(2, device="npu")).tolist() == [3.0, 3.0]


def test_a_program_can_define_a_custom_operator(torch_npu: Any) -> None:
    kernel("kvlint_test::twice_", schema="twice_(Tensor(a!) x) -> Tensor(a!)")(lambda x: x.mul_(2))
    x = torch.ones(2)
    assert torch.ops.kvlint_test.twice_(x) is x
    assert x.tolist() == [2.0, 2.0]


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "no query heads": ("A05", {"num_heads": 0}),
    "heads do not divide": ("B07", {"num_heads": 4, "num_key_value_heads": 3}),
    "H is no multiple of the heads": ("B03", {"num_heads": 3}),
    "float mask": ("C01", {"num_heads": 4, "atten_mask": torch.zeros(16, 16, dtype=torch.float16)}),
    "mode 3 without mask": ("C03", {"num_heads": 4, "sparse_mode": 3}),
    "mode 3 with a mask of its own size": (
        "C04",
        {"num_heads": 4, "sparse_mode": 3, "atten_mask": torch.zeros(16, 16, dtype=torch.bool)},
    ),
    "int64 block table": (
        "PG01",
        {"num_heads": 4, "block_table": torch.zeros(2, 1, dtype=torch.int64), "block_size": 16},
    ),
    "flat block table": (
        "PG02",
        {"num_heads": 4, "block_table": torch.zeros(2, dtype=torch.int32), "block_size": 16},
    ),
    "block table without block size": (
        "PG03",
        {"num_heads": 4, "block_table": torch.zeros(2, 1, dtype=torch.int32)},
    ),
    "half of the rope pair": ("F01", {"num_heads": 4, "query_rope": torch.zeros(2, 16, 4 * 64).half()}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_operator_refuses_carries_its_contract_id(torch_npu: Any, case: str) -> None:
    identity, arguments = REFUSED[case]
    q, k, v = qkv()
    with pytest.raises(KernelError, match=rf"\({identity}\)"):
        torch_npu.npu_fused_infer_attention_score(q, k, v, scale=0.125, **arguments)


def test_float32_and_mixed_types_are_refused(torch_npu: Any) -> None:
    q, k, v = qkv()
    with pytest.raises(KernelError, match=r"\(B17\)"):
        torch_npu.npu_fused_infer_attention_score(q.float(), k.float(), v.float(), num_heads=4)
    with pytest.raises(KernelError, match=r"\(B15\)"):
        torch_npu.npu_fused_infer_attention_score(q, k, v.bfloat16(), num_heads=4)


@pytest.mark.parametrize(
    ("identity", "q_lens", "kv_lens"),
    [("D01", [4, 8], None), ("D02", [4, 4], [4, 8]), ("D02", [8, 4], [4, 8]), ("D01", [4, 8], [8])],
)
def test_packed_lengths_that_the_host_refuses(
    torch_npu: Any, identity: str, q_lens: list[int], kv_lens: list[int] | None
) -> None:
    q = torch.randn(8, 4, 64, dtype=torch.float16)
    with pytest.raises(KernelError, match=rf"\({identity}\)"):
        torch_npu.npu_fused_infer_attention_score(
            q, q, q, num_heads=4, input_layout="TND", actual_seq_lengths=q_lens, actual_seq_lengths_kv=kv_lens
        )


def test_a_refusal_that_the_device_does_not_make_is_not_made(torch_npu: Any) -> None:
    q, k, v = qkv()
    out, _ = torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=4)  # scale 1.0: silent (A03)
    right, _ = torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=4, scale=0.125)
    assert not torch.allclose(out, right, atol=1e-2)


def test_the_out_form_fills_what_it_is_given(torch_npu: Any) -> None:
    q, k, v = qkv()
    wanted, lse = torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=4, softmax_lse_flag=True)
    workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(q, k, v, num_heads=4)
    out = [torch.full_like(wanted, 7), torch.full_like(lse, 7)]
    torch_npu.npu_fused_infer_attention_score.out(
        q, k, v, num_heads=4, softmax_lse_flag=True, workspace=workspace, out=out
    )
    assert torch.equal(out[0], wanted)
    assert torch.equal(out[1], lse)
    with pytest.raises(KernelError, match=r"buffer is|output 0 must be"):
        torch_npu.npu_fused_infer_attention_score.out(q, k, v, num_heads=4, out=[out[0][:1].clone(), out[1]])


def test_a_functional_form_leaves_the_cache_and_returns_it_changed(torch_npu: Any) -> None:
    rows = torch.randn(2, 1, 16, device="npu")
    cache, other = (torch.zeros(1, 4, 1, 16, device="npu") for _ in range(2))
    slots = torch.tensor([2, 0], device="npu")
    changed, _ = torch_npu.npu_scatter_pa_kv_cache_functional(
        rows, rows, cache, other, slots, cache_mode="Norm"
    )
    assert not cache.any()
    assert torch.equal(changed[0, [2, 0]], rows)


def test_in_place_writers_return_the_very_tensor(torch_npu: Any) -> None:
    cache = torch.zeros(2, 8, 4)
    rows = torch.ones(2, 1, 4)
    assert torch_npu.scatter_update_(cache, torch.tensor([1, 2]), rows, 1) is cache
    assert cache.sum() == 8
    untouched = torch.zeros(2, 8, 4)
    torch_npu.scatter_update(untouched, torch.tensor([1, 2]), rows, 1)
    assert not untouched.any()


#: Operators of torch_npu for attention, caches, rotary embeddings, norms and what quantises their inputs that
#: cann-recipes-infer, vllm-ascend and sglang call, with the number of calls outside tests.
REACHED = {
    "npu_fused_infer_attention_score": 68, "npu_dynamic_mx_quant": 66, "npu_rms_norm": 63,
    "npu_scatter_nd_update_": 62, "npu_format_cast": 59, "npu_dynamic_quant": 59, "npu_rotary_mul": 35,
    "npu_fused_infer_attention_score_v2": 34, "npu_add_rms_norm": 32, "npu_interleave_rope": 21,
    "npu_transpose_batchmatmul": 19, "npu_mla_prolog_v3": 16, "npu_dynamic_block_quant": 14,
    "npu_apply_rotary_pos_emb": 13, "npu_scatter_pa_kv_cache": 10,
    "_npu_fused_infer_attention_score_get_max_workspace": 10, "scatter_update_": 9,
    "npu_kv_rmsnorm_rope_cache": 9, "npu_lightning_indexer": 8, "npu_sparse_flash_attention": 7,
    "npu_fusion_attention": 7, "npu_quantize": 6, "_npu_paged_attention": 6,
    "npu_quant_lightning_indexer": 5, "npu_kv_quant_sparse_flash_attention": 5,
    "npu_gather_pa_kv_cache": 5, "npu_chunk_gated_delta_rule": 5, "npu_attention_update": 5,
    "npu_rms_norm_dynamic_mx_quant": 4, "npu_mrope": 4, "npu_transpose_quant_batchmatmul": 5,
    "npu_add_rms_norm_quant": 2, "npu_kv_rmsnorm_rope_cache_v2": 4,
    "npu_add_rms_norm_dynamic_mx_quant": 4, "npu_prefetch": 3, "empty_with_swapped_memory": 3,
    "_npu_reshape_and_cache": 3, "_npu_paged_attention_get_workspace": 3,
    "_npu_fused_infer_attention_score_v2_get_max_workspace": 3, "npu_rms_norm_quant": 2,
    "npu_recurrent_gated_delta_rule": 2, "npu_prompt_flash_attention": 2,
    "npu_add_rms_norm_dynamic_quant": 2, "npu_add_rms_norm_cast": 2, "_npu_rotary_embedding": 2,
    "_npu_flash_attention_unpad": 2, "npu_scatter_pa_cache": 1, "npu_mla_prolog_v2": 1,
    "npu_gemma_rms_norm": 1, "_npu_paged_attention_splitfuse_v2": 1,
    "_npu_paged_attention_splitfuse": 1, "_npu_paged_attention_mla": 1, "_npu_flash_attention_v3": 1,
    "_npu_flash_attention_unpad_v2": 1, "_npu_flash_attention_qlens": 1, "_npu_flash_attention": 1,
}  # fmt: skip


#: Operators of the catalogue that stop a run.
WITHOUT_KERNEL = [
    "_npu_fused_infer_attention_score_infer_output",
    "_npu_fused_infer_attention_score_v2_infer_output", "_npu_fusion_attention_v3_infer_output",
    "npu_advance_step_flashattn", "npu_block_sparse_attention", "npu_dequant_rope_quant_kvcache",
    "npu_fusion_attention_grad", "npu_fusion_attention_grad_v2", "npu_fusion_attention_grad_v3",
    "npu_fusion_attention_grad_v3.out", "npu_nsa_compress", "npu_nsa_compress_attention",
    "npu_nsa_compress_attention_infer", "npu_nsa_compress_infer.cache", "npu_nsa_select_attention",
    "npu_nsa_select_attention_infer", "npu_quant_fusion_attention", "npu_rope_quant_kvcache",
    "npu_scatter",
]  # fmt: skip
ATB_WITHOUT_KERNEL = ["_npu_paged_attention_quant", "npu_mla_preprocess", "npu_mla_preprocess.out"]


@pytest.mark.parametrize("name", REACHED)
def test_what_public_attention_and_cache_code_calls_has_a_kernel(name: str) -> None:
    assert has_kernel(f"npu::{name}") or has_kernel(f"atb::{name}")


def test_the_catalogue_is_mostly_simulated(simulation: Any) -> None:
    have, all_names = set(simulated()), {f"{o.namespace}::{o.full_name}" for o in catalogue.operators()}
    assert have <= all_names
    # What has no kernel is named, so that neither list changes unnoticed.
    missing = [f"npu::{n}" for n in WITHOUT_KERNEL] + [f"atb::{n}" for n in ATB_WITHOUT_KERNEL]
    assert all_names - have == set(missing)
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"{len(have)} of the catalogue's {len(all_names)} operators have a kernel" in readme


def test_the_prolog_writes_the_cache_that_it_promises(torch_npu: Any) -> None:
    """mla_prolog_v3 against its definition, on identity-free random weights."""
    hidden, cq, heads, dim, latent, rope, tokens = 32, 48, 2, 16, 64, 16, 5

    def w(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape) / shape[0] ** 0.5).bfloat16()

    x, dq, uq = w(tokens, hidden), w(hidden, cq), w(cq, heads * (dim + rope))
    uk, dkv = w(heads, dim, latent), w(hidden, latent + rope)
    gamma_q, gamma_kv = torch.rand(cq).bfloat16(), torch.rand(latent).bfloat16()
    angle = torch.rand(tokens, rope // 2).repeat(1, 2)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    kv, kr = torch.zeros(2, 4, 1, latent).bfloat16(), torch.zeros(2, 4, 1, rope).bfloat16()
    slots = torch.tensor([6, 1, 0, 7, -1])
    q, q_rope, _, normed, _ = torch_npu.npu_mla_prolog_v3(
        x, dq, uq, uk, dkv, gamma_q, gamma_kv, sin, cos, kv, kr, cache_index=slots, query_norm_flag=True
    )
    c = x.double() @ dkv.double()
    want = c[:, :latent] * (c[:, :latent].square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gamma_kv.double()
    assert torch.allclose(kv.view(8, latent)[slots[:4]].double(), want[:4], atol=3e-2)
    assert not kv.view(8, latent)[[2, 3, 4, 5]].any()
    y = x.double() @ dq.double()
    y = y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gamma_q.double()
    assert torch.allclose(normed.double(), y, atol=3e-2)
    z = (y @ uq.double()).view(tokens, heads, dim + rope)
    assert torch.allclose(q.double(), torch.einsum("tnd,ndc->tnc", z[..., :dim], uk.double()), atol=0.1)
    a, b = z[..., dim::2], z[..., dim + 1 :: 2]
    c1, s1 = (t[:, None, : rope // 2].double() for t in (cos, sin))
    assert torch.allclose(q_rope.double(), torch.cat([a * c1 - b * s1, b * c1 + a * s1], -1), atol=5e-2)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: int | None) -> torch.Tensor:
    """[S, N, D] each, in float64; causal behind ``past`` keys, or everything visible."""
    k, v = (t.double().repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("ind,jnd->nij", q.double(), k) * 0.125
    if past is not None:
        hidden = torch.arange(len(k))[None] > torch.arange(len(q))[:, None] + past
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("nij,jnd->ind", scores.softmax(-1), v)


def test_unpadded_atb_attention_hides_nothing(torch_npu: Any) -> None:
    q, k, v = torch.randn(9, 4, 64).half(), torch.randn(9, 2, 64).half(), torch.randn(9, 2, 64).half()
    out = torch.full_like(q, 7)
    torch_npu._npu_flash_attention_unpad(q, k, v, torch.tensor([5, 3], dtype=torch.int32), 0.125, 4, 2, out)
    for rows in (slice(0, 5), slice(5, 8)):
        assert torch.allclose(out[rows].double(), exact(q[rows], k[rows], v[rows], None), atol=2e-3)
    assert (out[8] == 7).all()  # lengths that fall short leave the tail alone
    with pytest.raises(KernelError, match="ATB-12"):
        torch_npu._npu_flash_attention_unpad(
            q, k, v, torch.tensor([5, 9], dtype=torch.int32), 0.125, 4, 2, out
        )


def test_atb_attention_behind_a_prefix(torch_npu: Any) -> None:
    k, v = torch.randn(3, 128, 2, 64).half(), torch.randn(3, 128, 2, 64).half()
    q, table = torch.randn(10, 4, 64).half(), torch.tensor([[2, 0], [1, 1]], dtype=torch.int32)
    lens, total = torch.tensor([4, 6], dtype=torch.int32), torch.tensor([132, 6], dtype=torch.int32)
    mask, out = torch.ones(128, 128).triu(1).half() * -10000, torch.empty_like(q)
    torch_npu._npu_flash_attention_qlens(q, k, v, table, mask, lens, total, 2, 4, 0.125, out)
    keys, values = torch.cat([k[2], k[0, :4]]), torch.cat([v[2], v[0, :4]])
    assert torch.allclose(out[:4].double(), exact(q[:4], keys, values, 128), atol=2e-3)
    assert torch.allclose(out[4:].double(), exact(q[4:], k[1, :6], v[1, :6], 0), atol=2e-3)
    with pytest.raises(KernelError, match="ATB-09"):
        torch_npu._npu_flash_attention_qlens(q, k, v, table, mask, lens, total - 1, 2, 4, 0.125, out)
