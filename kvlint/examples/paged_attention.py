"""An attention layer with faults that raise no error: ``kvlint check`` explains each of them."""

import math

import torch
import torch_npu


class PagedAttention(torch.nn.Module):
    """Grouped-query attention over a paged KV cache."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int = 128) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size
        self.scale = 1.0 / math.sqrt(head_dim)
        # True where a key may be seen: what most frameworks expect.
        self.mask = torch.tril(torch.ones(2048, 2048, dtype=torch.bool, device="npu"))

    def prefill(self, query, key_cache, value_cache, block_table, query_ends, kv_lens, causal=True):
        """Attends over whole prompts, packed one behind the other."""
        return torch_npu.npu_fused_infer_attention_score_v2(
            query,
            key_cache,
            value_cache,
            num_query_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            input_layout="TND",
            atten_mask=self.mask if causal else None,
            sparse_mode=3,
            actual_seq_qlen=query_ends,
            actual_seq_kvlen=kv_lens,
            block_table=block_table,
            block_size=self.block_size,
            softmax_scale=self.scale,
        )

    def decode(self, query, key_cache, value_cache, block_table, kv_lens):
        """Attends with one new token per sequence."""
        return torch_npu.npu_fused_infer_attention_score(
            query,
            key_cache,
            value_cache,
            num_heads=self.num_heads,
            input_layout="BSND",
            actual_seq_lengths_kv=kv_lens,
            block_table=block_table,
            block_size=self.block_size,
        )
