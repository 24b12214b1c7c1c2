"""KV307: running sums in a layout with a batch axis."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.tri import NO, YES, Tri

from ._common import cumulative, keys_paged, one_entry

BATCHED = ("BSH", "BSND", "BNSD", "SBH")


class CumulativeBatchedLengths(RunRule):
    """Lengths are running sums although the layout has a batch axis.

    ## What it does
    Reports key lengths, and query lengths of a call with several query tokens, that are running sums while
    the layout is BSH, BSND or BNSD.

    ## Why it is wrong
    With a batch axis entry i is the length of batch i. A running sum exceeds the axis and is rejected, or
    is taken as a length: padding and stale cache rows are attended to.

    ## Use instead
    One length per batch. Running sums belong to the TND layout.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention. All versions. Query lengths of a
    one-token call are ignored by the operator and not judged.

    ## Evidence
    D05, D06: prefill and decode tiling of ops-transformer (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV307"
    name = "cumulative-batched-lengths"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("D05", "D06")
    families = ("fia", "pfa", "ifa")
    bad = {
        "keys of a contiguous cache": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, scale=0.1, input_layout="BNSD",
                actual_seq_lengths_kv=kv_lens.cumsum(0),  # KV307
            )
        """,
        "prefill": """
            def run(q, k, v):
                opts = dict(num_heads=8, scale_value=0.1, input_layout="BSH")
                opts["actual_seq_lengths_kv"] = list(itertools.accumulate(lens))  # KV307
                torch.ops.npu.npu_prompt_flash_attention(q, k, v, **opts)
        """,
        "queries of several tokens": """
            q = torch.zeros(2, 16, 1024, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="BSH",
                actual_seq_qlen=torch.cumsum(lens, 0),  # KV307
                actual_seq_kvlen=lens,
            )
        """,
    }
    ok = {
        "per batch": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, scale=0.1, input_layout="BNSD", actual_seq_lengths_kv=kv_lens)
        """,
        "layout and form by the same test": """
            packed = meta.packed
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND" if packed else "BSND",
                actual_seq_lengths=lens.cumsum(0) if packed else lens,
                actual_seq_lengths_kv=lens.cumsum(0) if packed else lens,
            )
        """,
        "query ends of a decode call, ignored": """
            torch_npu.npu_fused_infer_attention_score(
                q, kc, vc, num_heads=8, scale=0.1, input_layout="BNSD", actual_seq_lengths=ends.cumsum(0),
                actual_seq_lengths_kv=kv_lens,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query and key lengths apart."""
        batched = call.query_layout.among(BATCHED)
        if keys_paged(call).yes:
            # The rule about block tables reports these.
            keys: Tri = NO
        else:
            keys = YES
        yield _judge(call.arg("kv_lens"), batched & keys)
        if call.operator.family != "ifa":
            yield _judge(call.arg("q_lens"), batched & ~call.single_token)


def _judge(lengths: Arg, when: Tri) -> Verdict:
    if lengths.is_none.yes or one_entry(lengths):
        return NOT_APPLICABLE
    return require(
        ~cumulative(lengths),
        f"{lengths.name} holds running sums, a layout with a batch axis takes one length per batch",
        when=when,
        at=lengths,
        fix=f"Pass the length of each batch as {lengths.name}, or use the TND layout.",
    )
