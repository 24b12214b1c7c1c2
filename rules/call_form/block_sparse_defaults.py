"""KV150: block sparse attention with defaults or sizes that do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import Tri, tri

from ._common import differ, meant, whole


class BlockSparseDefaults(RunRule):
    """Block sparse attention with defaults or sizes that do not fit.

    ## What it does
    Checks a call of npu_block_sparse_attention: `num_key_value_heads`, whose default is 1, against key;
    `inner_precise`, whose default is 1, against a bfloat16 query; that the second size of `block_shape` is a
    multiple of 128; that a constant head dim is at most 128; and that TND comes with both length lists.

    ## Why it is wrong
    The defaults differ from every other attention operator: one KV head instead of as many as query heads,
    high performance instead of high precision, which bfloat16 does not have. The wrapper or tiling rejects
    the call. Mind the mask too: in `block_sparse_mask` 1 means *compute*, the opposite of `atten_mask`.

    ## Use instead
    Pass `num_key_value_heads` and `inner_precise=0`.

    ## Ops and versions
    npu_block_sparse_attention.

    ## Evidence
    BSA-01: op-plugin documentation and wrapper source.
    """

    code = "KV150"
    name = "block-sparse-defaults"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("BSA-01",)
    operators = ("npu_block_sparse_attention",)
    bad = {
        "KV heads left at one": """
            k = y.view(1024, 8, 128)
            torch_npu.npu_block_sparse_attention(  # KV150
                q, k, k, blocks, [128, 128], scale_value=0.1, inner_precise=0, actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends)
        """,
        "bfloat16 with the default precision": """
            torch_npu.npu_block_sparse_attention(
                x.bfloat16(), k, v, blocks,
                [128, 64],  # KV150
                scale_value=0.1, num_key_value_heads=8, actual_seq_lengths=ends, actual_seq_lengths_kv=ends,
                inner_precise=1)  # KV150
        """,
        "no lengths": """
            torch_npu.npu_block_sparse_attention(  # KV150
                q, k, v, blocks, [128, 128], scale_value=0.1, num_key_value_heads=8, inner_precise=0)
        """,
    }
    ok = {
        "all passed": """
            torch_npu.npu_block_sparse_attention(
                x.bfloat16(), k, v, blocks, [128, 128], scale_value=0.1, num_key_value_heads=8,
                inner_precise=0, actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "unknown": """
            torch_npu.npu_block_sparse_attention(
                q, k, v, blocks, shape, scale_value=0.1, num_key_value_heads=n, inner_precise=precise,
                actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each default and size."""
        key, heads = call.arg("key"), call.arg("kv_heads")
        kv_layout = call.arg("layout_kv").constant
        axis = key.dim(1)
        shown = axis.value.label if axis.known else "?"
        yield require(
            ~differ(axis, heads.number),
            f"{heads.name} {'is left at' if heads.given.no else 'is'} {heads.constant.get('?')},"
            f" but key has {shown} heads",
            when=kv_layout.among(("TND", "BNSD")),
            at=heads if heads.given.yes else call.place,
            fix=f"Pass {heads.name}={shown}.",
        )
        precise = call.arg("inner_precise")
        yield require(
            precise.constant.equals(0),
            f"inner_precise is {precise.constant.get('?')}, bfloat16 takes 0 only",
            when=call.arg("query").dtype.equals("bfloat16"),
            at=precise if precise.given.yes else call.place,
            fix="Pass inner_precise=0.",
        )
        shape = call.named("block_shape")
        sizes = shape.integers
        if sizes.known and len(sizes.value) > 1:
            second = sizes.value[1]
            yield require(
                tri(second % 128 == 0, *sizes.notes),
                f"the second size of block_shape is {second}, which is no multiple of 128",
                at=shape,
            )
        else:
            yield undecided(*sizes.notes)
        query = call.arg("query")
        size = whole(query.dim(-1))
        yield require(
            Tri(None if size is None else size <= 128, query.shape.notes),
            f"the head dim is {size}, the operator takes at most 128",
            at=query,
        )
        for layout, lengths in (("layout_q", "q_lens"), ("layout_kv", "kv_lens")):
            yield require(
                meant(call.arg(lengths)),
                f"TND needs {call.arg(lengths).name}, which is not passed",
                when=call.arg(layout).constant.equals("TND"),
                at=call.place,
            )
