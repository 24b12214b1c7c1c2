"""A row of the table for each token, but only one length for each request."""

import torch
import torch_npu


class ChunkAsDecode:
    def __init__(self, heads, groups, factor):
        self.options = dict(num_heads=heads, num_kv_heads=groups, scale_value=factor)

    def run(self, q, pools, table, counts, lens, out):
        per_token = torch.repeat_interleave(table, counts, dim=0)
        torch_npu._npu_paged_attention(
            query=q, key_cache=pools[0], value_cache=pools[1], block_table=per_token,
            context_lens=lens,  # KV317
            out=out, **self.options,
        )
        return out
