"""KV403: a block table without a block size."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO

from ._common import paged


class PagedWithoutBlockSize(RunRule):
    """A block table is passed, block_size is left at 0.

    ## What it does
    Reports a call with a `block_table` whose `block_size` is omitted or 0.

    ## Why it is wrong
    The operator does not read the block size off the cache. The default 0 is rejected by both engines, and
    by neither the schema nor the meta kernel.

    ## Use instead
    Pass `block_size` equal to the cache's block axis.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions.

    ## Evidence
    PG03: decode checker and prefill tiling of ops-transformer (CANN 8.5 snapshot); accepted by the meta
    kernel of torch_npu 2.13 (executed).
    """

    code = "KV403"
    name = "paged-without-block-size"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("PG03",)
    families = ("fia", "ifa")
    bad = {
        "omitted": """
            torch_npu.npu_fused_infer_attention_score(  # KV403
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=table,
                actual_seq_lengths_kv=lens,
            )
        """,
        "zero in a dict": """
            opts = dict(num_query_heads=8, softmax_scale=0.1, input_layout="BSH", actual_seq_kvlen=lens)
            opts["block_size"] = 0  # KV403
            opts["block_table"] = rows.to(torch.int32)
            torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
        "in the branch that is paged": """
            opts = {}
            if paged:
                opts["block_table"] = table.to(torch.int32)
                opts["actual_seq_lengths_kv"] = lens
            torch.ops.npu.npu_fused_infer_attention_score(  # KV403
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", **opts)
        """,
    }
    ok = {
        "given": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=bs,
                actual_seq_lengths_kv=lens,
            )
        """,
        "no table, block_size 0": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=None, block_size=0,
            )
        """,
        "table that may be None": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=table,
                block_size=128 if table is not None else 0, actual_seq_lengths_kv=lens,
            )
        """,
        "both in the same branch": """
            opts = {}
            if paged:
                opts["block_table"] = table.to(torch.int32)
                opts["block_size"] = 128
                opts["actual_seq_lengths_kv"] = lens
            torch.ops.npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", **opts)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the block size of a paged call."""
        table, size = call.arg("block_table"), call.arg("block_size")
        if size.given.no:
            return require(
                NO,
                f"{table.name} is given but {size.name} is not, and its default 0 is rejected",
                when=paged(call),
                at=call.place,
                fix=f"Pass {size.name} equal to the block axis of the cache.",
            )
        return require(
            ~size.constant.equals(0) if size.constant.values else size.given,
            f"{table.name} is given but {size.name} is 0, which the operator rejects",
            when=table.present,
            at=size,
            fix=f"Pass {size.name} equal to the block axis of the cache.",
        )
