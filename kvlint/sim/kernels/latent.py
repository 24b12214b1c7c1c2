"""Latent attention operators of ATB: ring MLA over packed requests, and decode over latent pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.kernels import KernelError
from kvlint.oracle.kernels._core import Plan, flash

#: Side of the triangular mask of ring MLA.
RING_SIDE = 512


def _named(name: str, what: str, given: str | None, default: str, known: Sequence[str]) -> str:
    chosen = given or default
    if chosen not in known:
        raise KernelError(f"{name}: {what} {chosen!r} is not one of {', '.join(known)} (ATB-06)")
    return chosen


def _ring_lengths(name: str, seqlen: Tensor) -> list[tuple[int, int]]:
    if seqlen.dtype != torch.int32:
        raise KernelError(f"{name}: seqlen must be int32, got {seqlen.dtype} (ATB-12)")
    rows = seqlen if seqlen.dim() == 2 else torch.stack([seqlen, seqlen])
    return [(int(q), int(k)) for q, k in zip(rows[0].tolist(), rows[1].tolist(), strict=True)]


def npu_ring_mla(
    q_nope: Tensor,
    q_rope: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    value: Tensor,
    mask: Tensor,
    seqlen: Tensor,
    head_num: int,
    kv_head_num: int,
    *,
    pre_out: Tensor | None = None,
    prev_lse: Tensor | None = None,
    qk_scale: float = 1.0,
    kernel_type: str | None = None,
    mask_type: str | None = None,
    input_layout: str | None = None,
    calc_type: str | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of ring attention: (out [T, N, Dv], lse float32 [N, T]).

    q_nope and q_rope [T, N, *], k_nope, k_rope and value [Tk, Nk, *]; seqlen int32 on the CPU, (B,) or
    (2, B). With calc_type_default the step is merged into ``pre_out`` and ``prev_lse`` (ATB-06).
    """
    name = "npu_ring_mla"
    kinds = ("kernel_type_default", "kernel_type_high_precision")
    if _named(name, "kernel_type", kernel_type, kinds[1], kinds) == kinds[0]:
        raise KernelError(f"{name}: kernel_type_default is rejected by ATB (ATB-06)")
    masking = _named(name, "mask_type", mask_type, "no_mask", ("no_mask", "mask_type_triu"))
    _named(name, "input_layout", input_layout, "type_bsnd", ("type_bsnd",))
    calc = _named(
        name, "calc_type", calc_type, "calc_type_first_ring", ("calc_type_default", "calc_type_first_ring")
    )
    if calc == "calc_type_default" and (pre_out is None or prev_lse is None):
        raise KernelError(f"{name}: calc_type_default needs pre_out and prev_lse (ATB-06)")
    lens = _ring_lengths(name, seqlen)
    if sum(q for q, _ in lens) > len(q_nope) or sum(k for _, k in lens) > len(k_nope):
        raise KernelError(f"{name}: the lengths add up to more tokens than there are: stray read (ATB-12)")
    above = _triangle(name, mask, q_nope.dtype, lens) if masking == "mask_type_triu" else None
    out = torch.zeros(len(q_nope), head_num, value.shape[-1], dtype=q_nope.dtype)
    lse = torch.zeros(head_num, len(q_nope))
    query, key = torch.cat([q_nope, q_rope], -1), torch.cat([k_nope, k_rope], -1)
    row = column = 0
    for rows, keys in lens:
        at, of = slice(row, row + rows), slice(column, column + keys)
        row, column = row + rows, column + keys
        if not rows:
            continue
        if not keys:
            raise KernelError(f"{name}: what a request without keys gives is not known; it is not simulated")
        k, v = key[of].transpose(0, 1), value[of].transpose(0, 1)
        bias = None
        if above is not None:
            hidden = torch.ones(rows, keys, dtype=torch.bool).triu(1)
            bias = torch.where(hidden, above, torch.zeros(()))[None]

        def fetch(j0: int, j1: int, k: Tensor = k, v: Tensor = v) -> tuple[Tensor, Tensor]:
            return k[:, j0:j1], v[:, j0:j1]

        plan = Plan(lambda i0, i1, n=keys: (0, n), lambda i0, i1, j0, j1: None)  # type: ignore[misc]
        found, top, _, _ = flash(
            query[at].transpose(0, 1), fetch, plan, qk_scale, kv_heads=kv_head_num,
            out_dim=value.shape[-1], work_dtype=q_nope.dtype, bias=bias,
        )  # fmt: skip
        part = found.transpose(0, 1)
        if calc == "calc_type_default" and pre_out is not None and prev_lse is not None:
            before = prev_lse[:, at].float()
            both = torch.logaddexp(before, top)
            w_old, w_new = (torch.exp(t - both).transpose(0, 1)[..., None] for t in (before, top))
            part, top = pre_out[at].float() * w_old + part * w_new, both
        out[at], lse[:, at] = part.to(out.dtype), top
    return out, lse


