"""The six misuses people report most, in the three styles in which calls are written.

Each misuse is a call with some arguments wrong; each style writes the same call another way. The right
call is written in every style too, and must be clean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from support.examples import findings

from kvlint.contract.rule import all_rules

RULES = [rule for rule in all_rules() if rule.default]
V1, V2 = "npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"


@dataclass(frozen=True)
class Written:
    """A call as source: operator, positional arguments, keywords, and what comes before it."""

    operator: str
    positional: str = "q, k, v"
    keywords: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    def having(self, **changed: str | None) -> Written:
        keywords = {**self.keywords, **{name: text for name, text in changed.items() if text is not None}}
        return replace(self, keywords={n: t for n, t in keywords.items() if changed.get(n, t) is not None})


def direct(call: Written) -> str:
    arguments = [call.positional, *(f"{name}={text}" for name, text in call.keywords.items())]
    body = [*call.before, f"return torch_npu.{call.operator}({', '.join(arguments)})[0]"]
    return "import torch\nimport torch_npu\n\n\n" + function(body)


def unpacked(call: Written) -> str:
    items = list(call.keywords.items())
    literal = ", ".join(f'"{name}": {text}' for name, text in items[: len(items) // 2])
    stores = [f'options["{name}"] = {text}' for name, text in items[len(items) // 2 :]]
    last = f"return torch_npu.{call.operator}({call.positional}, **options)[0]"
    body = [*call.before, f"options = {{{literal}}}", *stores, last]
    return "import torch\nimport torch_npu\n\n\n" + function(body)


def held(call: Written) -> str:
    arguments = [call.positional, *(f"{name}={text}" for name, text in call.keywords.items())]
    body = [*call.before, f"return self.fa_ops.{call.operator}({', '.join(arguments)})[0]"]
    method = function(body, first="self, ")
    return (
        "import torch\nimport torchair\n\n\nclass Attention:\n"
        "    def __init__(self, config):\n"
        "        self.fa_ops = torchair.ops if config.graph else torch.ops.npu\n\n"
    ) + "".join(f"    {line}\n" for line in method.splitlines())


def function(body: list[str], first: str = "") -> str:
    head = f"def attend({first}q, q_rope, k, k_rope, v, table, lens, ends, heads, groups, factor, hidden):\n"
    return head + "".join(f"    {line}\n" for line in body)


PLAIN_V1 = Written(
    V1,
    keywords={
        "num_heads": "heads",
        "num_key_value_heads": "groups",
        "scale": "factor",
        "input_layout": '"BNSD"',
        "atten_mask": "hidden",
    },
)
PLAIN_V2 = Written(
    V2,
    keywords={
        "num_query_heads": "heads",
        "num_key_value_heads": "groups",
        "softmax_scale": "factor",
        "input_layout": '"BSND"',
        "atten_mask": "hidden",
    },
)
LATENT = Written(
    V2,
    positional="q.view(-1, heads, 512), k, k",
    keywords={
        "query_rope": "q_rope",
        "key_rope": "k_rope",
        "num_query_heads": "heads",
        "num_key_value_heads": "1",
        "softmax_scale": "factor",
        "input_layout": '"TND_NTD"',
        "sparse_mode": "3",
        "atten_mask": "hidden",
        "block_table": "table",
        "block_size": "128",
        "actual_seq_qlen": "ends",
        "actual_seq_kvlen": "lens",
    },
)
PAGED = Written(
    V1,
    keywords={
        "num_heads": "heads",
        "num_key_value_heads": "groups",
        "scale": "factor",
        "input_layout": '"TND"',
        "sparse_mode": "3",
        "atten_mask": "hidden",
        "block_table": "table.to(torch.int32)",
        "block_size": "128",
        "actual_seq_lengths": "ends",
        "actual_seq_lengths_kv": "lens",
    },
)
ONE_TOKEN = "q.view(4, 1, heads, 512), k, k"


def several_tokens(mode: str) -> Written:
    """Absorbed MLA on two tokens per request."""
    batched = LATENT.having(sparse_mode=mode, input_layout='"BSND"', actual_seq_qlen=None)
    return replace(batched, positional="q.view(4, 2, heads, 512), k, k")


RIGHT = {"v1": PLAIN_V1, "v2": PLAIN_V2, "latent": LATENT, "drafts": several_tokens("3"), "paged": PAGED}
STYLES: dict[str, Callable[[Written], str]] = {"direct": direct, "dict": unpacked, "held": held}

FLOAT_MASK = replace(
    PLAIN_V1.having(atten_mask="mask"),
    before=('mask = torch.zeros(1, 1, 128, 128, dtype=torch.float16).masked_fill(hidden, float("-inf"))',),
)
WIDE_TABLE = replace(
    PAGED.having(block_table="rows"), before=("rows = torch.cat([t.long() for t in table]).view(4, -1)",)
)
WRONG: dict[str, tuple[str, Written]] = {
    "v1 name in v2": ("KV102", PLAIN_V2.having(softmax_scale=None, scale="factor")),
    "v2 name in v1": ("KV102", PLAIN_V1.having(num_heads=None, num_query_heads="heads")),
    "v1 lengths in v2": ("KV102", LATENT.having(actual_seq_kvlen=None, actual_seq_lengths_kv="lens")),
    "float mask": ("KV202", FLOAT_MASK),
    "float mask from ones": (
        "KV202",
        PLAIN_V2.having(atten_mask="torch.triu(torch.ones(128, 128, dtype=torch.bfloat16), 1)"),
    ),
    "query rope alone": ("KV501", LATENT.having(key_rope=None)),
    "key rope alone": ("KV501", LATENT.having(query_rope=None)),
    "query rope with None": ("KV501", LATENT.having(key_rope="None")),
    "mode 1 with packed latent": ("KV209", LATENT.having(sparse_mode="1")),
    "mode 2 with packed latent": ("KV209", LATENT.having(sparse_mode="2")),
    "mode 2 with latent": ("KV225", several_tokens("2")),
    "no mode with latent": ("KV225", several_tokens("0")),
    "causal mode with one latent token": ("KV225", replace(several_tokens("3"), positional=ONE_TOKEN)),
    "int64 table": ("KV401", PAGED.having(block_table="table.to(torch.int64)")),
    "int64 table by promotion": ("KV401", WIDE_TABLE),
    "float table": ("KV401", PAGED.having(block_table="torch.zeros(4, 16)")),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", WRONG)
def test_misuse_is_found_in_every_style(kind: str, style: str) -> None:
    code, call = WRONG[kind]
    found = findings(STYLES[style](call), RULES)
    assert code in {found_code for _, found_code in found}, found


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", RIGHT)
def test_right_call_is_clean_in_every_style(kind: str, style: str) -> None:
    assert findings(STYLES[style](RIGHT[kind]), RULES) == {}


CALL = {
    "direct": "torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=8, num_key_value_heads=8, "
    'input_layout="BSH", scale=0.1, actual_seq_lengths_kv={lens})',
    "dict": "torch_npu.npu_fused_infer_attention_score(q, k, v, **dict(num_heads=8, num_key_value_heads=8, "
    'input_layout="BSH", scale=0.1, actual_seq_lengths_kv={lens}))',
    "held": "self.fa_ops.npu_fused_infer_attention_score(q, k, v, num_heads=8, num_key_value_heads=8, "
    'input_layout="BSH", scale=0.1, actual_seq_lengths_kv={lens})',
}
LAYER = """
import torch
import torch_npu


class DecoderLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fa_ops = torch.ops.npu

    def forward(self, q, k, v, metadata):
        {before}
        return {call}[0]


class Model(torch.nn.Module):
    def forward(self, q, k, v, metadata):
        {outside}
        for layer in self.layers:
            q = layer(q, k, v, metadata)
        return q
"""
INCREMENTS = {
    "attribute": ("metadata.kv_len += 1", "metadata.kv_len"),
    "assignment": ("metadata.kv_len = metadata.kv_len + 1", "metadata.kv_len"),
    "in place": ("metadata.kv_len.add_(1)", "metadata.kv_len"),
    "entry": ('metadata["kv_len"] += 1', 'metadata["kv_len"]'),
    "entry assigned": ('metadata["kv_len"] = metadata["kv_len"] + 1', 'metadata["kv_len"]'),
}


@pytest.mark.parametrize("style", CALL)
@pytest.mark.parametrize("form", INCREMENTS)
def test_length_incremented_inside_a_layer(form: str, style: str) -> None:
    before, lens = INCREMENTS[form]
    call = CALL[style].format(lens=lens)
    inside = findings(LAYER.format(before=before, call=call, outside="pass"), RULES)
    outside = findings(LAYER.format(before="pass", call=call, outside=before), RULES)
    assert {code for _, code in inside} == {"KV701"}
    assert outside == {}
