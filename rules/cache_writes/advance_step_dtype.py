"""KV625: npu_advance_step_flashattn gets a tensor that is not int64."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require
from kvlint.contract.sizes import equal, shown

_ROWS = ("seq_lens", "slot_mapping", "block_tables")
_TENSORS = ("input_tokens", "sampled_token_ids", "input_positions", *_ROWS)


class AdvanceStepDtype(Rule):
    """npu_advance_step_flashattn gets a tensor that is not int64, or rows that do not match.

    ## What it does
    Checks that all six tensors are int64 where that is visible, and that the tables have `num_seqs` rows.

    ## Why it is wrong
    This operator alone wants int64 throughout. Attention wants an int32 block table and ATB int32 slots, so
    the same tensor cannot serve both; with int32 the call is rejected.

    ## Use instead
    Separate int64 tensors for the step, copied to int32 for attention.

    ## Ops and versions
    npu_advance_step_flashattn. All versions.

    ## Evidence
    3.10: op-plugin documentation.
    """

    code = "KV625"
    name = "advance-step-dtype"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("3.10",)
    operators = ("npu_advance_step_flashattn",)
    bad = {
        "the attention table": """
            table = torch.zeros(4, 16, dtype=torch.int32)
            torch_npu.npu_advance_step_flashattn(
                tokens, ids, positions, lens, slots,
                table,  # KV625
                4, 4, 128)
        """,
    }
    ok = {
        "int64": """
            table = torch.zeros(4, 16, dtype=torch.int64)
            torch_npu.npu_advance_step_flashattn(tokens, ids, positions, lens, slots, table, 4, 4, 128)
        """,
        "unknown": """
            torch_npu.npu_advance_step_flashattn(tokens, ids, positions, lens, slots, table, n, n, 128)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each tensor."""
        for name in _TENSORS:
            tensor = call.named(name)
            yield require(
                tensor.dtype.equals("int64"),
                f"{name} is {tensor.dtype.get('?')}, this operator reads int64 only",
                at=tensor,
                fix=f"Keep an int64 {name} for the step.",
            )
        count = call.named("num_seqs")
        for name in _ROWS:
            rows = call.named(name).dim(0)
            yield require(
                equal(rows, count.number),
                f"{name} has {shown(rows)} rows for num_seqs={shown(count.number)}",
                at=call.named(name),
            )
