"""KV404: a block size that no engine accepts for this call."""

from __future__ import annotations

from collections.abc import Callable

from kvlint.contract.call import Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    RunRule,
    Severity,
    Verdict,
    undecided,
    violated,
)
from kvlint.contract.sizes import constant
from kvlint.contract.tri import Tri

from ._common import no_rope, paged

_BATCHED = ("BSH", "BSND", "BNSD")


class BlockSizeRange(RunRule):
    """The block size is not one the operator can work with.

    ## What it does
    Compares a constant `block_size` with what every engine that can serve the call accepts: a multiple of
    16 of at most 1024 anywhere; a multiple of 16 (32 with an int8 cache) of at most 512 for one query
    token; a multiple of 128 for more query tokens in a layout with a batch axis. How many query tokens
    there are is often not in the source. A compressed mask (sparse_mode 2, 3 or 4 with `atten_mask`)
    without rope parts settles it: for one query token such a mask is itself wrong, so a block size that
    only the decode engine knows is wrong either way.

    ## Why it is wrong
    Tiling rejects the size before the kernel runs. The meta kernel accepts any.

    ## Use instead
    128: every engine accepts it, and it is the recommended size.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions. What only older CANN rejects is
    `block-size-of-older-cann`.

    ## Evidence
    PG04, PG05, PG06, PG07, PG08, X04: decode checker and prefill tiling of ops-transformer (CANN 8.5
    snapshot), op-plugin documentation. C13, C16 for the compressed mask with one query token.
    """

    code = "KV404"
    name = "block-size-range"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("PG04", "PG05", "PG06", "PG07", "PG08", "X04")
    families = ("fia", "ifa")
    bad = {
        "not a multiple of 16": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND", block_table=table,
                block_size=100,  # KV404
                actual_seq_qlen=ends, actual_seq_kvlen=lens,
            )
        """,
        "64 with a causal mask in a batched layout": """
            opts = {"num_heads": 8, "scale": 0.1, "input_layout": "BSH", "sparse_mode": 3}
            opts["block_size"] = 64  # KV404
            mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, block_table=table, atten_mask=mask, actual_seq_lengths_kv=lens, **opts)
        """,
        "1024 for one query token": """
            q1 = hidden.view(batch, 8, 1, 128)
            torch_npu.npu_fused_infer_attention_score(
                q1, k, v, num_heads=8, scale=0.1, input_layout="BNSD", block_table=table,
                block_size=1024,  # KV404
                actual_seq_lengths_kv=lens,
            )
        """,
        "16 with an int8 cache": """
            self_cache = torch.zeros(64, 16, 1024, dtype=torch.int8)
            torch_npu.npu_incre_flash_attention(
                q, self_cache, self_cache, num_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=lens, block_table=table,
                block_size=16,  # KV404
                antiquant_scale=factors,
            )
        """,
    }
    ok = {
        "128": """
            mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=128,
                sparse_mode=3, atten_mask=mask, actual_seq_lengths_kv=lens,
            )
        """,
        "64 where decode is possible": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=64,
                actual_seq_lengths_kv=lens,
            )
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=page,
                actual_seq_lengths_kv=lens,
            )
        """,
        "no table": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="BSH", block_size=0,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges a constant block size against each engine that may serve the call."""
        is_paged = paged(call)
        if is_paged.no:
            return NOT_APPLICABLE
        size_arg = call.arg("block_size")
        size = constant(size_arg.number)
        if not size.known:
            return undecided(Tri(None, size.notes))
        if not is_paged.yes:
            return undecided(is_paged)
        value = size.value
        if value == 0:
            return NOT_APPLICABLE  # paged-without-block-size

        def wrong(what: str, *why: Tri) -> Verdict:
            notes = (note for part in why for note in part.notes)
            return violated(
                f"{size_arg.name}={value} {what}", size_arg, notes, f"Use a cache with {size_arg.name}=128."
            )

        if value < 0 or value % 16 or value > 1024:
            return wrong("is accepted by no engine: it must be a multiple of 16 of at most 1024")
        int8 = call.arg("key").dtype.equals("int8")
        if call.operator.family == "ifa":
            return self._decode(value, int8, wrong)
        if call.packed.yes:
            return PROVED
        prefill = call.prefill_engine
        layout = call.layout
        if prefill.yes and layout.known and layout.value not in ("TND_NTD", "NTD"):
            if value % 128:
                return wrong("must be a multiple of 128 for more than one query token", prefill)
            return PROVED
        if call.rope.no and call.arg("key").rank.equals(5).yes and value not in (128, 512):
            return wrong("must be 128 or 512 with a cache in NZ form", int8)
        if call.absorbed.yes:
            return PROVED
        if call.decode_engine.yes and call.rope.no:
            return self._decode(value, int8, wrong)
        if value % 128 == 0 and value <= 512:
            return PROVED
        if no_rope(call) and layout.known and layout.value in _BATCHED and value % 128:
            mode, mask = call.arg("sparse_mode").constant, call.arg("mask")
            side = constant(mask.dim(-1)).equals(2048)
            # With mode 2 and one query token a mask of another size is a plain row mask.
            compressed = (mode.among((3, 4)) & mask.present) | (mode.equals(2) & mask.present & side)
            if compressed.yes:
                return wrong(
                    "must be a multiple of 128 for more than one query token, and for one the compressed "
                    "mask is wrong",
                    compressed,
                )
        return undecided(prefill, call.rope)

    @staticmethod
    def _decode(value: int, int8: Tri, wrong: Callable[..., Verdict]) -> Verdict:
        if value > 512:
            return wrong("is larger than 512, the most for one query token")
        if int8.yes and value % 32:
            return wrong("must be a multiple of 32 with an int8 cache", int8)
        if value % 32 and not int8.no:
            return undecided(int8)
        return PROVED
