"""KV705: shared metadata is compacted in place."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class OverwrittenMetadata(Rule):
    """Shared metadata is compacted in place.

    ## What it does
    Reports a function that takes a slice of a caller's buffer and moves entries within it:
    ``slots = common.slots[:n]; slots[:k] = slots[::w]``.

    ## Why it is wrong
    The slice is a view. The next consumer of the same metadata finds compacted entries and compacts them again:
    its slots or lengths belong to other tokens.

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
    }
    ok = {
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
        return violated(
            f"{event.detail['name']} is a view of {buffer}, which other consumers read: this moves its entries",
            event.place,
            event.notes,
            f"Copy {buffer} to a private buffer first.",
        )
