"""The last axis already is one head, and is divided by the head count once more."""

import torch_npu


class Context:
    def __init__(self, heads, dim):
        self.heads = heads
        self.dim = dim

    def __call__(self, q, k, v):
        q, k, v = (t.view(t.size(0), t.size(1), self.heads, self.dim) for t in (q, k, v))
        head = q.size(3) // self.heads
        return torch_npu.npu_prompt_flash_attention(
            q, k, v, num_heads=self.heads, input_layout="BSND", scale_value=head ** -0.5,  # KV108
        )
