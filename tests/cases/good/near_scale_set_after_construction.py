"""The factor starts as one and is set when the weights are known."""

import torch_npu


class Attention:
    def __init__(self, heads):
        self.heads = heads
        self.factor = 1.0

    def load(self, weights):
        self.factor = weights["query"].shape[-1] ** -0.5

    def forward(self, q, k, v):
        return torch_npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=self.heads, input_layout="BNSD", scale=self.factor
        )[0]
