"""KV124: key and value differ in a size other than the head dim."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import Fact, Tri, all_of, unknown

from ._common import INFERENCE, differ


class KeyValueShapesDiffer(RunRule):
    """Key and value differ in a size other than the head dim.

    ## What it does
    Compares the number of axes of key and value, and all of their sizes but the last.

    ## Why it is wrong
    Key and value describe the same tokens. Tiling rejects the call, the meta kernel accepts it.

    ## Use instead
    The same batch, heads and length for both; update both caches.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions.

    ## Evidence
    B15: decode and prefill tiling of ops-transformer (CANN 8.5 snapshot); accepted by the meta kernel
    (executed).
    """

    code = "KV124"
    name = "key-value-shapes-differ"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("B15",)
    families = INFERENCE
    bad = {
        "another length": """
            k = x.view(2, 8, 64, 128)
            v = y.view(2, 8, 32, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k,
                v,  # KV124
                num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "another rank": """
            k = x.view(32, 8, 128, 64)
            v = y.view(32, 128, 512)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k,
                v,  # KV124
                num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BNSD",
                block_table=table, block_size=128, actual_seq_kvlen=lens)
        """,
    }
    ok = {
        "equal": """
            k = x.view(2, 8, 64, 128)
            v = y.view(2, 8, 64, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "unknown value": """
            k = x.view(2, 8, 64, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the shapes."""
        key, value = call.arg("key"), call.arg("value")
        if key.same_as(value).yes:
            return NOT_APPLICABLE
        return require(
            _alike(key.shape, value.shape),
            f"key is {_shown(key.shape)} and value is {_shown(value.shape)}",
            at=value,
        )


Shape = Fact[tuple[Num | None, ...]]


def _alike(key: Shape, value: Shape) -> Tri:
    if not (key.known and value.known):
        return Tri(None, key.notes if not key.known else value.notes)
    notes = (*key.notes, *value.notes)
    if len(key.value) != len(value.value):
        return Tri(False, notes)
    return Tri(True, notes) & all_of(map(_same, key.value[:-1], value.value[:-1]))


def _same(left: Num | None, right: Num | None) -> Tri:
    if left is None or right is None:
        return unknown("a size of key or value is not known")
    return ~differ(Fact.of(left), Fact.of(right))


def _shown(shape: Shape) -> str:
    if not shape.known:
        return "unknown"
    return "(" + ", ".join("?" if size is None else size.label for size in shape.value) + ")"
