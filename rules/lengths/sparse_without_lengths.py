"""KV305: a sparse-attention call without the lengths its layout needs."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO, Tri

from ._common import SPARSE, query_packed


class SparseWithoutLengths(RunRule):
    """A sparse-attention operator or indexer lacks the lengths that its layout needs.

    ## What it does
    Reports omitted or None query lengths with `layout_query="TND"`, and omitted or None key lengths with a
    key layout of `"TND"` or `"PA_BSND"`.

    ## Why it is wrong
    Packed tokens and paged keys have no other way to say where a sequence ends. Tiling rejects the call,
    the meta kernel accepts it.

    ## Use instead
    int32 device tensors: running sums for packed tokens, one length per request for `PA_BSND`. The indexer
    calls the key lengths `actual_seq_lengths_key`, the attention operators `actual_seq_lengths_kv`.

    ## Ops and versions
    npu_lightning_indexer, npu_quant_lightning_indexer, npu_sparse_flash_attention,
    npu_kv_quant_sparse_flash_attention. All versions.

    ## Evidence
    SP-12: op-plugin documentation; accepted by the meta kernel of torch_npu 2.13 (executed).
    """

    code = "KV305"
    name = "sparse-without-lengths"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("SP-12",)
    operators = SPARSE
    bad = {
        "paged keys": """
            torch_npu.npu_sparse_flash_attention(  # KV305
                q, kc, kc, picked, 0.1, query_rope=qr, key_rope=kr, block_table=table, layout_query="BSND",
                layout_kv="PA_BSND", attention_mode=2, sparse_mode=3,
            )
        """,
        "packed queries of the indexer": """
            opts = {"layout_query": "TND", "layout_key": "PA_BSND", "sparse_count": 2048}
            opts["actual_seq_lengths_key"] = kv_lens
            torch.ops.npu.npu_lightning_indexer(q, k, w, block_table=table, **opts)  # KV305
        """,
    }
    ok = {
        "both": """
            torch_npu.npu_sparse_flash_attention(
                q, kc, kc, picked, 0.1, query_rope=qr, key_rope=kr, block_table=table, layout_query="TND",
                layout_kv="PA_BSND", attention_mode=2, sparse_mode=3, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens,
            )
        """,
        "batched": """
            torch_npu.npu_lightning_indexer(
                q, k, w, layout_query="BSND", layout_key="BSND", sparse_count=2048
            )
        """,
        "layouts from elsewhere": """
            torch_npu.npu_lightning_indexer(
                q, k, w, layout_query=meta.layout, layout_key=meta.key_layout, sparse_count=2048)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query and key lengths apart."""
        keys = call.arg("layout_kv").constant.among(("TND", "PA_BSND"))
        yield _judge(call, call.arg("q_lens"), call.arg("layout_q"), query_packed(call))
        yield _judge(call, call.arg("kv_lens"), call.arg("layout_kv"), keys)


def _judge(call: Call, lengths: Arg, layout: Arg, when: Tri) -> Verdict:
    missing = lengths.given.no
    return require(
        NO if missing else lengths.present,
        f"{layout.name}={layout.constant.get('TND')!r} needs {lengths.name}, "
        f"which is {'not passed' if missing else 'None'}",
        when=when,
        at=call.place if missing else lengths,
        fix=f"Pass {lengths.name} as an int32 tensor.",
    )
