"""From a case to numbers: what the model computed, what must be in the cache, and what must come out.

A :class:`Scenario` is the logical truth, independent of layouts, pages and operators: per request the raw
(pre-rotary) queries, keys and values, the rotary tables, the sink and the user mask. The reference answer and
every misuse hypothesis are computed from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .attention import Request, attend
from .cases import Case
from .kv import Dense
from .visibility import Band, Hidden, Listed, Tail, Visibility, causal, everything

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_ROTARY_BASE = 10000.0
NORM_EPSILON = 1e-6


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """NeoX rotary: the two halves of the last axis are the pairs. cos, sin ``[T, D]``, x ``[T, N, D]``."""
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]


def to_halves(x: Tensor) -> Tensor:
    """Interleaved pairs to halves along the last axis."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], -1)


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """GPT-J rotary as the Ascend operators store it: neighbours are the pairs, the result is in halves."""
    return rotate_half(to_halves(x), cos, sin)


def rotary_table(length: int, dim: int) -> tuple[Tensor, Tensor]:
    """cos, sin ``[length, dim]`` in float32, each frequency twice (half layout)."""
    frequency = _ROTARY_BASE ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return torch.cat([angle.cos()] * 2, -1).float(), torch.cat([angle.sin()] * 2, -1).float()


@dataclass(slots=True)
class Scenario:
    """The logical problem of one case.

    ``q[b]`` ``[Sq, N, D]``, ``k[b]`` ``[L, Nk, D]``, ``v[b]`` ``[L, Nk, Dv]`` in the case's dtype, before
    rotary (and, for MLA, before the norm of the compressed part; then v is a slice of the stored k)."""

    case: Case
    dtype: torch.dtype
    scale: float
    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    cos: Tensor
    sin: Tensor
    gamma: Tensor | None
    sink: Tensor | None
    mask: Tensor | None
    bias: Tensor | None
    chosen: list[Tensor] | None
    stored: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    fed: list[Tensor] = field(default_factory=list)

    @property
    def batch(self) -> int:
        return len(self.q)

    def past(self, b: int) -> int:
        """Tokens of request b that were cached before this step."""
        return self.case.kv_lens[b] - self.case.q_lens[b]

    def query_positions(self, b: int) -> Tensor:
        return torch.arange(self.past(b), self.case.kv_lens[b])

    def visible(self, b: int) -> Visibility:
        """Who sees what in request b, by intent."""
        rows, keys = self.case.q_lens[b], self.case.kv_lens[b]
        kind = self.case.masking
        if kind == "causal":
            return causal(rows, keys)
        if kind == "left-up":
            return causal(rows, keys, "top-left")
        if kind == "window":
            return Band(keys, keys - rows - (self.case.window - 1), keys - rows)
        if kind in ("mask", "all"):
            assert self.mask is not None
            return Hidden(keys, self.mask[b])
        if kind == "tree":
            assert self.mask is not None
            return Tail(keys, keys - rows, self.mask[b][:rows, :rows])
        if kind == "sparse":
            assert self.chosen is not None
            return Listed(keys, self.chosen[b])
        return everything(keys)

    def requests(
        self, rows: list[Tensor | None] | None = None, stored: list[tuple[Tensor, Tensor]] | None = None
    ) -> list[Request]:
        """The reference problem; ``stored[b]``: (k, v) ``[L, Nk, D]`` to use instead of the intended cache
        rows."""
        found = []
        for b, (k, v) in enumerate(stored or self.stored):
            bias = None if self.bias is None else self.bias[b][:, : self.case.q_lens[b]]
            found.append(
                Request(
                    self.fed[b].transpose(0, 1), Dense(k.transpose(0, 1)), Dense(v.transpose(0, 1)),
                    self.visible(b), None if rows is None else rows[b], bias,
                )
            )  # fmt: skip
        return found


def build(case: Case) -> Scenario:
    """The scenario of ``case``; equal cases give equal numbers on every machine."""
    gen = torch.Generator().manual_seed(case.seed)
    dtype = DTYPES[case.dtype]
    mla = case.rope_dim > 0
    width = case.dim + case.rope_dim

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=gen)

    # A direction common to keys and queries of a head makes the scores peaked, as in a real model, and a
    # non-zero mean of V makes "which keys" visible in the output: both keep misuse hypotheses apart.
    common = normal(case.kv_heads, width) * (0.7 if not mla else 0.25)
    per_kv = case.heads // case.kv_heads
    q, k, v = [], [], []
    for rows, keys in zip(case.q_lens, case.kv_lens, strict=True):
        q.append((1.2 * (normal(rows, case.heads, width) + common.repeat_interleave(per_kv, 0))).to(dtype))
        k.append((1.2 * (normal(keys, case.kv_heads, width) + common)).to(dtype))
        v.append((normal(keys, case.kv_heads, case.value_dim) + 0.3).to(dtype))
    longest = max(case.kv_lens, default=0) + 8
    cos, sin = rotary_table(max(longest, 1), case.rope_dim or case.dim)
    gamma = (1 + 0.1 * normal(case.dim)).to(dtype) if case.normed else None
    if case.normed:  # the writer takes its tables in the cache's dtype (KR-20)
        cos, sin = cos.to(dtype).float(), sin.to(dtype).float()
    scenario = Scenario(
        case,
        dtype,
        case.scale,
        q,
        k,
        v,
        cos,
        sin,
        gamma,
        None,
        _user_mask(case, gen),
        None,
        _chosen(case, gen),
    )
    if case.bias:
        scenario.bias = (0.5 * normal(len(case.q_lens), case.heads, max(case.q_lens), longest)).to(dtype)
    for b in range(scenario.batch):
        scenario.fed.append(rotate_query(scenario, b))
        scenario.stored.append(stored_rows(scenario, b))
    if case.sink:
        scenario.sink = _sink(scenario, gen)
    return scenario


