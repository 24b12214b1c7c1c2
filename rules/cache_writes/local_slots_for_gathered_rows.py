"""KV651: rows of every rank, slots of this one."""

from __future__ import annotations

from collections.abc import Iterable

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, undecided, violated
from kvlint.contract.tri import Tri


class LocalSlotsForGatheredRows(Rule):
    """Rows that were gathered from all ranks are written with slots cut to this rank's tokens.

    ## What it does
    Reports a cache write whose rows come from an all-gather and whose slots are sliced at a bound that is
    named local.

    ## Why it is wrong
    There are as many rows as tokens of the group, but slots for this rank alone: the rows of the other
    ranks are not stored, or the counts do not match.

    ## Use instead
    Keep the full slot mapping when rows are gathered.

    ## Ops and versions
    npu_scatter_nd_update_, _npu_reshape_and_cache, npu_scatter_pa_kv_cache.

    ## Evidence
    ND-02, RC-05, PA-03: one slot per row.
    """

    code = "KV651"
    name = "local-slots-for-gathered-rows"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("ND-02", "RC-05", "PA-03")
    families = ("cache_write",)
    bad = {
        "gathered rows": """
            class Writer:
                def write(self, pool, rows, meta):
                    rows = torch.cat(self.group.all_gather(rows), dim=0)
                    slots = meta.slots[: meta.local_tokens]
                    torch_npu.npu_scatter_nd_update_(
                        pool.view(-1, pool.shape[-1]),
                        slots.view(-1, 1),  # KV651
                        rows)
        """,
    }
    ok = {
        "all slots": """
            class Writer:
                def write(self, pool, rows, meta):
                    rows = torch.cat(self.group.all_gather(rows), dim=0)
                    torch_npu.npu_scatter_nd_update_(pool.view(-1, pool.shape[-1]), meta.slots.view(-1, 1), rows)
        """,
        "local rows": """
            class Writer:
                def write(self, pool, rows, meta):
                    slots = meta.slots[: meta.local_tokens]
                    torch_npu.npu_scatter_nd_update_(pool.view(-1, pool.shape[-1]), slots.view(-1, 1), rows)
        """,
    }

    def check(self, call: Call) -> Iterable[Verdict]:
        """Compares where rows and slots come from."""
        slots = call.arg("slots") if call.has("slots") else call.arg("indices")
        for role in ("updates", "key", "value"):
            if not call.has(role):
                continue
            rows = call.arg(role)
            content, cut = rows.content, slots.content
            if not content.known or not cut.known:
                yield undecided(Tri(None, (*content.notes, *cut.notes)[:1]))
            elif content.value.gathered and "local" in (cut.value.cut or ""):
                yield violated(
                    f"{rows.name} holds the rows of every rank, {slots.name} is cut at {cut.value.cut}",
                    slots,
                    (*content.notes, *cut.notes),
                    "Keep the full slot mapping when rows are gathered.",
                )
            else:
                yield NOT_APPLICABLE
