"""KV414: a prefix operator of ATB with a cache it does not serve."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant

_CACHED = ("_npu_flash_attention_qlens", "_npu_flash_attention_prefix_v2")


class PrefixBlockSize(RunRule):
    """A prefix operator of ATB gets blocks other than 128 or a head dim it does not serve.

    ## What it does
    Checks visible sizes: blocks of exactly 128 tokens, a head dim that is a multiple of 16 and at most 128.

    ## Why it is wrong
    ATB rejects other sizes on A2 and A3. The other paged operators take more, so code that worked for
    decode fails on the first prefix-cache hit.

    ## Use instead
    A cache with blocks of 128.

    ## Ops and versions
    _npu_flash_attention_qlens, _npu_flash_attention_prefix_v2, npu_self_attention_prefix_encoder (head
    dim).

    ## Evidence
    ATB-09: ATB operation checks.
    """

    code = "KV414"
    name = "prefix-block-size"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("ATB-09",)
    operators = (*_CACHED, "npu_self_attention_prefix_encoder")
    bad = {
        "blocks of 64": """
            kc = pool.view(-1, 64, 8, 128)
            torch_npu._npu_flash_attention_qlens(
                query=q,
                key_cache=kc,  # KV414
                value_cache=vc, block_table=table, mask=mask, seq_len=q_lens, context_lens=lens,
                num_kv_heads=8, num_heads=8, scale_value=0.1, out=out)
        """,
    }
    ok = {
        "blocks of 128": """
            kc = pool.view(-1, 128, 8, 128)
            torch_npu._npu_flash_attention_qlens(
                query=q, key_cache=kc, value_cache=kc, block_table=table, mask=mask, seq_len=q_lens,
                context_lens=lens, num_kv_heads=8, num_heads=8, scale_value=0.1, out=out)
        """,
        "unknown": """
            kc = pool.view(-1, block, 8, 128)
            torch_npu._npu_flash_attention_qlens(
                query=q, key_cache=kc, value_cache=kc, block_table=table, mask=mask, seq_len=q_lens,
                context_lens=lens, num_kv_heads=8, num_heads=8, scale_value=0.1, out=out)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges blocks and head dim."""
        if call.operator.name in _CACHED:
            for role in ("key_cache", "value_cache"):
                cache = call.arg(role)
                block = constant(cache.dim(1))
                yield require(
                    block.equals(128),
                    f"the blocks of {cache.name} hold {block.get(0)} tokens, prefix attention takes 128",
                    when=cache.rank.among((3, 4)),
                    at=cache,
                )
        query = call.arg("query")
        dim = constant(query.dim(-1))
        yield require(
            dim.holds(lambda size: size % 16 == 0 and size <= 128),
            f"the head dim of {query.name} is {dim.get(0)}, prefix attention takes multiples of 16 up to 128",
            when=query.rank.equals(3),
            at=query,
        )
