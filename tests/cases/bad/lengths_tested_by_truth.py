"""A tensor of lengths is asked whether it is true."""

import torch
import torch_npu


class Prompt:
    def __init__(self, heads, factor):
        self.heads = heads
        self.factor = factor

    def __call__(self, q, k, v, lengths: torch.Tensor | None, hidden):
        options = {}
        if lengths:
            options["actual_seq_lengths"] = lengths.cpu().tolist()  # KV311
        return torch_npu.npu_prompt_flash_attention(
            q, k, v, num_heads=self.heads, scale_value=self.factor, input_layout="BSH",
            atten_mask=hidden.bool(), next_tokens=0, **options,
        )
