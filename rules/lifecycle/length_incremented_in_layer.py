"""KV701: a KV length that grows inside a layer."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class LengthIncrementedInLayer(Rule):
    """A KV length is advanced inside a module that exists once per layer.

    ## What it does
    Reports ``self.kv_len += 1``, ``kv_len.add_(1)``, ``cache.seen_tokens += n`` and the like in the
    methods of attention, decoder-layer and cache classes that run once per layer. An increment under a
    test on the layer number (``if layer_idx == 0:``) is right, and so is one in a runner or model class.
    A local Python number (``kv_len = kv_len + 1``) is right too: the next layer starts from its own.

    ## Why it is wrong
    Every layer of one forward pass has to see the same length. A counter that each layer advances is L
    times too large after L layers: later layers write past the right slot and read rows that do not exist
    yet. Nothing checks it, the numbers are wrong without an error.

    ## Use instead
    Advance the length once per step in the code that drives the layers, and pass it down.

    ## Ops and versions
    All attention operators and cache writers.

    ## Evidence
    SU-08 and D12: the write offset and the length that attention reads belong to the step, not to the
    layer.
    """

    code = "KV701"
    name = "length-incremented-in-layer"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("SU-08", "D12")
    events = ("length-incremented",)
    bad = {
        "attribute of the layer": """
            class Attention(torch.nn.Module):
                def forward(self, q, k, v):
                    torch_npu.scatter_update_(self.k_cache, self.kv_len, k, 1)
                    torch_npu.scatter_update_(self.v_cache, self.kv_len, v, 1)
                    self.kv_len += 1  # KV701
                    return torch_npu.npu_incre_flash_attention(
                        q, self.k_cache, self.v_cache, num_heads=8, num_key_value_heads=8, scale_value=0.1,
                        input_layout="BSH", actual_seq_lengths=self.kv_len)
        """,
        "in place on the shared tensor": """
            class DecoderLayer(torch.nn.Module):
                def forward(self, q, k, v, kv_len):
                    torch_npu.scatter_update_(self.k_cache, kv_len, k, 1)
                    kv_len.add_(1)  # KV701
                    return q
        """,
        "counter of the cache object": """
            class KVCache:
                def update(self, key, value, index):
                    torch_npu.scatter_update_(self.key, index, key, 1)
                    torch_npu.scatter_update_(self.value, index, value, 1)
                    self.seen_tokens += key.shape[1]  # KV701
        """,
        "method of an object that all layers share": """
            class Lengths:
                def next(self):
                    for index in range(len(self.values)):
                        self.values[index] += 1
                    return self.values

            class DecoderLayer(torch.nn.Module):
                def forward(self, q, k, v, lengths: Lengths):
                    return torch_npu.npu_incre_flash_attention(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                        actual_seq_lengths=lengths.next())  # KV701
        """,
        "rebinding": """
            class Attention(torch.nn.Module):
                def forward(self, q, k, meta):
                    torch_npu.scatter_update_(self.k_cache, meta.kv_len, k, 1)
                    meta.kv_len = meta.kv_len + 1  # KV701
                    return q
        """,
    }
    ok = {
        "one length for each layer": """
            class Lengths:
                def next(self, layer_idx):
                    self.values[layer_idx] += 1
                    return self.values

            class DecoderLayer(torch.nn.Module):
                def forward(self, q, k, v, lengths: Lengths):
                    return torch_npu.npu_incre_flash_attention(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                        actual_seq_lengths=lengths.next(self.layer_idx))
        """,
        "only in the first layer": """
            class KVCache:
                def update(self, key, value, index, layer_idx):
                    if layer_idx == 0:
                        self.seen_tokens += key.shape[1]
                    torch_npu.scatter_update_(self.key, index, key, 1)
        """,
        "local number": """
            class Attention(torch.nn.Module):
                def forward(self, q, k, v, kv_len: int):
                    torch_npu.scatter_update_(self.k_cache, self.index, k, 1)
                    kv_len += 1
                    return torch_npu.npu_incre_flash_attention(
                        q, self.k_cache, self.v_cache, num_heads=8, num_key_value_heads=8, scale_value=0.1,
                        input_layout="BSH", actual_seq_lengths=[kv_len])
        """,
        "runner": """
            class ModelRunner:
                def step(self, layers, q, k):
                    for layer in layers:
                        q = layer(q, k, self.kv_len)
                    torch_npu.scatter_update_(self.log, self.kv_len, q, 1)
                    self.kv_len += 1
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the increment."""
        name = event.detail["name"]
        return violated(
            f"{name} is {event.detail['how']} in {event.detail['method']}(), which runs once per layer, "
            "but a step advances the length once",
            event.place,
            event.notes,
            f"Advance {name} once per step in the code that drives the layers.",
        )
