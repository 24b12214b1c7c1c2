"""KV332: cumulative query lengths that are summed from context lengths."""

from __future__ import annotations

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require, undecided
from kvlint.contract.tri import NO, YES, Tri, unknown
from kvlint.contract.values import Absent, Sequence, Tensor, Value


class QueryEndsFromContexts(Rule):
    """The running sum of the query lengths is taken over lengths that include the cached tokens.

    ## What it does
    Reports query lengths that are ``cumsum(x)`` where ``x`` is also passed as the key lengths and is built as
    a sum (cached plus new tokens).

    ## Why it is wrong
    With a cached prefix or chunked prefill a request brings fewer query tokens than it has keys. The ends
    then point past the packed query: rows of one request are computed with the keys of another, or the
    call is rejected because the last end is not T.

    ## Use instead
    ``cumsum`` of the new tokens for the query, the sum of both for the keys.

    ## Ops and versions
    FIA with TND, sparse flash attention and the lightning indexer with layout_query TND.

    ## Evidence
    D02 (query ends: last entry equals T), D04 (paged key lengths per request).
    """

    code = "KV332"
    name = "query-ends-from-contexts"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("D02", "D04")
    families = ("fia", "sparse", "indexer")
    bad = {
        "sum of cached and new": """
            fresh = torch.tensor(new_tokens, dtype=torch.int32)
            context = torch.tensor(cached_tokens, dtype=torch.int32) + fresh
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picked, 0.1, block_table=table,
                actual_seq_lengths_query=torch.cumsum(context, dim=0, dtype=torch.int32).npu(),  # KV332
                actual_seq_lengths_kv=context.npu(), query_rope=qr, key_rope=kr, layout_query="TND",
                layout_kv="PA_BSND", sparse_mode=3, attention_mode=2)
        """,
    }
    ok = {
        "sum of the new tokens": """
            fresh = torch.tensor(new_tokens, dtype=torch.int32)
            context = torch.tensor(cached_tokens, dtype=torch.int32) + fresh
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picked, 0.1, block_table=table,
                actual_seq_lengths_query=torch.cumsum(fresh, dim=0, dtype=torch.int32).npu(),
                actual_seq_lengths_kv=context.npu(), query_rope=qr, key_rope=kr, layout_query="TND",
                layout_kv="PA_BSND", sparse_mode=3, attention_mode=2)
        """,
        "prefill without a prefix": """
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picked, 0.1, block_table=table,
                actual_seq_lengths_query=torch.cumsum(lens, dim=0, dtype=torch.int32),
                actual_seq_lengths_kv=lens, query_rope=qr, key_rope=kr, layout_query="TND",
                layout_kv="PA_BSND", sparse_mode=3, attention_mode=2)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares what the query ends are summed from with the key lengths."""
        if call.paged.no:
            return NOT_APPLICABLE
        ends, lengths = call.arg("q_lens"), call.arg("kv_lens")
        if ends.is_none.yes or lengths.is_none.yes:
            return NOT_APPLICABLE
        if isinstance(lengths.value, Absent):
            return undecided(lengths.is_none)
        return require(
            ~lengths.test(lambda value: _summed_from(ends, getattr(value, "key", None))),
            f"{ends.name} sums the key lengths, which include the cached tokens",
            when=call.arg("block_table").given,
            at=ends,
            fix="Sum the number of new tokens of each request.",
        )


def _summed_from(ends: Arg, key: object) -> Tri:
    """Whether every option is the running sum of the value with this identity, itself a sum."""
    context = _plain(key)
    is_sum = isinstance(context, tuple) and bool(context) and context[0] == "+"

    def question(value: Value) -> Tri:
        if isinstance(value, (Tensor, Sequence)):
            inner = _plain(value.key)
            if isinstance(inner, tuple) and len(inner) == 2 and inner[0] == ("cumsum",):
                if _plain(inner[1]) is not context:
                    return NO
                # What is summed is what is read: right when nothing was cached before.
                return YES if is_sum else unknown("the key lengths may include cached tokens", value.place)
            if value.content.values is not None:
                return NO
        return unknown(f"how {ends.name} is made is not known", value.place)

    return ends.test(question)


def _plain(key: object) -> object:
    """An identity without the steps that keep the elements."""
    while (
        isinstance(key, tuple)
        and len(key) == 2
        and (key[0] == "tolist" or (isinstance(key[0], tuple) and key[0][:1] == ("to",)))
    ):
        key = key[1]
    return key
