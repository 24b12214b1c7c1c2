"""The table of known misuses: what each does to the problem, and the contract entry it breaks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .cases import FUSION, Case
from .scenario import rotate, rotate_query, stored_rows
from .visibility import Band, Both, Hidden, Listed, Visibility, causal, everything, matrix
from .world import Lane, See, World, seeing


@dataclass(frozen=True)
class Hypothesis:
    """A misuse. ``rule``: contract ids of the obligation it breaks; ``stage`` orders compositions;
    ``apply`` gives the changed world, or None where the misuse cannot happen."""

    name: str
    title: str
    rule: str
    stage: int
    apply: Callable[[World], World | None]


_ROPE, _CONTENT, _PAGES, _LENGTH, _HEADS, _MASK, _SCALE, _OUTPUT = range(8)
HYPOTHESES: list[Hypothesis] = []


def _register(
    name: str, title: str, rule: str, stage: int
) -> Callable[[Callable[[World], World | None]], None]:
    def add(apply: Callable[[World], World | None]) -> None:
        HYPOTHESES.append(Hypothesis(name, title, rule, stage, apply))

    return add


def _cached(w: World) -> bool:
    return w.case.cache != "none"


def _paged(w: World) -> bool:
    return "paged" in w.case.cache and w.case.block_size > 0


def _quantised(w: World) -> bool:
    return bool(w.case.quant)


# -- scale


def _scale(name: str, title: str, rule: str, value: Callable[[Case], float]) -> None:
    def apply(w: World) -> World | None:
        s = value(w.case)
        return None if math.isclose(s, w.scale, rel_tol=1e-6) else dataclasses.replace(w, scale=s)

    _register(name, title, rule, _SCALE)(apply)


def _not_root(case: Case) -> float:
    """1/D, where that is not simply the square of the right scale."""
    value = 1.0 / (case.dim + case.rope_dim)
    return case.scale if math.isclose(value, case.scale**2, rel_tol=1e-6) else value


_scale("scale-default", "scale left at its default 1.0", "A03", lambda c: 1.0)
_scale("scale-twice", "scores divided by sqrt(D) twice", "A03", lambda c: c.scale * c.scale)
_scale(
    "scale-hidden-size",
    "scale from the hidden size instead of the head",
    "A03",
    lambda c: (c.heads * c.dim) ** -0.5,
)
_scale("scale-not-root", "scale 1/D instead of 1/sqrt(D)", "A03", _not_root)
_scale(
    "scale-padded-head",
    "scale from a head dimension padded to twice its size",
    "A03",
    lambda c: c.scale * 0.5**0.5,
)
_scale(
    "scale-absorbed",
    "MLA scale from the absorbed width 512+64",
    "A04",
    lambda c: 576**-0.5 if c.latent else c.scale,
)
_scale(
    "scale-nope-only",
    "MLA scale from the part without rope",
    "A04",
    lambda c: 128**-0.5 if c.rope_dim else c.scale,
)

# -- masks


def _see(change: Callable[[World, int, See], See | None]) -> Callable[[World], World | None]:
    def apply(w: World) -> World | None:
        sees = [change(w, b, lane.see) for b, lane in enumerate(w.lanes)]
        if any(s is None for s in sees):
            return None
        lanes = tuple(
            dataclasses.replace(lane, see=s) for lane, s in zip(w.lanes, sees, strict=True) if s is not None
        )
        return dataclasses.replace(w, lanes=lanes)

    return apply


def _hidden(see: See, change: Callable[[Tensor], Tensor]) -> See:
    """See through a changed matrix; ``change`` maps the bool matrix of visible pairs."""

    def changed(rows: int, keys: int) -> Visibility:
        return Hidden(keys, ~change(matrix(see(rows, keys), rows)))

    return changed


_register("mask-missing", "no mask at all: every query sees every key", "C08", _MASK)(
    _see(
        lambda w, b, see: (
            None if w.case.masking in ("full", "sparse") else lambda rows, keys: everything(keys)
        )
    )
)
_register("causal-top-left", "causal mask anchored top-left instead of bottom-right", "C10", _MASK)(
    _see(
        lambda w, b, see: (
            (lambda r, n: causal(r, n, "top-left")) if w.case.masking in ("causal", "window") else None
        )
    )
)
_register("causal-bottom-right", "causal mask anchored bottom-right instead of top-left", "C10", _MASK)(
    _see(lambda w, b, see: causal if w.case.masking == "left-up" else None)
)
_register("mask-inverted", "mask polarity inverted", "C02", _MASK)(
    _see(lambda w, b, see: None if w.case.masking in ("full", "sparse") else _hidden(see, lambda m: ~m))
)
_register("diagonal-hidden", "causal mask that also hides the diagonal", "C05", _MASK)(
    _see(lambda w, b, see: (lambda r, n: Band(n, high=n - r - 1)) if w.case.masking == "causal" else None)
)
_register("causal-on-bidirectional", "causal mask on attention that is bidirectional", "C08", _MASK)(
    _see(lambda w, b, see: causal if w.case.masking == "full" and max(w.case.q_lens) > 1 else None)
)
_register(
    "causal-top-left-on-bidirectional",
    "top-left causal mask on attention that is bidirectional",
    "C08",
    _MASK,
)(
    _see(
        lambda w, b, see: (
            (lambda r, n: causal(r, n, "top-left"))
            if w.case.masking == "full" and max(w.case.q_lens) > 1
            else None
        )
    )
)
_register("mask-of-first-request", "every request uses the first request's mask", "C07", _MASK)(
    _see(
        lambda w, b, see: (
            seeing(w.scenario, 0)
            if w.case.masking in ("mask", "all", "tree") and w.scenario.batch > 1
            else None
        )
    )
)


def _open_past(w: World, b: int, see: See, limit: int) -> See | None:
    if w.case.masking not in ("mask", "all") or max(w.case.kv_lens) <= limit:
        return None

    def change(m: Tensor) -> Tensor:
        m = m.clone()
        m[:, limit:] = True
        return m

    return _hidden(see, change)


_register("mask-ignored-past-512", "mask not honoured past key position 512", "C15", _MASK)(
    _see(lambda w, b, see: _open_past(w, b, see, 512))
)


def _window(offset: int | None) -> Callable[[World], World | None]:
    def change(w: World, b: int, see: See) -> See | None:
        if w.case.masking != "window":
            return None
        if offset is None:
            return causal
        width = w.case.window + offset
        return lambda r, n: Band(n, n - r - (width - 1), n - r)

    return _see(change)


_register("window-ignored", "sliding window ignored", "H17", _MASK)(_window(None))
_register("window-plus-one", "window one key too wide (pre_tokens = W instead of W - 1)", "C11", _MASK)(
    _window(1)
)
_register("window-minus-one", "window one key too narrow", "C11", _MASK)(_window(-1))
_register("window-top-left", "window anchored top-left", "C12", _MASK)(
    _see(
        lambda w, b, see: (
            (lambda r, n: Band(n, -(w.case.window - 1), 0)) if w.case.masking == "window" else None
        )
    )
)
_register(
    "first-key-only", "row 0 of the compressed mask is used: only the first key is visible", "C13", _MASK
)(_see(lambda w, b, see: (lambda r, n: Band(n, -(1 << 40), 0)) if set(w.case.q_lens) == {1} else None))
_register("sparse-indices-ignored", "selected indices ignored, dense causal attention", "SP-08", _MASK)(
    _see(lambda w, b, see: causal if w.case.masking == "sparse" else None)
)
_register("sparse-indices-shifted", "selected indices off by one", "SP-05", _MASK)(
    _see(lambda w, b, see: _shifted_indices(w, b) if w.case.masking == "sparse" else None)
)


def _shifted_indices(w: World, b: int) -> See:
    assert w.scenario.chosen is not None
    chosen = w.scenario.chosen[b]
    moved = torch.where(chosen < 0, chosen, chosen + 1)
    return lambda r, n: Both(Listed(n, torch.where(moved < n, moved, -1)), causal(r, n))


# -- lengths


def _lengths(change: Callable[[World, int, Lane], int | None]) -> Callable[[World], World | None]:
    def apply(w: World) -> World | None:
        if w.case.packed and not _cached(w):
            return None
        new = [change(w, b, lane) for b, lane in enumerate(w.lanes)]
        lanes = []
        for lane, n in zip(w.lanes, new, strict=True):
            if n is None or not 0 <= n <= len(lane.k):
                return None
            lanes.append(dataclasses.replace(lane, length=n))
        changed = any(a.length != b.length for a, b in zip(lanes, w.lanes, strict=True))
        return dataclasses.replace(w, lanes=tuple(lanes)) if changed else None

    return apply


_register("kv-len-short", "key length one short", "D12", _LENGTH)(
    _lengths(lambda w, b, lane: max(0, lane.length - 1))
)
_register("kv-len-long", "key length one too long", "D12", _LENGTH)(
    _lengths(lambda w, b, lane: lane.length + 1)
)
_register("kv-len-before-step", "key length from before this step", "D12", _LENGTH)(
    _lengths(lambda w, b, lane: lane.past if lane.past > 0 and lane.length - lane.past > 1 else None)
)
_register("kv-len-capacity", "no key length: the whole padded cache is read", "D11", _LENGTH)(
    _lengths(lambda w, b, lane: len(lane.k) if w.case.cache in ("contiguous", "offloaded", "mla") else None)
)
_register("kv-len-other-request", "key lengths of the next request", "D05", _LENGTH)(
    _lengths(lambda w, b, lane: min(len(lane.k), w.lanes[(b + 1) % len(w.lanes)].length))
)
_register("kv-len-new-tokens", "key length counts only this step's tokens", "D12", _LENGTH)(
    _lengths(lambda w, b, lane: lane.length - lane.past if lane.past else None)
)


@_register(
    "kv-len-not-cumulative", "packed key lengths per request where cumulative ones are needed", "D03", _LENGTH
)
def _(w: World) -> World | None:
    if not w.case.packed or _cached(w) or w.scenario.batch < 2:
        return None
    k = torch.cat([lane.k[: lane.length] for lane in w.lanes])
    v = torch.cat([lane.v[: lane.length] for lane in w.lanes])
    ends = [0, *(lane.length for lane in w.lanes)]
    lanes = []
    for lane, a, b in zip(w.lanes, ends, ends[1:], strict=False):
        b = max(a, b)
        lanes.append(dataclasses.replace(lane, k=k[a:b], v=v[a:b], length=b - a))
    return dataclasses.replace(w, lanes=tuple(lanes))


# -- cache content


def _written(change: Callable[[Tensor, Tensor, int, int], Tensor]) -> Callable[[World], World | None]:
    """``change(rows, initial, past, length)`` gives the cache content after a wrong write."""

    def apply(w: World) -> World | None:
        if not _cached(w) or any(lane.poison is None for lane in w.lanes):
            return None
        lanes = []
        for lane in w.lanes:
            assert lane.poison is not None
            n = min(len(lane.k), len(lane.poison[0]))
            parts = []
            for rows, initial in zip((lane.k, lane.v), lane.poison, strict=True):
                now = change(rows.clone(), initial[:n], lane.past, lane.length)
                parts.append(now)
            lanes.append(dataclasses.replace(lane, k=parts[0], v=parts[1]))
        return dataclasses.replace(w, lanes=tuple(lanes))

    return apply


def _not_written(rows: Tensor, initial: Tensor, past: int, length: int) -> Tensor:
    rows[past:length] = initial[past:length]
    return rows


def _last_only(rows: Tensor, initial: Tensor, past: int, length: int) -> Tensor:
    rows[past : length - 1] = initial[past : length - 1]
    return rows


def _history_lost(rows: Tensor, initial: Tensor, past: int, length: int) -> Tensor:
    rows[:past] = initial[:past]
    return rows


def _shifted(by: int) -> Callable[[World], World | None]:
    """Every new row in the next (or previous) physical slot, which may belong to another page or request."""

    def apply(w: World) -> World | None:
        rows = None if w.cache is None else w.cache.shifted_rows(by)
        if not rows:
            return None
        return w.each(lambda lane, b: dataclasses.replace(lane, k=rows[b][0], v=rows[b][1]))

    return apply


_register("cache-not-written", "this step's rows never reached the cache", "SU-04", _CONTENT)(
    _written(_not_written)
)
_register("slot-plus-one", "slots shifted by +1", "ND-03", _CONTENT)(_shifted(1))
_register("slot-minus-one", "slots shifted by -1", "ND-03", _CONTENT)(_shifted(-1))
_register("last-token-only", "only the last of several new tokens was written", "SU-07", _CONTENT)(
    _written(_last_only)
)
_register("history-lost", "the cached prefix is not there", "SU-09", _CONTENT)(_written(_history_lost))


@_register("value-is-key", "the key cache is passed as value", "F19", _CONTENT)
def _(w: World) -> World | None:
    if w.case.latent or w.case.value_dim != w.case.dim or w.case.rope_dim:
        return None
    return w.each(lambda lane, b: dataclasses.replace(lane, v=lane.k))


@_register("key-value-swapped", "key and value are exchanged", "F19", _CONTENT)
def _(w: World) -> World | None:
    if w.case.latent or w.case.value_dim != w.case.dim or w.case.rope_dim:
        return None
    return w.each(lambda lane, b: dataclasses.replace(lane, k=lane.v, v=lane.k))


@_register("requests-crossed", "requests read each other's keys", "D14", _CONTENT)
def _(w: World) -> World | None:
    if w.scenario.batch < 2 or (w.case.packed and not _cached(w)) or _paged(w):
        return None
    return _rolled(w)


def _rolled(w: World) -> World:
    def next_rows(lane: Lane, b: int) -> Lane:
        other = w.lanes[(b + 1) % len(w.lanes)]
        k, v = _stretch(other.k, lane.length), _stretch(other.v, lane.length)
        return dataclasses.replace(lane, k=k, v=v)

    return w.each(next_rows)


def _stretch(rows: Tensor, length: int) -> Tensor:
    if len(rows) >= length:
        return rows
    return torch.cat([rows, rows.new_zeros(length - len(rows), *rows.shape[1:])])


# -- pages


def _pages(move: Callable[[Tensor, int, int], Tensor | None]) -> Callable[[World], World | None]:
    """``move(positions, size, length)`` gives the position whose row is read in place of each position."""

    def apply(w: World) -> World | None:
        if not _paged(w):
            return None
        size = w.case.block_size
        lanes, changed = [], False
        for lane in w.lanes:
            at = torch.arange(lane.length)
            moved = move(at, size, len(lane.k))
            if moved is None or (len(moved) and int(moved.max()) >= len(lane.k)):
                moved = at
            changed |= not torch.equal(moved, at)
            lanes.append(dataclasses.replace(lane, k=lane.k[moved], v=lane.v[moved]))
        return dataclasses.replace(w, lanes=tuple(lanes)) if changed else None

    return apply


_register("pages-swapped", "first two entries of the block table swapped", "PG13", _PAGES)(
    _pages(lambda at, size, cap: torch.where(at < size, at + size, torch.where(at < 2 * size, at - size, at)))
)
_register("page-repeated", "every entry of the block table is the first page", "PG13", _PAGES)(
    _pages(lambda at, size, cap: at % size)
)
_register("pages-doubled", "every second entry of the block table is its left neighbour", "PG03", _PAGES)(
    _pages(lambda at, size, cap: torch.where((at // size) % 2 == 1, at - size, at))
)
_register("pages-shifted", "block table starts one page late", "PG13", _PAGES)(
    _pages(lambda at, size, cap: at + size if len(at) and int(at.max()) + size < cap else None)
)
_register("pages-reversed", "block table in reverse order", "PG13", _PAGES)(
    _pages(lambda at, size, cap: _reverse_pages(at, size))
)


def _reverse_pages(at: Tensor, size: int) -> Tensor | None:
    if not len(at):
        return None
    last = int(at.max()) // size
    return (last - at // size) * size + at % size


@_register("table-rows-rolled", "block table rows belong to the next request", "D14", _PAGES)
def _(w: World) -> World | None:
    if not _paged(w) or w.scenario.batch < 2:
        return None
    return _rolled(w)


def _misread(reshape: Callable[[Tensor], Tensor]) -> Callable[[World], World | None]:
    """Pages whose bytes are read in another layout; ``reshape`` maps one page ``[size, N, D]``."""

    def apply(w: World) -> World | None:
        if not _paged(w) or w.case.dim % 16 or _quantised(w) or w.case.cache.startswith("offloaded"):
            return None
        size = w.case.block_size

        def lane_pages(lane: Lane, b: int) -> Lane:
            found = []
            for rows in (lane.k, lane.v):
                whole = _stretch(rows, -(-len(rows) // size) * size)
                parts = [reshape(p.contiguous()) for p in torch.split(whole, size)]
                found.append(torch.cat(parts) if parts else whole)
            return dataclasses.replace(lane, k=found[0], v=found[1])

        return w.each(lane_pages)

    return apply


def _nz_as_nd(page: Tensor) -> Tensor:
    size, heads, dim = page.shape
    return page.reshape(size, heads, dim // 16, 16).permute(1, 2, 0, 3).reshape(size, heads, dim)


def _nd_as_nz(page: Tensor) -> Tensor:
    size, heads, dim = page.shape
    return page.reshape(heads, dim // 16, size, 16).permute(2, 0, 1, 3).reshape(size, heads, dim)


_register("nz-read-as-nd", "NZ pages read as ND", "KR-06", _PAGES)(
    lambda w: _misread(_nz_as_nd)(w) if "nz" in w.case.cache and not w.case.latent else None
)
_register("nd-read-as-nz", "ND pages read as NZ", "KR-06", _PAGES)(
    lambda w: _misread(_nd_as_nz)(w) if "nz" not in w.case.cache and not w.case.latent else None
)
_register("page-axes-exchanged", "[Bs, N, D] pages read as [N, Bs, D]", "PG09", _PAGES)(
    lambda w: (
        _misread(lambda p: p.reshape(p.shape[1], p.shape[0], p.shape[2]).transpose(0, 1))(w)
        if w.case.kv_heads > 1 and w.case.cache in ("paged-bnbsh", "paged-scatter", "paged-atb")
        else None
    )
)

# -- heads


def _head_map(make: Callable[[int, int], Tensor | None]) -> Callable[[World], World | None]:
    def apply(w: World) -> World | None:
        heads, kv = w.case.heads, w.case.kv_heads
        right = torch.arange(heads) // (heads // kv)
        wrong = make(heads, kv)
        if wrong is None or torch.equal(wrong, right):
            return None
        return dataclasses.replace(w, head_map=wrong)

    return apply


_register("heads-interleaved", "query head h reads KV head h mod Nk instead of h div group", "B02", _HEADS)(
    _head_map(lambda n, nk: torch.arange(n) % nk)
)
_register("kv-head-zero", "every query head reads KV head 0", "B04", _HEADS)(
    _head_map(lambda n, nk: torch.zeros(n, dtype=torch.int64))
)
_register("kv-heads-reversed", "KV heads in reverse order", "B05", _HEADS)(
    _head_map(lambda n, nk: nk - 1 - torch.arange(n) // (n // nk))
)
_register("kv-heads-rotated", "KV heads shifted by one", "B05", _HEADS)(
    _head_map(lambda n, nk: (torch.arange(n) // (n // nk) + 1) % nk if nk > 2 else None)
)

# -- rotary embedding


def _rotary(query: str | None, key: str | None) -> Callable[[World], World | None]:
    """Styles to use instead of the right one; None keeps the right one."""

    def apply(w: World) -> World | None:
        if w.case.rope == "none" or (key is not None and _quantised(w)):
            return None
        s = w.scenario
        other = {"half": "interleaved", "interleaved": "half"}[w.case.rope]

        def style(wanted: str | None) -> str:
            return w.case.rope if wanted is None else other if wanted == "other" else wanted

        def turned(lane: Lane, b: int) -> Lane:
            k = lane.k
            if key is not None:
                rows = stored_rows(s, b, style(key))[0][lane.gone :]
                k = torch.cat([rows, lane.k[len(rows) :]])
            return dataclasses.replace(lane, q=rotate_query(s, b, style=style(query)), k=k)

        return w.each(turned)

    return apply


_register("rope-missing", "no rotary embedding", "3.9", _ROPE)(_rotary("none", "none"))
_register("rope-other-pairing", "interleaved against half rotary pairing, on queries and keys", "3.9", _ROPE)(
    _rotary("other", "other")
)
_register("rope-query-pairing", "the other rotary pairing on queries only", "3.9", _ROPE)(
    _rotary("other", None)
)
_register("rope-query-only", "rotary embedding on queries only", "3.9", _ROPE)(_rotary(None, "none"))
_register("rope-key-only", "rotary embedding on keys only", "3.9", _ROPE)(_rotary("none", None))


def _positions(move: Callable[[Tensor, int], Tensor]) -> Callable[[World], World | None]:
    def apply(w: World) -> World | None:
        if w.case.rope == "none":
            return None
        s = w.scenario
        same = all(
            torch.equal(move(s.query_positions(b), s.past(b)), s.query_positions(b)) for b in range(s.batch)
        )
        if same:
            return None
        return w.each(
            lambda lane, b: dataclasses.replace(
                lane, q=rotate(s, s.q[b], move(s.query_positions(b), s.past(b)).clamp_min(0), w.case.rope)
            )
        )

    return apply


_register("position-minus-one", "query positions one too small", "3.9", _ROPE)(
    _positions(lambda at, past: at - 1)
)
_register("position-plus-one", "query positions one too large", "3.9", _ROPE)(
    _positions(lambda at, past: at + 1)
)
_register("position-from-zero", "query positions restart at zero", "3.9", _ROPE)(
    _positions(lambda at, past: at - past)
)


@_register("rope-part-dropped", "the rope part of query and key is not used", "F01", _ROPE)
def _(w: World) -> World | None:
    if not w.case.rope_dim:
        return None
    cut = w.case.dim
    return w.each(lambda lane, b: dataclasses.replace(lane, q=lane.q[..., :cut], k=lane.k[..., :cut]))


# -- sink, bias


@_register("sink-ignored", "learnable sink ignored", "H07", _SCALE)
def _(w: World) -> World | None:
    return None if w.sink is None else dataclasses.replace(w, sink=None)


@_register("sink-twice", "the sink is counted twice", "H07", _SCALE)
def _(w: World) -> World | None:
    return None if w.sink is None else dataclasses.replace(w, sink=w.sink.float() + math.log(2.0))


@_register("bias-ignored", "pse_shift ignored", "H10", _SCALE)
def _(w: World) -> World | None:
    if w.scenario.bias is None:
        return None
    return w.each(lambda lane, b: dataclasses.replace(lane, bias=None))


@_register("bias-before-scale", "pse added before scaling instead of after", "H23", _SCALE)
def _(w: World) -> World | None:
    if w.scenario.bias is None or w.case.op == FUSION:
        return None
    factor = w.case.scale
    return w.each(
        lambda lane, b: dataclasses.replace(
            lane, bias=None if lane.bias is None else lane.bias.float() * factor
        )
    )


@_register("uniform-average", "scores are ignored: the plain mean of the visible values", "1.7", _SCALE)
def _(w: World) -> World | None:
    return dataclasses.replace(w, scale=0.0)


# -- integer caches


def _dequantised(
    change: Callable[[Tensor, Tensor, Tensor | None], Tensor | None], crossed: bool = False
) -> Callable[[World], World | None]:
    """``change(x, scale, offset)`` rewrites rows ``x = (stored + offset) * scale``; ``crossed``: V with K's
    scale."""

    def apply(w: World) -> World | None:
        if any(lane.coefficients is None for lane in w.lanes):
            return None
        lanes = []
        for lane in w.lanes:
            assert lane.coefficients is not None
            (scale_k, offset_k), (scale_v, offset_v) = lane.coefficients
            n = lane.length
            k = lane.k if crossed else change(lane.k[:n], scale_k, offset_k)
            v = change(lane.v[:n], scale_v / scale_k if crossed else scale_v, offset_v)
            if k is None or v is None:
                return None
            lanes.append(dataclasses.replace(lane, k=k, v=v))
        return dataclasses.replace(w, lanes=tuple(lanes))

    return apply


_register("quant-scale-ignored", "integers used without their scale", "G07", _CONTENT)(
    _dequantised(lambda x, scale, offset: x / scale)
)
_register("quant-scale-reciprocal", "the write side's scale (1/scale) used for reading", "KR-11", _CONTENT)(
    _dequantised(lambda x, scale, offset: x / scale / scale)
)
_register("quant-offset-ignored", "dequantisation offset ignored", "G09", _CONTENT)(
    _dequantised(lambda x, scale, offset: None if offset is None else x - offset * scale)
)
_register("quant-key-scale-for-value", "the key's scale used for the value", "G09", _CONTENT)(
    _dequantised(lambda x, ratio, offset: x / ratio, crossed=True)
)

# -- KV-parallel


def _split(how: str) -> Callable[[World], World | None]:
    def apply(w: World) -> World | None:
        if w.case.cache != "kv-parallel-sequence":
            return None
        return dataclasses.replace(w, split=how)

    return apply


_register("partials-averaged", "partial results averaged instead of weighted by LSE", "UPD-02", _OUTPUT)(
    _split("mean")
)
_register("partials-summed", "partial results summed", "UPD-02", _OUTPUT)(_split("sum"))
_register("first-rank-only", "only the first rank's partial result", "UPD-02", _OUTPUT)(_split("first"))

# -- output


@_register("output-head-major", "output read with heads and tokens exchanged", "X07", _OUTPUT)
def _(w: World) -> World | None:
    if w.case.sampled:
        return None

    def mix(outs: list[Tensor]) -> list[Tensor]:
        if not w.case.packed:
            return [o.reshape(o.shape[1], o.shape[0], o.shape[2]).transpose(0, 1) for o in outs]
        whole = torch.cat(outs, 1)
        heads, tokens, width = whole.shape
        mixed = whole.reshape(tokens, heads, width).transpose(0, 1)
        return list(torch.split(mixed, [o.shape[1] for o in outs], 1))

    return None if max(w.case.q_lens) == 1 and not w.case.packed else dataclasses.replace(w, finish=mix)


@_register("output-requests-rolled", "outputs of the requests are in another order", "1.4", _OUTPUT)
def _(w: World) -> World | None:
    if w.scenario.batch < 2 or len(set(w.case.q_lens)) > 1:
        return None
    return dataclasses.replace(w, finish=lambda outs: [outs[(b + 1) % len(outs)] for b in range(len(outs))])


@_register("output-heads-reversed", "output heads in reverse order", "1.4", _OUTPUT)
def _(w: World) -> World | None:
    return dataclasses.replace(w, finish=lambda outs: [o.flip(0) for o in outs]) if w.case.heads > 1 else None
