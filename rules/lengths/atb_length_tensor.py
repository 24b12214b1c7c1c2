"""KV308: a length tensor that an ATB operator cannot read."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import UNPAD

HOST = (*UNPAD, "npu_ring_mla")
PAGED = (
    "_npu_paged_attention",
    "_npu_paged_attention_mla",
    "_npu_paged_attention_quant",
    "_npu_paged_attention_splitfuse",
    "_npu_paged_attention_splitfuse_v2",
    "_npu_flash_attention_qlens",
)


class AtbLengthTensor(RunRule):
    """An ATB operator gets lengths that are not an int32 tensor, or not on the host.

    ## What it does
    Checks dtype and device of `seq_len`, `seqlen` and `context_lens` where the source shows them.

    ## Why it is wrong
    ATB reads these lengths as int32. The flash operators and npu_ring_mla read `seq_len` on the host while
    they set the call up, so a device tensor is rejected. int64, the dtype of `torch.tensor([...])`,
    `cumsum` and most length buffers, is rejected too.

    ## Use instead
    `lens.to(torch.int32).cpu()`, made once per step and not per layer.

    ## Ops and versions
    `_npu_flash_attention`, `_unpad`, `_unpad_v2`, `_v3` (int32, on the host), `npu_ring_mla` (on the host);
    `_npu_paged_attention*` and `_npu_flash_attention_qlens` (int32; the device is not judged).

    ## Evidence
    ATB-03, ATB-06, ATB-12: operation checks of ascend-transformer-boost.
    """

    code = "KV308"
    name = "atb-length-tensor"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("ATB-03", "ATB-06", "ATB-12")
    operators = (*HOST, *PAGED)
    bad = {
        "int64 by torch.tensor": """
            lens = torch.tensor([7, 9])
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=mask,
                seq_len=lens,  # KV308
                scale_value=0.1, num_heads=8, num_kv_heads=8, out=out,
            )
        """,
        "on the device": """
            lens = seq_lens.to(torch.int32).npu()
            torch_npu._npu_flash_attention_unpad(
                query=q, key=k, value=v,
                seq_len=lens,  # KV308
                scale_value=0.1, num_heads=8, num_kv_heads=8, out=out,
            )
        """,
        "int64 for the paged operator": """
            torch_npu._npu_paged_attention(
                query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                block_table=table,
                context_lens=kv_lens.long(),  # KV308
                out=out,
            )
        """,
    }
    ok = {
        "int32 on the host": """
            lens = torch.tensor([7, 9], dtype=torch.int32)
            torch_npu._npu_flash_attention(
                query=q, key=k, value=v, mask=mask, seq_len=lens, scale_value=0.1, num_heads=8,
                num_kv_heads=8, out=out,
            )
        """,
        "unknown": """
            torch_npu._npu_paged_attention(
                query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                block_table=table, context_lens=meta.seq_lens, out=out,
            )
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges dtype and device apart."""
        name = call.operator.name
        for role in ("q_lens", "kv_lens"):
            lengths = call.arg(role)
            if lengths.given.no:
                yield NOT_APPLICABLE
                continue
            shown = " or ".join(lengths.dtype.values or ())
            if name != "npu_ring_mla":
                yield require(
                    lengths.dtype.equals("int32"),
                    f"{lengths.name} is {shown}, {name} reads int32",
                    when=lengths.is_tensor,
                    at=lengths,
                    fix=f"Convert {lengths.name} with .to(torch.int32).",
                )
            if name in HOST:
                yield require(
                    ~lengths.device.equals("npu"),
                    f"{lengths.name} is on the device, {name} reads it on the host",
                    when=lengths.is_tensor,
                    at=lengths,
                    fix=f"Keep {lengths.name} on the CPU.",
                )
