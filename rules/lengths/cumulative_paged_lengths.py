"""KV303: running sums as key lengths of a paged call."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    undecided,
    violated,
)
from kvlint.contract.tri import Tri
from kvlint.contract.values import LengthForm

from ._common import SPARSE, cumulative, keys_paged, one_entry, query_packed


class CumulativePagedLengths(RunRule):
    """Key lengths are running sums although the keys are read through a block table.

    ## What it does
    Reports key lengths that are made by `cumsum`, `accumulate` or from `cu_seqlens`, or that are the very
    list of query ends, in a call with a block table.

    ## Why it is wrong
    With a block table entry i is the number of keys of request i, in TND too, in prefill and in decode. A
    running sum makes every request but the first read on into blocks that are not its own: silently, unless
    the sum exceeds the table. Query ends as key lengths also cut off the cached prefix.

    ## Use instead
    One length per request: `kv_lens.tolist()`. The switch is the block table, not the phase: without one,
    packed keys do take running sums.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention, npu_sparse_flash_attention,
    npu_kv_quant_sparse_flash_attention and the lightning indexers (`PA_BSND`). All versions.

    ## Evidence
    D04, D05, SP-12: prefill tiling and decode checker of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation, fixes in vllm-ascend and cann-recipes-infer.
    """

    code = "KV303"
    name = "cumulative-paged-lengths"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("D04", "D05", "SP-12")
    families = ("fia", "ifa")
    operators = SPARSE
    bad = {
        "cumsum": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, kc, vc, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends,
                actual_seq_kvlen=kv_lens.cumsum(0),  # KV303
                block_table=table, block_size=128,
            )
        """,
        "query ends for both": """
            def run(q, k, v):
                opts = dict(num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND", block_size=128)
                ends = q_start[1:].tolist()
                torch.ops.npu.npu_fused_infer_attention_score(
                    q, kc, vc, block_table=table, actual_seq_lengths=ends,
                    actual_seq_lengths_kv=ends,  # KV303
                    **opts)
        """,
        "indexer, prefill branch only": """
            if prefill:
                k_lens = torch.cumsum(kv_len, dim=0).to(torch.int32)
            else:
                k_lens = kv_len.to(torch.int32)
            torch_npu.npu_lightning_indexer(
                q, k_pool, w, actual_seq_lengths_query=ends,
                actual_seq_lengths_key=k_lens,  # KV303
                block_table=table, layout_query="TND", layout_key="PA_BSND", sparse_count=2048, sparse_mode=3,
            )
        """,
        "decode operator": """
            torch_npu.npu_incre_flash_attention(
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=list(itertools.accumulate(lens)),  # KV303
                block_table=table, block_size=128,
            )
        """,
    }
    ok = {
        "per request": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, kc, vc, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=q_lens.cumsum(0), actual_seq_kvlen=kv_lens, block_table=table, block_size=128,
            )
        """,
        "running sums without a block table": """
            ends = lens.cumsum(0)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=ends,
            )
        """,
        "form by the same test as the table": """
            paged = table is not None
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=kv_lens if paged else kv_lens.cumsum(0),
                block_table=table if paged else None, block_size=128 if paged else 0,
            )
        """,
        "one request": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=[n], actual_seq_lengths_kv=[n], block_table=table, block_size=128,
            )
        """,
        "unknown form": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                actual_seq_lengths=meta.q_ends, actual_seq_lengths_kv=meta.kv_lens, block_table=table,
                block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the key lengths of a paged call."""
        keys, queries = call.arg("kv_lens"), call.arg("q_lens")
        paged = keys_paged(call)
        if paged.no or keys.is_none.yes or one_entry(keys):
            return NOT_APPLICABLE
        table = call.arg("block_table")
        sums = cumulative(keys)
        shared = keys.same_as(queries) & query_packed(call)
        if keys.integers.known and len(set(keys.integers.value)) < 2:
            shared = Tri(None, keys.integers.notes)
        if (sums.yes or shared.yes) and paged.yes:
            what = "holds running sums" if sums.yes else f"is the list of query ends ({queries.name})"
            return violated(
                f"{keys.name} {what}, but with {table.name} each entry is the number of keys of one request",
                keys,
                (*(sums.notes if sums.yes else shared.notes), *paged.notes),
                f"Pass one key length per request as {keys.name}.",
            )
        if keys.length_form.equals(LengthForm.PER_SEQUENCE).yes:
            return PROVED
        return undecided(*(part for part in (paged, sums) if part.unknown))
