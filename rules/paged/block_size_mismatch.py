"""KV406: block_size differs from the block axis of the cache."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.sizes import equal, kept_apart
from kvlint.contract.tri import NO, Fact

from ._common import paged, split_heads

# Axis of the block by rank of the cache (contract 1.5).
_AXIS = {3: 1, 4: 2, 5: 3}


class BlockSizeMismatch(RunRule):
    """block_size is not the size of the cache's block axis.

    ## What it does
    Compares `block_size` with the block axis of the paged cache: axis 1 of a 3-D cache, axis 2 of a 4-D
    one, axis 3 of a 5-D (NZ) one. A contiguous cache (batch, length, width) passed with a block table is
    the same fault: its axis 1 is taken for the block.

    ## Why it is wrong
    The prefill engine and the MLA checker reject the mismatch. The decode engine for one query token does
    not compare the two: it steps through the cache with the wrong block length and reads other tokens'
    rows.

    ## Use instead
    `block_size=cache.shape[1]` for a (blocks, block, heads * dim) cache.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions.

    ## Evidence
    PG03, PG21: absence of a comparison in the decode checker, comparisons in the prefill and MLA checkers
    (ops-transformer, CANN 8.5 snapshot).
    """

    code = "KV406"
    name = "block-size-mismatch"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("PG03", "PG21")
    families = ("fia", "ifa")
    bad = {
        "another constant": """
            cache = torch.zeros(64, 256, 1024, dtype=torch.bfloat16)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=8, scale=0.1, input_layout="BSH", block_table=table,
                block_size=128,  # KV406
                actual_seq_lengths_kv=lens,
            )
        """,
        "double of the axis": """
            cache = pool.view(-1, 8, page, 64)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, cache, cache, num_query_heads=8, softmax_scale=0.1, input_layout="BNSD", block_table=table,
                block_size=page + 16,  # KV406
                actual_seq_kvlen=lens,
            )
        """,
        "a contiguous cache": """
            class Layer:
                def __init__(self, batch, max_len, width):
                    self.cache = torch.zeros(batch, max_len, width, dtype=torch.bfloat16)
                    self.batch = batch

                def attend(self, hidden, table, lens, page):
                    q = hidden.view(self.batch, 1, 1024)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.cache, self.cache, num_heads=8, scale=0.1, input_layout="BSH",
                        block_table=table,
                        block_size=page,  # KV406
                        actual_seq_lengths_kv=lens,
                    )
        """,
        "size of the axis before": """
            class Decode:
                def __init__(self, blocks, kv_heads, dim):
                    self.kv_heads = kv_heads
                    self.kc = torch.zeros(blocks, kv_heads, 128, dim, dtype=torch.float16)

                def forward(self, q, table, lens):
                    _, size, _, _ = self.kc.shape
                    return torch_npu.npu_fused_infer_attention_score(
                        q.view(-1, 8, 1, 128), self.kc, self.kc, num_heads=8, scale=0.1, input_layout="BNSD",
                        num_key_value_heads=self.kv_heads, block_table=table, actual_seq_lengths_kv=lens,
                        block_size=size,  # KV406
                    )
        """,
    }
    ok = {
        "the same": """
            cache = torch.zeros(64, 128, 1024, dtype=torch.bfloat16)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=8, scale=0.1, input_layout="BSH", block_table=table,
                block_size=128, actual_seq_lengths_kv=lens,
            )
        """,
        "by name": """
            cache = pool.view(-1, 8, page, 64)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, cache, cache, num_query_heads=8, softmax_scale=0.1, input_layout="BNSD", block_table=table,
                block_size=page, actual_seq_kvlen=lens,
            )
        """,
        "different names may be equal": """
            cache = pool.view(-1, 8, page, 64)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, cache, cache, num_query_heads=8, softmax_scale=0.1, input_layout="BNSD", block_table=table,
                block_size=config.block_size, actual_seq_kvlen=lens,
            )
        """,
        "NZ form": """
            cache = pool.view(-1, 1, 512 // 16, 128, 16)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, cache, cache, query_rope=q_pe, key_rope=k_pe, num_query_heads=8, num_key_value_heads=1,
                softmax_scale=0.1, input_layout="TND", block_table=table, block_size=128,
                actual_seq_qlen=ends, actual_seq_kvlen=lens,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the key cache (the value cache has its shape)."""
        is_paged, size = paged(call), call.arg("block_size")
        cache = call.arg("key")
        number = size.number
        if is_paged.no or (number.known and number.value.integer == 0):
            yield NOT_APPLICABLE  # paged-without-block-size
            return
        axis = _AXIS.get(cache.rank.get(0))
        if axis is None:
            yield undecided(cache.rank.equals(3))
            return
        if not split_heads(call, cache).no and axis == 2:
            yield NOT_APPLICABLE  # bnbsnd-cache
            return
        block = cache.dim(axis)
        same = equal(number, block)
        contiguous = equal(cache.dim(0), call.batch)
        lone = cache.dim(0).known and cache.dim(0).value.integer is None
        if same.unknown and axis == 1 and lone and (contiguous & kept_apart(number, block)).yes:
            same = ~(contiguous & kept_apart(number, block))
        if same.unknown and axis == 2 and _is_heads(number, cache.dim(1), call.kv_heads):
            # It was read off the axis of the KV heads.
            same = NO
        shown, given = (fact.value.label if fact.known else "?" for fact in (block, number))
        yield require(
            same,
            f"{size.name} is {given} but the block axis of {cache.name} is {shown}: for one query token "
            "other tokens' rows are read, otherwise the call is rejected",
            when=is_paged,
            at=size,
            fix=f"Pass {size.name}={shown}, or view the cache with blocks of {given}.",
        )


def _is_heads(size: Fact[Num], axis: Fact[Num], heads: Fact[Num]) -> bool:
    """Whether a size is the named number of KV heads, which is the size of the axis before the blocks."""
    if not (size.known and axis.known and heads.known):
        return False
    return size.value == axis.value == heads.value and heads.value.integer is None
