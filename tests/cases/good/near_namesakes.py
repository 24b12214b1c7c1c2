"""Other functions of these names, with other parameters."""

from mindspeed.ops.fusion_attention_v2 import npu_fusion_attention

from .device import DeviceOperator, ops


def npu_fused_infer_attention_score(query, softmax_scale, num_query_heads):
    return query * softmax_scale / num_query_heads


class Attention:
    def __init__(self, adaptor):
        self.adaptor = adaptor

    def npu_incre_flash_attention(self, query, heads):
        return query, heads

    def forward(self, q, k, v):
        a = npu_fused_infer_attention_score(q, softmax_scale=1.0, num_query_heads=8)
        b = DeviceOperator.npu_fused_infer_attention_score_v2(q, k, v, scale=1.0, heads=8)
        c = self.npu_incre_flash_attention(q, heads=8)
        d = self.adaptor.npu_prompt_flash_attention(q, k, v, scale=1.0)
        e = npu_fusion_attention(q, k, v, head_num=8, layout="BSND", actual_lengths=None)
        f = ops.npu_scatter_pa_kv_cache(q, k)
        return a, b, c, d, e, f
