"""Lengths go to the operator from where the scheduler made them."""

import torch
import torch_npu


class Picker:
    def __init__(self, count):
        self.count = count

    def pick(self, q, pool, weights, table, lengths: list[int], ends):
        lens = torch.tensor(lengths, dtype=torch.int32, device="cpu")
        return torch_npu.npu_lightning_indexer(
            q, pool, weights,
            actual_seq_lengths_query=ends, actual_seq_lengths_key=lens,  # KV330
            block_table=table, layout_query="TND", layout_key="PA_BSND",
            sparse_count=self.count, sparse_mode=3,
        )[0]
