"""One helper makes the options; each user changes its own copy."""

import torch_npu


def options(heads, factor):
    return {"num_heads": heads, "scale": factor, "input_layout": "BSND"}


def dense(q, k, v, heads, factor, wide):
    chosen = options(heads, factor)
    if wide:
        chosen["inner_precise"] = 0
    return torch_npu.npu_fused_infer_attention_score(q, k, v, **chosen)[0]


def causal(q, k, v, heads, factor, hidden):
    chosen = {**options(heads, factor), "atten_mask": hidden, "sparse_mode": 3}
    plain = options(heads, factor)
    first = torch_npu.npu_fused_infer_attention_score(q, k, v, **chosen)[0]
    return first, torch_npu.npu_fused_infer_attention_score(q, k, v, **plain)[0]
