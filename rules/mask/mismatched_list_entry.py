"""KV240: an argument taken from a list that does not have one entry per request."""

from __future__ import annotations

from collections.abc import Iterable

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require


class MismatchedListEntry(Rule):
    """A per-request list gets more than one entry in some rounds of the loop that builds it.

    ## What it does
    Reports ``masks[i]`` where the loop over requests appends twice when a test holds and once otherwise.

    ## Why it is wrong
    After the first request with two entries, index ``i`` belongs to another request: its mask, table or
    lengths are applied silently, or rejected for their shape.

    ## Use instead
    Append exactly once per request (``if``/``else``), or index by a key.

    ## Ops and versions
    All attention operators.

    ## Evidence
    C07: a full mask must have the shape of its own request.
    """

    code = "KV240"
    name = "mismatched-list-entry"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("C07",)
    families = ("fia", "pfa", "ifa", "fusion", "atb")
    bad = {
        "second mask for some requests": """
            def prefill(qs, ks, vs, plain, q_lens, kv_lens):
                masks = []
                for n, total in zip(q_lens, kv_lens):
                    if plain:
                        masks.append(torch.ones(n, n, dtype=torch.bool).triu(1))
                    masks.append(torch.ones(n, total, dtype=torch.bool).triu(total - n + 1))
                return [
                    torch_npu.npu_prompt_flash_attention(
                        q, ks[i], vs[i], num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                        next_tokens=2147483647,
                        atten_mask=masks[i])  # KV240
                    for i, q in enumerate(qs)
                ]
        """,
    }
    ok = {
        "one per request": """
            def prefill(qs, ks, vs, plain, q_lens, kv_lens):
                masks = []
                for n, total in zip(q_lens, kv_lens):
                    if plain:
                        masks.append(torch.ones(n, n, dtype=torch.bool).triu(1))
                    else:
                        masks.append(torch.ones(n, total, dtype=torch.bool).triu(total - n + 1))
                return [
                    torch_npu.npu_prompt_flash_attention(
                        q, ks[i], vs[i], num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                        next_tokens=2147483647, atten_mask=masks[i])
                    for i, q in enumerate(qs)
                ]
        """,
        "only for some requests": """
            def prefill(qs, ks, vs, masked, q_lens):
                masks = []
                for n in q_lens:
                    if masked:
                        masks.append(torch.ones(n, n, dtype=torch.bool).triu(1))
                return [
                    torch_npu.npu_prompt_flash_attention(
                        q, ks[i], vs[i], num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                        next_tokens=2147483647, atten_mask=masks[i] if masked else None)
                    for i, q in enumerate(qs)
                ]
        """,
    }

    def check(self, call: Call) -> Iterable[Verdict]:
        """Judges every argument that is passed."""
        for arg in call.args():
            verdict = require(
                ~arg.misindexed,
                f"{arg.name} is picked by request from a list with more entries than requests",
                when=arg.given & arg.is_tensor,
                at=arg,
                fix="Append one entry per request.",
            )
            if arg.param.role in ("mask", "block_table", "q_lens", "kv_lens"):
                yield verdict
