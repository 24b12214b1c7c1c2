"""KV703: several steps or groups hold views of one buffer."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class AliasedBufferViews(Rule):
    """Several steps or groups hold views of one buffer.

    ## What it does
    Reports a loop that refills one slot or length buffer and keeps a view of it for every round, and a list of
    results of a method that fills a buffer of its object and returns a view of it.

    ## Why it is wrong
    All kept views show what the last round wrote. Earlier steps or other cache groups read the lengths or slots
    of the last one, silently.

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
    }
    ok = {
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
        return violated(
            f"every round keeps a view of {buffer}, which the next round overwrites",
            event.place,
            event.notes,
            f"Use one buffer per round, or keep {buffer}[...].clone().",
        )
