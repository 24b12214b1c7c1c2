"""KV352: output and log-sum-exp are flattened in different orders."""

from __future__ import annotations

from kvlint.contract.call import Call, View
from kvlint.contract.rule import NOT_APPLICABLE, PROVED, Confidence, RunRule, Severity, Verdict, violated
from kvlint.contract.sizes import constant

_TURNING = ("transpose", "permute", "swapaxes", "movedim", "swapdims")


class UnturnedLse(RunRule):
    """Output and log-sum-exp are flattened in different orders.

    ## What it does
    With a layout whose output has the heads first (TND_NTD, NTD, `_NBSD`), reports a log-sum-exp that is
    flattened to one axis where the output is flattened to rows, when neither is permuted before.

    ## Why it is wrong
    Only the output is transposed by these layouts: it is (N,B,S,D) or (N,T,D), the log-sum-exp stays
    (B,N,S,1) or (T,N,1). Row i of one belongs to another head and token than row i of the other, and a
    merge of partial results weighs the wrong rows.

    ## Use instead
    `lse.permute(1, 0, 2, 3).reshape(-1)` beside `out.reshape(-1, D)`.

    ## Ops and versions
    FIA v1 and v2, merged by npu_attention_update or by hand. All versions.

    ## Evidence
    H06, UPD-02: shapes of both results (executed on torch_npu 2.13).
    """

    code = "KV352"
    name = "unturned-lse"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("H06", "UPD-02")
    families = ("fia",)
    bad = {
        "flattened side by side": """
            def partial(q, kv, qr, kr, heads, table, lens):
                out, lse = torch_npu.npu_fused_infer_attention_score_v2(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_query_heads=heads, num_key_value_heads=1,
                    input_layout="BSND_NBSD", softmax_scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_kvlen=lens, return_softmax_lse=True)
                return out.reshape(-1, 512), lse.reshape(-1)  # KV352
        """,
        "in the function that merges": """
            def partial(q, kv, qr, kr, heads, table, ends, lens):
                return torch_npu.npu_fused_infer_attention_score(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_heads=heads, num_key_value_heads=1,
                    input_layout="TND_NTD", scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=lens, softmax_lse_flag=True)

            def merged(q, kv, qr, kr, heads, table, ends, lens, other_out, other_lse):
                out, lse = partial(q, kv, qr, kr, heads, table, ends, lens)
                flat = lse.to(torch.float32).flatten()  # KV352
                return torch_npu.npu_attention_update(
                    [flat, other_lse], [out.view(-1, out.shape[-1]), other_out], 0)[0]
        """,
    }
    ok = {
        "permuted": """
            def partial(q, kv, qr, kr, heads, table, lens):
                out, lse = torch_npu.npu_fused_infer_attention_score_v2(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_query_heads=heads, num_key_value_heads=1,
                    input_layout="BSND_NBSD", softmax_scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_kvlen=lens, return_softmax_lse=True)
                return out.reshape(-1, 512), lse.permute(1, 0, 2, 3).reshape(-1)
        """,
        "output turned back": """
            def partial(q, kv, qr, kr, heads, table, lens):
                out, lse = torch_npu.npu_fused_infer_attention_score_v2(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_query_heads=heads, num_key_value_heads=1,
                    input_layout="BSND_NBSD", softmax_scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_kvlen=lens, return_softmax_lse=True)
                return out.permute(1, 0, 2, 3).reshape(-1, 512), lse.reshape(-1)
        """,
        "same order": """
            def partial(q, kv, qr, kr, heads, table, ends, lens):
                out, lse = torch_npu.npu_fused_infer_attention_score(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_heads=heads, num_key_value_heads=1,
                    input_layout="TND", scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=lens, softmax_lse_flag=True)
                return out.reshape(-1, 512), lse.reshape(-1)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges how both results are flattened."""
        layout, heads = call.layout, call.heads
        if not layout.known or layout.value.rpartition("_")[2] not in ("NTD", "NBSD"):
            return NOT_APPLICABLE
        rows_of_a_head = call.query_length if call.packed.yes else call.batch
        if (heads.known and heads.value.integer == 1) or constant(rows_of_a_head).equals(1).yes:
            # Moving an axis of size 1 changes no order.
            return NOT_APPLICABLE
        out = [view for view in call.use.views if view.index == 0]
        lse = [view for view in call.use.views if view.index == 1]
        rows = [view for view in out if _flattened(view, 2)]
        flat = [view for view in lse if _flattened(view, 1)]
        turned = [view for view in (*out, *lse) if view.method in _TURNING]
        if not rows or not flat:
            return PROVED if turned and (rows or flat) else NOT_APPLICABLE
        if turned:
            return NOT_APPLICABLE
        return violated(
            f"the output of {layout.value} has the heads first, the log-sum-exp has not: flattened like "
            "this, their rows do not belong together",
            flat[0].place,
            layout.notes,
            "Permute the log-sum-exp first: lse.permute(1, 0, 2, 3), or transpose(0, 1) for packed tokens.",
        )


def _flattened(view: View, axes: int) -> bool:
    """Whether a method leaves that many axes: one for the log-sum-exp, two for the output."""
    if view.method in ("view", "reshape") and view.sizes is not None and len(view.sizes) == axes:
        first = view.sizes[0]
        return first is not None and first.integer == -1
    return axes == 1 and view.method in ("flatten", "ravel") and not view.sizes
