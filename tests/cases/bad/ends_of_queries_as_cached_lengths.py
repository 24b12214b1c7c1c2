"""The keys of a request lie in its blocks: the ends of the packed queries say nothing of them."""

import itertools

import torch_npu


class Chunked:
    def __init__(self, heads, groups, factor, hidden):
        self.heads, self.groups, self.factor, self.hidden = heads, groups, factor, hidden

    def run(self, q, keys, values, batch):
        ends = list(itertools.accumulate(batch.new_tokens))
        call = dict(block_table=batch.table, block_size=128, input_layout="TND", sparse_mode=3)
        call["actual_seq_qlen"] = ends
        call["actual_seq_kvlen"] = ends  # KV303
        return torch_npu.npu_fused_infer_attention_score_v2(
            q, keys, values, atten_mask=self.hidden, softmax_scale=self.factor,
            num_query_heads=self.heads, num_key_value_heads=self.groups, **call,
        )[0]
