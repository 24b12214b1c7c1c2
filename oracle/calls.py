"""One form for every attention operator's call: names, defaults and meanings per operator (contract 1.1, 2).

The operators spell the same thing differently (``scale``, ``softmax_scale``, ``scale_value``).
:func:`normalise` turns a real call into a :class:`Call`, which is all that the reference reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kvlint.contract import catalogue

from .errors import OracleError
from .layouts import Layout, layout

INT_MAX = 2147483647


@dataclass(frozen=True, slots=True)
class Quant:
    """Dequantisation of one cache: ``(x + offset) * scale``; ``mode`` as in contract G12."""

    scale: Tensor
    offset: Tensor | None = None
    mode: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A normalised attention call. Lengths are as passed (cumulative for packed queries)."""

    op: str
    query: Tensor
    key: Tensor
    value: Tensor
    layout: Layout
    heads: int
    kv_heads: int
    scale: float = 1.0
    sparse_mode: int = 0
    pre_tokens: int = INT_MAX
    next_tokens: int = INT_MAX
    mask: Tensor | None = None
    bias: Tensor | None = None
    bias_is_scaled: bool = False
    sink: Tensor | None = None
    q_lens: tuple[int, ...] | None = None
    kv_lens: tuple[int, ...] | None = None
    block_table: Tensor | None = None
    block_size: int = 0
    query_rope: Tensor | None = None
    key_rope: Tensor | None = None
    key_quant: Quant | None = None
    value_quant: Quant | None = None
    query_scale: Tensor | None = None
    out_scale: Tensor | None = None
    out_offset: Tensor | None = None
    out_dtype: torch.dtype | None = None
    inner_precise: int = 0
    want_lse: bool = False
    prefix_key: Tensor | None = None
    prefix_value: Tensor | None = None
    prefix_len: int | None = None
    q_padding: int | None = None
    kv_padding: int | None = None
    prefix_lens: tuple[int, ...] = ()
    sparse_indices: Tensor | None = None
    sparse_block: int = 1
    page_layout: str = ""

    @property
    def fused_inference(self) -> bool:
        return self.op.startswith("npu_fused_infer_attention_score")

    @property
    def head_dim(self) -> int:
        """Width of one query head, without the rope part."""
        if self.layout.inputs in ("BSH", "SBH"):
            return self.query.shape[-1] // self.heads
        return self.query.shape[-1]

    @property
    def engine(self) -> str:
        """``decode`` or ``prefill``: which kernel family serves the call (contract 1.6)."""
        if self.op == "npu_incre_flash_attention":
            return "decode"
        if not self.fused_inference:
            return "prefill"
        name, dim = self.layout.name, self.head_dim
        if name in ("TND", "TND_NTD"):
            return "decode" if dim == 512 else "prefill"
        if name not in ("BSH", "BSND", "BNSD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD"):
            return "prefill"
        tokens = self.query.shape[2 if self.layout.inputs == "BNSD" else 1]
        rope = self.query_rope is not None
        few = 1 < tokens <= 16
        if tokens == 1 or (rope and few and dim == 512) or (self.key.dim() == 5 and few):
            return "decode"
        return "decode" if rope and dim == 512 and self.sparse_mode == 4 else "prefill"


