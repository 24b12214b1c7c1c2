"""Built to mark what may be seen, read as what is hidden."""

import torch
import torch_npu as npu


def visible(count, device):
    rows = torch.ones((count, count), device=device)
    return torch.tril(rows, 0).to(torch.bool)


def forward(q, k, v, n, causal):
    keywords = {"scale": q.size(-1) ** -0.5}
    if causal:
        keywords["atten_mask"] = visible(q.size(1), q.device)  # KV203
    return npu.npu_fusion_attention(q, k, v, n, "BSND", **keywords)[0]
