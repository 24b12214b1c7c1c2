"""KV224: a decode mask that is not one row per batch."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import NO, YES, Tri

from ._common import SIDE, constant_dim, constant_length, mode_among


class DecodeMaskRows(RunRule):
    """The mask of a one-token call is not (B, ..., S2).

    ## What it does
    For one query token in a layout with a batch axis: compares the first axis of `atten_mask` with the
    batch size, and reports the 2048 x 2048 mask.

    ## Why it is wrong
    The decode engine reads one mask row per batch, so the first axis must be the batch size. The forms (1,
    1, 1, S2) and (1, 1, S2), which the documentation lists, and the compressed mask are rejected for any
    other batch size.

    ## Use instead
    No mask, with the number of valid keys in the key lengths. If keys in between are to be hidden: (B, 1,
    1, S2).

    ## Ops and versions
    FIA v1 and v2 with `sparse_mode` 0, 1 or 2 and without separate rope, npu_incre_flash_attention. All
    versions. Modes 3 and 4 are judged by `decode-compressed-mask`.

    ## Evidence
    C15, C16, IFA-03: decode checker of ops-transformer (CANN 8.5 snapshot), which the op-plugin
    documentation contradicts.
    """

    code = "KV224"
    name = "decode-mask-rows"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("C15", "C16", "IFA-03")
    families = ("fia", "ifa")
    bad = {
        "one row for all": """
            q = torch.zeros(4, 1, 1024, dtype=torch.float16)
            torch_npu.npu_incre_flash_attention(
                q, kc, vc, num_heads=8, scale_value=0.1, input_layout="BSH", actual_seq_lengths=lens,
                atten_mask=torch.zeros(1, 1, 1, 4096, dtype=torch.bool),  # KV224
            )
        """,
        "compressed mask": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            opts = dict(num_query_heads=8, softmax_scale=0.1, input_layout="BSND", sparse_mode=2)
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(b, 1, 8, 128), kc, vc, actual_seq_kvlen=lens,
                atten_mask=hidden,  # KV224
                **opts)
        """,
    }
    ok = {
        "one row per batch": """
            q = torch.zeros(4, 1, 1024, dtype=torch.float16)
            torch_npu.npu_incre_flash_attention(
                q, kc, vc, num_heads=8, scale_value=0.1, input_layout="BSH", actual_seq_lengths=lens,
                atten_mask=torch.zeros(4, 1, 1, 4096, dtype=torch.bool),
            )
        """,
        "no mask": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(b, 1, 8, 128), kc, vc, num_query_heads=8, softmax_scale=0.1, input_layout="BSND",
                actual_seq_kvlen=lens)
        """,
        "unknown batch": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q.view(b, 1, 8, 128), kc, vc, num_query_heads=8, softmax_scale=0.1, input_layout="BSND",
                actual_seq_kvlen=lens, atten_mask=torch.zeros(1, 1, 1, 4096, dtype=torch.bool))
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the first axis with the batch size."""
        mask = call.arg("mask")
        when = mask.present
        if call.operator.family == "fia":
            when = when & call.single_token & call.decode_engine & ~call.rope & mode_among(call, 0, 1, 2)
        if when.no:
            return NOT_APPLICABLE
        rows, batch = constant_dim(mask, 0), constant_length(call.batch)
        compressed = (rows, constant_dim(mask, 1)) == (SIDE, SIDE) and mask.rank.equals(2).yes
        wrong = (compressed and batch != SIDE) or (None not in (rows, batch) and rows != batch)
        if not wrong and (rows is None or batch is None):
            return undecided(Tri(None, (*mask.shape.notes, *call.batch.notes)))
        return require(
            NO if wrong else YES,
            f"{mask.name} has {rows} rows, one per batch ({batch if batch is not None else 'B'}) are needed",
            when=when,
            at=mask,
            notes=mask.shape.notes,
            fix="Drop the mask and pass the key lengths, or pass one row per batch: (B, 1, 1, S2).",
        )
