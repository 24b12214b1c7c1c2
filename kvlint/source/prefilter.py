"""Which files can contain an operator call: a byte test, cheap enough for every file."""

from __future__ import annotations

# Every operator name of the catalogue contains one of these (a test keeps it so).
TOKENS = (
    b"npu_fus",
    b"flash_attention",
    b"lightning_indexer",
    b"npu_nsa_",
    b"block_sparse_attention",
    b"attention_update",
    b"scatter_update",
    b"scatter_nd_update",
    b"norm_rope_cache",
    b"pa_kv_cache",
    b"scatter_pa_cache",
    b"quant_scatter",
    b"mla_prolog",
    b"interleave_rope",
    b"rotary_mul",
    b"rotary_pos_emb",
    b"advance_step",
    b"swapped_memory",
    b"paged_attention",
    b"reshape_and_cache",
    b"ring_mla",
    b"latent_attention",
    b"paged_cache_load",
    b"mla_preprocess",
    b"self_attention_prefix",
    b"_npu_",
    b"npu_format_cast",
)


def relevant(source: bytes) -> bool:
    """Whether the text can contain an operator call at all."""
    return any(token in source for token in TOKENS)
