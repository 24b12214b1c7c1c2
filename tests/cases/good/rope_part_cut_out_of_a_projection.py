"""Both parts of the query lie in one projection, with gaps between their rows."""

import torch
import torch_npu


class Latent(torch.nn.Module):
    nope, rope = 128, 64

    def __init__(self, heads, hidden):
        super().__init__()
        self.heads = heads
        self.q_proj = torch.nn.Linear(hidden, heads * (self.nope + self.rope), bias=False)
        self.factor = (self.nope + self.rope) ** -0.5

    def forward(self, x, k, k_rope, v, ends, hidden):
        q = self.q_proj(x).view(-1, self.heads, self.nope + self.rope)
        plain, turned = torch.split(q, [self.nope, self.rope], dim=-1)
        return torch_npu.npu_fused_infer_attention_score_v2(
            plain.contiguous(), k, v,
            query_rope=turned.contiguous(),
            key_rope=k_rope,
            num_query_heads=self.heads, num_key_value_heads=self.heads, softmax_scale=self.factor,
            input_layout="TND", atten_mask=hidden, sparse_mode=3,
            actual_seq_qlen=ends, actual_seq_kvlen=ends,
        )[0]
