"""The log-sum-exp is asked for when there are several ranks, and merged always."""

import torch
import torch_npu


class Attention:
    def __init__(self, ranks, group, heads):
        self.ranks, self.group, self.heads = ranks, group, heads

    def attend(self, q, k, v, lens):
        out, lse = torch_npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=self.heads, num_key_value_heads=self.heads, input_layout="BNSD", scale=0.1,
            actual_seq_lengths_kv=lens, softmax_lse_flag=self.ranks > 1,
        )
        parts = [torch.empty_like(lse) for _ in range(self.ranks)]
        torch.distributed.all_gather(parts, lse, group=self.group)  # KV130
        return out * torch.softmax(torch.stack(parts), dim=0)[0]
