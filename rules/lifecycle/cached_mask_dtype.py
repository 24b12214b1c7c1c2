"""KV708: a cached mask is kept for another dtype."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class CachedMaskDtype(Rule):
    """A cached mask is kept for another dtype.

    ## What it does
    Reports a getter that rebuilds its mask when a longer one is wanted, takes the dtype as well, and does not
    look at it before it returns the mask, when the module asks the same object for several dtypes.

    ## Why it is wrong
    Who asks second gets the mask of whoever asked first. A float mask is rejected by the fused operators,
    and a boolean one means nothing to operators that add their mask.

    ## Use instead
    Keep one mask per dtype, or test the dtype of the cached one too.

    ## Ops and versions
    All attention operators with a mask.

    ## Evidence
    C01, ATB-05: the dtypes of both families of masks.
    """

    code = "KV708"
    name = "cached-mask-dtype"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("C01", "ATB-05")
    events = ("cache-without-dtype",)
    bad = {
        "only the size is tested": """
            class Masks:
                def __init__(self):
                    self.size, self.mask = 0, None

                def get(self, n, dtype):
                    if n > self.size:  # KV708
                        self.size = n
                        self.mask = torch.ones(n, n, dtype=dtype).triu(1)
                    return self.mask[:n, :n]

            masks = Masks()

            def prefill(q, k, v, n):
                return torch_npu.npu_prompt_flash_attention(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                    next_tokens=2147483647, atten_mask=masks.get(n, torch.bool))

            def scores(q, k, n):
                return q @ k.mT + masks.get(n, dtype=torch.float16)
        """,
    }
    ok = {
        "dtype is tested": """
            class Masks:
                def __init__(self):
                    self.size, self.mask = 0, None

                def get(self, n, dtype):
                    if n > self.size or self.mask.dtype != dtype:
                        self.size = n
                        self.mask = torch.ones(n, n, dtype=dtype).triu(1)
                    return self.mask[:n, :n]

            masks = Masks()

            def prefill(q, k, v, n):
                return torch_npu.npu_prompt_flash_attention(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                    next_tokens=2147483647, atten_mask=masks.get(n, torch.bool))

            def scores(q, k, n):
                return q @ k.mT + masks.get(n, dtype=torch.float16)
        """,
        "converted on the way out": """
            class Masks:
                def __init__(self):
                    self.size, self.mask = 0, None

                def get(self, n, dtype):
                    if n > self.size:
                        self.size = n
                        self.mask = torch.ones(n, n, dtype=dtype).triu(1)
                    if self.mask.dtype != dtype:
                        self.mask = self.mask.to(dtype)
                    return self.mask[:n, :n]

            masks = Masks()

            def prefill(q, k, v, n):
                return torch_npu.npu_prompt_flash_attention(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                    next_tokens=2147483647, atten_mask=masks.get(n, torch.bool))

            def scores(q, k, n):
                return q @ k.mT + masks.get(n, dtype=torch.float16)
        """,
        "one dtype": """
            class Masks:
                def __init__(self):
                    self.size, self.mask = 0, None

                def get(self, n, dtype):
                    if n > self.size:
                        self.size = n
                        self.mask = torch.ones(n, n, dtype=dtype).triu(1)
                    return self.mask[:n, :n]

            masks = Masks()

            def prefill(q, k, v, n):
                return torch_npu.npu_prompt_flash_attention(
                    q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                    next_tokens=2147483647, atten_mask=masks.get(n, torch.bool))
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the test."""
        detail = event.detail
        return violated(
            f"{detail['owner']}.{detail['method']} is asked for {detail['dtypes']}, but this test does not "
            "look at the dtype of the mask that is kept",
            event.place,
            event.notes,
            "Keep one mask per dtype, or test the dtype of the cached one too.",
        )
