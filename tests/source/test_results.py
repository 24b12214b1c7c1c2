"""Results of torch functions and NPU operators: sizes and dtypes, or that it is a tensor."""

from __future__ import annotations

import pytest
from support.examples import calls_of
from support.probe import IMPORTS, PARAMETERS, of, possible, sizes

from kvlint.contract.call import Arg

PROLOG = "torch_npu.npu_mla_prolog_v3"
X = "h = torch.zeros(2, 3, 8, dtype=torch.float16)\nw = torch.zeros(16, 8, dtype=torch.float16)\n"


def as_mask(expression: str, before: str) -> Arg:
    """The facts of a value, which may be made by another operator."""
    body = "".join(f"    {line}\n" for line in before.splitlines())
    call = f"torch_npu.npu_fusion_attention(q, k, v, 8, 'BSH', atten_mask={expression})"
    source = f"{IMPORTS}def function({PARAMETERS}):\n{body}    {call}\n"
    return next(c for c in calls_of(source) if c.operator.name == "npu_fusion_attention").arg("mask")


@pytest.mark.parametrize(
    ("expression", "shape", "dtype"),
    [
        ("torch.softmax(h, dim=-1)", ["2", "3", "8"], "float16"),
        ("torch.softmax(h, -1, torch.float32)", ["2", "3", "8"], "float32"),
        ("F.softmax(h, dim=-1, dtype=torch.float32)", ["2", "3", "8"], "float32"),
        ("F.silu(h)", ["2", "3", "8"], "float16"),
        ("torch.topk(h, 4, dim=-1).indices", ["2", "3", "4"], "int64"),
        ("h.topk(n)[0]", ["2", "3", "n"], "float16"),
        ("x.topk(4)[1]", None, "int64"),
        ("torch.sort(h, dim=0)[1]", ["2", "3", "8"], "int64"),
        ("h.argsort(-1)", ["2", "3", "8"], "int64"),
        ("torch.argmax(h, dim=-1)", None, "int64"),
        ("torch.nonzero(h)", None, "int64"),
        ("torch.nonzero(h, as_tuple=True)", None, None),
        ("F.rms_norm(h, (8,), n)", ["2", "3", "8"], None),
        ("F.dropout(h, 0.1)", ["2", "3", "8"], "float16"),
        ("h.exp()", ["2", "3", "8"], "float16"),
        ("torch.exp(h.int())", ["2", "3", "8"], None),
        ("torch.round(h)", ["2", "3", "8"], "float16"),
        ("torch.roll(h.int(), 1, 0)", ["2", "3", "8"], "int32"),
        ("h.flip(0)", ["2", "3", "8"], "float16"),
        ("h.int().index_copy(0, x, y)", ["2", "3", "8"], "int32"),
        ("h @ w.T", ["2", "3", "16"], "float16"),
        ("torch.matmul(h, w.t())", None, None),
        ("torch.matmul(h, w.transpose(0, 1))", ["2", "3", "16"], "float16"),
        ("torch.bmm(h, torch.zeros(2, 8, 5, dtype=torch.float16))", ["2", "3", "5"], "float16"),
        ("h @ torch.zeros(8, dtype=torch.float16)", ["2", "3"], "float16"),
        ("torch.zeros(4, 4) @ torch.zeros(4, 1)", ["4", "1"], None),
        ("h @ x", None, None),
        ("F.linear(h, w)", ["2", "3", "16"], "float16"),
        ("F.linear(h, x)", ["2", "3", "?"], None),
        ("torch.einsum('bsd,od->bso', h, w)", ["2", "3", "16"], "float16"),
        ("torch.einsum('bsd, ...d -> bs', h, w)", None, "float16"),
        ("torch.einsum(a, h, w)", None, "float16"),
        ("torch.div(h.int(), 4, rounding_mode='floor')", ["2", "3", "8"], "int32"),
        ("h.long().div(4, rounding_mode='trunc')", ["2", "3", "8"], "int64"),
        ("torch.div(h.int(), 4)", ["2", "3", "8"], None),
        ("torch.div(h.int(), 4, rounding_mode=a)", None, None),
        ("torch.floor_divide(h.int(), 4)", ["2", "3", "8"], "int32"),
        ("torch.maximum(h.int(), h.long())", ["2", "3", "8"], "int64"),
        # Operators
        ("torch_npu.npu_rotary_mul(h, x, y)", ["2", "3", "8"], "float16"),
        ("torch_npu.npu_apply_rotary_pos_emb(h, w, x, y)[1]", ["16", "8"], "float16"),
        ("torch_npu.npu_rms_norm(h, w[0], 1e-5)[0]", ["2", "3", "8"], "float16"),
        ("torch_npu.npu_rms_norm(h, x)[0]", ["2", "3", "8"], None),
        ("torch_npu.npu_rms_norm(h, x)[1]", ["2", "3", "1"], "float32"),
        ("torch_npu.npu_dynamic_quant(h)[0]", ["2", "3", "8"], "int8"),
        ("torch_npu.npu_dynamic_quant(h)[1]", ["2", "3"], "float32"),
        ("torch_npu.npu_dynamic_quant(h, dst_type=x)[0]", None, None),
        ("torch_npu.scatter_update(h, x, y, 1)", ["2", "3", "8"], "float16"),
        ("torch_npu.npu_interleave_rope(x, y, z)", ["?", "?", "?", "64"], None),
        (f"{PROLOG}(h, x, x, x, x, x, x, y, z, x, x)[0]", ["2", "3", "?", "512"], "bfloat16"),
        (f"{PROLOG}(h, x, x, x, x, x, x, y, z, x, x)[1]", ["2", "3", "?", "64"], "bfloat16"),
        (f"{PROLOG}(x, x, x, x, x, x, x, y, z, x, x)[1]", None, "bfloat16"),
    ],
)
def test_result(expression: str, shape: list[str] | None, dtype: str | None) -> None:
    found = as_mask(expression, X)
    assert sizes(found) == shape
    if dtype is None:
        assert possible(found.dtype) in (None, {"float32", "float16", "bfloat16"}, {"float16", "bfloat16"})
    else:
        assert possible(found.dtype) == {dtype}


