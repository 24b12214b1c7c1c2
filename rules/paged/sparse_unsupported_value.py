"""KV443: a value that the sparse operators do not serve."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.sizes import constant

from .sparse_layout_without_paging import SPARSE

_FULL = 2**63 - 1
_ATTENTION = SPARSE[:2]
_FIXED: dict[str, dict[str, object]] = {
    "npu_kv_quant_sparse_flash_attention": {
        "key_quant_mode": 2,
        "value_quant_mode": 2,
        "quant_scale_repo_mode": 1,
        "tile_size": 128,
        "rope_head_dim": 64,
    },
    "npu_quant_lightning_indexer": {"query_quant_mode": 0, "key_quant_mode": 0},
}


class SparseUnsupportedValue(RunRule):
    """A sparse operator gets a value that it does not serve.

    ## What it does
    Checks constants and visible sizes: `pre_tokens` and `next_tokens` must keep their defaults,
    `return_value` and `return_softmax_lse` do not go with paging, the quantisation modes, repo mode, tile
    size and rope width of the quantised forms are fixed, `sparse_count` is 1 to 2048 or a multiple of 1024
    up to 8192, indexer heads are 128 wide and the latent query 512 (576 in the quantised form).

    ## Why it is wrong
    The device rejects the call, or ignores a window that the model relies on.

    ## Use instead
    The values in the message.

    ## Ops and versions
    npu_sparse_flash_attention, npu_kv_quant_sparse_flash_attention, npu_lightning_indexer,
    npu_quant_lightning_indexer (7.3.0 and newer).

    ## Evidence
    SP-06, SP-08: op-plugin documentation, tables of the sparse operators.
    """

    code = "KV443"
    name = "sparse-unsupported-value"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("SP-06", "SP-08")
    operators = SPARSE
    bad = {
        "a window": """
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, layout_query="TND",
                layout_key="PA_BSND", block_table=table,
                pre_tokens=1024)  # KV443
        """,
        "values with paging": """
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, layout_query="TND",
                layout_key="PA_BSND", block_table=table,
                return_value=True)  # KV443
        """,
        "quantisation mode": """
            torch_npu.npu_kv_quant_sparse_flash_attention(
                q, kv, kv, indices, 0.1,
                0,  # KV443
                2, block_table=table, actual_seq_lengths_query=ends, actual_seq_lengths_kv=lens,
                layout_query="TND", layout_kv="PA_BSND", attention_mode=2)
        """,
    }
    ok = {
        "defaults": """
            torch_npu.npu_lightning_indexer(
                q, k, w, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens, layout_query="TND",
                layout_key="PA_BSND", block_table=table, sparse_count=2048, sparse_mode=3)
        """,
        "quantised": """
            torch_npu.npu_kv_quant_sparse_flash_attention(
                q, kv, kv, indices, 0.1, 2, 2, block_table=table, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=lens, layout_query="TND", layout_kv="PA_BSND", attention_mode=2)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each value."""
        name = call.operator.name
        for role in ("pre_tokens", "next_tokens"):
            window = call.arg(role)
            yield require(
                window.constant.equals(_FULL),
                f"{window.name} is {window.constant.get('?')}, {name} has no window",
                when=window.given,
                at=window,
                fix=f"Drop {window.name}.",
            )
        for flag_name in ("return_value", "return_softmax_lse"):
            if call.operator.param(flag_name) is not None:
                flag = call.named(flag_name)
                yield require(
                    ~flag.constant.equals(True),
                    f"{flag_name} is for training, without a block table",
                    when=call.arg("layout_kv").constant.equals("PA_BSND"),
                    at=flag,
                )
        if call.target.soc != "950":
            for parameter, value in _FIXED.get(name, {}).items():
                fixed = call.named(parameter)
                yield require(
                    fixed.constant.equals(value),
                    f"{parameter} is {fixed.constant.get('?')}, it must be {value}",
                    when=fixed.given,
                    at=fixed,
                )
        if call.operator.param("sparse_count") is not None:
            count = call.named("sparse_count")
            yield require(
                count.constant.holds(_count),
                f"{count.name} is {count.constant.get('?')}, not 1 to 2048 or a multiple of 1024 up to 8192",
                when=count.given,
                at=count,
            )
        query = call.arg("query")
        width = constant(query.dim(-1))
        wanted = 128 if name not in _ATTENTION else 512 if name == _ATTENTION[0] else 576
        yield require(
            width.equals(wanted),
            f"{query.name} is {width.get(0)} wide, {name} takes {wanted}",
            at=query,
        )


def _count(value: object) -> bool:
    if not isinstance(value, int):
        return False
    return 1 <= value <= 2048 or (value % 1024 == 0 and value <= 8192)
