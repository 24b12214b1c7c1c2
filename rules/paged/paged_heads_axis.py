"""KV411: the paged cache does not hold the KV heads of the call."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.sizes import constant, equal, shown
from kvlint.contract.tri import NO, Tri, tri

from ._common import paged, split_heads


class PagedHeadsAxis(RunRule):
    """The paged cache holds another number of KV heads than the call says.

    ## What it does
    Compares the KV head count of the call (`num_key_value_heads`, where 0 stands for the query heads) with
    the cache: axis 1 of a 4-D or 5-D cache; the width of a 3-D cache must divide by it, and in constants be
    at most 65535.

    ## Why it is wrong
    Prefill compares them and rejects the call. For one query token the decode engine compares nothing in
    BNSD and BSND: it reads rows of other heads.

    ## Use instead
    Pass the head count the cache was allocated with.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions.

    ## Evidence
    PG09, PG10, B05, B06: prefill tiling and the absence of the check in the decode checker
    (ops-transformer, CANN 8.5 snapshot).
    """

    code = "KV411"
    name = "paged-heads-axis"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("PG09", "PG10", "B05", "B06")
    families = ("fia", "ifa")
    bad = {
        "query heads for a grouped cache": """
            cache = torch.zeros(64, 8, 128, 64, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=32, scale=0.1, input_layout="BNSD", block_table=table,
                num_key_value_heads=4,  # KV411
                block_size=128, actual_seq_lengths_kv=lens,
            )
        """,
        "width that does not divide": """
            cache = torch.zeros(64, 128, 1000, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=32, scale=0.1, input_layout="BSH", block_table=table,
                num_key_value_heads=16,  # KV411
                block_size=128, actual_seq_lengths_kv=lens,
            )
        """,
    }
    ok = {
        "the same count": """
            cache = torch.zeros(64, 8, 128, 64, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=32, num_key_value_heads=8, scale=0.1, input_layout="BNSD",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens,
            )
        """,
        "names that may be equal": """
            cache = torch.zeros(64, local_heads, 128, 64, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=32, num_key_value_heads=kv_heads, scale=0.1, input_layout="BNSD",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens,
            )
        """,
        "width by name": """
            cache = torch.zeros(64, 128, kv_heads * dim, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, num_heads=32, num_key_value_heads=kv_heads, scale=0.1, input_layout="BSH",
                block_table=table, block_size=128, actual_seq_lengths_kv=lens,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the key cache; the value cache only where it differs."""
        is_paged = paged(call)
        heads_arg = call.arg("kv_heads")
        if is_paged.no or not heads_arg.given.yes:
            yield NOT_APPLICABLE  # an omitted head count is missing-kv-heads
            return
        cache = call.arg("key")
        if not split_heads(call, cache).no and cache.rank.equals(4).yes:
            yield NOT_APPLICABLE  # bnbsnd-cache
            return
        holds, what = self._fits(call, cache)
        heads = call.kv_heads
        yield (
            require(
                holds,
                f"{heads_arg.name} is {heads.value.label if heads.known else '?'} but {what}",
                when=is_paged,
                at=heads_arg,
                fix=f"Pass the head count {cache.name} was allocated with.",
            )
            if not holds.unknown
            else undecided(holds)
        )

    @staticmethod
    def _fits(call: Call, cache: Arg) -> tuple[Tri, str]:
        rank = cache.rank
        if rank.get(0) in (4, 5):
            axis = cache.dim(1)
            return equal(call.kv_heads, axis), f"axis 1 of {cache.name} is {shown(axis)}"
        if rank.get(0) == 3:
            width, heads = constant(cache.dim(2)), constant(call.kv_heads)
            if width.known and width.value > 65535:
                return NO, f"the rows of {cache.name} are {width.value} wide, the limit is 65535"
            if width.known and heads.known and heads.value > 0:
                fits = tri(width.value % heads.value == 0, *cache.shape.notes)
                return fits, f"the rows of {cache.name} are {width.value} wide, which it does not divide"
        return Tri(None, rank.notes), ""
