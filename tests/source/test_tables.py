"""Dicts that are looked up, filtered and renamed; sets; names put together from parts."""

from __future__ import annotations

import pytest
from support.examples import findings
from support.probe import of, possible, within

from kvlint.contract.rule import all_rules

RULES = {rule.code: rule for rule in all_rules()}


@pytest.mark.parametrize(
    ("table", "form"),
    [
        ("{'a': x.int(), 'b': y.int()}", "d[n]"),
        ("{'a': x.int(), 'b': y.int()}", "d.get(n, z.int())"),
        ("{1: x.int(), 2: y.int()}", "d[n + 1]"),
        ("{'a': x.int()}", "{k + 'b': v for k, v in d.items()}['ab']"),
        ("{'a': x.int(), 'c': y}", "{{'a': 'b'}.get(k, k): v for k, v in d.items()}['b']"),
        ("{'a': x, 'b': y.int()}", "{k: v.int() for k, v in d.items() if k in {'a', 'c'}}['a']"),
        ("{'a_scale': x.int()}", "d[f'{\"a\"}_scale']"),
    ],
)
def test_every_entry_that_may_be_meant(table: str, form: str) -> None:
    assert possible(of(form, f"d = {table}").dtype) == {"int32"}


@pytest.mark.parametrize(
    ("table", "form"),
    [
        ("{'a': x.int(), 'b': y}", "d[n]"),
        ("{'a': x.int(), 'b': y.int()}", "d.get(n, z)"),
        ("{'a': x.int(), m: y}", "d[n]"),
        ("dict(a, b=x.int())", "d[n]"),
        ("{}", "d[n]"),
        ("{'a_scale': x.int(), 'b_scale': y}", "d[f'{n}_scale']"),
    ],
)
def test_an_entry_that_is_not_known(table: str, form: str) -> None:
    assert possible(of(form, f"d = {table}").dtype) is None


OPTIONS = """
import torch, torch_npu

NAMES = {{"num_query_heads", "num_key_value_heads", "softmax_scale", "input_layout", "actual_seq_kvlen"}}
RENAMED = {{"num_heads": "num_query_heads", "scale": "{scale}"}}


def call(query, key, value, **options):
    known = {comprehension}
    return torch_npu.npu_fused_infer_attention_score_v2(query, key, value, **known)[0]


def attend(q, k, v, lens):
    return call(
        q, k, v, {heads}=8, num_key_value_heads=8, {given}=0.1, input_layout="BSND", actual_seq_kvlen=lens)
"""


def found(code: str, **parts: str) -> bool:
    return bool(findings(OPTIONS.format(**parts), [RULES[code]]))


def test_keywords_filtered_by_name() -> None:
    """What is filtered out is missing: the scale is 1."""
    parts = {
        "comprehension": "{name: v for name, v in options.items() if name in NAMES}",
        "heads": "num_query_heads",
        "scale": "",
    }
    assert found("KV101", given="scale", **parts)
    assert not found("KV101", given="softmax_scale", **parts)


def test_keywords_renamed() -> None:
    parts = {
        "comprehension": "{RENAMED.get(k, k): v for k, v in options.items()}",
        "heads": "num_heads",
        "given": "scale",
    }
    assert found("KV102", scale="scale_value", **parts)
    assert not found("KV102", scale="softmax_scale", **parts)
    assert not found("KV101", scale="softmax_scale", **parts)


def test_options_of_a_phase() -> None:
    """Each entry of the table is a dict of keywords, and no test tells which is meant."""
    source = """
        TABLE = {{"prefill": {{"sparse_mode": 3, "atten_mask": {mask}}}, "decode": {{"sparse_mode": {mode}}}}}
        options = dict(num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="TND")
        options.update(TABLE[n])
        torch_npu.npu_fused_infer_attention_score(
            q, k, v, actual_seq_lengths=lens, actual_seq_lengths_kv=lens, **options)
    """
    assert possible(within(source.format(mask="m.bool()", mode="3")).arg("sparse_mode").constant) == {3}
    assert possible(within(source.format(mask="m.bool()", mode="0")).arg("sparse_mode").constant) == {0, 3}


@pytest.mark.parametrize(
    "lines",
    [
        "ends = torch.zeros(n + 1, dtype=torch.int32)\nends[1:] = torch.cumsum(x.int(), 0)",
        "ends = torch.zeros_like(x.int())\nends[1:n] = x.cumsum(0)",
        "ends = torch.cat([torch.zeros(1, dtype=torch.int32), torch.cumsum(x, 0)])",
        "ends = torch.cat([torch.tensor([0]), torch.cumsum(x, 0)])",
        "import numpy as np\nends = torch.from_numpy(np.concatenate([[0], np.cumsum(x)]))",
    ],
)
def test_running_sums_behind_a_zero(lines: str) -> None:
    assert of("ends[1:]", lines).length_form.known
    assert of("ends[1:].tolist()", lines).length_form.known


@pytest.mark.parametrize(
    "lines",
    [
        "ends = torch.ones(n + 1)\nends[1:] = torch.cumsum(x, 0)",
        "ends = torch.zeros(n + 1)\nends[1:] = x",
        "ends = torch.zeros(n + 1)\nends[2:] = torch.cumsum(x, 0)",
        "ends = torch.zeros(n + 1)\nends[1:] = torch.cumsum(x, 0)\nends[0] = 5",
        "ends = torch.cat([y, torch.cumsum(x, 0)])",
        "ends = torch.cat([torch.zeros(2), torch.cumsum(x, 0)])",
        "ends = torch.cat([torch.ones(1), torch.cumsum(x, 0)])",
    ],
)
def test_sums_behind_something_else(lines: str) -> None:
    assert not of("ends[1:]", lines).length_form.known


def test_the_operators_by_the_name_of_their_module() -> None:
    source = """
import importlib, torch

npu = importlib.import_module({name!r})


def attend(q, k, v, lens):
    return npu.npu_fused_infer_attention_score(
        q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSH", actual_seq_lengths_kv=lens)[0]
"""
    assert findings(source.format(name="torch_npu"), [RULES["KV101"]])
    assert not findings(source.format(name="numpy"), [RULES["KV101"]])
