"""A mask of penalties is turned round as if it marked what to keep."""

import torch
import torch_npu


def penalties(valid, dtype):
    """0 for a token that counts, the lowest number for padding."""
    blank = torch.zeros(valid.shape, dtype=dtype, device=valid.device)
    return blank.masked_fill(valid == 0, torch.finfo(dtype).min)


def encode(q, k, v, valid, heads):
    rows = penalties(valid, q.dtype)[:, None, None, :].expand(-1, 1, q.shape[2], -1)
    hidden = torch.logical_not(rows.bool())
    return torch_npu.npu_fusion_attention(
        q, k, v, heads, "BNSD",
        scale=q.shape[-1] ** -0.5,
        atten_mask=hidden,  # KV203
    )[0]
