"""KV114: an input tensor is a strided view."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import Note
from kvlint.contract.values import Choice

INPUTS = {
    "fia": ("key", "value", "query_rope", "key_rope"),
    "sparse": ("key", "value", "key_rope"),
    "atb": ("key_cache", "value_cache", "out"),
}


class StridedInput(RunRule):
    """An input tensor is a strided view.

    ## What it does
    Reports key, value, their paged caches and the rope parts where the source shows a view that is not
    contiguous: a transpose, a slice of the last axis, one part of a split.
    A view on one of several paths is left alone.

    ## Why it is wrong
    The documentation excludes it. Up to CANN 9.0 the operator makes a hidden copy on every call, for a cache
    the whole cache in every decode step. Later stacks reject the view or read it as if it were contiguous.
    For the ATB operators `out` and the caches must be contiguous, other inputs are copied.

    ## Use instead
    `.contiguous()` for rope parts; for a cache a `view` of the stored order with the layout that fits it.

    ## Ops and versions
    FIA v1 and v2, npu_sparse_flash_attention, npu_kv_quant_sparse_flash_attention, ATB attention operators.
    All versions, with consequences from CANN 9.1 on.

    ## Evidence
    A09, ATB-04, SP-13: op-plugin documentation; the operator definition of the CANN 8.5 snapshot converts;
    public fixes in vllm-ascend and cann-recipes-infer for newer stacks.
    """

    code = "KV114"
    name = "strided-input"
    severity = Severity.PERFORMANCE
    confidence = Confidence.MEDIUM
    contract = ("A09", "ATB-04", "SP-13")
    families = ("fia", "sparse", "atb")
    bad = {
        "transposed cache": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, cache.transpose(1, 2), cache.transpose(1, 2),  # KV114
                num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BNSD",
                block_table=table, block_size=128, actual_seq_kvlen=lens)
        """,
        "rope part of a joint query": """
            def attend(q, k, v, kr, ends, mask):
                q_nope, q_rope = q.split([128, 64], dim=-1)
                return torch.ops.npu.npu_fused_infer_attention_score(
                    q_nope.contiguous(), k, v,
                    query_rope=q_rope,  # KV114
                    key_rope=kr, num_heads=8, num_key_value_heads=8, scale=0.07, input_layout="TND",
                    atten_mask=mask, sparse_mode=3, actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "slice of the last axis in a dict": """
            opts = {"num_heads": 8, "num_key_value_heads": 8, "scale": 0.07, "input_layout": "TND"}
            opts["key_rope"] = k[..., 128:]  # KV114
            torch_npu.npu_fused_infer_attention_score(
                q, kn, v, query_rope=qr, atten_mask=mask, sparse_mode=3, actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, **opts)
        """,
    }
    ok = {
        "contiguous": """
            def attend(q, k, v, kr, ends, mask):
                q_nope, q_rope = q.split([128, 64], dim=-1)
                return torch.ops.npu.npu_fused_infer_attention_score(
                    q_nope.contiguous(), k, v, query_rope=q_rope.contiguous(), key_rope=kr, num_heads=8,
                    num_key_value_heads=8, scale=0.07, input_layout="TND", atten_mask=mask, sparse_mode=3,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=ends)
        """,
        "a view in the stored order": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, cache.view(-1, 128, 1024), cache.view(-1, 128, 1024), num_query_heads=8,
                num_key_value_heads=8, softmax_scale=0.1, input_layout="BSH", block_table=table,
                block_size=128, actual_seq_kvlen=lens)
        """,
        "the cache writer copies strided rows": """
            q, k, v = qkv.split([1024, 1024, 1024], dim=-1)
            torch_npu._npu_reshape_and_cache(k.view(-1, 8, 128), v.view(-1, 8, 128), kc, vc, slots)
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each tensor apart."""
        seen: set[object] = set()
        for role in INPUTS[call.operator.family]:
            arg = call.arg(role)
            if arg.given.no:
                yield NOT_APPLICABLE
                continue
            same = arg.identity.get(None)
            if same is not None and same in seen:
                continue
            seen.add(same)
            if isinstance(arg.value, Choice):
                # Models keep branches for configurations they never ship with.
                yield undecided(Note(f"{arg.name} differs between paths", arg.place))
                continue
            yield require(
                ~arg.strided,
                f"{arg.name} is a strided view: copied on every call, rejected or misread from CANN 9.1",
                when=arg.present,
                at=arg,
                fix=f"Pass a contiguous {arg.name}.",
            )
