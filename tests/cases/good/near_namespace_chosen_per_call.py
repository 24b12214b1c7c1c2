"""Which library runs is chosen per call, and so is the mode that goes with the mask."""

import torch
import torch_npu
import torchair as tng


class Attention:
    def __init__(self, heads, factor):
        self.heads, self.factor = heads, factor

    def _ops(self, graph):
        if graph:
            return tng.ops
        return torch_npu

    def forward(self, q, k, v, ends, hidden, graph=False, causal=True):
        mask = hidden if causal else None
        out, _ = self._ops(graph).npu_fused_infer_attention_score(
            q, k, v, num_heads=self.heads, scale=self.factor, input_layout="TND",
            actual_seq_lengths=ends, actual_seq_lengths_kv=ends,
            atten_mask=mask, sparse_mode=0 if mask is None else 3,
        )
        return out
