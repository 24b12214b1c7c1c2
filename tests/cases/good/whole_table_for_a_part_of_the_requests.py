"""The table has a row for every request there can be, the lengths only for those there are."""

import torch
import torch_npu


class Buffers(torch.nn.Module):
    def __init__(self, most, columns):
        super().__init__()
        self.register_buffer("rows", torch.full((most, columns), -1, dtype=torch.int32))
        self.register_buffer("lens", torch.ones(most, dtype=torch.int32))

    def decode(self, q, pools, count, heads, groups, factor, out):
        torch_npu._npu_paged_attention(
            query=q,
            key_cache=pools[0],
            value_cache=pools[1],
            num_kv_heads=groups,
            num_heads=heads,
            scale_value=factor,
            block_table=self.rows[:count],
            context_lens=self.lens[:count],
            out=out,
        )
        return out
