"""Blocks of 128 tokens, as the prefill kernel wants them."""

import torch_npu

BLOCK = 128
COMMON = {"input_layout": "TND", "sparse_mode": 3, "block_size": BLOCK}


def prefill(q, pools, table, q_ends, kv_lens, hidden, heads, groups, factor):
    """q: (tokens, heads, 128)."""
    q = q.view(-1, heads, 128)
    return torch_npu.npu_fused_infer_attention_score_v2(
        q, *pools, block_table=table, actual_seq_qlen=q_ends, actual_seq_kvlen=kv_lens,
        num_query_heads=heads, num_key_value_heads=groups, softmax_scale=factor, atten_mask=hidden, **COMMON,
    )[0]
