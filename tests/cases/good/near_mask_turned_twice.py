"""Inverted twice, or built as what is hidden from the start."""

import torch
import torch_npu


def hidden_by_order(count, device):
    rows = torch.arange(count, device=device)[:, None]
    columns = torch.arange(count, device=device)[None, :]
    return columns > rows


def hidden_twice(count, device):
    seen = ~torch.triu(torch.ones(count, count, dtype=torch.bool, device=device), 1)
    return torch.logical_not(seen)


def hidden_by_comparison(count, device):
    return torch.tril(torch.ones(count, count, device=device)) == 0


def attend(q, k, v, heads):
    outs = []
    for make in (hidden_by_order, hidden_twice, hidden_by_comparison):
        outs.append(torch_npu.npu_fusion_attention(
            q, k, v, heads, "BSND", scale=q.shape[-1] ** -0.5, atten_mask=make(q.shape[1], q.device)
        )[0])
    a = hidden_twice(q.shape[1], q.device)
    b = hidden_by_comparison(q.shape[1], q.device)
    outs.append(torch_npu.npu_fusion_attention(q, k, v, heads, "BSND", scale=0.1, atten_mask=a)[0])
    outs.append(torch_npu.npu_fusion_attention(q, k, v, heads, "BSND", scale=0.1, atten_mask=b)[0])
    return outs
