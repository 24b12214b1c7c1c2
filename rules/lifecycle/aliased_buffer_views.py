"""KV703: several steps or groups hold views of one buffer."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class AliasedBufferViews(Rule):
    """Several steps or groups hold views of one buffer.

    ## What it does
    Reports a loop that refills one slot or length buffer and keeps a view of it for every round, and a
    list of results of a method that fills a buffer of its object and returns a view of it. Reported as well
    is a list or dict that holds one new tensor under every index (``[torch.zeros(...)] * layers``,
    ``dict.fromkeys(names, buffer)``) where entries are written one by one.

    ## Why it is wrong
    All kept views show what the last round wrote. Earlier steps or other cache groups read the lengths or
    slots of the last one, silently. Layers that share one cache overwrite each other's keys.

    ## Use instead
    One buffer per step or group, or ``.clone()`` of the view.

    ## Ops and versions
    All operators that take slots, lengths or block tables.

    ## Evidence
    SU-03 and D04: slots and lengths are read when the operator runs, not when the metadata is built.
    """

    code = "KV703"
    name = "aliased-buffer-views"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("SU-03", "D04")
    events = ("aliased-buffer-views",)
    bad = {
        "one slot buffer for two groups": """
            class Runner:
                def metadata(self, groups, computed, n):
                    meta = {}
                    for group in groups:
                        self.slots[:n].copy_(computed[group])
                        meta[group] = self.slots[:n]  # KV703
                    torch_npu._npu_reshape_and_cache(k, v, kc, vc, meta["full"])
                    return meta
        """,
        "views collected over steps": """
            class Builder:
                def build(self, ends):
                    n = ends.shape[0]
                    self.ends[:n] = ends
                    return self.ends[:n]

            def draft(builder, batches):
                plans = [builder.build(b) for b in batches]  # KV703
                return [torch_npu._npu_reshape_and_cache(k, v, kc, vc, plan) for plan in plans]
        """,
        "collected by a loop": """
            class Builder:
                def build(self, lens):
                    n = lens.shape[0]
                    self.lens[:n].copy_(lens)
                    return {"context_lens": self.lens[:n]}

            def draft(builder, steps):
                plans = []
                for lens in steps:
                    plans.append(builder.build(lens))  # KV703
                for plan in plans:
                    torch_npu._npu_paged_attention(
                        query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                        block_table=table, out=q, **plan)
        """,
        "one cache for all layers": """
            class Cache:
                def __init__(self, layers, shape):
                    self.k = [torch.zeros(shape, dtype=torch.bfloat16)] * layers  # KV703
                    self.v = [torch.zeros(shape, dtype=torch.bfloat16)] * layers  # KV703

                def write(self, layer, key, value, slots):
                    torch_npu._npu_reshape_and_cache(
                        key=key, value=value, key_cache=self.k[layer], value_cache=self.v[layer],
                        slot_indices=slots.to(torch.int32))
        """,
        "one buffer for all groups": """
            class Runner:
                def __init__(self, groups, cap):
                    buffer = torch.zeros(cap, dtype=torch.int32)
                    self.slots = dict.fromkeys(groups, buffer)  # KV703

                def write(self, group, computed, n, key, value, kc, vc):
                    self.slots[group][:n] = computed
                    torch_npu._npu_reshape_and_cache(
                        key=key, value=value, key_cache=kc, value_cache=vc,
                        slot_indices=self.slots[group][:n])
        """,
    }
    ok = {
        "one cache per layer": """
            class Cache:
                def __init__(self, layers, shape):
                    self.k = [torch.zeros(shape, dtype=torch.bfloat16) for _ in range(layers)]
                    self.v = [torch.zeros(shape, dtype=torch.bfloat16) for _ in range(layers)]

                def write(self, layer, key, value, slots):
                    torch_npu._npu_reshape_and_cache(
                        key=key, value=value, key_cache=self.k[layer], value_cache=self.v[layer],
                        slot_indices=slots.to(torch.int32))
        """,
        "one mask for all layers, never written": """
            class Masks:
                def __init__(self, layers):
                    self.masks = [torch.ones(2048, 2048, dtype=torch.bool).triu(1)] * layers

                def attend(self, layer, q, k, v):
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                        sparse_mode=3, atten_mask=self.masks[layer])
        """,
        "filled with tensors later": """
            class Cache:
                def __init__(self, layers):
                    self.k = [None] * layers

                def write(self, layer, key, value, slots, vc):
                    torch_npu._npu_reshape_and_cache(
                        key=key, value=value, key_cache=self.k[layer], value_cache=vc,
                        slot_indices=slots.to(torch.int32))
        """,
        "cloned": """
            class Runner:
                def metadata(self, groups, computed, n):
                    meta = {}
                    for group in groups:
                        self.slots[:n].copy_(computed[group])
                        meta[group] = self.slots[:n].clone()
                    torch_npu._npu_reshape_and_cache(k, v, kc, vc, meta["full"])
                    return meta
        """,
        "one buffer per group": """
            class Runner:
                def metadata(self, groups, computed, n):
                    meta = {}
                    for group in groups:
                        group.slots[:n].copy_(computed[group.name])
                        meta[group.name] = group.slots[:n]
                    torch_npu._npu_reshape_and_cache(k, v, kc, vc, meta["full"])
                    return meta
        """,
        "one buffer per step": """
            class Builder:
                def build(self, step, ends):
                    n = ends.shape[0]
                    self.ends[step][:n] = ends
                    return self.ends[step][:n]

            def draft(builder, batches):
                plans = [builder.build(i, b) for i, b in enumerate(batches)]
                return [torch_npu._npu_reshape_and_cache(k, v, kc, vc, plan) for plan in plans]
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the statement."""
        buffer = event.detail["buffer"]
        if event.detail.get("how") == "entries":
            return violated(
                f"every entry of {buffer} is the same tensor, so what is written for one is read for all",
                event.place,
                event.notes,
                "Make one tensor per entry in a comprehension.",
            )
        return violated(
            f"every round keeps a view of {buffer}, which the next round overwrites",
            event.place,
            event.notes,
            f"Use one buffer per round, or keep {buffer}[...].clone().",
        )
