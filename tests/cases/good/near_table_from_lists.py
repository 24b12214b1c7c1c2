"""Block tables made from lists of lists have two axes, however the rows are collected."""

import torch
import torch_npu


class Builder:
    def appended(self, requests, width):
        rows = []
        for request in requests:
            rows.append(request.pages + [0] * (width - len(request.pages)))
        return torch.tensor(rows, dtype=torch.int32, device="npu")

    def listed(self, requests):
        return torch.as_tensor([request.pages for request in requests], dtype=torch.int32).npu()

    def padded(self, requests, width):
        return torch.tensor([self.pad(r.pages, width) for r in requests], dtype=torch.int32).npu()

    def attend(self, q, kc, vc, requests, width, lens, how):
        if how == "appended":
            table = self.appended(requests, width)
        elif how == "listed":
            table = self.listed(requests)
        else:
            table = self.padded(requests, width)
        return torch_npu.npu_fused_infer_attention_score(
            q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
            block_table=table, block_size=128, actual_seq_lengths_kv=lens,
        )[0]
