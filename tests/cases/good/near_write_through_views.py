"""Views of a pool share its memory: what is written to them is in the pool."""

import torch
import torch_npu


class Store:
    def __init__(self, count, size, width):
        self.pool = torch.zeros(2, count, size, width, dtype=torch.float16, device="npu")

    def put(self, rows, slots):
        keys = self.pool[0]
        torch_npu.npu_scatter_nd_update_(keys.view(-1, keys.shape[-1]), slots.view(-1, 1), rows[0])
        values = self.pool.select(0, 1).flatten(0, 1)
        torch_npu.npu_scatter_nd_update_(values, slots.unsqueeze(-1), rows[1])

    def put_copy(self, rows, slots):
        turned = self.pool[0].transpose(1, 2).contiguous()
        flat = turned.view(-1, turned.shape[-1])
        torch_npu.npu_scatter_nd_update_(flat, slots.view(-1, 1), rows[0])
        self.pool[0].copy_(turned.transpose(1, 2))
