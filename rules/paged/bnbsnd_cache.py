"""KV405: a paged cache in (blocks, block, heads, dim) order."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, undecided, violated

from ._common import paged, split_heads


class BnbsndCache(RunRule):
    """The paged cache is (blocks, block, heads, dim), which is not a layout of the operator.

    ## What it does
    Looks at a 4-D key or value cache next to a block table. Where axis 1 is the `block_size` of the call
    and axis 2 its KV head count, the cache is in the order that vLLM-like code and the ATB operators use.

    ## Why it is wrong
    With a block table the operator reads a 4-D cache as (blocks, **heads, block**, dim), whatever
    `input_layout` says. BSH and BSND queries reject a 4-D cache; BNSD and TND compare the axes and reject
    it, except for BNSD with one query token, where no axis is compared: it runs and reads the wrong rows.

    ## Use instead
    `cache.view(blocks, block, heads * dim)`, which shares the storage. With one KV head, (blocks, 1, block,
    dim) is the same memory too.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. The ATB operators and npu_sparse_flash_attention do take this
    order.

    ## Evidence
    1.5, PG09: cache layout selection by rank in the decode and prefill tiling (CANN 8.5 snapshot),
    op-plugin documentation, cann-recipes-infer models, which flatten the cache first.
    """

    code = "KV405"
    name = "bnbsnd-cache"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("1.5", "PG09")
    families = ("fia", "ifa")
    bad = {
        "allocated in the order of the ATB operators": """
            class Pool:
                def __init__(self, blocks, block, kv_heads, dim):
                    self.block, self.kv_heads = block, kv_heads
                    self.k = torch.zeros(blocks, block, kv_heads, dim, dtype=torch.float16)
                    self.v = torch.zeros(blocks, block, kv_heads, dim, dtype=torch.float16)

                def attend(self, q, table, lens, heads):
                    return torch_npu.npu_fused_infer_attention_score(
                        q,
                        self.k,  # KV405
                        self.v,  # KV405
                        num_heads=heads, num_key_value_heads=self.kv_heads, scale=0.1, input_layout="BSH",
                        block_table=table, block_size=self.block, actual_seq_lengths_kv=lens,
                    )
        """,
        "constants, BNSD": """
            k = pool.view(-1, 128, 8, 64)
            torch_npu.npu_fused_infer_attention_score_v2(
                q,
                k,  # KV405
                k,  # KV405
                num_query_heads=32, num_key_value_heads=8, softmax_scale=0.1, input_layout="BNSD",
                block_table=table, block_size=128, actual_seq_kvlen=lens,
            )
        """,
        "sizes read off the cache": """
            def attend(q, k_pool, v_pool, table, lens, heads):
                blocks, block, kv_heads, dim = k_pool.shape
                return torch_npu.npu_fused_infer_attention_score(
                    q,
                    k_pool,  # KV405
                    v_pool, num_heads=heads, num_key_value_heads=kv_heads, scale=0.1, input_layout="BNSD",
                    block_table=table, block_size=block, actual_seq_lengths_kv=lens,
                )
        """,
    }
    ok = {
        "flattened": """
            k = pool.view(-1, 128, 8, 64)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k.view(-1, 128, 512), k.view(-1, 128, 512), num_query_heads=32, num_key_value_heads=8,
                softmax_scale=0.1, input_layout="BSND", block_table=table, block_size=128,
                actual_seq_kvlen=lens,
            )
        """,
        "heads before block": """
            k = pool.view(-1, 8, 128, 64)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, k, num_query_heads=32, num_key_value_heads=8, softmax_scale=0.1, input_layout="BNSD",
                block_table=table, block_size=128, actual_seq_kvlen=lens,
            )
        """,
        "unknown shape": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, k, num_query_heads=32, num_key_value_heads=8, softmax_scale=0.1, input_layout="BNSD",
                block_table=table, block_size=k.shape[1], actual_seq_kvlen=lens,
            )
        """,
        "not paged": """
            k = new_keys.view(-1, 128, 8, 64)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, k, num_query_heads=32, num_key_value_heads=8, softmax_scale=0.1, input_layout="BSND",
            )
        """,
        "the ATB order": """
            k = pool.view(-1, 128, 8, 64)
            torch_npu._npu_paged_attention(
                query=q, key_cache=k, value_cache=k, num_kv_heads=8, num_heads=32, scale_value=0.1,
                block_table=table, context_lens=lens, out=out,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the key and the value cache."""
        is_paged = paged(call)
        if is_paged.no:
            yield NOT_APPLICABLE
            return
        for role in ("key", "value"):
            cache = call.arg(role)
            wrong = split_heads(call, cache)
            if wrong.unknown or not is_paged.yes:
                yield undecided(wrong, is_paged)
            elif wrong.yes:
                sizes = cache.shape.get(None)
                shape = "blocks, block, heads, dim"
                if sizes is not None:
                    shape = ", ".join("?" if size is None else size.label for size in sizes)
                yield violated(
                    f"the paged {cache.name} is ({shape}), but a 4-D cache is read as "
                    "(blocks, heads, block, dim): rejected, or wrong rows for one BNSD query token",
                    cache,
                    wrong.notes,
                    f"Pass {cache.name}.view(blocks, block_size, heads * dim).",
                )
            else:
                yield NOT_APPLICABLE
