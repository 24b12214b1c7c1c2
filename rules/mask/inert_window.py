"""KV218: a sliding window that the operator does not apply."""

from __future__ import annotations

import re

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import NO, Note, Tri, tri
from kvlint.contract.values import Const, Number, Unknown, Value

from ._common import UNLIMITED, alternatives, mode_among, sparse_mode


class InertWindow(RunRule):
    """`pre_tokens` is set to a window in a call that ignores it.

    ## What it does
    Reports a finite `pre_tokens` in `sparse_mode` 1, 2 or 3, in mode 0 without a mask, and in a one-token
    decode call of a layout with a batch axis.

    ## Why it is wrong
    Modes 1, 2 and 3 and calls without a mask set the token limits to "unlimited". One-token decode on a
    contiguous cache, or in BNSD and BSND, ignores them. The sliding-window layer silently attends to
    everything.

    ## Use instead
    `sparse_mode=4` with the 2048 x 2048 causal mask, `pre_tokens=window - 1` and `next_tokens=0`. For
    decode: the TND layout with mode 4.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, the npu_fusion_attention family. All versions. A paged BSH
    decode call without a mask is the exception: there `pre_tokens` does limit the keys, to exactly that
    many. Values from 65535 on count as unlimited.

    ## Evidence
    C08, C09, H16, H17, FUS-05, FUS-06: prefill and decode tiling of ops-transformer (CANN 8.5 snapshot),
    op-plugin documentation.
    """

    code = "KV218"
    name = "inert-window"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("C08", "C09", "H16", "H17", "FUS-05", "FUS-06")
    families = ("fia", "pfa", "fusion")
    bad = {
        "window in mode 3": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=3,
                pre_tokens=1023,  # KV218
                next_tokens=0,
            )
        """,
        "window by name": """
            opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BSND", "sparse_mode": 2}
            torch.ops.npu.npu_fused_infer_attention_score_v2(
                q, k, v, atten_mask=hidden,
                pre_tokens=self.sliding_window,  # KV218
                **opts)
        """,
        "window without a mask": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSND", scale=0.1,
                pre_tockens=511,  # KV218
                sparse_mode=0,
            )
        """,
        "one-token decode": """
            torch_npu.npu_fused_infer_attention_score(
                q.view(b, 8, 1, 128), kc, vc, num_heads=8, scale=0.1, input_layout="BNSD",
                actual_seq_lengths_kv=lens,
                pre_tokens=1023,  # KV218
            )
        """,
    }
    ok = {
        "band mode": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=hidden, sparse_mode=4, pre_tokens=1023, next_tokens=0,
            )
        """,
        "mode and limit by the same test": """
            window = self.sliding_window
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", actual_seq_qlen=ends,
                actual_seq_kvlen=ends, atten_mask=hidden, sparse_mode=4 if window else 3,
                pre_tokens=window if window else 2147483647, next_tokens=0,
            )
        """,
        "no limit": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BNSD", pre_tokens=65535, next_tokens=65535)
        """,
        "paged BSH, where it may work": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                actual_seq_lengths_kv=lens, block_table=table, block_size=128, pre_tokens=1023,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges a window against the mode."""
        mask, limit, family = call.arg("mask"), call.arg("pre_tokens"), call.operator.family
        if limit.given.no or call.absorbed.yes:
            return NOT_APPLICABLE
        window = limit.test(lambda value: _window(value, call))
        if window.no:
            return NOT_APPLICABLE
        fixed = mode_among(call, 1, 2, 3, 5, 6) if family == "fusion" else mode_among(call, 1, 2, 3)
        bare = tri(all(_no_mask(value) for value in alternatives(mask.value))) & mask.is_none
        decode = call.single_token & call.decode_engine & ~call.rope if family == "fia" else NO
        if family == "fia":
            # The paged BSH decode kernel takes the limit as the number of keys to read.
            working = call.query_layout.equals("BSH") & call.paged
            decode = decode & ~working
            bare = bare & (call.packed | ~working)
        inert = fixed | bare | decode
        if window.unknown and not inert.no:
            return undecided(window)
        where = f"sparse_mode={sparse_mode(call)}" if fixed.yes else "a call without a mask"
        if decode.yes and not fixed.yes:
            where = "one-token decode"
        return require(
            ~inert,
            f"{limit.name} is ignored in {where}, so the window is lost",
            at=limit,
            fix=f"Use sparse_mode=4 with the causal mask, {limit.name}=window - 1 and no tokens ahead"
            f"{', in the TND layout' if decode.yes else ''}.",
        )


def _no_mask(value: Value) -> bool:
    return (isinstance(value, Const) and value.value is None) or type(value).__name__ == "Absent"


def _window(value: Value, call: Call) -> Tri:
    """Whether the limit is a window and not a spelling of "unlimited"."""
    if isinstance(value, Const):
        return tri(isinstance(value.value, int) and 0 <= value.value < UNLIMITED)
    label, keys = "", set()
    if isinstance(value, Unknown):
        label, keys = value.label, {value.key}
    elif isinstance(value, Number):
        label, keys = value.num.label, {atom.key for atom in value.num.atoms()}
    # A name says "window", but what a test has just said about it (0, -1, None) comes first.
    if re.search(r"window|swa_size", label.lower()) and not any(cond.key in keys for cond in call.assumed):
        return tri(True, Note(f"pre_tokens is {label}", value.place))
    return Tri(None, (Note("whether pre_tokens is a window is not known", value.place),))
