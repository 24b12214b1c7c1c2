"""KV316: a length that the tensor does not have."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant
from kvlint.contract.tri import YES, Fact, Tri


class LengthPastAxis(RunRule):
    """A literal length is negative, or larger than the axis or the block table it counts on.

    ## What it does
    Compares literal length lists with the sequence axis of query and key (layouts with a batch axis), with
    the capacity of the block table, and with 0. Constants only.

    ## Why it is wrong
    Tiling rejects lengths outside the tensor, and key lengths above blocks per request times block size.
    The meta kernel accepts them. Negative entries come from arithmetic on padded requests.

    ## Use instead
    Clamp the lengths of padded requests at 0, and size the table for the longest sequence.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions.

    ## Evidence
    D05, D13: prefill and decode tiling of ops-transformer (CANN 8.5 snapshot); accepted by the meta kernel
    of torch_npu 2.13 (executed).
    """

    code = "KV316"
    name = "length-past-axis"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("D05", "D13")
    families = ("fia", "pfa", "ifa")
    bad = {
        "longer than the key": """
            q = torch.zeros(2, 16, 1024, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths=[16, 9],
                actual_seq_lengths_kv=[17, 9],  # KV316
            )
        """,
        "more than the table holds": """
            table = torch.zeros(2, 4, dtype=torch.int32)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, kc, vc, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH",
                actual_seq_kvlen=[512, 513],  # KV316
                block_table=table, block_size=128,
            )
        """,
        "negative": """
            torch_npu.npu_incre_flash_attention(
                q, kc, vc, num_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=[70, -1],  # KV316
            )
        """,
    }
    ok = {
        "within": """
            q = torch.zeros(2, 16, 1024, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths=[16, 9],
                actual_seq_lengths_kv=[16, 9],
            )
        """,
        "unknown axis": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", actual_seq_lengths_kv=[17000])
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query and key lengths apart."""
        for lengths, size in (
            (call.arg("q_lens"), call.query_length),
            (call.arg("kv_lens"), call.key_length),
        ):
            if not lengths.integers.known or not lengths.integers.value:
                yield NOT_APPLICABLE
                continue
            if lengths.param.role == "kv_lens" and not call.paged.no:
                limit = _capacity(call)
                yield _judge(lengths, limit, YES, "the block table holds")
            else:
                yield _judge(lengths, constant(size), ~call.packed, "the sequence axis has")


def _capacity(call: Call) -> Fact[int]:
    """Keys that one row of the block table reaches."""
    columns, block = call.arg("block_table").dim(1), call.arg("block_size").number
    if not (columns.known and block.known):
        return Fact(None, columns.notes if not columns.known else block.notes)
    product: Num = columns.value * block.value
    return constant(Fact.of(product, *columns.notes))


def _judge(lengths: Arg, limit: Fact[int], when: Tri, what: str) -> Verdict:
    values = lengths.integers.value
    if min(values) < 0:
        return require(
            Tri(False, lengths.integers.notes),
            f"{lengths.name} holds {min(values)}",
            at=lengths,
            fix="Clamp the lengths of padded requests at 0.",
        )
    if not limit.known:
        return NOT_APPLICABLE
    return require(
        Tri(max(values) <= limit.value, (*lengths.integers.notes, *limit.notes)),
        f"{lengths.name} holds {max(values)}, but {what} {limit.value}",
        when=when,
        at=lengths,
        fix="Pass lengths that the tensors hold.",
    )
