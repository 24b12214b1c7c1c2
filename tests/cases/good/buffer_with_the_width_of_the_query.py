"""The result has as many columns as the values; its buffer has as many as the queries."""

import torch
import torch_npu


class Replay:
    def __init__(self, tokens, heads):
        self.q = torch.empty(tokens, heads, 192, dtype=torch.bfloat16, device="npu")
        self.k = torch.empty(tokens, heads, 192, dtype=torch.bfloat16, device="npu")
        self.v = torch.empty(tokens, heads, 128, dtype=torch.bfloat16, device="npu")
        self.heads = heads
        self.out = torch.empty(self.v.shape, dtype=torch.bfloat16, device="npu")
        self.lse = torch.empty(1, device="npu")

    def capture(self, ends, hidden, workspace):
        torch_npu.npu_fused_infer_attention_score_v2.out(
            self.q, self.k, self.v, workspace=workspace, atten_mask=hidden, sparse_mode=3,
            num_query_heads=self.heads, num_key_value_heads=self.heads, softmax_scale=192 ** -0.5,
            input_layout="TND", actual_seq_qlen=ends, actual_seq_kvlen=ends,
            out=[self.out, self.lse],
        )
