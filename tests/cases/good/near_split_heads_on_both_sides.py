"""Each rank holds its share of the heads, and says so."""

import torch
import torch_npu


class Parallel(torch.nn.Module):
    def __init__(self, hidden, heads, groups, dim, ranks):
        super().__init__()
        assert heads % ranks == 0
        self.heads, self.groups, self.dim = heads // ranks, max(1, groups // ranks), dim
        self.qkv = torch.nn.Linear(hidden, (self.heads + 2 * self.groups) * dim)

    def forward(self, x, ends, hidden):
        q, k, v = self.qkv(x).split([self.heads * self.dim, self.groups * self.dim, self.groups * self.dim], -1)
        return torch_npu.npu_fused_infer_attention_score(
            q.reshape(-1, self.heads, self.dim),
            k.reshape(-1, self.groups, self.dim),
            v.reshape(-1, self.groups, self.dim),
            num_heads=self.heads, num_key_value_heads=self.groups, scale=self.dim ** -0.5, input_layout="TND",
            actual_seq_lengths=ends, actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=3,
        )[0]