_V2_ONLY = {
    "actual_seq_qlen": "q_lens", "actual_seq_kvlen": "kv_lens", "num_query_heads": "heads",
    "softmax_scale": "scale", "return_softmax_lse": "want_lse", "quant_scale_out": "out_scale",
    "quant_offset_out": "out_offset", "dequant_scale_key": "key_scale", "dequant_offset_key": "key_offset",
    "dequant_scale_value": "value_scale", "dequant_offset_value": "value_offset",
    "key_quant_mode": "key_mode",
    "value_quant_mode": "value_mode", "dequant_scale_query": "query_scale", "learnable_sink": "sink",
    "out_dtype": "out_dtype",
}  # fmt: skip
_V1_ONLY = {
    "actual_seq_lengths": "q_lens", "actual_seq_lengths_kv": "kv_lens", "num_heads": "heads",
    "scale": "scale",
    "softmax_lse_flag": "want_lse", "quant_scale2": "out_scale", "quant_offset2": "out_offset",
    "key_antiquant_scale": "key_scale", "key_antiquant_offset": "key_offset",
    "value_antiquant_scale": "value_scale", "value_antiquant_offset": "value_offset",
    "key_antiquant_mode": "key_mode", "value_antiquant_mode": "value_mode", "antiquant_scale": "kv_scale",
    "antiquant_offset": "kv_offset", "antiquant_mode": "kv_mode", "query_padding_size": "q_padding",
    "kv_padding_size": "kv_padding", "key_shared_prefix": "prefix_key", "value_shared_prefix": "prefix_value",
    "actual_shared_prefix_len": "prefix_len",
}  # fmt: skip
_FIA = {
    "query_rope": "query_rope", "key_rope": "key_rope", "pse_shift": "bias", "atten_mask": "mask",
    "block_table": "block_table", "num_key_value_heads": "kv_heads", "pre_tokens": "pre_tokens",
    "next_tokens": "next_tokens", "input_layout": "layout", "sparse_mode": "sparse_mode",
    "block_size": "block_size", "inner_precise": "inner_precise",
}  # fmt: skip
_PFA = {
    "atten_mask": "mask", "pse_shift": "bias", "actual_seq_lengths": "q_lens",
    "actual_seq_lengths_kv": "kv_lens",
    "num_heads": "heads", "scale_value": "scale", "pre_tokens": "pre_tokens", "next_tokens": "next_tokens",
    "input_layout": "layout", "num_key_value_heads": "kv_heads", "sparse_mode": "sparse_mode",
    "quant_scale2": "out_scale", "quant_offset2": "out_offset",
}  # fmt: skip
_IFA = {
    "atten_mask": "mask", "pse_shift": "bias", "actual_seq_lengths": "kv_lens", "antiquant_scale": "kv_scale",
    "antiquant_offset": "kv_offset", "block_table": "block_table", "num_heads": "heads",
    "scale_value": "scale",
    "input_layout": "layout", "num_key_value_heads": "kv_heads", "block_size": "block_size",
    "inner_precise": "inner_precise", "kv_padding_size": "kv_padding", "quant_scale2": "out_scale",
    "quant_offset2": "out_offset",
}  # fmt: skip
_FUSION = {
    "head_num": "heads", "input_layout": "layout", "pse": "bias", "atten_mask": "mask", "scale": "scale",
    "keep_prob": "keep_prob", "inner_precise": "inner_precise", "prefix": "prefix_lens",
    "actual_seq_qlen": "q_lens", "actual_seq_kvlen": "kv_lens", "sparse_mode": "sparse_mode", "sink": "sink",
}  # fmt: skip
_SFA = {
    "sparse_indices": "sparse_indices", "scale_value": "scale", "block_table": "block_table",
    "actual_seq_lengths_query": "q_lens", "actual_seq_lengths_kv": "kv_lens", "query_rope": "query_rope",
    "key_rope": "key_rope", "sparse_block_size": "sparse_block", "layout_query": "layout",
    "layout_kv": "layout_kv", "sparse_mode": "sparse_mode", "return_softmax_lse": "want_lse",
    "attention_mode": "attention_mode", "pre_tokens": "ignored", "next_tokens": "ignored",
}  # fmt: skip

#: operator -> keyword -> role
ROLES: dict[str, dict[str, str]] = {
    "npu_fused_infer_attention_score": _FIA | _V1_ONLY,
    "npu_fused_infer_attention_score_v2": _FIA | _V2_ONLY,
    "npu_prompt_flash_attention": _PFA,
    "npu_incre_flash_attention": _IFA,
    "npu_fusion_attention": _FUSION | {"pre_tockens": "pre_tokens", "next_tockens": "next_tokens"},
    "npu_fusion_attention_v2": _FUSION
    | {
        "pre_tokens": "pre_tokens",
        "next_tokens": "next_tokens",
        "pse_type": "pse_type",
        "query_rope": "query_rope",
        "key_rope": "key_rope",
    },
    "npu_fusion_attention_v3": _FUSION | {"pre_tockens": "pre_tokens", "next_tockens": "next_tokens"},
    "npu_sparse_flash_attention": _SFA,
}
#: Arguments that exist, and that on Atlas A2/A3 have no effect on the numbers modelled here.
_INERT = frozenset(
    [
        "padding_mask",
        "workspace",
        "quant_scale_p",
        "query_dtype",
        "key_dtype",
        "value_dtype",
        "query_rope_dtype",
        "key_rope_dtype",
        "key_shared_prefix_dtype",
        "value_shared_prefix_dtype",
        "dequant_scale_query_dtype",
        "dequant_scale_key_dtype",
        "dequant_scale_value_dtype",
        "dequant_scale_key_rope_dtype",
        "query_quant_mode",
        "gen_mask_parallel",
        "sync",
        "softmax_layout",
        "seed",
        "offset",
        "dropout_mask",
        "q_start_idx",
        "kv_start_idx",
        "layout_kv",
        "attention_mode",
    ]
)
_UNMODELLED = frozenset(
    [
        "dequant_scale1",
        "quant_scale1",
        "dequant_scale2",
        "deq_scale1",
        "deq_scale2",
        "key_rope_antiquant_scale",
        "dequant_scale_key_rope",
        "sinks",
    ]
)


