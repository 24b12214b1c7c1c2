"""Checks that need no reference: what must not change when something irrelevant changes.

Each takes a callable ``attention(q, k, v) -> out`` with q ``[B, Sq, N, D]``, k and v ``[B, Skv, Nk, D]``
and out ``[B, Sq, N, Dv]`` (wrap an operator in a lambda to bring it to this form), and returns a
:class:`Property`. Comparisons are exact where the same arithmetic must run, else within the rounding of the
output's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .errors import OracleError
from .judge import rounding_unit

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
AttentionWithLse = Callable[[Tensor, Tensor, Tensor], "tuple[Tensor, Tensor]"]

#: Two runs of one operator differ by at most two roundings of P and of the output each.
_SLACK = 4.0


@dataclass(frozen=True, slots=True)
class Property:
    """``holds``, and if not, ``detail`` with the first place; ``error`` in units of u max|v|."""

    name: str
    holds: bool
    detail: str = ""
    error: float = 0.0

    def __bool__(self) -> bool:
        return self.holds


def _compare(name: str, got: Tensor, want: Tensor, v: Tensor, what: str) -> Property:
    if got.shape != want.shape:
        raise OracleError(f"{name}: outputs have shapes {tuple(got.shape)} and {tuple(want.shape)}")
    if not got.numel():
        return Property(name, True)
    unit = rounding_unit(want.dtype) * max(float(v.float().abs().max()), 1e-30)
    difference = (got.double() - want.double()).abs()
    difference = torch.where(torch.isnan(difference), torch.inf, difference) / unit
    error = float(difference.max())
    if error <= _SLACK:
        return Property(name, True, error=error)
    b, s, n, _ = (int(x) for x in (difference > _SLACK).nonzero()[0])
    return Property(name, False, f"{what}: request {b}, token {s}, head {n} differs by {error:.3g} u", error)


def causality(attention: Attention, q: Tensor, k: Tensor, v: Tensor, *, seed: int = 0) -> Property:
    """Outputs of earlier tokens do not depend on later keys; the queries are the newest tokens."""
    gen = torch.Generator().manual_seed(seed)
    rows, keys = q.shape[1], k.shape[1]
    if keys < rows:
        raise OracleError(f"causality: {rows} queries but only {keys} keys")
    cut = rows // 2
    first_hidden = keys - rows + cut
    k2, v2 = k.clone(), v.clone()
    noise = torch.randn(k2[:, first_hidden:].shape, generator=gen)
    k2[:, first_hidden:] = (k2[:, first_hidden:].float() + 3 * noise.to(k2.device)).to(k.dtype)
    v2[:, first_hidden:] = v2[:, first_hidden:] + 2
    base, changed = attention(q, k, v), attention(q, k2, v2)
    found = _compare(
        "causality", changed[:, :cut], base[:, :cut], v2, "a later key changed an earlier output"
    )
    if not found.holds or cut == rows:
        return found
    if torch.equal(changed[:, cut:], base[:, cut:]):
        return Property("causality", False, "changing the newest keys changed nothing: they are not read")
    return found


def window_invariance(attention: Attention, q: Tensor, k: Tensor, v: Tensor, *, window: int) -> Property:
    """Keys further back than ``window`` (the query's own counts) have no influence; the last inside has."""
    rows, keys = q.shape[1], k.shape[1]
    outside = keys - rows - window + 1
    if outside < 1:
        raise OracleError(f"window_invariance: no key lies outside a window of {window} for every query")
    k2, v2 = k.clone(), v.clone()
    k2[:, :outside] = k2[:, :outside] * -2
    v2[:, :outside] = v2[:, :outside] + 5
    base, changed = attention(q, k, v), attention(q, k2, v2)
    found = _compare("window", changed, base, v, "a key outside the window changed the output")
    if not found.holds:
        return found
    v3 = v.clone()
    v3[:, outside] = v3[:, outside] + 64
    if torch.equal(attention(q, k, v3)[:, 0], base[:, 0]):
        return Property(
            "window", False, "the oldest key inside the window has no influence: window too narrow"
        )
    return found


def padding_invariance(
    attention: Callable[[Tensor, Tensor, Tensor, Sequence[int]], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kv_lens: Sequence[int],
) -> Property:
    """Keys beyond ``kv_lens`` have no influence. ``attention`` takes the lengths as a fourth argument."""
    k2, v2 = k.clone(), v.clone()
    for b, n in enumerate(kv_lens):
        k2[b, n:] = k2[b, n:] * -3 + 1
        v2[b, n:] = v2[b, n:] + 7
    base, changed = attention(q, k, v, kv_lens), attention(q, k2, v2, kv_lens)
    return _compare("padding", changed, base, v, "a key beyond the length changed the output")


def batch_permutation(attention: Attention, q: Tensor, k: Tensor, v: Tensor, *, seed: int = 0) -> Property:
    """Permuting the requests permutes the outputs."""
    order = torch.randperm(len(q), generator=torch.Generator().manual_seed(seed)).to(q.device)
    if len(q) > 1 and torch.equal(order.cpu(), torch.arange(len(q))):
        order = order.roll(1)
    base = attention(q, k, v)[order]
    return _compare(
        "permutation", attention(q[order], k[order], v[order]), base, v, "another order, another result"
    )


def prefill_decode_equality(
    prefill: Attention, decode: Attention, q: Tensor, k: Tensor, v: Tensor
) -> Property:
    """One causal prefill equals token-by-token decode over the growing cache."""
    whole = prefill(q, k, v)
    keys, rows = k.shape[1], q.shape[1]
    steps = [
        decode(q[:, i : i + 1], k[:, : keys - rows + i + 1], v[:, : keys - rows + i + 1]) for i in range(rows)
    ]
    return _compare("prefill-decode", torch.cat(steps, 1), whole, v, "decode differs from prefill")


def split_kv_equality(
    attention: AttentionWithLse, q: Tensor, k: Tensor, v: Tensor, *, parts: int = 2
) -> Property:
    """Attention over parts of the keys, merged by LSE, equals attention over all keys.

    lse is ``[B, N, Sq]``; the attention must not be causal.
    """
    whole, _ = attention(q, k, v)
    edges = [k.shape[1] * p // parts for p in range(parts + 1)]
    outs, lses = [], []
    for a, b in pairwise(edges):
        if b > a:
            out, lse = attention(q, k[:, a:b], v[:, a:b])
            outs.append(out.double())
            lses.append(lse.double())
    stats = torch.stack(lses)
    # Both spellings of "no key" weigh nothing.
    stats = torch.where(torch.isinf(stats) | (stats <= -3e38), -torch.inf, stats)
    weights = torch.softmax(stats, 0).nan_to_num().transpose(-1, -2).unsqueeze(-1)
    merged = (torch.stack(outs) * weights).sum(0)
    return _compare("split-kv", merged.to(whole.dtype), whole, v, "merged parts differ from the whole")
