"""An argument of triu ends up in the call that makes its operand, which takes none of that name."""

import torch
import torch_npu


class Prompt:
    def __init__(self, heads, factor):
        self.heads = heads
        self.factor = factor
        self.hidden = None

    def mask(self, like):
        if self.hidden is None:
            base = torch.ones((2048, 2048), dtype=torch.uint8, device=like.device)
            self.hidden = torch.triu(base, diagonal=1)
        return self.hidden

    def run(self, q, k, v, ends):
        kw = dict(num_heads=self.heads, scale=self.factor, input_layout="TND", sparse_mode=3)
        kw.update(actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        hidden = torch.triu(torch.ones((2048, 2048), dtype=torch.uint8, device=q.device), diagonal=1)
        return torch_npu.npu_fused_infer_attention_score(q, k, v, atten_mask=hidden, **kw)[0]