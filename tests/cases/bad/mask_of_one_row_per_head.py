"""A mask with a row of its own per head needs its query axis written out."""

import torch_npu


class Cross:
    def __init__(self, heads, dim):
        self.heads, self.dim = heads, dim

    def forward(self, q, k, v, padding):
        b, s = q.shape[0], k.shape[2]
        shape = (b, self.heads, 1, s)
        hidden = padding.to(dtype=bool).reshape(b, 1, 1, s).expand(*shape)
        return torch_npu.npu_fusion_attention(
            q, k, v, self.heads, "BNSD", scale=self.dim ** -0.5, atten_mask=hidden  # KV214
        )[0]
