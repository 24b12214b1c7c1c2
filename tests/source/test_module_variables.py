"""Module variables that functions set: single objects made when first asked for, caches by key."""

from __future__ import annotations

import pytest
from support.examples import findings

from kvlint.contract.rule import all_rules

RULES = [rule for rule in all_rules() if rule.code == "KV203"]
SOURCE = """
import torch, torch_npu

{maker}


class Attention:
    def __init__(self):
        self.mask = {call}

    def forward(self, q, k, v, lens):
        return torch_npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND", sparse_mode=3,
            atten_mask={used}, actual_seq_lengths=lens, actual_seq_lengths_kv=lens)[0]
"""
KEEP = "torch.ones({n}, {n}, dtype=torch.bool).tril()"
HIDE = "torch.ones({n}, {n}, dtype=torch.bool).triu(1)"
SINGLE = """
_MASK = None


def mask():
    global _MASK
    if _MASK is None:
        _MASK = {built}
    return _MASK
"""
CACHES = {
    "stored when missing": """
CACHE = {{}}


def mask(n):
    if n not in CACHE:
        CACHE[n] = {built}
    return CACHE[n]
""",
    "returned where it is made": """
CACHE = {{}}


def mask(n):
    found = CACHE.get(n)
    if found is None:
        found = {built}
        CACHE[n] = found
    return found
""",
}


def wrong(maker: str, call: str, used: str, mask: str, n: str) -> bool:
    built = mask.format(n=n)
    return bool(findings(SOURCE.format(maker=maker.format(built=built), call=call, used=used), RULES))


def test_a_single_object_made_when_first_asked_for() -> None:
    for call, used in (("mask()", "self.mask"), ("None", "mask()")):
        assert wrong(SINGLE, call, used, KEEP, "2048")
        assert not wrong(SINGLE, call, used, HIDE, "2048")


def test_a_variable_that_another_function_sets_too() -> None:
    """What the first one finds may be the other's."""
    other = SINGLE + "\n\ndef use(other):\n    global _MASK\n    _MASK = other\n"
    assert not wrong(other, "mask()", "self.mask", KEEP, "2048")


@pytest.mark.parametrize("cache", CACHES)
def test_a_cache_by_key(cache: str) -> None:
    assert wrong(CACHES[cache], "None", "mask(2048)", KEEP, "n")
    assert not wrong(CACHES[cache], "None", "mask(2048)", HIDE, "n")


@pytest.mark.parametrize("between", ["CACHE[m] = q", "CACHE.clear()", "CACHE.update(m)", "fill(CACHE)"])
def test_a_cache_that_changes_before_it_is_read(between: str) -> None:
    maker = f"""
CACHE = {{{{}}}}


def mask(n, m=1, q=None):
    CACHE[n] = {{built}}
    {between}
    return CACHE[n]
"""
    assert not wrong(maker, "None", "mask(2048)", KEEP, "n")
    assert wrong(maker.replace(between, "pass"), "None", "mask(2048)", KEEP, "n")
