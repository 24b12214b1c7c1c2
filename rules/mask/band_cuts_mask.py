"""KV222: token limits that cut off keys the mask shows."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, undecided, violated
from kvlint.contract.tri import Tri
from kvlint.contract.values import Content

from ._common import UNLIMITED, mode_among


class BandCutsMask(RunRule):
    """Token limits in mode 0 disagree with the mask.

    ## What it does
    Reports, in `sparse_mode` 0, `next_tokens=0` with a mask that shows later keys (zeros, or a triangle
    with an offset for cached keys), and a finite `pre_tokens` with a plain causal triangle, which shows the
    whole past.

    ## Why it is wrong
    The limits are not applied element by element: each block of query rows computes only the keys in its
    range, widened to 64-column steps, and inside the range the mask alone decides. Where the two disagree,
    what a token sees depends on the block it falls in. npu_prompt_flash_attention has `next_tokens=0` by
    default, so a mask for cached or bidirectional attention is cut there without any argument.

    ## Use instead
    Mode 0 with a mask: `pre_tokens=2147483647, next_tokens=2147483647`, and everything in the mask. Or
    `sparse_mode=4` with the compressed mask, whose band is exact.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, the npu_fusion_attention family. All versions.

    ## Evidence
    C12, PFA-04, FUS-06, 1.7: prefill kernels of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation.
    """

    code = "KV222"
    name = "band-cuts-mask"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("C12", "PFA-04", "FUS-06", "1.7")
    families = ("fia", "pfa", "fusion")
    bad = {
        "mask for cached keys, default limit": """
            hidden = torch.ones(n, total, dtype=torch.bool, device="npu").triu(total - n + 1)
            torch_npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH",
                atten_mask=hidden,  # KV222
            )
        """,
        "window by limit beside a causal mask": """
            n = q.shape[2]
            hidden = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BNSD", scale=0.1,
                atten_mask=hidden,  # KV222
                pre_tockens=511, next_tockens=0,
            )
        """,
        "nothing hidden": """
            opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BSND", "next_tokens": 0}
            torch.ops.npu.npu_fused_infer_attention_score_v2(
                q, k, v,
                atten_mask=torch.zeros(s, s, dtype=torch.bool),  # KV222
                **opts)
        """,
    }
    ok = {
        "limits opened": """
            hidden = torch.ones(n, total, dtype=torch.bool, device="npu").triu(total - n + 1)
            torch_npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH", atten_mask=hidden,
                next_tokens=2147483647,
            )
        """,
        "causal mask, causal limit": """
            n = q.shape[2]
            hidden = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
            torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.1, atten_mask=hidden, next_tockens=0)
        """,
        "unknown mask": """
            torch_npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH", atten_mask=meta.mask)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares limits and mask."""
        mask, pre, following = call.arg("mask"), call.arg("pre_tokens"), call.arg("next_tokens")
        mode = mode_among(call, 0)
        if mode.no or mask.is_none.yes or call.single_token.yes:
            return NOT_APPLICABLE
        back, ahead = pre.constant.get(None), following.constant.get(None)
        future = isinstance(ahead, int) and ahead == 0
        window = isinstance(back, int) and 0 <= back < UNLIMITED
        if not (future or window):
            return NOT_APPLICABLE if pre.constant.known and following.constant.known else undecided(mode)
        faults = mask.content.map(lambda content: _cut(content, future, window))
        if mode.unknown or mask.is_none.unknown or faults.values is None or "" in faults.values:
            return undecided(mode if mode.unknown else Tri(None, mask.content.notes))
        limit = following if faults.values[0] == "later" else pre
        return violated(
            f"{mask.name} shows {faults.values[0]} keys that {limit.name}={limit.constant.get('?')} cuts off "
            "in steps of whole blocks",
            mask,
            mask.content.notes,
            f"Pass {limit.name}=2147483647 and let the mask decide, "
            "or use sparse_mode=4 with the compressed mask.",
        )


def _cut(content: Content, future: bool, window: bool) -> str:
    """Which keys the limits cut although the mask shows them; "" when that cannot be told."""
    if content.band:
        return ""
    if content.fill is not None and not content.fill:
        return "later" if future else "earlier"
    triangle = content.triangle
    if triangle is None or not triangle.upper:
        return ""
    offset = triangle.diagonal.integer
    beyond = offset > 1 if offset is not None else len(triangle.diagonal.terms) > 1
    if future and beyond:
        return "later"
    return "earlier" if window else ""
