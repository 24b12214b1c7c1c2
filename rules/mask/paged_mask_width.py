"""KV241: a mask over a paged cache that ends at the longest sequence."""

from __future__ import annotations

from kvlint.contract.call import Arg, Call
from kvlint.contract.keys import origin, within
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, undecided, violated
from kvlint.contract.tri import YES, Tri
from kvlint.contract.values import Sequence, Tensor, Unknown

from ._common import mode_among


class PagedMaskWidth(RunRule):
    """A full mask over a paged cache is only as wide as the longest sequence.

    ## What it does
    Reports a mask for `sparse_mode` 0 or 1 whose last axis is the maximum of the very key lengths that a call
    with a block table gets.

    ## Why it is wrong
    The keys of a paged cache are counted in whole blocks: the mask must reach to the end of the last block,
    for one query token to the end of the block table. A narrower one is rejected, unless the longest sequence
    happens to fill its last block.

    ## Use instead
    `block_table.shape[1] * block_size` columns.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention, with a block table. All versions.

    ## Evidence
    C07, C15, PG24: decode checker and prefill tiling of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation.
    """

    code = "KV241"
    name = "paged-mask-width"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("C07", "C15", "PG24", "IFA-03")
    families = ("fia", "ifa")
    bad = {
        "longest of the list": """
            def decode(q, kc, vc, table, lens):
                mask = torch.zeros(len(lens), 1, max(lens), dtype=torch.bool)
                torch_npu.npu_fused_infer_attention_score(
                    q.view(-1, 1, 1024), kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="BSH", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                    atten_mask=mask,  # KV241
                )
        """,
        "longest of a tensor": """
            def decode(q, kc, vc, table, lens):
                width = int(lens.max())
                torch_npu.npu_incre_flash_attention(
                    q, kc, vc, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                    block_table=table, block_size=128, actual_seq_lengths=lens.tolist(),
                    atten_mask=torch.zeros(lens.shape[0], 1, 1, width, dtype=torch.bool),  # KV241
                )
        """,
    }
    ok = {
        "rounded in place": """
            def decode(q, kc, vc, table, lens):
                native.round_up(lens, 128)
                mask = torch.zeros(len(lens), 1, max(lens), dtype=torch.bool)
                torch_npu.npu_fused_infer_attention_score(
                    q.view(-1, 1, 1024), kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="BSH", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                    atten_mask=mask)
        """,
        "whole blocks by a test": """
            def decode(q, kc, vc, table, lens):
                assert max(lens) % 128 == 0
                mask = torch.zeros(len(lens), 1, max(lens), dtype=torch.bool)
                torch_npu.npu_fused_infer_attention_score(
                    q.view(-1, 1, 1024), kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="BSH", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                    atten_mask=mask)
        """,
        "whole table": """
            def decode(q, kc, vc, table, lens):
                mask = torch.zeros(len(lens), 1, table.shape[1] * 128, dtype=torch.bool)
                torch_npu.npu_fused_infer_attention_score(
                    q.view(-1, 1, 1024), kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="BSH", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                    atten_mask=mask)
        """,
        "contiguous cache": """
            def decode(q, kc, vc, lens):
                mask = torch.zeros(len(lens), 1, max(lens), dtype=torch.bool)
                torch_npu.npu_fused_infer_attention_score(
                    q.view(-1, 1, 1024), kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="BSH", actual_seq_lengths_kv=lens, atten_mask=mask)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the last axis with the longest of the key lengths."""
        mask, lengths = call.arg("mask"), call.arg("kv_lens")
        paged = call.arg("block_table").meant
        full = YES if call.operator.family == "ifa" else mode_among(call, 0, 1)
        if mask.is_none.yes or paged.no or full.no:
            return NOT_APPLICABLE
        width = mask.dim(-1)
        if not width.known:
            return undecided(Tri(None, width.notes))
        longest = _is_longest(width.value, lengths) and not _may_be_aligned(lengths)
        if not (paged.yes and full.yes and longest):
            return undecided(full, paged, Tri(None, width.notes))
        return violated(
            f"{mask.name} is {width.value.label} wide, but the keys of a paged cache count in whole blocks",
            mask,
            width.notes,
            "Make it block_table.shape[1] * block_size wide.",
        )


def _may_be_aligned(lengths: Arg) -> bool:
    """Whether the lengths may be whole blocks: rounded in place, or by a test of a remainder."""
    rewritten = lengths.call.rewritten
    if any(within(getattr(value, "key", None), rewritten) for value in lengths.options):
        return True
    return any("%" in cond.label for cond in lengths.call.assumed)


def _is_longest(width: Num, lengths: Arg) -> bool:
    """Whether a width is the maximum of the very lengths that are passed."""
    atom = width.single
    value = lengths.options[0] if len(lengths.options) == 1 else None
    if atom is None or not isinstance(value, (Unknown, Tensor, Sequence)):
        return False
    key = atom.key
    if isinstance(key, tuple) and len(key) == 2 and key[0] == "item":
        key = key[1]
    if not isinstance(key, tuple) or len(key) != 2:
        return False
    return key[0] in ("max", "pymax", ("max",)) and origin(key[1]) == origin(value.key)
