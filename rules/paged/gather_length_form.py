"""KV416: the lengths of npu_gather_pa_kv_cache and its flag disagree."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.values import LengthForm


class GatherLengthForm(RunRule):
    """seq_lens of npu_gather_pa_kv_cache is not what is_seq_lens_cumsum says.

    ## What it does
    Reports running sums with `is_seq_lens_cumsum` False (the default), and plain lengths with True.

    ## Why it is wrong
    The flag only tells the kernel how to read the numbers, nothing checks them: the wrong rows are
    gathered.

    ## Use instead
    Set the flag by how the list is built.

    ## Ops and versions
    npu_gather_pa_kv_cache and its functional form (26.0.0 and newer).

    ## Evidence
    GP-01: op-plugin documentation.
    """

    code = "KV416"
    name = "gather-length-form"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("GP-01",)
    operators = ("npu_gather_pa_kv_cache", "npu_gather_pa_kv_cache_functional")
    bad = {
        "running sums, flag left at False": """
            ends = torch.cumsum(lens, 0)
            torch_npu.npu_gather_pa_kv_cache(
                kc, vc, table,
                ends,  # KV416
                key, value)
        """,
    }
    ok = {
        "flag set": """
            ends = torch.cumsum(lens, 0)
            torch_npu.npu_gather_pa_kv_cache(kc, vc, table, ends, key, value, is_seq_lens_cumsum=True)
        """,
        "unknown": """
            torch_npu.npu_gather_pa_kv_cache(kc, vc, table, lens, key, value)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the flag against the list."""
        lengths, flag = call.named("seq_lens"), call.named("is_seq_lens_cumsum")
        sums = flag.constant.equals(True)
        form = lengths.length_form
        yield require(
            form.equals(LengthForm.PER_SEQUENCE),
            f"{lengths.name} holds running sums, but {flag.name} is False: the wrong rows are gathered",
            when=~sums,
            at=lengths,
            fix=f"Pass {flag.name}=True.",
        )
        yield require(
            form.equals(LengthForm.CUMULATIVE),
            f"{lengths.name} holds plain lengths, but {flag.name} is True: the wrong rows are gathered",
            when=sums,
            at=lengths,
            fix=f"Drop {flag.name}.",
        )
