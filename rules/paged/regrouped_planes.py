"""KV430: a view that mixes the key plane and the value plane of a page."""

from __future__ import annotations

from collections.abc import Iterable

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require
from kvlint.contract.tri import YES


class RegroupedPlanes(Rule):
    """A page that stores all keys and then all values is viewed as if they alternated.

    ## What it does
    Reports a key or value taken from a view such as ``raw.view(-1, 2, kernel_block, width)`` of a pool
    built as ``(pages, 2, page, heads, dim)``, where ``kernel_block`` and ``page`` are different
    quantities.

    ## Why it is wrong
    A view keeps the order in memory. With pages larger than the kernel's block the two planes of the view
    are the two halves of the keys, then the two halves of the values: key rows are read as values.

    ## Use instead
    Split the planes first, ``raw[:, 0]`` and ``raw[:, 1]``, then view each with the smaller block.

    ## Ops and versions
    Every attention operator that reads a paged cache.

    ## Evidence
    PG03 and 1.5: the operator takes the block size from the view; nothing records how the pool was laid out.
    """

    code = "KV430"
    name = "regrouped-planes"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("PG03",)
    families = ("fia", "ifa", "atb", "sparse")
    bad = {
        "kernel block view of a page": """
            class Store:
                def __init__(self, pages, page, kernel_block, heads, dim):
                    self.raw = torch.zeros(pages, 2, page, heads, dim, dtype=torch.bfloat16, device="npu")
                    self.kernel_block, self.width = kernel_block, heads * dim

                def decode(self, q, table, lens, heads, kv_heads):
                    flat = self.raw.view(-1, 2, self.kernel_block, self.width)
                    return torch_npu.npu_fused_infer_attention_score(
                        q,
                        flat[:, 0].contiguous(),  # KV430
                        flat[:, 1].contiguous(),  # KV430
                        num_heads=heads, num_key_value_heads=kv_heads, scale=0.1, input_layout="BSH",
                        block_table=table, block_size=self.kernel_block, actual_seq_lengths_kv=lens)[0]
        """,
    }
    ok = {
        "split first": """
            class Store:
                def __init__(self, pages, page, kernel_block, heads, dim):
                    self.raw = torch.zeros(pages, 2, page, heads, dim, dtype=torch.bfloat16, device="npu")
                    self.kernel_block, self.width = kernel_block, heads * dim

                def decode(self, q, table, lens, heads, kv_heads):
                    k = self.raw[:, 0].contiguous().view(-1, self.kernel_block, self.width)
                    v = self.raw[:, 1].contiguous().view(-1, self.kernel_block, self.width)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=heads, num_key_value_heads=kv_heads, scale=0.1, input_layout="BSH",
                        block_table=table, block_size=self.kernel_block, actual_seq_lengths_kv=lens)[0]
        """,
        "page kept whole": """
            class Store:
                def __init__(self, pages, page, heads, dim):
                    self.raw = torch.zeros(pages, 2, page, heads, dim, dtype=torch.bfloat16, device="npu")
                    self.page, self.width = page, heads * dim

                def decode(self, q, table, lens, heads, kv_heads):
                    flat = self.raw.view(-1, 2, self.page, self.width)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, flat[:, 0].contiguous(), flat[:, 1].contiguous(),
                        num_heads=heads, num_key_value_heads=kv_heads, scale=0.1, input_layout="BSH",
                        block_table=table, block_size=self.page, actual_seq_lengths_kv=lens)[0]
        """,
    }

    def check(self, call: Call) -> Iterable[Verdict]:
        """Judges key and value apart."""
        for role in ("key", "value", "key_cache", "value_cache"):
            if not call.has(role):
                continue
            arg = call.arg(role)
            yield require(
                ~arg.regrouped,
                f"{arg.name} is a plane of a view that mixes keys and values",
                when=call.arg("block_table").given if call.has("block_table") else YES,
                at=arg,
                fix="Take the planes apart before viewing them with another block size.",
            )
