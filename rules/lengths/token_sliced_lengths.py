"""KV331: per-request lengths cut by a number of tokens."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class TokenSlicedLengths(Rule):
    """Per-request lengths are sliced with a token count while the block table is sliced with a request count.

    ## What it does
    Reports ``query_lens[n_decode_tokens:]`` in a function that slices the block table with another bound, and
    ``seq_lens[:n_decode_tokens]`` in a call that gets the block table cut at another bound.

    ## Why it is wrong
    Lengths and table rows have one entry per request. As soon as a request brings several tokens
    (speculative decode, multi-token prediction) the two cuts fall on different requests.

    ## Use instead
    Cut every per-request tensor with the number of requests.

    ## Ops and versions
    All operators with a block table and lengths.

    ## Evidence
    D14 and ATB-13: as many table rows as length entries.
    """

    code = "KV331"
    name = "token-sliced-lengths"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("D14", "ATB-13")
    events = ("token-sliced-lengths",)
    bad = {
        "decode part cut off": """
            def split(query_lens, seq_lens, table, n_decode_reqs, n_decode_tokens):
                return torch_npu._npu_paged_attention_splitfuse(
                    query=q, key_cache=kc, value_cache=vc, mask=mask, block_table=table[n_decode_reqs:],
                    seq_len=query_lens[n_decode_tokens:],  # KV331
                    context_lens=seq_lens[n_decode_tokens:],  # KV331
                    num_kv_heads=1, num_heads=8, scale_value=0.1, out=out)
        """,
        "bound has a name of its own": """
            def decode(q, kc, vc, meta, out):
                n = meta.num_decode_tokens
                torch_npu._npu_paged_attention(
                    query=q[:n], key_cache=kc, value_cache=vc, num_kv_heads=1, num_heads=8, scale_value=0.1,
                    block_table=meta.block_tables[: meta.num_decodes],
                    context_lens=meta.seq_lens[:n],  # KV331
                    out=out)
        """,
        "decode part taken": """
            def decode(q, kc, vc, meta, out):
                torch_npu._npu_paged_attention(
                    query=q, key_cache=kc, value_cache=vc, num_kv_heads=1, num_heads=8, scale_value=0.1,
                    block_table=meta.block_tables[: meta.num_decodes],
                    context_lens=meta.seq_lens[: meta.num_decode_tokens],  # KV331
                    out=out)
        """,
    }
    ok = {
        "one row per token": """
            def decode(q, kc, vc, meta, out):
                torch_npu._npu_paged_attention(
                    query=q, key_cache=kc, value_cache=vc, num_kv_heads=1, num_heads=8, scale_value=0.1,
                    block_table=meta.block_tables[: meta.num_decode_tokens],
                    context_lens=meta.seq_lens[: meta.num_decode_tokens], out=out)
        """,
        "requests throughout": """
            def split(query_lens, seq_lens, table, n_decode_reqs, n_decode_tokens):
                return torch_npu._npu_paged_attention_splitfuse(
                    query=q[n_decode_tokens:], key_cache=kc, value_cache=vc, mask=mask,
                    block_table=table[n_decode_reqs:], seq_len=query_lens[n_decode_reqs:],
                    context_lens=seq_lens[n_decode_reqs:],
                    num_kv_heads=1, num_heads=8, scale_value=0.1, out=out)
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the slice."""
        name, bound, other = (event.detail[key] for key in ("name", "bound", "other"))
        return violated(
            f"{name} has one entry per request but is cut at {bound}, the block table at {other}",
            event.place,
            event.notes,
            f"Cut {name} at {other} too.",
        )
