"""KV514: key and key_rope are exchanged."""

from __future__ import annotations

import re

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, violated
from kvlint.contract.values import Tensor, Unknown

from ._common import with_rope

_ROPE = frozenset(("rope", "pe", "kr", "krope"))
_NOPE = frozenset(("nope", "ckv", "latent", "knope"))


class SwappedRopeParts(RunRule):
    """The rope cache is passed as the key and the latent cache as its rope part.

    ## What it does
    Compares the names the source gives to `key` and `key_rope` (to `query` and `query_rope`). Only a pair
    where both names say the opposite of their parameter is reported.

    ## Why it is wrong
    The widths differ (512 or 128 against 64), so the device rejects the call; under fake tensors it passes.

    ## Use instead
    key = value = the nope cache, key_rope = the rope cache.

    ## Ops and versions
    FIA v1 and v2, npu_sparse_flash_attention, npu_ring_mla, npu_multi_head_latent_attention.

    ## Evidence
    F19, F02, F04: tiling checks (ops-transformer, CANN 8.5 snapshot).
    """

    code = "KV514"
    name = "swapped-rope-parts"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("F19", "F02", "F04")
    families = ("fia",)
    operators = ("npu_sparse_flash_attention", "npu_ring_mla")
    bad = {
        "caches": """
            torch_npu.npu_fused_infer_attention_score(
                q_nope,
                rope_cache,  # KV514
                rope_cache, num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q_pe, key_rope=nope_cache, actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
        "queries": """
            opts = {"query_rope": q_nope, "key_rope": k_pe, "num_query_heads": 16, "num_key_value_heads": 1}
            torch_npu.npu_fused_infer_attention_score_v2(
                q_pe,  # KV514
                kv, kv, softmax_scale=0.1, input_layout="TND", actual_seq_qlen=ends, actual_seq_kvlen=lens,
                block_table=table, block_size=128, **opts)
        """,
    }
    ok = {
        "in place": """
            torch_npu.npu_fused_infer_attention_score(
                q_nope, nope_cache, nope_cache, num_heads=16, num_key_value_heads=1, scale=0.1,
                input_layout="TND", query_rope=q_pe, key_rope=rope_cache, actual_seq_lengths=ends,
                actual_seq_lengths_kv=lens, block_table=table, block_size=128,
            )
        """,
        "neutral names": """
            torch_npu.npu_fused_infer_attention_score(
                q[0], kv[1], kv[1], num_heads=16, num_key_value_heads=1, scale=0.1, input_layout="TND",
                query_rope=q[1], key_rope=kv[0], actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                block_table=table, block_size=128,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the names of both pairs."""
        if with_rope(call).no:
            return NOT_APPLICABLE
        for role in ("key", "query"):
            whole, part = call.arg(role), call.arg(f"{role}_rope")
            if _says(whole, _ROPE, _NOPE) and _says(part, _NOPE, _ROPE):
                return violated(
                    f"{whole.name} and {part.name} are exchanged: the rope part belongs to {part.name}",
                    whole,
                )
        return NOT_APPLICABLE


def _says(arg: Arg, words: frozenset[str], others: frozenset[str]) -> bool:
    """Whether every name of the argument says one thing and not the other."""
    found = []
    for value in arg.options:
        if not isinstance(value, (Tensor, Unknown)):
            return False
        found.append(set(re.split(r"[^a-z0-9]+", value.label.lower())))
    return bool(found) and all(words & tokens and not others & tokens for tokens in found)
