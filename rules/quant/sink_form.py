"""KV802: a sink with the wrong dtype, shape or head dim."""

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
    require,
    undecided,
    violated,
)

from ._common import shown, whole


class SinkForm(RunRule):
    """A sink with the wrong dtype, shape or head dim.

    ## What it does
    Checks that the sink has one element per query head, and its dtype: bfloat16 for FIA v2, float32 for
    npu_fusion_attention and npu_sparse_flash_attention. For FIA v2 also that a constant head dim is
    64 or 128.

    ## Why it is wrong
    Tiling rejects the call, the meta kernel accepts any tensor. The same parameter serves training (float32)
    and inference (bfloat16) only with a cast.

    ## Use instead
    `sink.to(torch.bfloat16)` for FIA v2, `sink.float()` for training; cut it to the heads of this rank.

    ## Ops and versions
    FIA v2, npu_fusion_attention v1 to v3 (op-plugin 7.3.0 and newer), npu_sparse_flash_attention (950 only).

    ## Evidence
    H07, FUS-11, SP-07: prefill tiling (CANN 8.5 snapshot) and op-plugin documentation; a float32 sink of
    another size is accepted by the meta kernel (executed).
    """

    code = "KV802"
    name = "sink-form"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("H07", "FUS-11", "SP-07")
    families = ("fia", "fusion")
    operators = ("npu_sparse_flash_attention",)
    bad = {
        "float32 in inference": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=ends,
                learnable_sink=torch.zeros(8, dtype=torch.float32),  # KV802
            )
        """,
        "bfloat16 in training": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSH", scale=0.1,
                sink=weights.bfloat16(),  # KV802
            )
        """,
        "all heads on every rank": """
            sink = torch.zeros(64, dtype=torch.bfloat16)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=ends,
                learnable_sink=sink,  # KV802
            )
        """,
    }
    ok = {
        "inference": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=ends, learnable_sink=weights.bfloat16())
        """,
        "training": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1, sink=weights.float())
        """,
        "unknown dtype": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=ends, learnable_sink=sink)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges dtype, size and head dim."""
        sink = call.arg("sink")
        if not call.has("sink") or sink.is_none.yes:
            yield NOT_APPLICABLE
            return
        wanted = "bfloat16" if call.operator.family == "fia" else "float32"
        yield require(
            sink.dtype.equals(wanted),
            f"{sink.name} is {shown(sink)}, not {wanted}",
            at=sink,
            fix=f"Convert it to {wanted}.",
        )
        yield _size(call, sink)
        if call.operator.family == "fia":
            size = whole(call.head_dim)
            if sink.present.yes and size is not None and size not in (64, 128):
                yield violated(
                    f"a sink is served for head dim 64 and 128, not {size}", sink, call.head_dim.notes
                )


def _size(call: Call, sink: Arg) -> Verdict:
    rank, entries, heads = sink.rank, whole(sink.dim(0)), whole(call.heads)
    if rank.known and rank.value != 1:
        return violated(f"{sink.name} has {rank.value} axes instead of one", sink, sink.shape.notes)
    if entries is None or heads is None or not call.has("q_heads"):
        return undecided(*sink.shape.notes, *call.heads.notes)
    if entries == heads:
        return PROVED
    return violated(
        f"{sink.name} has {entries} entries for {heads} query heads",
        sink,
        (*sink.shape.notes, *call.heads.notes),
        fix="Cut it to the heads of this rank.",
    )