def _triangle(name: str, mask: Tensor, dtype: torch.dtype, lens: list[tuple[int, int]]) -> Tensor:
    """What the mask adds above the diagonal: it is multiplied by -3e38 in every dtype (ATB-05)."""
    if mask.dtype != dtype or tuple(mask.shape[-2:]) != (RING_SIDE, RING_SIDE):
        raise KernelError(
            f"{name}: mask must be {RING_SIDE} x {RING_SIDE} in {dtype}, got {tuple(mask.shape)} "
            f"{mask.dtype} (ATB-05)"
        )
    held = mask.reshape(RING_SIDE, RING_SIDE).float()
    above = torch.ones_like(held, dtype=torch.bool).triu(1)
    if held[~above].any() or bool((held[above] != held[0, 1]).any()):
        raise KernelError(f"{name}: mask must be zero but for one value above the diagonal (ATB-05)")
    if any(q != k for q, k in lens):
        raise KernelError(
            f"{name}: how the triangle lies for unequal lengths is not known; it is not simulated"
        )
    return held[0, 1] * -3.0e38


def _latent_decode(
    q_nope: Tensor,
    q_rope: Tensor,
    ctkv: Tensor,
    k_rope: Tensor,
    block_tables: Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    mask: Tensor | None,
    qseqlen: Sequence[int] | None,
    qk_descale: Tensor | None,
    pv_descale: Tensor | None,
    mask_type: str | None,
    calc_type: str | None,
    cache_mode: str | None,
) -> tuple[Tensor, Tensor]:
    """(out [B, N, 512], lse [B, N]) of one token per request over krope_ctkv pages [Bn, Bs, Nk, 512 | 64]."""
    name = "npu_multi_head_latent_attention"
    masking = _named(
        name, "mask_type", mask_type, "undefined", ("undefined", "mask_type_spec", "mask_type_free")
    )
    calc = _named(
        name, "calc_type", calc_type, "calc_type_undefined",
        ("calc_type_undefined", "calc_type_spec", "calc_type_ring"),
    )  # fmt: skip
    mode = _named(name, "cache_mode", cache_mode, "krope_ctkv", ("krope_ctkv", "int8_nzcache", "nzcache"))
    if masking != "undefined" or mask is not None or calc == "calc_type_spec" or qk_descale is not None:
        raise KernelError(f"{name}: several tokens per request, masks and int8 are not simulated")
    if mode != "krope_ctkv" or pv_descale is not None:
        raise KernelError(f"{name}: cache_mode {mode} is not simulated")
    if block_tables.dtype != torch.int32 or len(block_tables) != len(context_lens):
        raise KernelError(f"{name}: block_tables must be int32 with one row per context length (ATB-13)")
    if len(q_nope) != len(context_lens):
        raise KernelError(f"{name}: {len(q_nope)} tokens for {len(context_lens)} requests")
    size = ctkv.shape[1]
    out, lse = torch.zeros(q_nope.shape, dtype=q_rope.dtype), torch.zeros(len(q_nope), q_headnum)
    for b, keys in enumerate(int(n) for n in context_lens):
        at = torch.arange(keys)
        blocks = block_tables[b][at // size].long()
        latent, rope = (c[blocks, at % size].transpose(0, 1) for c in (ctkv, k_rope))

        def fetch(j0: int, j1: int, latent: Tensor = latent, rope: Tensor = rope) -> tuple[Tensor, Tensor]:
            return torch.cat([latent[:, j0:j1], rope[:, j0:j1]], -1), latent[:, j0:j1]

        plan = Plan(lambda i0, i1, n=keys: (0, n), lambda i0, i1, j0, j1: None)  # type: ignore[misc]
        found, top, _, _ = flash(
            torch.cat([q_nope[b], q_rope[b]], -1)[:, None], fetch, plan, qk_scale, kv_heads=kv_headnum,
            out_dim=ctkv.shape[-1], work_dtype=q_nope.dtype,
        )  # fmt: skip
        out[b], lse[b] = found[:, 0].to(out.dtype), top[:, 0]
    return out, lse


def npu_multi_head_latent_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    ctkv: Tensor,
    k_rope: Tensor,
    block_tables: Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    *,
    mask: Tensor | None = None,
    qseqlen: Sequence[int] | None = None,
    qk_descale: Tensor | None = None,
    pv_descale: Tensor | None = None,
    mask_type: str | None = None,
    calc_type: str | None = None,
    cache_mode: str | None = None,
) -> Tensor:
    """Decode over latent pages, one token per request: [B, N, 512]. Masks, int8 and NZ are not simulated."""
    return _latent_decode(
        q_nope, q_rope, ctkv, k_rope, block_tables, context_lens, q_headnum, qk_scale, kv_headnum, mask,
        qseqlen, qk_descale, pv_descale, mask_type, calc_type, cache_mode,
    )[0]  # fmt: skip


