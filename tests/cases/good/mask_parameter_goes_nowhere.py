"""The layer takes a mask, and attends to everything."""

import torch_npu


class EncoderLayer:
    def __init__(self, config):
        self.config = config

    def attend(self, hidden, attention_mask):
        q, k, v = hidden
        kwargs = {"num_heads": self.config.heads, "input_layout": "BNSD", "scale": self.config.factor}
        return torch_npu.npu_prompt_flash_attention(q, k, v, num_heads=kwargs["num_heads"],
                                                    input_layout="BNSD", scale_value=kwargs["scale"],
                                                    atten_mask=attention_mask)
