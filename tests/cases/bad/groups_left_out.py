"""Keys have fewer heads than queries, and the call does not say so."""

import torch
import torch_npu


class Grouped(torch.nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n = cfg.num_attention_heads
        self.g = cfg.num_key_value_heads
        self.d = cfg.head_dim
        self.proj = torch.nn.Linear(cfg.hidden_size, (self.n + 2 * self.g) * self.d)

    def forward(self, x):
        b, s = x.shape[:2]
        q, k, v = self.proj(x).split([self.n * self.d, self.g * self.d, self.g * self.d], dim=-1)
        q = q.reshape(b, s, self.n, self.d)
        k = k.reshape(b, s, self.g, self.d)
        v = v.reshape(b, s, self.g, self.d)
        arguments = {"num_query_heads": self.n, "softmax_scale": self.d ** -0.5, "input_layout": "BSND"}
        out, _ = torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **arguments)  # KV104
        return out
