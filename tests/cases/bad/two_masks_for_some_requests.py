"""Some requests add two masks to the list, and the index only counts requests."""

import torch
import torch_npu


def masks_for(lens, history):
    found = []
    for i, count in enumerate(lens):
        if history is None:
            found.append(torch.ones((count, count), dtype=torch.bool, device="npu").triu(1))
        total = count + (history[i] if history is not None else 0)
        found.append(torch.ones((count, total), dtype=torch.bool, device="npu").triu(total - count + 1))
    return found


def prefill(parts, lens, history, heads, factor):
    hidden = masks_for(lens, history)
    outs = []
    for i in range(len(lens)):
        q, k, v = parts[i]
        outs.append(torch_npu.npu_prompt_flash_attention(
            q, k, v, num_heads=heads, scale_value=factor, input_layout="BSH", atten_mask=hidden[i],  # KV240
        ))
    return outs
