"""KV624: a tensor in swapped host memory is used by an operator."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, violated

_SWAPPED = ("host-swapped", "swapped")


class SwappedMemoryCache(Rule):
    """A tensor in swapped host memory is given to an attention or cache operator.

    ## What it does
    Reports tensors made by `torch_npu.empty_with_swapped_memory` among the arguments of an operator of this
    catalogue.

    ## Why it is wrong
    Such a tensor has an NPU type and host storage. Only fill_, zero_, mul_, npu_apply_adam_w and
    npu_hans_encode and decode support it; attention and scatter operators fault on the device, and graph
    mode does not know it.

    ## Use instead
    Copy the part that is needed into a normal tensor first.

    ## Ops and versions
    All attention and cache operators. All versions.

    ## Evidence
    3.11: op-plugin documentation of empty_with_swapped_memory; cann-recipes-infer copies before use.
    """

    code = "KV624"
    name = "swapped-memory-cache"
    severity = Severity.DEVICE
    confidence = Confidence.HIGH
    contract = ("3.11",)
    families = (
        "fia",
        "pfa",
        "ifa",
        "fusion",
        "atb",
        "sparse",
        "indexer",
        "cache_write",
        "cache_read",
        "prolog",
        "rotary",
    )
    bad = {
        "as the cache": """
            cache = torch_npu.empty_with_swapped_memory([8, 4096, 1024], dtype=torch.float16)
            torch_npu.scatter_update_(cache, lens, new, 1)  # KV624
        """,
        "as the keys": """
            class Offloaded:
                def __init__(self, rows):
                    self.k = torch_npu.empty_with_swapped_memory([rows, 128, 1024], dtype=torch.float16)

                def attend(self, q, table, lens):
                    return torch_npu.npu_fused_infer_attention_score(
                        q,
                        self.k,  # KV624
                        self.k,  # KV624
                        num_heads=8, scale=0.1, input_layout="BSH", block_table=table, block_size=128,
                        actual_seq_lengths_kv=lens)
        """,
    }
    ok = {
        "copied first": """
            host = torch_npu.empty_with_swapped_memory([8, 4096, 1024], dtype=torch.float16)
            cache = torch.zeros(8, 4096, 1024, dtype=torch.float16)
            cache.copy_(host)
            torch_npu.scatter_update_(cache, lens, new, 1)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges where each argument lives."""
        found = False
        for arg in call.args():
            swapped = arg.device.among(_SWAPPED)
            if swapped.yes:
                found = True
                yield violated(
                    f"{arg.name} lives in swapped host memory, which {call.operator.name} does not support",
                    arg,
                    swapped.notes,
                    "Copy it into a normal tensor first.",
                )
        if not found:
            yield NOT_APPLICABLE
