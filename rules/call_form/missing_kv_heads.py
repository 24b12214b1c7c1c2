"""KV104: the number of KV heads is left out although it differs from the number of query heads."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require, violated
from kvlint.contract.tri import NO, Fact, Note, Tri, tri

from ._common import decode_engine, paged, rescaled


class MissingKvHeads(Rule):
    """The number of KV heads is left out although it differs from the number of query heads.

    ## What it does
    Compares the head axis of key (for BSH its width) with the number of query heads where
    `num_key_value_heads` is omitted or 0, which both mean "as many as query heads". Two quantities the author
    keeps under different names (`heads`, `kv_heads`) count as different: code that is right only when they
    happen to be equal is wrong for grouped-query models. It also reports the omission for a packed layout
    with a 3-D paged cache, where the argument is needed even for plain multi-head attention.

    ## Why it is wrong
    Prefill tiling rejects the shapes. The decode engine does not compare them: an unpaged BNSD or BSND decode
    call, a 4-D paged cache with BNSD and a 3-D one with BSND or BSH run, read the cache with the wrong head
    stride and give wrong numbers, sometimes with a wrong output width.

    ## Use instead
    Pass `num_key_value_heads`. Leaving it out is right for multi-head attention, and harmless for unpaged TND
    and NTD, where the operator reads the number off key.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, npu_incre_flash_attention; npu_block_sparse_attention, whose
    default is 1. All versions.

    ## Evidence
    B04, B05, B06, B26, B27, BSA-01: tiling and checkers of ops-transformer (CANN 8.5 snapshot); the shapes
    are accepted by the meta kernel, with a wrong output width (executed).
    """

    code = "KV104"
    name = "missing-kv-heads"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("B04", "B05", "B06", "B26", "B27", "BSA-01")
    families = ("fia", "pfa", "ifa")
    operators = ("npu_block_sparse_attention",)
    bad = {
        "grouped heads in BNSD": """
            q = x.view(2, 32, 16, 128)
            k = y.view(2, 8, 16, 128)
            torch_npu.npu_fused_infer_attention_score(  # KV104
                q, k, k, num_heads=32, scale=0.1, input_layout="BNSD")
        """,
        "two names for two head counts": """
            def attend(x, heads, kv_heads, dim):
                q = x.view(2, 16, heads, dim)
                k = x.view(2, 16, kv_heads, dim)
                opts = {"num_query_heads": heads, "softmax_scale": dim**-0.5, "input_layout": "BSND"}
                return torch_npu.npu_fused_infer_attention_score_v2(q, k, k, **opts)  # KV104
        """,
        "folded heads in BSH": """
            q = x.view(2, 16, 32 * 128)
            k = y.view(2, 16, 8 * 128)
            torch_npu.npu_prompt_flash_attention(  # KV104
                q, k, k, num_heads=32, scale_value=0.1, input_layout="BSH")
        """,
        "packed with a 3-D cache": """
            cache = pool.view(64, 128, 8 * 128)
            torch_npu.npu_fused_infer_attention_score(  # KV104
                q, cache, cache, num_heads=8, scale=0.1, input_layout="TND", block_table=table, sparse_mode=3,
                block_size=128, actual_seq_lengths=ends, actual_seq_lengths_kv=lens, atten_mask=mask)
        """,
        "zero": """
            k = y.view(2, 8, 16, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=32, scale=0.1, input_layout="BNSD",
                num_key_value_heads=0,  # KV104
            )
        """,
    }
    ok = {
        "given": """
            q = x.view(2, 32, 16, 128)
            k = y.view(2, 8, 16, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=32, num_key_value_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "multi-head attention": """
            def attend(x, heads, dim):
                q = x.view(2, 16, heads, dim)
                return torch_npu.npu_fused_infer_attention_score(
                    q, q, q, num_heads=heads, scale=dim**-0.5, input_layout="BSND")
        """,
        "unknown key": """
            torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=32, scale=0.1, input_layout="BNSD")
        """,
        "unpaged TND reads it off key": """
            q = x.view(64, 32, 128)
            k = y.view(64, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=32, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, atten_mask=mask, sparse_mode=3)
        """,
        "zero for equal counts": """
            def attend(q, k, v, factor):
                n, kv = q.shape[1], k.shape[1]
                if kv == n:
                    kv = 0
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=n, num_key_value_heads=kv, scale=factor, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges an omitted count of KV heads."""
        given = call.arg("kv_heads")
        if not call.has("kv_heads") or given.param.required:
            return NOT_APPLICABLE
        if given.given.yes and not given.constant.known:
            return NOT_APPLICABLE
        left_out = ~given.given | given.constant.equals(0)
        if left_out.no:
            return NOT_APPLICABLE
        if given.param.default == 0 and call.packed.yes:
            return _packed(call, left_out)
        told = given.number if given.param.default != 0 else call.heads
        real = _heads_of_key(call, told)
        shown = real.value.label if real.known else "?"
        return require(
            ~_kept_apart(call, real, told),
            f"{given.name} is left at {given.param.default}"
            + (", the number of query heads," if given.param.default == 0 else ",")
            + f" but key has {shown} heads",
            when=left_out,
            at=given if given.given.yes else call.place,
            fix=f"Pass {given.name}={shown}.",
        )


def _packed(call: Call, left_out: Tri) -> Verdict:
    """TND and NTD: only a paged 3-D cache needs the argument for its head count."""
    given = call.arg("kv_heads")
    if paged(call).no or decode_engine(call).yes:
        return NOT_APPLICABLE
    rank = call.arg("key").rank
    if rank.known and rank.value != 3:
        return require(
            ~_kept_apart(call, call.arg("key").dim(1), call.heads),
            f"{given.name} is left out, but the paged cache has another number of heads than query",
            when=left_out & paged(call),
            at=given if given.given.yes else call.place,
            fix=f"Pass {given.name}.",
        )
    needed = left_out & paged(call) & rank.equals(3) & ~decode_engine(call)
    if needed.yes:
        return violated(
            f"{given.name} is left out, but a 3-D paged cache in {call.query_layout.get('TND')} needs it:"
            " tiling takes 0 as the head count and rejects the call",
            given if given.given.yes else call.place,
            needed.notes,
            fix=f"Pass {given.name}, for multi-head attention too.",
        )
    return require(~needed, "")


def _heads_of_key(call: Call, told: Fact[Num]) -> Fact[Num]:
    """How many heads key holds, by its shape."""
    key, query = call.arg("key"), call.arg("query")
    layout = call.query_layout
    in_blocks = paged(call)
    if layout.values is None or in_blocks.unknown:
        return Fact(None, (*layout.notes, *in_blocks.notes))
    rank = key.rank
    if in_blocks.yes and rank.known and rank.value > 3:
        return key.dim(1)
    folded = tri(rank.get(0) == 3) if in_blocks.yes else layout.among(("BSH", "SBH"))
    if folded.no:
        return call.key_heads_axis
    # Width over head dim, the latter from query: only this is known of a folded key.
    width, dim = key.dim(-1), call.head_dim
    if folded.unknown or not (width.known and dim.known and query.rank.known):
        return Fact(None, (*folded.notes, *width.notes, *dim.notes))
    count = width.value.divide(dim.value)
    if count is None or not dim.value.atoms() <= width.value.atoms():
        return Fact(None, (*width.notes, Note("the heads of key cannot be told from its width")))
    return Fact.of(count, *width.notes)


def _kept_apart(call: Call, real: Fact[Num], told: Fact[Num]) -> Tri:
    """Whether the heads of key differ from the told number: certainly, or as two names of the author."""
    if not (real.known and told.known):
        return Tri(None, real.notes if not real.known else told.notes)
    mine, theirs = real.value, told.value
    certain = rescaled(real, told)
    if not certain.unknown:
        return certain
    of_query = call.query_heads_axis
    if of_query.known and of_query.value == mine:
        return NO
    both_named = bool(mine.atoms()) and bool(theirs.atoms()) and mine.declared and theirs.declared
    if both_named or (mine.integer == 1 and theirs.declared):
        return Tri(True, certain.notes)
    return certain
