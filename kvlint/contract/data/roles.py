"""Which operators the catalogue keeps, and what each of their parameters means.

A *role* is the meaning a parameter shares across a family: ``scale`` in FIA v1, ``softmax_scale`` in v2
and ``scale_value`` in PFA all have the role ``scale``. Rules ask for roles, so one rule serves them all.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_ATTENTION: Mapping[str, str] = {
    "query": "query", "key": "key", "value": "value",
    "query_rope": "query_rope", "key_rope": "key_rope",
    "scale": "scale", "softmax_scale": "scale", "scale_value": "scale",
    "num_heads": "q_heads", "num_query_heads": "q_heads", "head_num": "q_heads",
    "num_key_value_heads": "kv_heads", "key_value_head_num": "kv_heads",
    "actual_seq_lengths": "q_lens", "actual_seq_qlen": "q_lens", "actual_seq_lengths_query": "q_lens",
    "actual_seq_lengths_kv": "kv_lens", "actual_seq_kvlen": "kv_lens", "actual_seq_lengths_key": "kv_lens",
    "atten_mask": "mask", "sparse_mode": "sparse_mode",
    "pre_tokens": "pre_tokens", "pre_tockens": "pre_tokens",
    "next_tokens": "next_tokens", "next_tockens": "next_tokens",
    "input_layout": "layout", "layout": "layout",
    "layout_query": "layout_q", "q_input_layout": "layout_q",
    "layout_kv": "layout_kv", "layout_key": "layout_kv", "kv_input_layout": "layout_kv",
    "block_table": "block_table", "block_size": "block_size", "page_block_size": "block_size",
    "inner_precise": "inner_precise",
    "softmax_lse_flag": "lse_flag", "return_softmax_lse": "lse_flag",
    "pse_shift": "pse_shift", "pse": "pse_shift",
    "learnable_sink": "sink", "sink": "sink", "sinks": "sink",
    "keep_prob": "keep_prob",
    "attention_mode": "attention_mode",
    "sparse_indices": "sparse_indices", "topk_indices": "sparse_indices",
    "workspace": "workspace",
    "out": "out",
    "dequant_scale_query": "query_quant_scale", "query_dequant_scale": "query_quant_scale",
    "query_quant_mode": "query_quant_mode",
    "key_antiquant_scale": "key_quant_scale", "dequant_scale_key": "key_quant_scale",
    "key_dequant_scale": "key_quant_scale",
    "key_antiquant_offset": "key_quant_offset", "dequant_offset_key": "key_quant_offset",
    "key_antiquant_mode": "key_quant_mode", "key_quant_mode": "key_quant_mode",
    "value_antiquant_scale": "value_quant_scale", "dequant_scale_value": "value_quant_scale",
    "value_dequant_scale": "value_quant_scale",
    "value_antiquant_offset": "value_quant_offset", "dequant_offset_value": "value_quant_offset",
    "value_antiquant_mode": "value_quant_mode", "value_quant_mode": "value_quant_mode",
    "key_rope_antiquant_scale": "key_rope_quant_scale", "dequant_scale_key_rope": "key_rope_quant_scale",
    "quant_scale2": "out_quant_scale", "quant_scale_out": "out_quant_scale",
    "quant_offset2": "out_quant_offset", "quant_offset_out": "out_quant_offset",
    "dequant_scale1": "dequant_scale1", "deq_scale1": "dequant_scale1",
    "quant_scale1": "quant_scale1",
    "dequant_scale2": "dequant_scale2", "deq_scale2": "dequant_scale2",
    "antiquant_scale": "merged_quant_scale", "antiquant_offset": "merged_quant_offset",
    "antiquant_mode": "merged_quant_mode",
    "query_padding_size": "query_padding", "kv_padding_size": "kv_padding",
    "key_shared_prefix": "key_prefix", "value_shared_prefix": "value_prefix",
    "actual_shared_prefix_len": "prefix_len",
}

_ATB: Mapping[str, str] = {
    "query": "query", "q_nope": "query", "q_rope": "query_rope",
    "key": "key", "k_nope": "key", "value": "value", "k_rope": "key_rope",
    "key_cache": "key_cache", "value_cache": "value_cache",
    "num_heads": "q_heads", "head_num": "q_heads", "q_headnum": "q_heads",
    "num_kv_heads": "kv_heads", "kv_head_num": "kv_heads", "kv_headnum": "kv_heads",
    "scale_value": "scale", "qk_scale": "scale",
    "block_table": "block_table", "block_tables": "block_table",
    "seq_len": "q_lens", "seqlen": "q_lens", "qseqlen": "q_lens",
    "context_lens": "kv_lens", "kv_seqlen": "kv_lens",
    "mask": "mask", "mask_type": "mask_type",
    "input_layout": "layout", "cache_mode": "cache_mode",
    "k_descale": "key_quant_scale", "v_descale": "value_quant_scale",
    "return_lse": "lse_flag", "workspace": "workspace",
    "out": "out", "output": "out", "lse": "lse_out", "softmax_lse": "lse_out",
}

_CACHE: Mapping[str, str] = {
    "key": "key", "value": "value", "query": "query",
    "key_cache": "key_cache", "value_cache": "value_cache",
    "slot_mapping": "slots", "slot_indices": "slots", "slotmapping": "slots",
    "block_table": "block_table", "block_tables": "block_table", "block_size": "block_size",
    "page_block_size": "block_size",
    "cache_mode": "cache_mode", "cos": "cos", "sin": "sin", "epsilon": "epsilon",
    "input_layout": "layout",
    # Releases before the 2.4.0 train call the first argument self.
    "input": "data", "self": "data",
    "indices": "indices", "updates": "updates", "axis": "axis", "dim": "axis",
}

FAMILY_ROLES: Mapping[str, Mapping[str, str]] = {
    "fia": _ATTENTION,
    "pfa": _ATTENTION,
    # The only length list of IFA is named like FIA's query lengths, and holds the KV lengths.
    "ifa": {**_ATTENTION, "actual_seq_lengths": "kv_lens"},
    "fusion": _ATTENTION,
    "sparse": _ATTENTION,
    "indexer": _ATTENTION,
    "atb": _ATB,
    "merge": {"actual_seq_qlen": "q_lens", "input_layout": "layout"},
    "cache_write": _CACHE,
    "cache_read": {**_CACHE, "seq_lens": "kv_lens", "context_lens": "kv_lens"},
    "prolog": {
        "rope_sin": "sin", "rope_cos": "cos", "sin": "sin", "cos": "cos",
        "cache_index": "slots", "slotmapping": "slots",
        "kv_cache": "nope_cache", "kr_cache": "rope_cache", "kv_cache_rope": "rope_cache",
        "cache_mode": "cache_mode", "actual_seq_len": "q_lens",
    },
    "rotary": {
        "query": "query", "key": "key", "cos": "cos", "sin": "sin", "r1": "cos", "r2": "sin",
        "layout": "layout",
    },
    "misc": {},
}

_KV_RMSNORM: Mapping[str, str] = {
    # The rope cache comes first here; npu_mla_prolog takes the nope cache first.
    "k_cache": "rope_cache", "ckv_cache": "nope_cache", "index": "slots", "is_output_kv": "is_output_kv",
}
_QKV_RMSNORM: Mapping[str, str] = {
    "k_cache": "key_cache", "v_cache": "value_cache", "index": "slots", "q_out": "out",
    "k_scale": "key_quant_scale", "v_scale": "value_quant_scale",
    "k_offset": "key_quant_offset", "v_offset": "value_quant_offset", "is_output_qkv": "is_output_kv",
}
_QUANT_KVCACHE: Mapping[str, str] = {
    "k_cache": "key_cache", "v_cache": "value_cache", "indices": "slots",
    "scale_k": "key_quant_scale", "scale_v": "value_quant_scale",
    "offset_k": "key_quant_offset", "offset_v": "value_quant_offset", "kv_output": "is_output_kv",
}
_MLA_CACHES: Mapping[str, str] = {"ctkv": "nope_cache", "k_rope": "rope_cache"}


class Entry(NamedTuple):
    """One kept operator: its family, its version within the family, and roles that differ from the family."""

    family: str
    version: str = ""
    roles: Mapping[str, str] = {}


_V1 = "npu_fused_infer_attention_score"

NPU: Mapping[str, Entry] = {
    _V1: Entry("fia", "v1"),
    f"_{_V1}_get_max_workspace": Entry("fia", "v1"),
    f"_{_V1}_infer_output": Entry("fia", "v1"),
    f"{_V1}_v2": Entry("fia", "v2"),
    f"_{_V1}_v2_get_max_workspace": Entry("fia", "v2"),
    f"_{_V1}_v2_infer_output": Entry("fia", "v2"),
    "npu_prompt_flash_attention": Entry("pfa"),
    "npu_incre_flash_attention": Entry("ifa"),
    "npu_fusion_attention": Entry("fusion", "v1"),
    "npu_fusion_attention_v2": Entry("fusion", "v2"),
    "npu_fusion_attention_v3": Entry("fusion", "v3"),
    "_npu_fusion_attention_v3_get_max_workspace": Entry("fusion", "v3"),
    "_npu_fusion_attention_v3_infer_output": Entry("fusion", "v3"),
    "npu_quant_fusion_attention": Entry("fusion"),
    # Gradients restate what the forward call said; the rules of the forward call do not apply to them.
    "npu_fusion_attention_grad": Entry("misc", "v1", _ATTENTION),
    "npu_fusion_attention_grad_v2": Entry("misc", "v2", _ATTENTION),
    "npu_fusion_attention_grad_v3": Entry("misc", "v3", _ATTENTION),
    "npu_sparse_flash_attention": Entry("sparse"),
    "npu_kv_quant_sparse_flash_attention": Entry("sparse"),
    "npu_block_sparse_attention": Entry("sparse"),
    "npu_nsa_compress": Entry("sparse"),
    "npu_nsa_compress_infer": Entry("sparse", "", {"slot_mapping": "slots", "actual_seq_len": "kv_lens"}),
    "npu_nsa_compress_attention": Entry("sparse"),
    "npu_nsa_compress_attention_infer": Entry("sparse"),
    "npu_nsa_select_attention": Entry("sparse"),
    "npu_nsa_select_attention_infer": Entry("sparse"),
    "npu_lightning_indexer": Entry("indexer"),
    "npu_quant_lightning_indexer": Entry("indexer"),
    "npu_attention_update": Entry("merge"),
    "npu_ring_attention_update": Entry("merge"),
    "scatter_update": Entry("cache_write"),
    "scatter_update_": Entry("cache_write"),
    "npu_scatter": Entry("cache_write"),
    "npu_scatter_list": Entry("cache_write"),
    "npu_scatter_list_": Entry("cache_write"),
    "npu_scatter_nd_update": Entry("cache_write"),
    "npu_scatter_nd_update_": Entry("cache_write"),
    "npu_quant_scatter": Entry("cache_write"),
    "npu_quant_scatter_": Entry("cache_write"),
    "npu_kv_rmsnorm_rope_cache": Entry("cache_write", "v1", _KV_RMSNORM),
    "npu_kv_rmsnorm_rope_cache_v2": Entry("cache_write", "v2", _KV_RMSNORM),
    "npu_kv_rmsnorm_rope_cache_v2_functional": Entry("cache_write", "v2", _KV_RMSNORM),
    "npu_qkv_rms_norm_rope_cache": Entry("cache_write", "", _QKV_RMSNORM),
    "npu_qkv_rms_norm_rope_cache_functional": Entry("cache_write", "", _QKV_RMSNORM),
    "npu_rope_quant_kvcache": Entry("cache_write", "", _QUANT_KVCACHE),
    "npu_dequant_rope_quant_kvcache": Entry("cache_write", "", _QUANT_KVCACHE),
    "npu_scatter_pa_kv_cache": Entry("cache_write"),
    "npu_scatter_pa_kv_cache_functional": Entry("cache_write"),
    "npu_scatter_pa_cache": Entry("cache_write"),
    "npu_gather_pa_kv_cache": Entry("cache_read"),
    "npu_gather_pa_kv_cache_functional": Entry("cache_read"),
    "npu_mla_prolog": Entry("prolog", "v1"),
    "npu_mla_prolog_v2": Entry("prolog", "v2"),
    "npu_mla_prolog_v3": Entry("prolog", "v3"),
    "npu_mla_prolog_v3_functional": Entry("prolog", "v3"),
    "npu_interleave_rope": Entry("rotary"),
    "npu_rotary_mul": Entry("rotary"),
    "npu_apply_rotary_pos_emb": Entry("rotary"),
    "npu_mrope": Entry("rotary"),
    "npu_advance_step_flashattn": Entry("misc", "", {
        "seq_lens": "kv_lens", "slot_mapping": "slots", "block_tables": "block_table",
        "block_size": "block_size",
    }),
    "npu_format_cast": Entry("misc"),
    "npu_format_cast_": Entry("misc"),
    "empty_with_swapped_memory": Entry("misc"),
}

ATB: Mapping[str, Entry] = {
    "_npu_paged_attention": Entry("atb"),
    "_npu_paged_attention_get_workspace": Entry("atb"),
    "_npu_paged_attention_mla": Entry("atb"),
    "_npu_paged_attention_quant": Entry("atb"),
    "_npu_paged_attention_splitfuse": Entry("atb"),
    "_npu_paged_attention_splitfuse_v2": Entry("atb"),
    "_npu_paged_attention_v2": Entry("atb"),
    "_npu_paged_attention_v2_get_workspace": Entry("atb"),
    "_npu_flash_attention": Entry("atb"),
    "_npu_flash_attention_prefix_v2": Entry("atb"),
    "_npu_flash_attention_qlens": Entry("atb"),
    "_npu_flash_attention_unpad": Entry("atb"),
    "_npu_flash_attention_unpad_v2": Entry("atb"),
    "_npu_flash_attention_v2": Entry("atb"),
    "_npu_flash_attention_v3": Entry("atb"),
    "npu_self_attention_prefix_encoder": Entry("atb"),
    "npu_ring_mla": Entry("atb"),
    "npu_multi_head_latent_attention": Entry("atb", "", _MLA_CACHES),
    "_npu_multi_head_latent_attention_get_workspace": Entry("atb", "", _MLA_CACHES),
    "_npu_reshape_and_cache": Entry("cache_write"),
    "_npu_reshape_and_cache_siso": Entry("cache_write"),
    "npu_paged_cache_load": Entry("cache_read"),
    "npu_mla_preprocess": Entry("prolog"),
    "_npu_rotary_embedding": Entry("rotary"),
}

UNDECLARED_WRITES: Mapping[str, tuple[str, ...]] = {
    "npu_kv_rmsnorm_rope_cache": ("k_cache", "ckv_cache"),
    # Meant to leave its arguments alone, but the kernel runs on them.
    "npu_kv_rmsnorm_rope_cache_v2_functional": ("k_cache", "ckv_cache"),
    "npu_apply_rotary_pos_emb": ("query", "key"),
}
"""Parameters that an operator writes although its schema does not say so."""

ENTRIES: Mapping[str, Mapping[str, Entry]] = {"npu": NPU, "atb": ATB}


def role_of(entry: Entry, parameter: str) -> str | None:
    """The role of a parameter of this operator, or None where no shared meaning fits."""
    own = entry.roles.get(parameter)
    return own if own is not None else FAMILY_ROLES[entry.family].get(parameter)
