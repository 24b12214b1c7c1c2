"""KV119: the numbers of query heads and KV heads are exchanged."""

from __future__ import annotations

import re

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    Rule,
    Severity,
    Verdict,
    undecided,
    violated,
)

from ._common import whole

KV_WORD = re.compile(r"(^|_)(n?kv|kvh|key_value)(_|$|h)")
# How many query heads share a KV head is no number of KV heads.
RATIO = re.compile(r"(^|_)(per|groups?|ratio|reps?|repeats?)(_|$)|queries|q_heads")


class SwappedHeadCounts(Rule):
    """The numbers of query heads and KV heads are exchanged.

    ## What it does
    Reports constant counts with more KV heads than query heads, and a call where the name of the value given
    for the query heads says kv (`self.num_kv_heads`) while that for the KV heads does not.

    ## Why it is wrong
    `_npu_paged_attention`, `_npu_paged_attention_mla`, `_npu_paged_attention_splitfuse` and
    `_npu_flash_attention_qlens` take num_kv_heads *before* num_heads, `_npu_flash_attention` and
    `_npu_flash_attention_unpad` after it. A positional mix-up has the right types; the library rejects it for
    grouped-query models only, so multi-head models hide it.

    ## Use instead
    Pass both by name.

    ## Ops and versions
    ATB attention operators, FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention.

    ## Evidence
    ATB-01, B07: signatures of the ATB operators, ATB operation checks.
    """

    code = "KV119"
    name = "swapped-head-counts"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("ATB-01", "B07")
    families = ("atb", "fia", "pfa", "ifa")
    bad = {
        "query count first": """
            class Attention:
                def forward(self, q, kc, vc, table, lens, out):
                    torch_npu._npu_paged_attention(
                        q, kc, vc,
                        self.num_heads,  # KV119
                        self.num_kv_heads, self.scale, table, lens, out)
        """,
        "constants": """
            torch_npu._npu_flash_attention(
                q, k, v, mask, lens, 0.1, 8,
                32,  # KV119
                out)
        """,
        "a count that falls back to the other": """
            class Attention:
                def __init__(self, num_heads, num_kv_heads=None):
                    self.num_heads = num_heads
                    self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads

                def forward(self, q, kc, vc, table, lens, out):
                    torch_npu._npu_paged_attention(
                        q, kc, vc,
                        self.num_heads,  # KV119
                        self.num_kv_heads, 0.1, table, lens, out)
        """,
    }
    ok = {
        "query heads for each KV head": """
            class Attention:
                def forward(self, q, kc, vc, table, lens, out):
                    torch_npu._npu_paged_attention(
                        query=q, key_cache=kc, value_cache=vc, num_kv_heads=self.shared,
                        num_heads=self.num_queries_per_kv, scale_value=0.1, block_table=table,
                        context_lens=lens, out=out)
        """,
        "KV count first": """
            class Attention:
                def forward(self, q, kc, vc, table, lens, out):
                    torch_npu._npu_paged_attention(
                        q, kc, vc, self.num_kv_heads, self.num_heads, self.scale, table, lens, out)
        """,
        "by name": """
            torch_npu._npu_paged_attention(
                query=q, key_cache=kc, value_cache=vc, num_heads=32, num_kv_heads=8, scale_value=0.1,
                block_table=table, context_lens=lens, out=out)
        """,
        "names that do not tell": """
            torch_npu._npu_flash_attention(q, k, v, mask, lens, 0.1, n, m, out)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares constants, then names."""
        heads, kv = call.arg("q_heads"), call.arg("kv_heads")
        if not heads.given.yes or not kv.given.yes:
            return NOT_APPLICABLE
        many, few = whole(heads.number), whole(kv.number)
        if many is not None and few is not None:
            if many < few:
                return violated(
                    f"{kv.name}={few} is more than {heads.name}={many}",
                    kv,
                    (*heads.number.notes, *kv.number.notes),
                    fix="Exchange them.",
                )
            return PROVED
        if few == 1 or (heads.number.known and kv.number.known and heads.number.value == kv.number.value):
            # One KV head is never too many, and equal counts can be exchanged.
            return PROVED
        # What the values are called where they come from, or what the call itself calls them.
        for query_name, kv_name in ((_label(heads), _label(kv)), (heads.written.lower(), kv.written.lower())):
            if not query_name or not kv_name or RATIO.search(query_name) or RATIO.search(kv_name):
                continue
            if KV_WORD.search(query_name) and not KV_WORD.search(kv_name):
                return violated(
                    f"{kv.name} gets {kv_name} and {heads.name} gets {query_name}",
                    kv,
                    (*heads.number.notes, *kv.number.notes),
                    fix="Exchange them, or pass both by name.",
                )
            if KV_WORD.search(kv_name) and not KV_WORD.search(query_name):
                break
        return undecided(*heads.number.notes, *kv.number.notes)


def _label(arg: Arg) -> str:
    """The name of the value, without the object it is read from."""
    number = arg.number
    atom = number.value.single if number.known else None
    return atom.label.split(".")[-1].lower() if atom is not None and atom.declared else ""
