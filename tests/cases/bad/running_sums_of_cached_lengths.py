"""A sparse operator on a paged cache wants the length of each request."""

import torch
import torch_npu


def attend(q, pool, picked, lens, table, factor, ropes):
    last = {"query": lens.new_tokens.cumsum(0), "kv": lens.cached.cumsum(0)}
    options = dict(layout_query="TND", layout_kv="PA_BSND", sparse_mode=3, attention_mode=2)
    return torch_npu.npu_sparse_flash_attention(
        q, pool, pool, picked, factor,
        block_table=table,
        actual_seq_lengths_query=last["query"].to(torch.int32),
        actual_seq_lengths_kv=last["kv"].to(torch.int32),  # KV303
        query_rope=ropes[0],
        key_rope=ropes[1],
        **options,
    )[0]
