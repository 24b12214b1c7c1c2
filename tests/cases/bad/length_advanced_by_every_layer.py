"""Each layer advances the shared length; the last one alone should."""

import torch_npu


class Attention:
    def __init__(self, idx, last):
        self.idx, self.last = idx, last

    def forward(self, q, k, v, cache):
        torch_npu.scatter_update_(cache.k[self.idx], cache.kv_len, k, 1)
        torch_npu.scatter_update_(cache.v[self.idx], cache.kv_len, v, 1)
        out = torch_npu.npu_fused_infer_attention_score(
            q, cache.k[self.idx], cache.v[self.idx], num_heads=8, num_key_value_heads=8, scale=0.1,
            input_layout="BSH", actual_seq_lengths_kv=(cache.kv_len + 1).tolist(),
        )[0]
        if self.ready:
            cache.kv_len += 1  # KV701
        return out

    def prefill(self, q, k, v, cache):
        torch_npu.scatter_update_(cache.k[self.idx], cache.kv_len, k, 1)
        torch_npu.scatter_update_(cache.v[self.idx], cache.kv_len, v, 1)
        if self.skip:
            return q
        cache.kv_len += k.shape[1]  # KV701
        return q
