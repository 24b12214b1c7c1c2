"""CPU kernels that imitate the operators: tiled, rounding where the operator rounds, ignoring what it
ignores.

Every function carries the operator's own name and keyword arguments, so that it can stand behind the real
``npu::`` schema. :data:`KERNELS` maps operator names to functions. Nothing here imports the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import atb, attention, cache, fusion, merge, rope, sparse
from ._core import KernelError

KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        attention.npu_fused_infer_attention_score,
        attention.npu_fused_infer_attention_score_v2,
        attention._npu_fused_infer_attention_score_get_max_workspace,
        attention._npu_fused_infer_attention_score_v2_get_max_workspace,
        attention.npu_prompt_flash_attention,
        attention.npu_incre_flash_attention,
        fusion.npu_fusion_attention,
        fusion.npu_fusion_attention_v2,
        fusion.npu_fusion_attention_v3,
        sparse.npu_sparse_flash_attention,
        sparse.npu_kv_quant_sparse_flash_attention,
        sparse.npu_lightning_indexer,
        sparse.npu_quant_lightning_indexer,
        cache.scatter_update_,
        cache.scatter_update,
        cache.npu_scatter_nd_update_,
        cache.npu_scatter_nd_update,
        cache.npu_scatter_pa_kv_cache,
        cache.npu_scatter_pa_cache,
        cache.npu_gather_pa_kv_cache,
        cache.npu_kv_rmsnorm_rope_cache,
        cache.npu_kv_rmsnorm_rope_cache_v2,
        cache.npu_qkv_rms_norm_rope_cache,
        cache.npu_quant_scatter_,
        cache.npu_quantize,
        cache._npu_reshape_and_cache,
        cache.empty_with_swapped_memory,
        rope.npu_interleave_rope,
        rope.npu_rotary_mul,
        rope.npu_apply_rotary_pos_emb,
        rope.npu_mrope,
        rope.npu_rms_norm,
        rope.npu_add_rms_norm,
        merge.npu_attention_update,
        merge.npu_ring_attention_update,
        atb._npu_paged_attention,
        atb._npu_paged_attention_get_workspace,
    )
}
KERNELS["npu_fused_infer_attention_score.out"] = attention.npu_fused_infer_attention_score_out
KERNELS["npu_fused_infer_attention_score_v2.out"] = attention.npu_fused_infer_attention_score_v2_out

__all__ = ["KERNELS", "KernelError"]