def npu_multi_head_latent_attention_lse(
    q_nope: Tensor,
    q_rope: Tensor,
    ctkv: Tensor,
    k_rope: Tensor,
    block_tables: Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    return_lse: bool,
    *,
    mask: Tensor | None = None,
    qseqlen: Sequence[int] | None = None,
    qk_descale: Tensor | None = None,
    pv_descale: Tensor | None = None,
    mask_type: str | None = None,
    calc_type: str | None = None,
    cache_mode: str | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """With calc_type_ring also the lse [B, N, 1] in the dtype of ``q_rope``, as the wrapper allocates it."""
    if calc_type != "calc_type_ring":
        raise KernelError(
            "npu_multi_head_latent_attention: the overload with lse gives one only with calc_type_ring; "
            "otherwise its second result is no tensor"
        )
    out, lse = _latent_decode(
        q_nope, q_rope, ctkv, k_rope, block_tables, context_lens, q_headnum, qk_scale, kv_headnum, mask,
        qseqlen, qk_descale, pv_descale, mask_type, calc_type, cache_mode,
    )  # fmt: skip
    return out, lse[..., None].to(q_rope.dtype)


def npu_multi_head_latent_attention_lse_out(
    *args: Any, output: Tensor, lse: Tensor, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """The same into given outputs."""
    for into, value in zip((output, lse), npu_multi_head_latent_attention_lse(*args, **kwargs), strict=True):
        if into.shape != value.shape:
            raise KernelError(
                f"npu_multi_head_latent_attention: an output must be {tuple(value.shape)}, "
                f"got {tuple(into.shape)}"
            )
        into.copy_(value)
    return output, lse


KERNELS: dict[str, Callable[..., Any]] = {
    "npu_ring_mla": npu_ring_mla,
    "npu_multi_head_latent_attention": npu_multi_head_latent_attention,
    "npu_multi_head_latent_attention.lse": npu_multi_head_latent_attention_lse,
    "npu_multi_head_latent_attention.lse_out": npu_multi_head_latent_attention_lse_out,
}
