"""KV705: shared metadata is changed in place."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class OverwrittenMetadata(Rule):
    """Shared metadata is changed in place.

    ## What it does
    Reports a function that takes a slice of a caller's buffer and moves entries within it: ``slots =
    common.slots[:n]; slots[:k] = slots[::w]``, and a builder that advances lengths or slots of a caller under
    another name: ``lens = common.seq_lens; lens += 1``.

    ## Why it is wrong
    The slice is a view. The next consumer of the same metadata finds compacted entries and compacts them
    again, or advances lengths that were advanced before: they belong to other tokens.

    ## Use instead
    Copy the slice to a private buffer first.

    ## Ops and versions
    All operators that take slots, lengths or block tables.

    ## Evidence
    KR-08, PA-03: every token has its own slot.
    """

    code = "KV705"
    name = "overwritten-metadata"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("KR-08", "PA-03")
    events = ("metadata-overwritten",)
    bad = {
        "every builder compacts": """
            class Builder:
                def build(self, common, n):
                    slots = common.slots[: n * self.ways]
                    slots[:n] = slots[:: self.ways].clone()  # KV705
                    return torch_npu._npu_reshape_and_cache(k, v, kc, vc, slots[:n])
        """,
        "every builder advances": """
            class Builder:
                def build(self, common):
                    lens = common.seq_lens
                    lens += 1  # KV705
                    return lens

            def run(builders, common, q, kc, vc, table):
                for builder in builders:
                    torch_npu._npu_paged_attention(
                        query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                        block_table=table, context_lens=builder.build(common), out=q)
        """,
        "in place by a method": """
            def prepare_draft(batch, step):
                lens = batch.kv_lens
                lens.add_(step)  # KV705
                torch_npu._npu_paged_attention(
                    query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                    block_table=table, context_lens=lens, out=q)
        """,
    }
    ok = {
        "a new tensor": """
            class Builder:
                def build(self, common):
                    lens = common.seq_lens + 1
                    lens += self.extra
                    return lens

            def run(builders, common, q, kc, vc, table):
                for builder in builders:
                    torch_npu._npu_paged_attention(
                        query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                        block_table=table, context_lens=builder.build(common), out=q)
        """,
        "a number": """
            class Builder:
                def build(self, common):
                    longest = common.max_seq_len
                    longest += 1
                    torch_npu._npu_reshape_and_cache(k, v, kc, vc, common.slots[:longest])
        """,
        "the owner advances its own": """
            class Batch:
                def prepare(self):
                    lens = self.seq_lens
                    lens += 1
                    torch_npu._npu_reshape_and_cache(k, v, kc, vc, lens)
        """,
        "private buffer": """
            class Builder:
                def build(self, common, n):
                    slots = self.buffer[: n * self.ways]
                    slots.copy_(common.slots[: n * self.ways])
                    slots[:n] = slots[:: self.ways].clone()
                    return torch_npu._npu_reshape_and_cache(k, v, kc, vc, slots[:n])
        """,
        "filled from elsewhere": """
            class Builder:
                def build(self, common, n, fresh):
                    slots = common.slots[:n]
                    slots[:n] = fresh[:n]
                    return torch_npu._npu_reshape_and_cache(k, v, kc, vc, slots[:n])
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the statement."""
        buffer = event.detail["buffer"]
        if event.detail.get("how") == "advanced":
            name = event.detail["name"]
            return violated(
                f"{name} is {buffer} itself, which other consumers read: every call advances it again",
                event.place,
                event.notes,
                f"Make a new tensor: {name} = {buffer} + ...",
            )
        return violated(
            f"{event.detail['name']} is a view of {buffer}, which other consumers read: this moves its "
            f"entries",
            event.place,
            event.notes,
            f"Copy {buffer} to a private buffer first.",
        )
