"""KV415: npu_paged_cache_load with arguments that do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant, equal, shown
from kvlint.contract.tri import Fact, tri
from kvlint.contract.values import LengthForm


class CacheLoadForm(RunRule):
    """npu_paged_cache_load gets lengths, starts or a cache that do not go together.

    ## What it does
    Checks what is visible: the functional form needs `seq_starts`; `context_lens` is int32 and has one
    entry per table row, or one more with `cumsum=True`; a list of running sums needs `cumsum=True` and
    plain lengths must not have it; an ND cache is 4-D with heads * dim a multiple of 16 (int8: 32).

    ## Why it is wrong
    Wrong counts are rejected by ATB. Running sums that are read as lengths, or the other way round, pass
    and copy the wrong rows. Without `seq_starts` an ND cache is rejected, and an NZ cache needs the `.out`
    form.

    ## Use instead
    `seq_starts` in tokens (a multiple of the block size), lengths of shape (batch,) with `cumsum=False`.

    ## Ops and versions
    npu_paged_cache_load and its `.out` form.

    ## Evidence
    ATB-08: ATB operation checks and kernels.
    """

    code = "KV415"
    name = "cache-load-form"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("ATB-08",)
    operators = ("npu_paged_cache_load",)
    bad = {
        "no starts": """
            k, v = torch_npu.atb.npu_paged_cache_load(kc, vc, table, lens)  # KV415
        """,
        "running sums as lengths": """
            ends = torch.cumsum(lens, 0).to(torch.int32)
            k, v = torch_npu.atb.npu_paged_cache_load(
                kc, vc, table,
                ends,  # KV415
                seq_starts=starts)
        """,
    }
    ok = {
        "lengths": """
            k, v = torch_npu.atb.npu_paged_cache_load(kc, vc, table, lens, seq_starts=starts)
        """,
        "running sums": """
            ends = torch.cumsum(lens, 0).to(torch.int32)
            k, v = torch_npu.atb.npu_paged_cache_load(kc, vc, table, ends, seq_starts=starts, cumsum=True)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges starts, lengths and cache."""
        starts, lengths, table = call.named("seq_starts"), call.named("context_lens"), call.arg("block_table")
        sums = call.named("cumsum").constant.equals(True)
        if not call.operator.overload:
            yield require(
                starts.meant,
                "seq_starts is not passed: the functional form then serves no cache",
                at=call.place,
                fix="Pass seq_starts (zeros for whole sequences).",
            )
        yield require(
            lengths.dtype.equals("int32"),
            f"{lengths.name} is {lengths.dtype.get('?')}, it must be int32",
            at=lengths,
        )
        form = lengths.length_form
        yield require(
            form.equals(LengthForm.PER_SEQUENCE),
            f"{lengths.name} holds running sums, but cumsum is False: the wrong rows are copied",
            when=~sums,
            at=lengths,
            fix="Pass cumsum=True, or plain lengths.",
        )
        yield require(
            form.equals(LengthForm.CUMULATIVE),
            f"{lengths.name} holds plain lengths, but cumsum is True: the wrong rows are copied",
            when=sums,
            at=lengths,
        )
        rows = table.dim(0)
        if not sums.unknown and rows.known:
            more = Num.of(1 if sums.yes else 0)
            wanted: Fact[Num] = Fact.of(rows.value + more, *rows.notes)
            yield require(
                equal(lengths.dim(0), wanted),
                f"{lengths.name} has {shown(lengths.dim(0))} entries for {shown(rows)} table rows",
                at=lengths,
            )
        for role in ("key_cache", "value_cache"):
            cache = call.arg(role)
            heads, dim = constant(cache.dim(2)), constant(cache.dim(3))
            if heads.known and dim.known:
                unit = 32 if cache.dtype.equals("int8").yes else 16
                yield require(
                    tri(heads.value * dim.value % unit == 0, *cache.shape.notes),
                    f"one token of {cache.name} is {heads.value} x {dim.value}, no multiple of {unit}",
                    when=cache.rank.equals(4),
                    at=cache,
                )
