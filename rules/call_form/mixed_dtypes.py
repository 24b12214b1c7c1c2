"""KV125: query, key and value have dtypes that do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    undecided,
    violated,
)

FLOATS = ("float16", "bfloat16", "float32", "float64")


class MixedDtypes(RunRule):
    """Query, key and value have dtypes that do not go together.

    ## What it does
    Compares known dtypes: key and value must be the same, and the same float type as query unless they are
    quantised.

    ## Why it is wrong
    Tiling rejects the call. Wrapper and meta kernel accept it. The usual cause is a cache that was allocated
    with another dtype than the model has.

    ## Use instead
    Allocate the cache with the dtype of the model.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention, npu_fusion_attention. All versions.

    ## Evidence
    B15, B17: prefill tiling and decode checker of ops-transformer (CANN 8.5 snapshot); mixed dtypes are
    accepted by the meta kernel (executed).
    """

    code = "KV125"
    name = "mixed-dtypes"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B15", "B17")
    families = ("fia", "pfa", "ifa", "fusion")
    bad = {
        "cache of another float type": """
            q = x.to(torch.bfloat16)
            cache = torch.zeros(64, 128, 1024, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q,
                cache,  # KV125
                cache, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens)
        """,
        "value of another type": """
            k = x.half()
            torch_npu.npu_fusion_attention(
                q, k,
                y.bfloat16(),  # KV125
                8, "BSH", scale=0.1)
        """,
    }
    ok = {
        "equal": """
            torch_npu.npu_fused_infer_attention_score(
                x.half(), y.half(), z.half(), num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSH")
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                x.half(), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Compares key with query and value with key."""
        if call.operator.name == "npu_quant_fusion_attention":
            yield NOT_APPLICABLE
            return
        yield _compare(call.arg("key"), call.arg("query"), quantised=call.operator.family != "fusion")
        yield _compare(call.arg("value"), call.arg("key"), quantised=False)


def _compare(arg: Arg, other: Arg, quantised: bool) -> Verdict:
    mine, theirs = arg.dtype, other.dtype
    if arg.same_as(other).yes:
        return PROVED
    if not (mine.known and theirs.known):
        return undecided(*(mine.notes if not mine.known else theirs.notes))
    if mine.value == theirs.value or (quantised and (mine.value not in FLOATS or theirs.value not in FLOATS)):
        return PROVED
    return violated(
        f"{arg.name} is {mine.value}, {other.name} is {theirs.value}",
        arg,
        (*mine.notes, *theirs.notes),
        fix=f"Give {arg.name} the dtype of {other.name}.",
    )
