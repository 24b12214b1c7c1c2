"""KV351: partial results that npu_ring_attention_update cannot merge."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO, Tri


class RingUpdateForm(RunRule):
    """npu_ring_attention_update gets operands or lengths of the wrong form.

    ## What it does
    Checks that the attention outputs have three axes, that softmax max and sum are float32 with a last axis
    of 8, and for TND that `actual_seq_qlen` is there, int64 and starts at 0.

    ## Why it is wrong
    The operator continues `softmax_max` and `softmax_sum` of npu_fusion_attention, not the lse of FIA. Its
    lengths are prefix sums with a leading 0, while the lists of npu_fusion_attention have none: without the
    0 the first sequence is skipped.

    ## Use instead
    `torch.tensor([0, *ends], dtype=torch.int64, device="npu")`, and the second and third result of
    npu_fusion_attention.

    ## Ops and versions
    npu_ring_attention_update. All versions.

    ## Evidence
    UPD-03: op-plugin documentation and wrapper.
    """

    code = "KV351"
    name = "ring-update-form"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("UPD-03",)
    operators = ("npu_ring_attention_update",)
    bad = {
        "lengths without the leading 0": """
            ends = torch.tensor([128, 256], dtype=torch.int64)
            torch_npu.npu_ring_attention_update(
                out_a, max_a, sum_a, out_b, max_b, sum_b,
                actual_seq_qlen=ends,  # KV351
                input_layout="TND",
            )
        """,
        "four axes": """
            torch_npu.npu_ring_attention_update(
                out_a.view(128, 2, 8, 64),  # KV351
                max_a, sum_a, out_b, max_b, sum_b,
            )
        """,
        "lse of inference attention": """
            out, lse = torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", softmax_lse_flag=True)
            torch_npu.npu_ring_attention_update(
                out_a, max_a, sum_a, out,
                lse,  # KV351
                lse,  # KV351
            )
        """,
        "packed without lengths": """
            torch.ops.npu.npu_ring_attention_update(  # KV351
                out_a, max_a, sum_a, out_b, max_b, sum_b, input_layout="TND")
        """,
    }
    ok = {
        "leading 0": """
            ends = torch.tensor([0, 128, 256], dtype=torch.int64)
            torch_npu.npu_ring_attention_update(
                out_a, max_a, sum_a, out_b, max_b, sum_b, actual_seq_qlen=ends, input_layout="TND")
        """,
        "sequence first": """
            torch_npu.npu_ring_attention_update(
                out_a.view(128, 2, 512), max_a, sum_a, out_b.view(128, 2, 512), max_b, sum_b)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges operands and lengths."""
        for part in ("prev", "cur"):
            out = call.named(f"{part}_attn_out")
            yield require(
                out.rank.equals(3),
                f"{out.name} has {out.rank.get('?')} axes, three are needed",
                at=out,
                fix="Reshape it to SBH or TND.",
            )
            for kind in ("max", "sum"):
                state = call.named(f"{part}_softmax_{kind}")
                yield require(
                    state.dtype.equals("float32"),
                    f"{state.name} is {' or '.join(state.dtype.values or ())}, float32 is needed",
                    at=state,
                    fix="Pass the result of npu_fusion_attention as it is.",
                )
                yield require(
                    state.dim(-1).holds(lambda size: size.integer == 8)
                    if state.dim(-1).known and state.dim(-1).value.integer is not None
                    else Tri(None, state.shape.notes),
                    f"the last axis of {state.name} is "
                    f"{state.dim(-1).map(lambda size: size.label).get('?')}, 8 is needed",
                    at=state,
                    fix="Pass softmax_max and softmax_sum of npu_fusion_attention, not an lse.",
                )
        lengths = call.arg("q_lens")
        packed = call.layout.equals("TND")
        yield require(
            NO if lengths.given.no else lengths.present,
            f"input_layout TND needs {lengths.name}",
            when=packed,
            at=call.place if lengths.given.no else lengths,
            fix="Pass the prefix sums of the query lengths, starting at 0, as an int64 tensor.",
        )
        yield require(
            lengths.dtype.equals("int64"),
            f"{lengths.name} is {' or '.join(lengths.dtype.values or ())}, int64 is needed",
            when=packed & lengths.present,
            at=lengths,
            fix="Convert it with .to(torch.int64).",
        )
        yield require(
            lengths.integers.holds(lambda values: values[:1] == (0,)),
            f"{lengths.name} starts at {lengths.integers.map(lambda values: values[0]).get('?')}, not at 0",
            when=packed & lengths.present,
            at=lengths,
            fix="Put a 0 in front of the running sums.",
        )
