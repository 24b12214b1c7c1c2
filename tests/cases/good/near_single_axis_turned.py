"""Exchanging an axis of one element leaves the memory in order."""

import torch_npu


def decode(q, pools, table, lens, heads, groups, dim):
    """One token per request: (batch, 1, heads * dim)."""
    query = q.view(-1, 1, heads, dim).transpose(1, 2)
    return torch_npu.npu_fused_infer_attention_score(
        query, pools[0], pools[1], num_heads=heads, num_key_value_heads=groups, scale=dim ** -0.5,
        input_layout="BNSD", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
    )[0]