def rotate_query(
    scenario: Scenario, b: int, positions: Tensor | None = None, style: str | None = None
) -> Tensor:
    """Queries of request b as fed to the operator, ``[Sq, N, D]`` in the case's dtype."""
    at = scenario.query_positions(b) if positions is None else positions
    return rotate(scenario, scenario.q[b], at, style or scenario.case.rope)


def rotate(scenario: Scenario, x: Tensor, positions: Tensor, style: str) -> Tensor:
    """Rotary embedding of the rope part (the whole head without MLA); style ``half``, ``interleaved`` or
    ``none``."""
    if style == "none" or not len(x):
        return x
    cos, sin = scenario.cos[positions], scenario.sin[positions]
    turn = rotate_half if style == "half" else rotate_interleaved
    cut = scenario.case.dim if scenario.case.rope_dim else 0
    turned = turn(x[..., cut:].float(), cos, sin).to(x.dtype)
    return torch.cat([x[..., :cut], turned], -1) if cut else turned


def stored_rows(scenario: Scenario, b: int, style: str | None = None) -> tuple[Tensor, Tensor]:
    """(k, v) rows ``[L, Nk, D]`` that a correct writer leaves in the cache, before any quantisation."""
    case = scenario.case
    k = rotate(scenario, normed_rows(scenario, b), torch.arange(case.kv_lens[b]), style or case.rope)
    return (k, k[..., : case.value_dim]) if case.latent else (k, scenario.v[b])


def normed_rows(scenario: Scenario, b: int) -> Tensor:
    """Keys of request b after the RMS norm of the compressed part (MLA), else as they are."""
    k = scenario.k[b]
    if scenario.gamma is None:
        return k
    x = k[..., : scenario.case.dim].float()
    x = x / (x.square().mean(-1, keepdim=True) + NORM_EPSILON).sqrt() * scenario.gamma.float()
    return torch.cat([x.to(k.dtype), k[..., scenario.case.dim :]], -1)


def _user_mask(case: Case, gen: torch.Generator) -> Tensor | None:
    """Bool ``[B, max Sq, max Skv]``, True hides; no row is fully hidden unless the case asks for dead
    rows."""
    rows, keys = max(case.q_lens, default=0), max(case.kv_lens, default=0)
    if case.masking == "tree":
        hidden = torch.rand(len(case.q_lens), rows, rows, generator=gen) < 0.5
        hidden |= torch.ones(rows, rows, dtype=torch.bool).triu(1)
        hidden.diagonal(dim1=1, dim2=2).fill_(False)
        return hidden
    if case.masking not in ("mask", "all"):
        return None
    hidden = torch.rand(len(case.q_lens), rows, keys, generator=gen) < 0.35
    for b, n in enumerate(case.kv_lens):
        # Long stretches, so that an operator which stops reading the mask somewhere is seen.
        cut = max(1, n * 3 // 4)
        hidden[b, :, cut:] = True
        hidden[b, :, 0] = False
        hidden[b, :, n:] = True
    if case.dead_rows:
        hidden[:, 1::3] = True
    return hidden


def _chosen(case: Case, gen: torch.Generator) -> list[Tensor] | None:
    """sparse attention: per request the key tokens ``[Sq, count]`` each query selects, causal, -1 padded."""
    if case.masking != "sparse":
        return None
    found = []
    for rows, keys in zip(case.q_lens, case.kv_lens, strict=True):
        table = torch.full((rows, case.sparse_count), -1, dtype=torch.int64)
        for i in range(rows):
            limit = keys - rows + i + 1
            picked = torch.randperm(limit, generator=gen)[: case.sparse_count]
            table[i, : len(picked)] = picked
        found.append(table)
    return found


def _sink(scenario: Scenario, gen: torch.Generator) -> Tensor:
    """Sinks near each head's log-sum-exp: anywhere else they would hardly change the output."""
    results = attend(scenario.requests(), scenario.scale, dtype=torch.float32, spread=False)
    heads = scenario.case.heads
    level = torch.zeros(heads)
    for h in range(heads):
        lse = torch.cat([r.lse[h][~r.dead[h]] for r in results])
        level[h] = lse.float().mean() if len(lse) else 0.0
    return (level + 0.5 * torch.randn(heads, generator=gen)).to(torch.bfloat16)
