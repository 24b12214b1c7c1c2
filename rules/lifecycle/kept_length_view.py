"""KV704: an attribute keeps a view of a length buffer instead of a number."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class KeptLengthView(Rule):
    """An attribute keeps a view of a length buffer instead of a number.

    ## What it does
    Reports an attribute that is set to one element of a buffer an object keeps: ``max(self.lens[:n])`` or
    ``self.lens[i]`` without ``int()``.

    ## Why it is wrong
    Python's ``max`` over a tensor and an index give a 0-d view. When the buffer is refilled for the next step the
    remembered length changes with it: a mask that was built for the old length is taken for the new one.

    ## Use instead
    ``int(...)`` or ``.item()`` before keeping it.

    ## Ops and versions
    All attention operators whose mask or lengths are cached between steps.

    ## Evidence
    C07: the mask must cover the longest request of this step.
    """

    code = "KV704"
    name = "kept-length-view"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("C07",)
    events = ("kept-length-view",)
    bad = {
        "longest length remembered": """
            class Masks:
                def __init__(self):
                    self.size = 0

                def ensure(self, longest):
                    if longest > self.size:
                        self.size = longest  # KV704
                    return torch.ones(int(longest), int(longest), dtype=torch.bool).triu(1)

            class Runner:
                def __init__(self, cap):
                    self.lens = torch.zeros(cap, dtype=torch.int32)
                    self.masks = Masks()

                def prefill(self, q, k, v, n):
                    mask = self.masks.ensure(max(self.lens[:n]))
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                        next_tokens=2147483647, atten_mask=mask)
        """,
    }
    ok = {
        "as a number": """
            class Masks:
                def __init__(self):
                    self.size = 0

                def ensure(self, longest):
                    if longest > self.size:
                        self.size = int(longest)
                    return torch.ones(int(longest), int(longest), dtype=torch.bool).triu(1)

            class Runner:
                def __init__(self, cap):
                    self.lens = torch.zeros(cap, dtype=torch.int32)
                    self.masks = Masks()

                def prefill(self, q, k, v, n):
                    mask = self.masks.ensure(max(self.lens[:n]))
                    return torch_npu.npu_prompt_flash_attention(
                        q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                        next_tokens=2147483647, atten_mask=mask)
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the statement."""
        name = event.detail["name"]
        return violated(
            f"{name} keeps a view of a buffer element, so it changes when the buffer is refilled",
            event.place,
            event.notes,
            "Keep the number: int(...).",
        )
