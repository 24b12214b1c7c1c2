"""Sizes for the batched call, ends for the packed one; both come from one list."""

import itertools

import torch_npu


def attend(q, k, v, sizes, heads, factor, packed):
    common = {"num_heads": heads, "scale": factor}
    if packed:
        ends = list(itertools.accumulate(sizes))
        common.update(input_layout="TND", actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
    else:
        common.update(input_layout="BSH", actual_seq_lengths=sizes, actual_seq_lengths_kv=sizes)
    return torch_npu.npu_fused_infer_attention_score(q, k, v, **common)[0]
