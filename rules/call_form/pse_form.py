"""KV144: the position bias does not have the dtype or shape of the scores."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    require,
    undecided,
    violated,
)
from kvlint.contract.tri import Tri

from ._common import INFERENCE, decode_engine, differ, paged, whole


class PseForm(RunRule):
    """The position bias does not have the dtype or shape of the scores.

    ## What it does
    Compares `pse_shift` with query: its dtype (float16 for an int8 query), and for constant sizes four axes:
    1 or the batch, the number of heads, at least the query length, at least the key length.

    ## Why it is wrong
    Tiling rejects the call. The bias is added after scaling: scale * QK^T + pse_shift. npu_fusion_attention
    v1 and v3 add it before, so the same tensor is not portable.

    ## Use instead
    Cast the bias to the dtype of query and expand it to (1, heads, queries, keys).

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention. All versions.

    ## Evidence
    H09, H10, H23: tiling of both engines in ops-transformer (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV144"
    name = "pse-form"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("H09", "H10", "H23")
    families = INFERENCE
    bad = {
        "float32": """
            bias = torch.zeros(1, 8, 16, 16, dtype=torch.float32)
            torch_npu.npu_fused_infer_attention_score(
                x.half(), k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                pse_shift=bias,  # KV144
            )
        """,
        "other heads": """
            torch_npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                pse_shift=x.view(1, 16, 64, 64),  # KV144
            )
        """,
        "no head axis": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                pse_shift=x.view(64, 64),  # KV144
            )
        """,
    }
    ok = {
        "fits": """
            bias = torch.zeros(1, 8, 16, 16, dtype=torch.float16)
            torch_npu.npu_fused_infer_attention_score(
                x.half().view(2, 16, 1024), k, v, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", pse_shift=bias)
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH", pse_shift=bias)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges dtype and shape apart."""
        bias, query = call.arg("pse_shift"), call.arg("query")
        if not bias.present.yes:
            yield NOT_APPLICABLE if bias.present.no else undecided(bias.present)
            return
        mine, theirs = bias.dtype, query.dtype
        wanted = theirs.map(lambda name: "float16" if name == "int8" else name)
        same = (
            mine.equals(wanted.value)
            if mine.known and wanted.known
            else Tri(None, (*mine.notes, *theirs.notes))
        )
        yield require(
            same,
            f"{bias.name} is {mine.get('?')}, but query is {theirs.get('?')}",
            at=bias,
            fix=f"Cast it to {wanted.get('the dtype of query')}.",
        )
        rank = bias.rank
        yield require(rank.equals(4), f"{bias.name} has {rank.get('?')} axes instead of 4", at=bias)
        if rank.get(0) != 4:
            return
        yield require(
            ~differ(bias.dim(1), call.heads),
            f"{bias.name} has {_label(whole(bias.dim(1)))} heads, query has {_label(whole(call.heads))}",
            at=bias,
        )
        batch, first = whole(call.batch), whole(bias.dim(0))
        if batch is not None and first is not None and first not in (1, batch):
            yield violated(
                f"{bias.name} is for {first} sequences, the batch is {batch}", bias, bias.shape.notes
            )
        rows, queries = whole(bias.dim(2)), whole(call.query_length)
        if rows is not None and queries is not None and rows < queries and not decode_engine(call).yes:
            yield violated(f"{bias.name} has {rows} rows for {queries} queries", bias, bias.shape.notes)
        columns, keys = whole(bias.dim(3)), whole(call.key_length)
        if columns is not None and keys is not None and columns < keys and paged(call).no:
            yield violated(f"{bias.name} has {columns} columns for {keys} keys", bias, bias.shape.notes)


def _label(size: int | None) -> str:
    return "other" if size is None else str(size)
