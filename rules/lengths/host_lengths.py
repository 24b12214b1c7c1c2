"""KV330: lengths on the host for an operator that reads them on the device."""

from __future__ import annotations

from collections.abc import Iterable

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require


class HostLengths(Rule):
    """A length tensor is on the CPU, but the sparse-attention operators read it on the device.

    ## What it does
    Reports query or key lengths of sparse flash attention and the lightning indexer that are visibly a
    CPU tensor: ``torch.tensor(list)`` without a device, ``.cpu()``, or a buffer made like one of these.

    ## Why it is wrong
    The operator wants int32 device tensors. In eager mode the call is rejected or copies on every step;
    inside a graph capture the host values become constants, and the graph replays with old lengths.

    ## Use instead
    Allocate the buffer with ``device="npu"`` and copy the lengths into it.

    ## Ops and versions
    npu_sparse_flash_attention, npu_kv_quant_sparse_flash_attention, npu_lightning_indexer and its quantised
    form. FIA, PFA and IFA are the opposite: they take host lists or CPU tensors.

    ## Evidence
    Section 4 of the contract: lengths are int32 tensors, lists are rejected (E111, E114); A13 for graphs.
    """

    code = "KV330"
    name = "host-lengths"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("SP-12", "A13")
    families = ("sparse", "indexer")
    bad = {
        "tensor made from a list": """
            lens = torch.tensor(scheduled, dtype=torch.int32)
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picked, 0.1, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens,  # KV330
                query_rope=qr, key_rope=kr, layout_query="TND", layout_kv="PA_BSND", sparse_mode=3,
                attention_mode=2)
        """,
        "buffer made like a host tensor": """
            class Persist:
                def __init__(self):
                    self.buf = None

                def push(self, lens):
                    if self.buf is None:
                        self.buf = torch.zeros(1024, dtype=torch.int32, device=lens.device)
                    self.buf[:lens.shape[0]].copy_(lens)
                    return self.buf[:lens.shape[0]]

            class Attention:
                def __init__(self):
                    self.lens = Persist()

                def forward(self, q, cache, picked, table, ends, qr, kr, scheduled):
                    lens = self.lens.push(torch.tensor(scheduled, dtype=torch.int32))
                    return torch_npu.npu_sparse_flash_attention(
                        q, cache, cache, picked, 0.1, block_table=table, actual_seq_lengths_query=ends,
                        actual_seq_lengths_kv=lens,  # KV330
                        query_rope=qr, key_rope=kr, layout_query="TND", layout_kv="PA_BSND", sparse_mode=3,
                        attention_mode=2)
        """,
    }
    ok = {
        "moved to the device": """
            lens = torch.tensor(scheduled, dtype=torch.int32).npu()
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picked, 0.1, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, query_rope=qr, key_rope=kr, layout_query="TND", layout_kv="PA_BSND",
                sparse_mode=3, attention_mode=2)
        """,
        "device not visible": """
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picked, 0.1, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=meta.kv_lens, query_rope=qr, key_rope=kr, layout_query="TND",
                layout_kv="PA_BSND", sparse_mode=3, attention_mode=2)
        """,
    }

    def check(self, call: Call) -> Iterable[Verdict]:
        """Judges each length argument."""
        for role in ("q_lens", "kv_lens"):
            arg = call.arg(role)
            yield require(
                ~arg.device.equals("cpu"),
                f"{arg.name} is a CPU tensor, {call.operator.name} reads it on the device",
                when=arg.given,
                at=arg,
                fix="Allocate it with device='npu' and copy the lengths into it.",
            )
