"""KV132: the result of an operator that returns nothing is used."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    Rule,
    Severity,
    Verdict,
    undecided,
    violated,
)
from kvlint.contract.tri import Note


class EmptyResultUsed(Rule):
    """The result of an operator that returns nothing is used.

    ## What it does
    Reports a computation with the result of an operator whose schema has no result.

    ## Why it is wrong
    The operator writes into its buffers (`out`, the caches) and returns None. An assignment replaces
    the buffer by None: `out = torch_npu._npu_paged_attention(..., out=out)`.

    ## Use instead
    Call it as a statement and go on with the buffer.

    ## Ops and versions
    _npu_paged_attention, _npu_flash_attention and their variants without an `.out` form,
    _npu_reshape_and_cache, npu_scatter_pa_kv_cache, npu_gather_pa_kv_cache. The v2 forms,
    npu_ring_mla and npu_multi_head_latent_attention do return their outputs. All versions.

    ## Evidence
    ATB-04, PA-05, RC-03: schemas in the operator library of every release.
    """

    code = "KV132"
    name = "empty-result-used"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("ATB-04", "PA-05", "RC-03")
    families = ("atb", "cache_write", "cache_read")
    bad = {
        "assigned": """
            def decode(q, kc, vc, table, lens, buffer):
                out = torch_npu._npu_paged_attention(  # KV132
                    query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                    block_table=table, context_lens=lens, out=buffer)
                return out.view(-1, 1024)
        """,
        "returned to the caller": """
            class Decode:
                def attend(self, q, kc, vc, table, lens, buffer):
                    return torch_npu._npu_paged_attention(  # KV132
                        query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                        block_table=table, context_lens=lens, out=buffer)

                def forward(self, q, kc, vc, table, lens):
                    attn = self.attend(q, kc, vc, table, lens, torch.empty_like(q))
                    return attn.view(-1, 1024)
        """,
        "kept instead of the caches": """
            class Cache:
                def __init__(self, shape):
                    self.pair = torch.zeros(shape), torch.zeros(shape)

                def write(self, k, v, slots):
                    self.pair = torch_npu._npu_reshape_and_cache(k, v, *self.pair, slots)  # KV132
        """,
        "chained": """
            y = torch_npu._npu_flash_attention(q, k, v, mask, lens, 0.1, 8, 8, buffer).view(-1, 1024)  # KV132
        """,
    }
    ok = {
        "compared alone": """
            class Cache:
                def write(self, k, v, slots):
                    self.left = torch_npu._npu_reshape_and_cache(k, v, self.k, self.v, slots)
                    assert self.left is None
        """,
        "statement": """
            torch_npu._npu_paged_attention(
                query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                block_table=table, context_lens=lens, out=out)
        """,
        "returned to a caller that wants nothing": """
            def attend(q, kc, vc, table, lens, buffer):
                return torch_npu._npu_paged_attention(
                    query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                    block_table=table, context_lens=lens, out=buffer)

            def decode(q, kc, vc, table, lens, buffer):
                attend(q, kc, vc, table, lens, buffer)
                return buffer.view(-1, 1024)
        """,
        "returned from a wrapper": """
            def flash(q, k, v, mask, lens, out):
                return torch_npu._npu_flash_attention(q, k, v, mask, lens, 0.1, 8, 8, out)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges what happens to the result."""
        use = call.use
        if call.operator.returns:
            return NOT_APPLICABLE
        if use.dropped or use.read == {}:
            return PROVED
        if not (use.whole or use.unpacked or use.read or use.touched or use.kept):
            return undecided(Note("what happens to the result is not visible", call.place))
        return violated(
            f"{call.operator.name} returns None, what it computes is in the buffer it was given",
            call.place,
            [Note("the result is used here", place) for place in use.touched.values()],
            fix="Call it as a statement and use that buffer.",
        )
