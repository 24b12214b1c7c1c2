"""One table of names per version; the arguments are renamed before the call."""

import torch_npu

NAMES = {"scale": "softmax_scale", "num_heads": "num_query_heads"}


def attend(q, k, v, second, **options):
    if second:
        renamed = {NAMES.get(name, name): value for name, value in options.items()}
        return torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **renamed)[0]
    return torch_npu.npu_fused_infer_attention_score(q, k, v, **options)[0]


def run(q, k, v, second, heads):
    return attend(q, k, v, second, scale=q.shape[-1] ** -0.5, num_heads=heads, input_layout="BNSD")
