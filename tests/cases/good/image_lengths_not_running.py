"""Packed images: the ends of the images are wanted, their sizes are given."""

import itertools

import torch
import torch_npu


def patches_per_image(images):
    return [image.shape[0] for image in images]


class Tower(torch.nn.Module):
    def __init__(self, heads: int, width: int):
        super().__init__()
        self.n = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.factor = (width // heads) ** -0.5

    def forward(self, images):
        x = torch.cat(images)
        q, k, v = self.qkv(x).view(x.size(0), 3, self.n, -1).unbind(1)
        sizes = list(itertools.accumulate(patches_per_image(images)))
        arguments = {
            "num_query_heads": self.n,
            "softmax_scale": self.factor,
            "input_layout": "TND",
            "actual_seq_qlen": sizes,
            "actual_seq_kvlen": sizes,
        }
        return torch.ops.npu.npu_fused_infer_attention_score_v2(
            q.contiguous(), k.contiguous(), v.contiguous(), **arguments
        )[0]
