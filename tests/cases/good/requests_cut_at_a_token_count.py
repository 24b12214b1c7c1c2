"""Per-request tensors are cut where the tokens are cut."""

import torch_npu


class Splitter:
    def __init__(self, heads, groups, factor, hidden):
        self.heads, self.groups, self.factor, self.hidden = heads, groups, factor, hidden

    def run(self, q, pools, batch, out):
        skip, used = batch.num_decodes, batch.num_decode_tokens
        lengths = {
            "seq_len": batch.query_lens[batch.num_decodes:].int(),
            "context_lens": batch.seq_lens[batch.num_decodes:].int(),
            "block_table": batch.block_table[batch.num_decodes:],
        }
        torch_npu._npu_paged_attention_splitfuse(
            query=q[used:], key_cache=pools[0], value_cache=pools[1], mask=self.hidden,
            num_kv_heads=self.groups, num_heads=self.heads, scale_value=self.factor, out=out[used:], **lengths,
        )
        return out, skip
