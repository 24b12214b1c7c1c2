"""KV215: an argument whose construction raises."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, undecided, violated


class RaisingArgument(RunRule):
    """Building an argument raises before the operator runs.

    ## What it does
    Reports a tensor that cannot be built as written, for example `torch.ones(..., diagonal=1)` with the
    closing parenthesis of `torch.triu` in the wrong place.

    ## Why it is wrong
    The line raises TypeError the first time this path runs; often that is the only path with a mask, so
    tests without one pass.

    ## Use instead
    `torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)`.

    ## Ops and versions
    Every attention operator.

    ## Evidence
    C05: the mask these calls want; the argument lists of torch factory functions.
    """

    code = "KV215"
    name = "raising-argument"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C05",)
    families = ("fia", "pfa", "ifa", "fusion", "atb", "sparse", "indexer")
    bad = {
        "diagonal handed to torch.ones": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool, diagonal=1))
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", sparse_mode=3,
                atten_mask=hidden,  # KV215
            )
        """,
        "in a helper": """
            def triangle(device):
                return torch.ones(2048, 2048, dtype=torch.bool, device=device, diagonal=0).triu(1)

            def run(q, k, v, masks=()):
                return torch_npu.npu_fused_infer_attention_score_v2(
                    q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="BSND", sparse_mode=3,
                    atten_mask=masks[0] if len(masks) else triangle(q.device),  # KV215
                )
        """,
    }
    ok = {
        "diagonal handed to torch.triu": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", sparse_mode=3, atten_mask=hidden)
        """,
        "factory options": """
            hidden = torch.ones(2048, 2048, dtype=torch.bool, device="npu", requires_grad=False).triu(1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", sparse_mode=3, atten_mask=hidden)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges every argument that is passed."""
        suspects = [arg for arg in call.args() if not arg.fault.no]
        if not suspects:
            yield NOT_APPLICABLE
        for arg in suspects:
            if arg.fault.unknown:
                yield undecided(arg.fault)
                continue
            note = arg.fault.notes[0].text if arg.fault.notes else "it cannot be built"
            yield violated(
                f"{arg.name} raises when it is built: {note}",
                arg,
                arg.fault.notes,
                "Move the misplaced argument to the function it belongs to.",
            )