@pytest.mark.parametrize(
    ("layout", "q", "v", "more", "shape"),
    [
        ("BSH", (2, 3, 512), (2, 7, 128), "num_heads=8, num_key_value_heads=2", ["2", "3", "512"]),
        ("BSH", (2, 3, 512), (2, 7, 96), "num_heads=8, num_key_value_heads=2", ["2", "3", "384"]),
        ("BSH", (2, 3, 512), (2, 7, 128), "num_heads=8, num_key_value_heads=a", ["2", "3", "1024/a"]),
        ("BSND", (2, 3, 8, 64), (2, 7, 2, 48), "num_heads=8", ["2", "3", "8", "48"]),
        ("BNSD_BSND", (2, 8, 3, 64), (2, 2, 7, 48), "num_heads=8", ["2", "3", "8", "48"]),
        ("BSND_NBSD", (2, 3, 8, 64), (2, 7, 2, 64), "num_heads=8", ["8", "2", "3", "64"]),
        ("TND", (9, 8, 64), (9, 2, 48), "num_heads=8", ["9", "8", "48"]),
        ("TND_NTD", (9, 8, 64), (9, 2, 48), "num_heads=8", ["8", "9", "48"]),
        ("TND", (9, 8, 64), (99, 128, 96), "num_heads=8, num_key_value_heads=2, block_table=x.int()",
         ["9", "8", "48"]),
        ("TND", (9, 8, 64), (99, 128, 96), "num_heads=8, num_key_value_heads=2, block_table=x",
         ["9", "8", "?"]),
        ("BNSD", (2, 8, 1, 64), (9, 2, 4, 128, 16), "num_heads=8, block_table=x.int()",
         ["2", "8", "1", "64"]),
        ("BSND", (2, 3, 512), (2, 7, 128), "num_heads=8", None),
    ],
)  # fmt: skip
def test_output_of_inference_attention(
    layout: str, q: tuple[int, ...], v: tuple[int, ...], more: str, shape: list[str] | None
) -> None:
    call = f"torch_npu.npu_fused_infer_attention_score(q, k, v, input_layout={layout!r}, {more})[0]"
    found = as_mask(call, f"q = torch.zeros{q}.bfloat16()\nv = torch.zeros{v}.bfloat16()")
    assert sizes(found) == shape
    assert possible(found.dtype) == {"bfloat16"}


@pytest.mark.parametrize(
    ("layout", "index", "flag", "shape"),
    [
        ("TND", 0, "", ["?", "8", "?"]),
        ("BNSD_BSND", 0, "", ["?", "?", "8", "?"]),
        ("BSH", 0, "", ["?", "?", "?"]),
        ("TND", 1, "softmax_lse_flag=True", ["?", "8", "1"]),
        ("BSH", 1, "softmax_lse_flag=True", ["?", "8", "?", "1"]),
        ("BSND_NBSD", 1, "softmax_lse_flag=True", ["?", "8", "?", "1"]),
        ("TND", 1, "", None),
        ("TND", 1, "softmax_lse_flag=a", None),
    ],
)
def test_results_of_attention_on_unknown_tensors(
    layout: str, index: int, flag: str, shape: list[str] | None
) -> None:
    call = f"torch_npu.npu_fused_infer_attention_score(x, y, z, input_layout={layout!r}, num_heads=8, {flag})"
    assert sizes(as_mask(f"{call}[{index}]", "")) == shape


