"""Several flags pick mask and mode; the same expression picks both."""

import torch_npu


def attend(q, k, v, meta, heads, groups, factor, training):
    masked = meta.is_prefill and not training
    kwargs = {"num_heads": heads, "num_key_value_heads": groups, "scale": factor, "input_layout": "TND"}
    kwargs.update(actual_seq_lengths=meta.ends, actual_seq_lengths_kv=meta.ends)
    if masked:
        kwargs |= {"atten_mask": meta.hidden, "sparse_mode": 3}
    return torch_npu.npu_fused_infer_attention_score(q, k, v, **kwargs)[0]
