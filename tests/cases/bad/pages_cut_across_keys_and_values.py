"""A page holds its keys and then its values; cut smaller, both end up in one plane."""

import torch
import torch_npu


class Pages:
    def __init__(self, pages, page, part, width):
        self.part, self.width = part, width
        self.memory = torch.empty((pages, 2, page, width), dtype=torch.float16, device="npu")

    def decode(self, q, table, lens, heads, groups, factor):
        planes = self.memory.reshape(-1, 2, self.part, self.width)
        keys, values = planes.unbind(dim=1)
        return torch_npu.npu_incre_flash_attention(
            q,
            keys.contiguous(),  # KV430
            values.contiguous(),  # KV430
            num_heads=heads, num_key_value_heads=groups, scale_value=factor, input_layout="BSH",
            block_table=table, block_size=self.part, actual_seq_lengths=lens,
        )