@pytest.mark.parametrize(
    ("expression", "dtypes"),
    [
        ("torch_npu.npu_rotary_mul(x, y, z)", {"float16", "bfloat16", "float32"}),
        ("torch_npu.npu_apply_rotary_pos_emb(x, a, y, z)[1]", {"float16", "bfloat16", "float32"}),
        ("torch_npu.npu_interleave_rope(x, y, z)", {"float16", "bfloat16"}),
        ("torch_npu.npu_kv_rmsnorm_rope_cache(x, a, y, z, b, c, n)[2]", {"float16", "bfloat16"}),
        ("torch_npu.npu_kv_rmsnorm_rope_cache_v2(x, a, y, z, b, c, n)[1]", {"float16", "bfloat16"}),
        ("torch_npu.npu_kv_rmsnorm_rope_cache(x, a, y, z, b, c, n)[0]", None),
        (f"{PROLOG}(x, x, x, x, x, x, x, y, z, x, x, query_quant_mode=1)[0]", None),
        (f"{PROLOG}(x, x, x, x, x, x, x, y, z, x, x, query_quant_mode=n)[0]", None),
        (f"{PROLOG}(x, x, x, x, x, x, x, y, z, x, x, **a)[0]", None),
        ("torch.matmul(x, torch_npu.npu_interleave_rope(x, y, z))", {"float16", "bfloat16"}),
        # Autocast may make another dtype of these.
        ("torch.matmul(x, torch.zeros(2, 2, dtype=torch.float32))", None),
    ],
)
def test_an_operator_returns_what_it_computes_in(expression: str, dtypes: set[str] | None) -> None:
    assert possible(as_mask(expression, "").dtype) == dtypes


@pytest.mark.parametrize(
    ("expression", "shape"),
    [
        ("npu_kv_rmsnorm_rope_cache(x, a, y, z, b, c, n)[2]", ["?", "1", "?", "64"]),
        ("npu_kv_rmsnorm_rope_cache(x, a, y, z, b, c, n)[3]", ["?", "1", "?", "512"]),
        ("npu_kv_rmsnorm_rope_cache_v2(x, a, y, z, b, c, n)[0]", ["?", "1", "?", "64"]),
        ("npu_kv_rmsnorm_rope_cache_v2(x, a, y, z, b, c, n, v=m)[1]", ["?", "1", "?", "?"]),
        ("npu_kv_rmsnorm_rope_cache_v2(x, a, y, z, b, c, n, **m)[1]", ["?", "1", "?", "?"]),
        ("npu_kv_rmsnorm_rope_cache_v2(torch.zeros(4, 1, 2, 576), torch.zeros(512), y, z, b, c, n)[0]",
         ["4", "1", "2", "64"]),
    ],
)  # fmt: skip
def test_latent_rows(expression: str, shape: list[str]) -> None:
    assert sizes(as_mask(f"torch_npu.{expression}", "")) == shape


def test_a_result_of_several_alternatives_is_one_result() -> None:
    before = "h = torch.zeros(2, 3, 8).half()\nif c:\n    h = torch.zeros(2, 4, 8).half()\n"
    found = as_mask("torch_npu.npu_apply_rotary_pos_emb(h, x, y, z)[0]", before)
    assert sizes(found) == ["2", "?", "8"]
    assert possible(found.dtype) == {"float16"}
    assert len(found.options) == 1


def test_rotated_in_place() -> None:
    before = "h = torch.zeros(2, 3, 8).half().transpose(0, 1)\n"
    assert as_mask("torch_npu.npu_apply_rotary_pos_emb(h, x, y, z)[0]", before).strided.yes
    assert as_mask("torch_npu.npu_rotary_mul(h, y, z)", before).strided.no
    assert as_mask("torch_npu.npu_apply_rotary_pos_emb(x, x, y, z)[0]", before).strided.unknown


@pytest.mark.parametrize(
    ("parts", "axis", "shape"),
    [
        ("[torch.zeros(2, 3), x]", 0, ["?", "3"]),
        ("[x, torch.zeros(2, 3)]", -1, ["2", "?"]),
        ("[torch.zeros(2, 3), torch.zeros(2, 5)]", 1, ["2", "8"]),
        # An empty tensor with one axis goes with any other.
        ("[torch.zeros(3), x]", 0, None),
        ("[torch.zeros(2, 3), torch.zeros(0)]", 0, None),
        ("[x, y]", 0, None),
    ],
)
def test_parts_of_unknown_shape(parts: str, axis: int, shape: list[str] | None) -> None:
    assert sizes(of(f"torch.cat({parts}, dim={axis})")) == shape


def test_one_tensor_whatever_else_it_is() -> None:
    for expression in ("torch.diag(x)", "F.embedding(x, y)", "torch_npu.npu_quantize(x, y)"):
        assert possible(of(f"1 if isinstance({expression}, torch.Tensor) else 2").constant) == {1}
    for expression in ("torch.topk(x, 2)", "torch.unique(x)", "torch.max(x, 1)"):
        assert possible(of(f"1 if isinstance({expression}, torch.Tensor) else 2").constant) != {1}
