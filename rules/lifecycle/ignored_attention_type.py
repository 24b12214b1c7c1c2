"""KV706: encoder-only layers are declared but never told apart."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class IgnoredAttentionType(Rule):
    """Encoder-only layers are declared but never told apart.

    ## What it does
    Reports an enum (or a class of constants) of attention types with an encoder-only or bidirectional member
    that layers carry in an attribute, when no code of the module ever reads the attribute; checks in the
    constructor do not count.

    ## Why it is wrong
    Every layer then runs with the same mask. Encoder-only models (rerankers, embedding models, vision
    towers) attend to both sides; with a causal mask their scores are silently wrong.

    ## Use instead
    Choose mask and sparse_mode by the layer's type.

    ## Ops and versions
    All attention operators.

    ## Evidence
    1.7: mode 3 with the compressed mask is causal for every layer.
    """

    code = "KV706"
    name = "ignored-attention-type"
    severity = Severity.SILENT
    confidence = Confidence.LOW
    contract = ("C08",)
    events = ("attention-type-ignored",)
    bad = {
        "backend never looks": """
            import enum

            class Kind(enum.Enum):
                DECODER = 0
                ENCODER_ONLY = 1  # KV706

            class Layer:
                def __init__(self, kind, heads):
                    self.kind, self.heads = kind, heads

            class Backend:
                def run(self, layer, q, k, v):
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=layer.heads, num_key_value_heads=layer.heads, scale_value=0.1,
                        input_layout="BSH",
                        atten_mask=self.tri, sparse_mode=3)
        """,
        "accepted by name": """
            class Layer:
                def __init__(self, heads, attn_type="decoder"):
                    assert attn_type in ("decoder", "encoder_only")  # KV706
                    self.heads, self.attn_type = heads, attn_type

            class Backend:
                def run(self, layer, q, k, v):
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=layer.heads, num_key_value_heads=layer.heads, scale_value=0.1,
                        input_layout="BSH",
                        atten_mask=self.tri, sparse_mode=3)
        """,
        "names instead of an enum": """
            class AttentionType:
                DECODER = "decoder"
                ENCODER_ONLY = "encoder_only"  # KV706

            class Layer:
                def __init__(self, heads, attn_type=AttentionType.DECODER):
                    if attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
                        raise NotImplementedError(attn_type)
                    self.heads, self.attn_type = heads, attn_type

            class Backend:
                def run(self, layer, q, k, v):
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=layer.heads, num_key_value_heads=layer.heads, scale_value=0.1,
                        input_layout="BSH",
                        atten_mask=self.tri, sparse_mode=3)
        """,
    }
    ok = {
        "refused by name": """
            class Layer:
                def __init__(self, heads, attn_type="decoder"):
                    if attn_type in ("encoder", "encoder_only"):
                        raise NotImplementedError(attn_type)
                    self.heads, self.attn_type = heads, attn_type

            class Backend:
                def run(self, layer, q, k, v):
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=layer.heads, num_key_value_heads=layer.heads, scale_value=0.1,
                        input_layout="BSH",
                        atten_mask=self.tri, sparse_mode=3)
        """,
        "refused": """
            class AttentionType:
                DECODER = "decoder"
                ENCODER_ONLY = "encoder_only"

            class Layer:
                def __init__(self, heads, attn_type=AttentionType.DECODER):
                    if attn_type != AttentionType.DECODER:
                        raise NotImplementedError(attn_type)
                    self.heads, self.attn_type = heads, attn_type

            class Backend:
                def run(self, layer, q, k, v):
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=layer.heads, num_key_value_heads=layer.heads, scale_value=0.1,
                        input_layout="BSH",
                        atten_mask=self.tri, sparse_mode=3)
        """,
        "type decides": """
            import enum

            class Kind(enum.Enum):
                DECODER = 0
                ENCODER_ONLY = 1

            class Layer:
                def __init__(self, kind, heads):
                    self.kind, self.heads = kind, heads

            class Backend:
                def run(self, layer, q, k, v):
                    causal = layer.kind is Kind.DECODER
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=layer.heads, num_key_value_heads=layer.heads, scale_value=0.1,
                        input_layout="BSH",
                        atten_mask=self.tri if causal else None, sparse_mode=3 if causal else 0)
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the statement."""
        detail = event.detail
        member = f"{detail['enum']}.{detail['member']}" if detail["enum"] else detail["member"]
        return violated(
            f"{detail['owner']}.{detail['attribute']} may be {member}, but "
            f"nothing reads it: "
            "every layer runs with the same mask",
            event.place,
            event.notes,
            "Choose mask and sparse_mode by the layer's type.",
        )
