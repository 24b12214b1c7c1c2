"""KV213: a bool mask for an ATB operator."""

from __future__ import annotations

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

FLOATS = ("float16", "bfloat16", "float32")


class BoolAtbMask(RunRule):
    """An ATB attention operator gets a mask that is not of the query's float dtype.

    ## What it does
    Checks the dtype of `mask` of the `_npu_*` and `torch_npu.atb` attention operators: bool, int8 and uint8
    are reported, and a float mask of another dtype than query where both are known.

    ## Why it is wrong
    This family adds the mask to the scores, so it wants the dtype of query. The bool masks of FIA and the
    fp32 default of `torch.zeros` are rejected, or hang, at the first call that meets them.

    ## Use instead
    `torch.zeros(n, n, dtype=q.dtype).masked_fill_(future, value)`, with -inf for fp16 and, in the flash and
    prefix operators, 1 for bf16.

    ## Ops and versions
    `_npu_flash_attention*`, `_npu_paged_attention_splitfuse*`, `_npu_paged_attention_v2`,
    `npu_self_attention_prefix_encoder`, `npu_ring_mla`, `npu_multi_head_latent_attention` on Atlas A2 and
    A3. Ascend 310P differs and is not judged.

    ## Evidence
    ATB-05: operation checks of ascend-transformer-boost; mask builder of vllm-ascend.
    """

    code = "KV213"
    name = "bool-atb-mask"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("ATB-05",)
    families = ("atb",)
    bad = {
        "the FIA mask": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v,
                mask=hidden,  # KV213
                seq_len=lens, scale_value=0.1, num_heads=8, num_kv_heads=8, out=out,
            )
        """,
        "bool at one length": """
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=hidden.bool() if n == 2048 else dense,  # KV213
                seq_len=lens, scale_value=0.1, num_heads=8, num_kv_heads=8, out=out,
            )
        """,
        "float32 beside a half query": """
            q = q.to(torch.float16)
            bias = torch.zeros(128, 128, dtype=torch.float32)
            torch_npu._npu_paged_attention_splitfuse(
                query=q, key_cache=kc, value_cache=vc, block_table=table, context_lens=lens, seq_len=q_lens,
                mask=bias,  # KV213
                num_kv_heads=8, num_heads=8, scale_value=0.1, out=out,
            )
        """,
    }
    ok = {
        "float mask": """
            bias = torch.zeros(n, n, dtype=torch.float16)
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=bias, seq_len=lens, scale_value=0.1, num_heads=8,
                num_kv_heads=8,
                out=out,
            )
        """,
        "dtype of the query": """
            bias = torch.zeros(n, n, dtype=q.dtype, device=q.device)
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=bias, seq_len=lens, scale_value=0.1, num_heads=8,
                num_kv_heads=8,
                out=out,
            )
        """,
        "unknown": """
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=meta.attn_mask, seq_len=lens, scale_value=0.1, num_heads=8,
                num_kv_heads=8, out=out,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the dtype of the mask."""
        mask, query = call.arg("mask"), call.arg("query")
        if mask.is_none.yes or call.target.soc == "310P":
            return NOT_APPLICABLE
        fix = f"Build {mask.name} in the dtype of query, for example torch.zeros(..., dtype=query.dtype)."
        floating = mask.dtype.among(FLOATS)
        if floating.no:
            return violated(
                f"{mask.name} is {' or '.join(mask.dtype.values or ())}, "
                "this operator adds a mask of the query's float dtype",
                mask,
                mask.dtype.notes,
                fix,
            )
        if mask.dtype.values is None or query.dtype.values is None:
            return undecided(floating if floating.unknown else Tri(None, query.dtype.notes))
        common = set(mask.dtype.values) & set(query.dtype.values)
        return require(
            Tri(
                True if mask.dtype.values == query.dtype.values else None if common else False,
                mask.dtype.notes,
            ),
            f"{mask.name} is {' or '.join(mask.dtype.values)}, query is {' or '.join(query.dtype.values)}",
            when=mask.present,
            at=mask,
            notes=query.dtype.notes,
            fix=fix,
        )
