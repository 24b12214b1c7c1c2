"""KV502: a rope part that is not 64 wide."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant
from kvlint.contract.tri import Fact


class RopeDim(RunRule):
    """A rope part is not 64 wide.

    ## What it does
    Checks the head dim of `query_rope` and `key_rope` where it is visible; in BSH, and in a 3-D paged
    cache, one row holds all heads, in the NZ form it is axis 2 times axis 4.

    ## Why it is wrong
    Every engine serves 64 only. The meta kernel accepts any width.

    ## Use instead
    The 64 rotary dims of the model; the rest belongs to query and key.

    ## Ops and versions
    FIA v1 and v2, npu_sparse_flash_attention. All versions.

    ## Evidence
    F02: MLA checker and prefill tiling (ops-transformer, CANN 8.5 snapshot); accepted by the meta kernel
    (executed).
    """

    code = "KV502"
    name = "rope-dim"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("F02", "F19")
    families = ("fia",)
    operators = ("npu_sparse_flash_attention",)
    bad = {
        "half of it": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe.view(-1, 8, 32),  # KV502
                key_rope=k_pe, actual_seq_lengths=ends, actual_seq_lengths_kv=lens, block_table=table,
                block_size=128,
            )
        """,
        "the nope cache as the rope cache": """
            pool = torch.zeros(64, 128, 512, dtype=torch.bfloat16)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, k, num_query_heads=8, num_key_value_heads=1, softmax_scale=0.1, input_layout="TND",
                query_rope=q_pe,
                key_rope=pool,  # KV502
                actual_seq_qlen=ends, actual_seq_kvlen=lens, block_table=table, block_size=128,
            )
        """,
    }
    ok = {
        "64": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe.view(-1, 8, 64), key_rope=pool.view(-1, 128, 64), actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "all heads in one row": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                query_rope=q_pe.view(2, -1, 512), key_rope=k_pe.view(2, -1, 512),
            )
        """,
        "NZ cache": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=8, num_key_value_heads=1, scale=0.1, input_layout="TND", query_rope=q_pe,
                key_rope=pool.view(-1, 1, 4, 128, 16), actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, k, num_heads=8, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe.view(-1, 8, rope_dim), key_rope=k_pe, actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges both rope parts."""
        for role in ("query_rope", "key_rope"):
            rope = call.arg(role)
            if rope.is_none.yes:
                yield NOT_APPLICABLE
                continue
            width = constant(self._width(call, rope, role))
            yield require(
                width.equals(64),
                f"the rope part {rope.name} is {width.get(0)} wide per head, it must be 64",
                at=rope,
            )

    @staticmethod
    def _width(call: Call, rope: Arg, role: str) -> Fact[Num]:
        last = rope.dim(-1)
        rank = rope.rank.get(0)
        paged = call.arg("block_table").meant
        cached = role == "key_rope" and paged.yes
        layout = call.query_layout.get("" if call.has("layout") else "BSND")
        if cached and rank == 5:
            tiles = rope.dim(2)
            return Fact.of(tiles.value * last.value) if tiles.known and last.known else Fact(None, last.notes)
        packed = (cached and rank == 3) or (not cached and layout in ("BSH", "SBH"))
        if role == "key_rope" and paged.unknown:
            return Fact(None, paged.notes)
        if not packed:
            return last if layout else Fact(None, call.layout.notes)
        heads = call.kv_heads if role == "key_rope" else call.heads
        if not (heads.known and last.known):
            return Fact(None, heads.notes if not heads.known else last.notes)
        width = last.value.divide(heads.value)
        return Fact.of(width, *last.notes) if width is not None else Fact(None, heads.notes)
