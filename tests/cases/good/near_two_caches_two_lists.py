"""Entries of one list are different tensors, however alike they look."""

import torch
import torch_npu


class Pools:
    def __init__(self, layers, count, size, heads, dim):
        shape = (count, size, heads, dim)
        self.all = [torch.zeros(shape, dtype=torch.float16, device="npu") for _ in range(2 * layers)]

    def put(self, layer, key, value, slots):
        keys, values = self.all[2 * layer], self.all[2 * layer + 1]
        torch_npu._npu_reshape_and_cache(
            key=key, value=value, key_cache=keys, value_cache=values, slot_indices=slots.to(torch.int32)
        )

    def ends(self, parts):
        sizes = [part.shape[0] for part in parts]
        return sizes[0], sizes[0] + sizes[1]

    def both(self, q, k, v, parts):
        first, last = self.ends(parts)
        return torch_npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=8, scale=0.1, input_layout="TND",
            actual_seq_lengths=[first, last], actual_seq_lengths_kv=[first, last],
        )[0]
