"""KV112: an argument that the operator requires is not passed."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.catalogue import Operator
from kvlint.contract.rule import PROVED, Confidence, Rule, Severity, Verdict, require

from ._common import schemas


class MissingArgument(Rule):
    """An argument that the operator requires is not passed.

    ## What it does
    Reports a call without an argument that has no default, such as `head_num` and `input_layout` of
    npu_fusion_attention, or `out` of the ATB attention operators and of the `.out` forms.

    ## Why it is wrong
    The call raises `RuntimeError: missing value for argument`.

    ## Use instead
    Pass it.

    ## Ops and versions
    All operators. All versions.

    ## Evidence
    FUS-02, 2.5: schemas; npu_fusion_attention without head_num raises (executed on torch_npu 2.13).
    """

    code = "KV112"
    name = "missing-argument"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("FUS-02", "2.5")
    families = ("fia", "pfa", "ifa", "fusion", "atb", "sparse", "indexer", "merge", "cache_read", "rotary")
    bad = {
        "fusion attention without a layout": """
            torch_npu.npu_fusion_attention(q, k, v, 8, scale=0.1)  # KV112
        """,
        "ATB attention without out": """
            torch_npu._npu_paged_attention(  # KV112
                query=q, key_cache=kc, value_cache=vc, num_kv_heads=8, num_heads=8, scale_value=0.1,
                block_table=table, context_lens=lens)
        """,
        "on one path": """
            opts = {"head_num": 8, "scale": 0.1}
            if packed:
                opts["input_layout"] = "BSND"
            torch_npu.npu_fusion_attention(q, k, v, **opts)  # KV112
        """,
    }
    ok = {
        "complete": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1)
        """,
        "by name": """
            opts = {"head_num": 8, "scale": 0.1}
            opts["input_layout"] = layout
            torch_npu.npu_fusion_attention(q, k, v, **opts)
        """,
        "the caller's own arguments": """
            def attend(*args, **kwargs):
                return torch_npu.npu_fusion_attention(*args, **kwargs)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges every parameter without a default."""
        if call.binding.surplus:
            return
        others = schemas(call)
        for param in call.operator.params:
            if all(_needs(schema, param.name) for schema in others):
                yield require(
                    call.named(param.name).given,
                    f"{call.operator.name} needs {param.name}, so the call raises",
                    at=call.place,
                    fix=f"Pass {param.name}.",
                )
        yield PROVED


def _needs(schema: Operator, name: str) -> bool:
    param = schema.param(name)
    return param is not None and param.required
