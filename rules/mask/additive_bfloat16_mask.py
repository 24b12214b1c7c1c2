"""KV232: an additive mask for an ATB operator that multiplies its bf16 mask."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import Tri


class AdditiveBfloat16Mask(RunRule):
    """A bf16 mask with -inf or -10000 for an ATB flash operator, which wants 1 there.

    ## What it does
    Reports a bfloat16 mask that is made to be added to the scores, in the operators that scale their mask.

    ## Why it is wrong
    For bf16 these kernels multiply the mask by -3e38 before they add it, so the hidden value is 1. A
    negative entry turns into a large positive one: the hidden keys win. `npu_ring_mla` multiplies in fp16
    too. `_npu_paged_attention_splitfuse` never does, so one bf16 mask cannot serve both.

    ## Use instead
    Fill with 1 for bf16 (-inf for fp16): `masked_fill_(future, 1 if dtype == torch.bfloat16 else -inf)`.

    ## Ops and versions
    `_npu_flash_attention`, `_npu_flash_attention_qlens`, `_npu_flash_attention_prefix_v2` and
    `npu_self_attention_prefix_encoder` with bf16; `npu_ring_mla` with any dtype. Atlas A2 and A3.

    ## Evidence
    ATB-05: kernels of ascend-transformer-boost, mask builder of vllm-ascend.
    """

    code = "KV232"
    name = "additive-bfloat16-mask"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("ATB-05",)
    operators = (
        "_npu_flash_attention",
        "_npu_flash_attention_qlens",
        "_npu_flash_attention_prefix_v2",
        "npu_self_attention_prefix_encoder",
        "npu_ring_mla",
    )
    bad = {
        "-inf in bf16": """
            bias = torch.zeros(n, n, dtype=torch.bfloat16).masked_fill_(future, float("-inf"))
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v,
                mask=bias,  # KV232
                seq_len=lens, scale_value=0.1, num_heads=8, num_kv_heads=8, out=out,
            )
        """,
    }
    ok = {
        "1 in bf16": """
            bias = torch.zeros(n, n, dtype=torch.bfloat16).masked_fill_(future, 1)
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=bias, seq_len=lens, scale_value=0.1, num_heads=8,
                num_kv_heads=8, out=out,
            )
        """,
        "-inf in fp16": """
            bias = torch.zeros(n, n, dtype=torch.float16).masked_fill_(future, float("-inf"))
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=bias, seq_len=lens, scale_value=0.1, num_heads=8,
                num_kv_heads=8, out=out,
            )
        """,
        "splitfuse adds the mask as it is": """
            bias = torch.zeros(n, n, dtype=torch.bfloat16).masked_fill_(future, -10000.0)
            torch_npu._npu_paged_attention_splitfuse(
                query=q, key_cache=kc, value_cache=vc, block_table=table, context_lens=lens, mask=bias,
                seq_len=q_lens, num_kv_heads=8, num_heads=8, scale_value=0.1, out=out,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges value and dtype of the mask together."""
        mask = call.arg("mask")
        if mask.is_none.yes or call.target.soc == "310P":
            return NOT_APPLICABLE
        additive = mask.content.holds(lambda content: content.additive)
        if not additive.yes:
            # That a mask is not known to be additive proves nothing about its values.
            return undecided(Tri(None, mask.content.notes))
        scaled = mask.dtype.equals("bfloat16")
        if call.operator.name == "npu_ring_mla":
            scaled = mask.present
        return require(
            ~additive,
            f"{mask.name} holds negative values to be added, but {call.operator.name} "
            "multiplies it by -3e38: hidden keys become the strongest",
            when=scaled,
            at=mask,
            notes=mask.dtype.notes,
            fix="Fill hidden positions with 1 instead of -inf.",
        )