def _lengths(value: object, name: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, Tensor):
        return tuple(int(x) for x in value.reshape(-1).tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(int(x) for x in value)
    raise OracleError(f"{name} must be a list of integers or a tensor, got {type(value).__name__}")


def _scalar(value: object) -> int | None:
    if value is None:
        return None
    return int(value.reshape(-1)[0]) if isinstance(value, Tensor) else int(str(value))


def operator_name(op: str | Callable[..., Any]) -> str:
    """The bare name of an operator that is named as in code, or given as the object that is called."""
    text = op if isinstance(op, str) else getattr(op, "__name__", "")
    parts = text.replace("::", ".").split(".")
    if len(parts) > 1 and parts[-1] in ("out", "default"):
        parts.pop()
    name = parts[-1]
    if name not in ROLES:
        raise OracleError(
            f"{text or repr(op)} is not an attention operator of the oracle; known: {', '.join(ROLES)}"
        )
    return name


def normalise(op: str | Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """The :class:`Call` of ``op(*args, **kwargs)``; see :func:`operator_name` for what ``op`` may be.

    Raises :class:`OracleError` for an unknown operator or keyword, and for arguments the reference does not
    model (full int8 attention).
    """
    name = operator_name(op)
    given = _bind(name, args, kwargs)
    roles: dict[str, Any] = {}
    for keyword, value in given.items():
        if keyword in _UNMODELLED and value is not None:
            raise OracleError(f"{name}: {keyword} is not modelled by the reference")
        if keyword in ROLES[name]:
            roles[ROLES[name][keyword]] = value
        elif keyword not in _INERT | _UNMODELLED | {"query", "key", "value"}:
            raise OracleError(f"{name} has no argument {keyword!r}")
    return _call(name, given, roles)


@cache
def _positional(name: str) -> tuple[str, ...]:
    """Parameters that may be passed by position."""
    schema = catalogue.find(name)
    if schema is None:
        return ("query", "key", "value")
    return tuple(p.name for p in schema.params if p.position is not None)


def _bind(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    order = _positional(name)
    if len(args) > len(order):
        raise OracleError(f"{name} takes at most {len(order)} positional arguments, got {len(args)}")
    given = dict(zip(order, args, strict=False))
    for keyword, value in kwargs.items():
        if keyword in given:
            raise OracleError(f"{name} got {keyword!r} twice")
        given[keyword] = value
    for needed in ("query", "key", "value"):
        if not isinstance(given.get(needed), Tensor):
            raise OracleError(f"{name} needs a tensor for {needed!r}")
    return given


def _call(name: str, given: dict[str, Any], roles: dict[str, Any]) -> Call:
    query, key, value = given["query"], given["key"], given["value"]
    sparse = name == "npu_sparse_flash_attention"
    lay = layout(str(roles.get("layout", "BSND" if sparse else "BSH")))
    fusion = name.startswith("npu_fusion")
    heads = query.shape[2] if sparse else int(roles.get("heads", 1))
    kv_heads = 1 if sparse else int(roles.get("kv_heads", 0) or 0) or heads
    if fusion:
        kv_heads = _fusion_kv_heads(lay, query, key, heads)
    elif lay.packed and roles.get("block_table") is None and not roles.get("kv_heads"):
        kv_heads = key.shape[lay.inputs.index("N")]  # B26: read from the key, the attribute does not matter
    if heads < 1 or kv_heads < 1:
        raise OracleError(f"{name}: head counts must be positive, got {heads} and {kv_heads}")
    if float(roles.get("keep_prob", 1.0)) != 1.0:
        raise OracleError(f"{name}: keep_prob != 1 drops weights at random; there is no reference for it")
    next_default = 0 if name == "npu_prompt_flash_attention" else INT_MAX
    quants = _quants(roles, key)
    pse_type = int(roles.get("pse_type", 1))
    if fusion and pse_type not in (0, 1):
        raise OracleError(f"{name}: pse_type {pse_type} (alibi built by the operator) is not modelled")
    page_layout = ""
    if roles.get("block_table") is not None:
        page_layout = "PA_BSND" if sparse else {3: "BnBsH", 4: "BnNBsD", 5: "NZ"}.get(key.dim(), "")
        if not page_layout:
            raise OracleError(f"{name}: a paged key has 3, 4 or 5 axes, got shape {tuple(key.shape)}")
    out_dtype = roles.get("out_dtype")
    return Call(
        op=name, query=query, key=key, value=value, layout=lay, heads=heads, kv_heads=kv_heads,
        scale=float(roles.get("scale", 1.0)), sparse_mode=int(roles.get("sparse_mode", 0)),
        pre_tokens=int(roles.get("pre_tokens", INT_MAX)), next_tokens=int(roles.get("next_tokens",
        next_default)),
        mask=roles.get("mask"), bias=roles.get("bias"), bias_is_scaled=fusion and pse_type == 1,
        sink=roles.get("sink"), q_lens=_lengths(roles.get("q_lens"), "query lengths"),
        kv_lens=_lengths(roles.get("kv_lens"), "key lengths"), block_table=roles.get("block_table"),
        block_size=int(roles.get("block_size", 0) or 0), query_rope=roles.get("query_rope"),
        key_rope=roles.get("key_rope"), key_quant=quants[0], value_quant=quants[1],
        query_scale=roles.get("query_scale"), out_scale=roles.get("out_scale"),
        out_offset=roles.get("out_offset"),
        out_dtype=out_dtype if isinstance(out_dtype, torch.dtype) else None,
        inner_precise=int(roles.get("inner_precise", 1 if name == "npu_incre_flash_attention" else 0)),
        want_lse=bool(roles.get("want_lse", False)), prefix_key=roles.get("prefix_key"),
        prefix_value=roles.get("prefix_value"), prefix_len=_prefix_len(roles),
        q_padding=_scalar(roles.get("q_padding")), kv_padding=_scalar(roles.get("kv_padding")),
        prefix_lens=_lengths(roles.get("prefix_lens"), "prefix") or (),
        sparse_indices=roles.get("sparse_indices"), sparse_block=int(roles.get("sparse_block", 1)),
        page_layout=page_layout,
    )  # fmt: skip


def _prefix_len(roles: dict[str, Any]) -> int | None:
    lens = _lengths(roles.get("prefix_len"), "actual_shared_prefix_len")
    return lens[0] if lens else None


def _fusion_kv_heads(lay: Layout, query: Tensor, key: Tensor, heads: int) -> int:
    if lay.inputs in ("BSH", "SBH"):
        dim = query.shape[-1] // heads
        if dim == 0 or key.shape[-1] % dim:
            raise OracleError(f"key H={key.shape[-1]} is not a multiple of the head dimension {dim}")
        return int(key.shape[-1] // dim)
    return int(key.shape[lay.inputs.index("N")])


def _quants(roles: dict[str, Any], key: Tensor) -> tuple[Quant | None, Quant | None]:
    scale = roles.get("key_scale")
    if scale is not None:
        value_scale = roles.get("value_scale")
        if value_scale is None:
            raise OracleError("a key scale without a value scale: the operator needs both (G09)")
        return (
            Quant(scale, roles.get("key_offset"), int(roles.get("key_mode", 0))),
            Quant(value_scale, roles.get("value_offset"), int(roles.get("value_mode", 0))),
        )
    both = roles.get("kv_scale")
    if both is not None:
        offset = roles.get("kv_offset")
        parts = [
            Quant(both[i], None if offset is None else offset[i], int(roles.get("kv_mode", 0)))
            for i in (0, 1)
        ]
        return parts[0], parts[1]
    if not key.dtype.is_floating_point:
        raise OracleError(f"key is {key.dtype} but no dequantisation scale was given (G07)")
    return None, None
