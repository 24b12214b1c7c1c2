"""KV302: lengths per sequence where running sums are wanted."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    require,
    violated,
)
from kvlint.contract.tri import Fact, Tri
from kvlint.contract.values import LengthForm

from ._common import SPARSE, counts_up, is_sum_of, keys_packed, one_entry, query_packed


class PerSequenceLengths(RunRule):
    """Packed tokens get one length per sequence; the operator wants running sums.

    ## What it does
    Follows how a length list is made (a difference of neighbours of `cu_seqlens`, `torch.diff`, ...) and
    reports per-sequence lengths for packed queries, and for packed keys without a block table. A list whose
    sum is the number of packed tokens holds lengths, too.

    ## Why it is wrong
    In the TND layout entry i is where sequence i ends. Per-sequence lengths put the ends in the wrong
    places: rejected when the last one is not the number of tokens, silently right only for one sequence.

    ## Use instead
    `cu_seqlens[1:].tolist()`, `lens.cumsum(0)`, `list(itertools.accumulate(lens))`. With a block table the
    key lengths alone stay per request.

    ## Ops and versions
    FIA v1 and v2, npu_fusion_attention and its versions (where the tail may be padded with zeros),
    npu_sparse_flash_attention, npu_kv_quant_sparse_flash_attention and the lightning indexers. All
    versions.

    ## Evidence
    D02, D03, FUS-08, SP-12: prefill tiling of ops-transformer (CANN 8.5 snapshot), op-plugin documentation;
    accepted by the meta kernel of torch_npu 2.13 (executed).
    """

    code = "KV302"
    name = "per-sequence-lengths"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("D02", "D03", "FUS-08", "SP-12")
    families = ("fia", "fusion")
    operators = SPARSE
    bad = {
        "difference of neighbours": """
            def run(q, k, v, cu_seqlens):
                lens = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, scale=0.1, input_layout="TND",
                    actual_seq_lengths=lens,  # KV302
                    actual_seq_lengths_kv=lens,  # KV302
                )
        """,
        "torch.diff into a dict": """
            def run(q, k, v):
                opts = {"scale": 0.1}
                opts["actual_seq_qlen"] = torch.diff(cu_seqlens).tolist()  # KV302
                opts["actual_seq_kvlen"] = cu_seqlens[1:].tolist()
                torch_npu.npu_fusion_attention(q, k, v, 8, "TND", **opts)
        """,
        "query side of a paged call": """
            q_lens = torch.diff(cu_seqlens)
            torch.ops.npu.npu_fused_infer_attention_score_v2(
                q, kc, vc, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=q_lens,  # KV302
                actual_seq_kvlen=kv_lens, block_table=table, block_size=128,
            )
        """,
        "the sum of the list is the number of tokens": """
            def run(q, k, v, q_ends, kv_lens):
                total = sum(kv_lens)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k[:total].view(total, 8, 128), v[:total].view(total, 8, 128), num_heads=8,
                    num_key_value_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=q_ends,
                    actual_seq_lengths_kv=kv_lens,  # KV302
                )
        """,
    }
    ok = {
        "running sums in place of an entry": """
            def run(q, k, v, meta):
                meta["lens"] = np.cumsum(meta["lens"])
                ends = meta["lens"].tolist()
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                    actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "changed by a method of their owner": """
            def run(q, k, v, meta):
                total = int(meta.lens.sum())
                rows = k[:total].view(total, 8, 128)
                meta.finish()
                ends = meta.lens.tolist()
                return torch_npu.npu_fused_infer_attention_score(
                    q, rows, v[:total].view(total, 8, 128), num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="TND", actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "summed up through a view": """
            def run(q, k, v, lens):
                total = int(lens.sum())
                rows = k[:total].view(total, 8, 128)
                lens[1:].add_(lens[:-1])
                ends = lens.tolist()
                return torch_npu.npu_fused_infer_attention_score(
                    q, rows, v[:total].view(total, 8, 128), num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="TND", actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "summed up in place": """
            def run(q, k, v, lens):
                total = sum(lens)
                rows = k[:total].view(total, 8, 128)
                for i in range(1, len(lens)):
                    lens[i] += lens[i - 1]
                return torch_npu.npu_fused_infer_attention_score(
                    q, rows, v[:total].view(total, 8, 128), num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="TND", actual_seq_lengths=lens, actual_seq_lengths_kv=lens)
        """,
        "running sums into the same array": """
            def run(q, k, v, lens):
                np.cumsum(lens, out=lens)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                    actual_seq_lengths=lens.tolist(), actual_seq_lengths_kv=lens.tolist())
        """,
        "put back into the same list": """
            def run(q, k, v, lens):
                lens[:] = list(itertools.accumulate(lens))
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                    actual_seq_lengths=lens, actual_seq_lengths_kv=lens)
        """,
        "changed by code that is not visible": """
            def run(q, k, v, lens):
                total = sum(lens)
                rows = k[:total].view(total, 8, 128)
                native.cumulate(lens)
                return torch_npu.npu_fused_infer_attention_score(
                    q, rows, v[:total].view(total, 8, 128), num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="TND", actual_seq_lengths=lens, actual_seq_lengths_kv=lens)
        """,
        "one sequence by a test": """
            def run(q, k, v, lens):
                ends = np.cumsum(lens).tolist()
                if len(lens) == 1:
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                        actual_seq_lengths=lens, actual_seq_lengths_kv=lens)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND",
                    actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "one sequence by its batch size": """
            def run(q, k, v, lens, batch):
                assert batch == 1
                total = sum(lens)
                rows = k[:total].view(total, 8, 128)
                return torch_npu.npu_fused_infer_attention_score(
                    q, rows, v[:total].view(total, 8, 128), num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="TND", actual_seq_lengths=lens, actual_seq_lengths_kv=lens)
        """,
        "running sums": """
            def run(q, k, v, cu_seqlens):
                ends = cu_seqlens[1:].tolist()
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                    actual_seq_lengths_kv=ends,
                )
        """,
        "keys of a paged call": """
            kv_lens = torch.diff(cu_kv)
            torch.ops.npu.npu_fused_infer_attention_score_v2(
                q, kc, vc, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="TND",
                actual_seq_qlen=ends, actual_seq_kvlen=kv_lens, block_table=table, block_size=128,
            )
        """,
        "batched layout": """
            lens = torch.diff(cu_seqlens).tolist()
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSND", actual_seq_lengths=lens,
                actual_seq_lengths_kv=lens,
            )
        """,
        "as many tokens for every sequence": """
            ends = [(i + 1) * 2 for i in range(batch)]
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends,
            )
        """,
        "unknown form": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=lens,
                actual_seq_lengths_kv=lens,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query and key lengths apart."""
        yield _judge(call, call.arg("q_lens"), query_packed(call), call.query_length)
        yield _judge(call, call.arg("kv_lens"), keys_packed(call), call.key_length)


def _judge(call: Call, lengths: Arg, when: Tri, tokens: Fact[Num]) -> Verdict:
    if lengths.is_none.yes or one_entry(lengths):
        return NOT_APPLICABLE
    if counts_up(lengths) and not when.no:
        return PROVED
    if when.yes and tokens.known and is_sum_of(tokens.value, lengths):
        return violated(
            f"there are {tokens.value.label} tokens, so {lengths.name} holds one length per sequence; packed "
            "tokens need running sums",
            lengths,
            tokens.notes,
            f"Pass the running sum of the lengths as {lengths.name}, without the leading 0.",
        )
    return require(
        ~lengths.length_form.equals(LengthForm.PER_SEQUENCE),
        f"{lengths.name} holds one length per sequence, packed tokens need running sums",
        when=when & lengths.present if lengths.length_form.values is None else when,
        at=lengths,
        fix=f"Pass the running sum of the lengths as {lengths.name}, without the leading 0.",
    )
