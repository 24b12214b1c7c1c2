"""KV607: shapes that npu_scatter_pa_kv_cache does not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require, violated
from kvlint.contract.sizes import equal
from kvlint.contract.tri import all_of

from ._common import SCATTER_PA, same_dtype


class ScatterPaForm(Rule):
    """Rows, slots or caches of npu_scatter_pa_kv_cache have the wrong form.

    ## What it does
    Checks what is visible of: `key` and `value` being (tokens, heads, dim), or 4-D in the compressed form;
    one slot per token in a 1-D tensor (2-D only in the compressed form, which also needs `compress_lens`
    and `seq_lens`); one dtype for rows and caches; helper tensors of the dtype of the slots.

    ## Why it is wrong
    2-D rows without the head axis, or slots given as (block, offset) pairs, are rejected or written to
    wrong rows.

    ## Use instead
    `rows.unsqueeze(1)` for a single head, and `block_id * block_size + offset` as slots.

    ## Ops and versions
    npu_scatter_pa_kv_cache and its functional form. All versions.

    ## Evidence
    PA-02, PA-03, PA-04, PA-06, PA-07: op-plugin documentation; fixed in vllm-ascend (rows without a head
    axis). The meta kernel accepts anything (executed).
    """

    code = "KV607"
    name = "scatter-pa-form"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("PA-02", "PA-03", "PA-04", "PA-06", "PA-07")
    operators = SCATTER_PA
    bad = {
        "rows without a head axis, slots as pairs": """
            rows = quantised.view(-1, 128)
            slots = torch.stack([block_ids, offsets], dim=1).to(torch.int32)
            torch_npu.npu_scatter_pa_kv_cache(
                rows,  # KV607
                rows,  # KV607
                key_cache, value_cache,
                slots,  # KV607
                cache_mode="Norm")
        """,
        "two dtypes": """
            cache = torch.zeros(64, 128, 8, 128, dtype=torch.bfloat16)
            torch_npu.npu_scatter_pa_kv_cache(
                key.half(),  # KV607
                value.bfloat16(), cache, cache, slots, cache_mode="Norm")
        """,
        "compressed form without its lengths": """
            torch_npu.npu_scatter_pa_kv_cache(  # KV607
                key.view(4, 16, 8, 128), value.view(4, 16, 8, 128), kc, vc, slots.view(4, 8),
                cache_mode="Norm")
        """,
    }
    ok = {
        "three axes, flat slots": """
            slots = (block_ids * 128 + offsets).to(torch.int32)
            torch_npu.npu_scatter_pa_kv_cache(
                key.view(-1, 8, 128), value.view(-1, 8, 128), kc, vc, slots.view(-1), cache_mode="Norm")
        """,
        "unknown shapes": """
            torch_npu.npu_scatter_pa_kv_cache(key, value, kc, vc, slots, cache_mode="Norm")
        """,
        "compressed form": """
            torch_npu.npu_scatter_pa_kv_cache(
                key.view(4, 16, 8, 128), value.view(4, 16, 8, 128), kc, vc, slots.view(4, 8),
                compress_lens=a, seq_lens=b, cache_mode="Norm")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges rows, slots and dtypes."""
        slots = call.arg("slots")
        compressed = call.arg("key").rank.equals(4)
        pairs = slots.content.holds(lambda content: content.slots == "pairs")
        for role, cache_role in (("key", "key_cache"), ("value", "value_cache")):
            rows, cache = call.arg(role), call.arg(cache_role)
            yield require(
                rows.rank.among((3, 4)),
                f"{rows.name} has {rows.rank.get(0)} axes, it must be (tokens, heads, dim)",
                at=rows,
                fix=f"Add the head axis: {rows.name}.unsqueeze(1).",
            )
            yield require(
                same_dtype(rows, cache),
                f"{rows.name} is {rows.dtype.get('?')} but {cache.name} is {cache.dtype.get('?')}",
                at=rows,
            )
        if pairs.yes:
            yield violated(
                f"{slots.name} stacks (block, offset) pairs, it must hold one number per token",
                slots,
                pairs.notes,
                "Pass block_id * block_size + offset.",
            )
        else:
            yield require(
                slots.rank.equals(1),
                f"{slots.name} has {slots.rank.get(0)} axes, it must hold one slot per token",
                when=~compressed,
                at=slots,
                fix="Flatten it to one slot per token.",
            )
        yield require(
            equal(slots.length, call.arg("key").dim(0)),
            f"{slots.name} has {slots.length.get('?')} entries for {call.arg('key').dim(0).get('?')} tokens",
            when=call.arg("key").rank.equals(3) & slots.rank.equals(1),
            at=slots,
        )
        helpers = [call.named(name) for name in ("compress_lens", "seq_lens")]
        missing = [helper.name for helper in helpers if helper.is_none.yes]
        yield require(
            all_of(helper.present for helper in helpers),
            f"the compressed (4-D) form needs {' and '.join(missing)}",
            when=compressed,
            at=call.place,
        )
        for helper in helpers:
            if not helper.is_none.yes:
                yield require(
                    same_dtype(helper, slots),
                    f"{helper.name} is {helper.dtype.get('?')} but {slots.name} is {slots.dtype.get('?')}",
                    at=helper,
                )
