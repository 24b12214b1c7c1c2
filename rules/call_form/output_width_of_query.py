"""KV152: the output is viewed with the head dim of query instead of that of value."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.num import Num
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

from ._common import differ, head_dim


class OutputWidthOfQuery(RunRule):
    """The output is viewed with the head dim of query instead of that of value.

    ## What it does
    Compares the last axis of a `view` or `reshape` of the output with the head dims of query and value,
    where both are constants and differ.

    ## Why it is wrong
    The output has the head dim of *value*. Viewed with the width of query the elements of several tokens
    end up in one row, or the view raises because the number of elements does not fit.

    ## Use instead
    `out.view(-1, heads * v_head_dim)`.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions.

    ## Evidence
    1.4: output shapes of the wrapper and the meta kernel (executed on torch_npu 2.13).
    """

    code = "KV152"
    name = "output-width-of-query"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("1.4",)
    families = ("fia", "pfa", "ifa")
    bad = {
        "explicit MLA heads": """
            def attend(x, y, ends, mask):
                q = x.view(-1, 16, 192)
                v = y.view(-1, 16, 128)
                out = torch_npu.npu_fused_infer_attention_score(
                    q, q, v, num_heads=16, num_key_value_heads=16, scale=192**-0.5, input_layout="TND",
                    actual_seq_lengths=ends, actual_seq_lengths_kv=ends, atten_mask=mask, sparse_mode=3)[0]
                return out.view(-1, 16 * 192)  # KV152
        """,
        "one head per row": """
            class Attention:
                qk_dim = 192
                v_dim = 128

                def forward(self, x, y, ends, mask):
                    q = x.view(-1, self.heads, self.qk_dim)
                    v = y.view(-1, self.heads, self.v_dim)
                    out, _ = torch_npu.npu_fused_infer_attention_score(
                        q, q, v, num_heads=self.heads, num_key_value_heads=self.heads, scale=192**-0.5,
                        input_layout="TND", actual_seq_lengths=ends, actual_seq_lengths_kv=ends,
                        atten_mask=mask, sparse_mode=3)
                    return out.reshape(-1, self.heads, self.qk_dim)  # KV152
        """,
    }
    ok = {
        "width of value": """
            def attend(x, y, ends, mask):
                q = x.view(-1, 16, 192)
                v = y.view(-1, 16, 128)
                out = torch_npu.npu_fused_infer_attention_score(
                    q, q, v, num_heads=16, num_key_value_heads=16, scale=192**-0.5, input_layout="TND",
                    actual_seq_lengths=ends, actual_seq_lengths_kv=ends, atten_mask=mask, sparse_mode=3)[0]
                return out.view(-1, 16 * 128)
        """,
        "equal widths": """
            def attend(x, y, ends, mask):
                q = x.view(-1, 16, 128)
                v = y.view(-1, 16, 128)
                out = torch_npu.npu_fused_infer_attention_score(
                    q, q, v, num_heads=16, num_key_value_heads=16, scale=128**-0.5, input_layout="TND",
                    actual_seq_lengths=ends, actual_seq_lengths_kv=ends, atten_mask=mask, sparse_mode=3)[0]
                return out.view(-1, 16 * 128)
        """,
        "padded values": """
            def attend(x, y, ends, mask):
                q = x.view(-1, 16, 192)
                v = torch.nn.functional.pad(y.view(-1, 16, 128), (0, 64))
                out = torch_npu.npu_fused_infer_attention_score(
                    q, q, v, num_heads=16, num_key_value_heads=16, scale=192**-0.5, input_layout="TND",
                    actual_seq_lengths=ends, actual_seq_lengths_kv=ends, atten_mask=mask, sparse_mode=3)[0]
                return out.view(-1, 16, 192)[..., :128]
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the last axis of a view with both head dims."""
        views = [v for v in call.use.views if v.index == 0 and v.method in ("view", "reshape") and v.sizes]
        if not views or call.rope.yes:
            return NOT_APPLICABLE
        mine, theirs, heads = call.head_dim, head_dim(call, call.arg("value")), call.heads
        if not (mine.known and theirs.known and heads.known):
            return undecided(*mine.notes, *theirs.notes, *heads.notes)
        fits = [v for v in views if _is(v.sizes[-1], theirs.value, heads.value)]  # type: ignore[index]
        if differ(mine, theirs).yes:
            for view in views:
                assert view.sizes is not None
                if view not in fits and _is(view.sizes[-1], mine.value, heads.value):
                    return violated(
                        f"the output has {theirs.value.label} elements per head, as value has, but it is "
                        f"viewed with {mine.value.label}",
                        view.place,
                        (*theirs.notes, *mine.notes),
                        "View it with the head dim of value.",
                    )
        return PROVED if len(fits) == len(views) else NOT_APPLICABLE


def _is(size: Num | None, dim: Num, heads: Num) -> bool:
    return size is not None and size in (dim, heads * dim)
