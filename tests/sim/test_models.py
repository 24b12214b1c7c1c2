"""Whole attention modules, prefill and decode, against the same mathematics in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

#: bfloat16 projections before and after attention leave an error of 3e-3 to 6e-3.
LIMIT = 1e-2
PROMPTS = [37, 50, 21]
STEPS = 3


@pytest.mark.parametrize("name", ["ContiguousBSH", "SinkWindowTND", "PagedTND", "PagedLatentNZ"])
def test_prefill_and_decode_match_the_reference(torch_npu: Any, name: str) -> None:
    import npu_models as models

    module = getattr(models, name)(len(PROMPTS), 256)
    tokens = [torch.randn(n + STEPS, models.HIDDEN).to(torch.bfloat16) for n in PROMPTS]
    wanted = [module.reference(t) for t in tokens]
    got = module(torch.cat([t[:n] for t, n in zip(tokens, PROMPTS, strict=True)]), PROMPTS, [0] * 3)
    assert error(got, torch.cat([w[:n] for w, n in zip(wanted, PROMPTS, strict=True)])) < LIMIT
    for step in range(STEPS):
        so_far = [n + step for n in PROMPTS]
        got = module(torch.stack([t[n] for t, n in zip(tokens, so_far, strict=True)]), [1] * 3, so_far)
        assert error(got, torch.stack([w[n] for w, n in zip(wanted, so_far, strict=True)])) < LIMIT


def test_a_wrong_window_is_seen(torch_npu: Any) -> None:
    import npu_models as models

    module = models.SinkWindowTND(1, 128)
    x = torch.randn(60, models.HIDDEN).to(torch.bfloat16)
    wanted = module.reference(x)
    module.window += 1  # one key more than the reference was given
    assert error(module(x, [60], [0]), wanted) > 2 * LIMIT


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative, over the whole tensor."""
    return float((got.double() - wanted).norm() / wanted.norm())
