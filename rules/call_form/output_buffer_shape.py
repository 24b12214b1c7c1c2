"""KV133: the output buffer does not have the shape or dtype of the result."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import Fact, Note, Tri
from kvlint.contract.values import Sequence

from ._common import differ, head_dim, rope


class OutputBufferShape(RunRule):
    """The output buffer does not have the shape or dtype of the result.

    ## What it does
    Compares a preallocated buffer (`out=[attention_out, softmax_lse]` of the FIA `.out` form, `out` of the
    ATB operators) with what the operator writes: its last axis with the head dim of value, and its dtype
    with that of query (int8 with a post-quantisation scale).

    ## Why it is wrong
    The output has the head dim of *value*. A buffer made by `torch.empty_like(query)` fits only where both
    are equal; with 192-wide queries and 128-wide values it is too wide: tiling rejects it, or the caller's
    reshape mixes rows.

    ## Use instead
    `query.new_empty(*query.shape[:-1], value.shape[-1])`, with the axes in the order of the output layout.

    ## Ops and versions
    The `.out` forms of FIA v1 and v2, ATB attention operators with `out`. All versions.

    ## Evidence
    1.1, 1.4, ATB-04: wrapper and meta kernel (14 output shapes executed on torch_npu 2.13), output checks in
    tiling (CANN 8.5 snapshot), ATB operation checks.
    """

    code = "KV133"
    name = "output-buffer-shape"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("1.1", "1.4", "ATB-04")
    families = ("fia", "atb")
    bad = {
        "like query": """
            q = x.view(-1, 16, 192)
            v = y.view(-1, 16, 128)
            out = torch.empty_like(q)
            lse = torch.empty(1, dtype=torch.float32)
            torch_npu.npu_fused_infer_attention_score.out(
                q, q, v, num_heads=16, num_key_value_heads=16, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends, atten_mask=mask, sparse_mode=3,
                out=[out, lse])  # KV133
        """,
        "ATB": """
            q = x.view(-1, 16, 192)
            v = y.view(-1, 16, 128)
            out = torch.empty_like(q)
            torch_npu._npu_flash_attention(
                query=q, key=q, value=v, mask=mask, seq_len=lens, scale_value=0.1, num_heads=16,
                num_kv_heads=16,
                out=out,  # KV133
            )
        """,
    }
    ok = {
        "head dim of value": """
            q = x.view(-1, 16, 192)
            v = y.view(-1, 16, 128)
            out = q.new_empty(q.shape[0], 16, v.shape[-1])
            lse = torch.empty(1, dtype=torch.float32)
            torch_npu.npu_fused_infer_attention_score.out(
                q, q, v, num_heads=16, num_key_value_heads=16, scale=0.1, input_layout="TND",
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends, atten_mask=mask, sparse_mode=3,
                out=[out, lse])
        """,
        "equal head dims": """
            q = x.view(-1, 16, 128)
            out = torch.empty_like(q)
            torch_npu._npu_flash_attention(
                query=q, key=q, value=q, mask=mask, seq_len=lens, scale_value=0.1, num_heads=16,
                num_kv_heads=16, out=out)
        """,
        "unknown buffer": """
            torch_npu.npu_fused_infer_attention_score.out(
                q, k, v, num_heads=16, num_key_value_heads=16, scale=0.1, input_layout="BSH",
                out=[output, lse])
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Compares the last axis, the head axis and the dtype."""
        buffer = _buffer(call)
        if buffer is None:
            yield NOT_APPLICABLE
            return
        if call.operator.family == "fia":
            last, what = _fia_last(call)
        else:
            last, what = _atb_last(call)
        own = buffer.dim(-1)
        yield require(
            ~differ(own, last),
            f"the last axis of the output buffer is {_label(own)}, but {what} is {_label(last)}",
            at=buffer,
            fix="Size the last axis by value, not by query.",
        )
        yield _dtype(call, buffer)


def _buffer(call: Call) -> Arg | None:
    """The buffer of the attention output."""
    arg = call.arg("out")
    if arg.given.no or arg.param.name not in ("out", "attention_out", "output"):
        return None
    if isinstance(arg.value, Sequence) and arg.value.items:
        return Arg(call, arg.param, arg.value.items[0], arg.place)
    return arg


def _fia_last(call: Call) -> tuple[Fact[Num], str]:
    layout = call.layout
    if not layout.known:
        return Fact(None, layout.notes), "the output"
    value_dim = head_dim(call, call.arg("value"))
    if layout.value != "BSH":
        return value_dim, "the head dim of value"
    if not (value_dim.known and call.heads.known):
        return Fact(None, (*value_dim.notes, *call.heads.notes)), "the output"
    return Fact.of(value_dim.value * call.heads.value, *value_dim.notes), "heads times the head dim of value"


def _atb_last(call: Call) -> tuple[Fact[Num], str]:
    wide = call.named("mla_vheadsize")
    if not wide.given.no:
        return wide.number, "mla_vheadsize"
    value = call.arg("value") if call.has("value") else call.arg("value_cache")
    query = call.arg("query")
    if not call.has("value") and not call.has("value_cache"):
        return Fact(None, (Note("this operator has no value"),)), "the output"
    ranks = (value.rank, query.rank)
    if all(rank.known for rank in ranks) and (call.has("value_cache") or ranks[0].value == ranks[1].value):
        rank = _buffer_rank(call)
        if rank == 3 and (ranks[0].value == (4 if call.has("value_cache") and not call.has("value") else 3)):
            return value.dim(-1), "the head dim of value"
    return Fact(None, (*value.shape.notes, *query.shape.notes)), "the output"


def _buffer_rank(call: Call) -> int | None:
    buffer = _buffer(call)
    return buffer.rank.get(None) if buffer is not None else None


def _dtype(call: Call, buffer: Arg) -> Verdict:
    query = call.arg("query")
    mine, theirs = buffer.dtype, query.dtype
    quantised = call.arg("out_quant_scale").present
    if call.named("out_dtype").given.yes or call.operator.family != "fia":
        return NOT_APPLICABLE
    if not mine.known or quantised.unknown:
        return undecided(*(quantised.notes if quantised.unknown else mine.notes))
    if quantised.yes:
        return require(
            mine.equals("int8"),
            f"the output buffer is {mine.value}, but the post-quantised output is int8",
            at=buffer,
        )
    if not theirs.known or theirs.value not in ("float16", "bfloat16") or rope(call).unknown:
        return undecided(Tri(None, theirs.notes))
    return require(
        mine.equals(theirs.value),
        f"the output buffer is {mine.value}, but query and output are {theirs.value}",
        at=buffer,
        fix="Give the buffer the dtype of query.",
    )


def _label(fact: Fact[Num]) -> str:
    return fact.value.label if fact.known else "?"
