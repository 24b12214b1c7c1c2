"""Attention modules written as for Ascend, one per cache style, and the same mathematics in float64.

All keep bfloat16 weights, serve ragged requests, and are called once per phase: ``module(x, lens, first)``
where ``x`` [T, H] holds the new tokens of all requests, ``lens`` how many each has, and ``first`` its length
so far.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch_npu
from torch import Tensor, nn

HIDDEN = 64


def weight(*shape: int) -> Tensor:
    """A projection whose output has about unit size."""
    return (torch.randn(*shape, device="npu") / math.sqrt(shape[0])).to(torch.bfloat16)


def causal_mask() -> Tensor:
    """The compressed mask of sparse modes 2 to 4."""
    return torch.ones(2048, 2048, dtype=torch.bool, device="npu").triu(1)


def rotary(positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin, [T, dim], halves repeated."""
    angle = positions[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


class Attention(nn.Module):
    """Grouped-query attention; subclasses keep the cache and call the operator."""

    heads, kv_heads, dim = 4, 2, 64
    window: int | None = None
    sinks: Tensor | None = None

    def __init__(self, requests: int, capacity: int) -> None:
        super().__init__()
        self.requests, self.capacity = requests, capacity
        self.scale = self.dim**-0.5
        self.q, self.o = weight(HIDDEN, self.heads * self.dim), weight(self.heads * self.dim, HIDDEN)
        self.k, self.v = (weight(HIDDEN, self.kv_heads * self.dim) for _ in range(2))

    def project(self, x: Tensor, lens: list[int], first: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, N, D], k and v [T, Nk, D], rotated."""
        positions = torch.cat([torch.arange(f, f + n) for f, n in zip(first, lens, strict=True)])
        cos, sin = (t[None, :, None].to(x.dtype).npu() for t in rotary(positions, self.dim))
        q = (x @ self.q).view(1, -1, self.heads, self.dim)
        k = (x @ self.k).view(1, -1, self.kv_heads, self.dim)
        q, k = torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")
        return q[0], k[0], (x @ self.v).view(-1, self.kv_heads, self.dim)

    def forward(self, x: Tensor, lens: list[int], first: list[int]) -> Tensor:
        q, k, v = self.project(x.npu(), lens, first)
        return self.attend(q, k, v, lens, first).reshape(len(x), -1) @ self.o

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lens: list[int], first: list[int]) -> Tensor:
        raise NotImplementedError

    def reference(self, x: Tensor) -> Tensor:
        """One whole request [S, H] at once, in float64."""
        x, count = x.double(), len(x)
        cos, sin = (t.double()[:, None] for t in rotary(torch.arange(count), self.dim))

        def turned(w: Tensor, heads: int) -> Tensor:
            y = (x @ w.double()).view(count, heads, self.dim)
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat([-b, a], -1) * sin

        q, k = turned(self.q, self.heads), turned(self.k, self.kv_heads)
        v = (x @ self.v.double()).view(count, self.kv_heads, self.dim)
        out = exact(q, k, v, self.scale, self.window, self.sinks)
        return out.reshape(count, -1) @ self.o.double()


def exact(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None = None, sinks: Tensor | None = None
) -> Tensor:
    """Causal attention of one request, [S, N, D] each, in the dtype of the inputs."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("ind,jnd->nij", q, k) * scale
    i, j = torch.arange(len(q))[:, None], torch.arange(len(q))[None]
    hidden = j > i
    if window is not None:
        hidden |= j <= i - window
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        extra = sinks.to(scores).view(-1, 1, 1).expand(-1, len(q), 1)
        weights = torch.cat([scores, extra], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return torch.einsum("nij,jnd->ind", weights, v)


class ContiguousBSH(Attention):
    """[B, S, H] caches, one row per request, written with scatter_update_."""

    def __init__(self, requests: int, capacity: int) -> None:
        super().__init__(requests, capacity)
        shape = (requests, capacity, self.kv_heads * self.dim)
        self.keys, self.values = (torch.zeros(shape, dtype=torch.bfloat16, device="npu") for _ in range(2))
        self.mask = causal_mask()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lens: list[int], first: list[int]) -> Tensor:
        longest = max(lens)
        rows = [(b, slice(0, n)) for b, n in enumerate(lens)]

        def padded(t: Tensor) -> Tensor:
            made = t.new_zeros(self.requests, longest, t.shape[1] * t.shape[2])
            for (b, span), part in zip(rows, t.flatten(1).split(lens), strict=True):
                made[b, span] = part
            return made

        start = torch.tensor(first, dtype=torch.int64, device="npu")
        torch_npu.scatter_update_(self.keys, start, padded(k), 1)
        torch_npu.scatter_update_(self.values, start, padded(v), 1)
        total = [f + n for f, n in zip(first, lens, strict=True)]
        mode = {"sparse_mode": 3, "atten_mask": self.mask} if longest > 1 else {}
        out, _ = torch_npu.npu_fused_infer_attention_score(
            padded(q), self.keys, self.values, num_heads=self.heads, num_key_value_heads=self.kv_heads,
            input_layout="BSH", scale=self.scale, actual_seq_lengths=lens, actual_seq_lengths_kv=total,
            **mode,
        )  # fmt: skip
        return torch.cat([out[b, span] for b, span in rows])


class PagedTND(Attention):
    """Pages [blocks, block size, H], written by slot, read through a block table."""

    block = 128

    def __init__(self, requests: int, capacity: int) -> None:
        super().__init__(requests, capacity)
        per_request = -(-capacity // self.block)
        order = torch.randperm(requests * per_request, generator=torch.Generator().manual_seed(1))
        self.table = order.view(requests, per_request).int().npu()
        shape = (requests * per_request, self.block, self.kv_heads * self.dim)
        self.keys, self.values = (torch.zeros(shape, dtype=torch.bfloat16, device="npu") for _ in range(2))
        self.mask = causal_mask()

    def slots(self, lens: list[int], first: list[int]) -> Tensor:
        parts = []
        for b, (f, n) in enumerate(zip(first, lens, strict=True)):
            at = torch.arange(f, f + n)
            parts.append(self.table[b, at // self.block].long() * self.block + at % self.block)
        return torch.cat(parts)

    def write(self, k: Tensor, v: Tensor, lens: list[int], first: list[int]) -> None:
        slots = self.slots(lens, first)[:, None]
        for cache, rows in ((self.keys, k), (self.values, v)):
            torch_npu.npu_scatter_nd_update_(cache.view(-1, cache.shape[-1]), slots, rows.flatten(1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lens: list[int], first: list[int]) -> Tensor:
        self.write(k, v, lens, first)
        ends = torch.tensor(lens).cumsum(0).tolist()
        total = [f + n for f, n in zip(first, lens, strict=True)]
        out, _ = torch.ops.npu.npu_fused_infer_attention_score_v2(
            q, self.keys, self.values, num_query_heads=self.heads, num_key_value_heads=self.kv_heads,
            input_layout="TND", softmax_scale=self.scale, actual_seq_qlen=ends, actual_seq_kvlen=total,
            block_table=self.table, block_size=self.block, atten_mask=self.mask, **self.mode(),
        )  # fmt: skip
        return out

    def mode(self) -> dict[str, Any]:
        return {"sparse_mode": 3}


class SinkWindowTND(PagedTND):
    """A sliding window and a learned sink per head."""

    window = 24

    def __init__(self, requests: int, capacity: int) -> None:
        super().__init__(requests, capacity)
        self.sinks = torch.randn(self.heads, device="npu").to(torch.bfloat16)

    def mode(self) -> dict[str, Any]:
        return {
            "sparse_mode": 4, "pre_tokens": self.window - 1, "next_tokens": 0, "learnable_sink": self.sinks,
        }  # fmt: skip


class PagedLatentNZ(PagedTND):
    """MLA: latent pages in NZ format, explicit heads in prefill, absorbed ones in decode."""

    heads, kv_heads, nope, rope, latent = 2, 1, 128, 64, 512
    dim = nope

    def __init__(self, requests: int, capacity: int) -> None:
        super().__init__(requests, capacity)
        self.scale = (self.nope + self.rope) ** -0.5
        self.q = weight(HIDDEN, self.heads * (self.nope + self.rope))
        self.down = weight(HIDDEN, self.latent + self.rope)
        self.gamma = torch.rand(self.latent, device="npu").to(torch.bfloat16)
        self.up_k = (weight(self.latent, self.heads * self.nope)).view(self.latent, self.heads, -1)
        self.up_v = (weight(self.latent, self.heads * self.nope)).view(self.latent, self.heads, -1)
        pages = self.keys.shape[0]
        self.pages = torch.zeros(pages, self.block, 1, self.latent, dtype=torch.bfloat16, device="npu")
        self.rope_pages = torch.zeros(pages, self.block, 1, self.rope, dtype=torch.bfloat16, device="npu")

    def forward(self, x: Tensor, lens: list[int], first: list[int]) -> Tensor:
        x = x.npu()
        positions = torch.cat([torch.arange(f, f + n) for f, n in zip(first, lens, strict=True)])
        cos, sin = (t[:, None, None].to(x.dtype).npu() for t in rotary(positions, self.rope))
        q = (x @ self.q).view(-1, self.heads, 1, self.nope + self.rope)
        q_rope = torch_npu.npu_interleave_rope(q[..., self.nope :].contiguous(), cos, sin)[:, :, 0]
        q_nope = q[:, :, 0, : self.nope]
        prefill = not any(first)
        k_rope, latent = torch_npu.npu_kv_rmsnorm_rope_cache_v2(
            (x @ self.down).view(-1, 1, 1, self.latent + self.rope), self.gamma, cos, sin,
            self.slots(lens, first), self.rope_pages, self.pages, epsilon=1e-6, cache_mode="PA_NZ",
            is_output_kv=prefill,
        )  # fmt: skip
        attend = self.explicit if prefill else self.absorbed
        out = attend(q_nope, q_rope, k_rope.view(-1, self.rope), latent.view(-1, self.latent), lens, first)
        return out.reshape(len(x), -1) @ self.o

    def explicit(
        self,
        q_nope: Tensor,
        q_rope: Tensor,
        k_rope: Tensor,
        latent: Tensor,
        lens: list[int],
        first: list[int],
    ) -> Tensor:
        k, v = (torch.einsum("tc,cnd->ntd", latent, up).contiguous() for up in (self.up_k, self.up_v))
        ends = torch.tensor(lens).cumsum(0).tolist()
        out, _ = torch_npu.npu_fused_infer_attention_score(
            q_nope.transpose(0, 1).contiguous(), k, v,
            query_rope=q_rope.transpose(0, 1).contiguous(),
            key_rope=k_rope.expand(self.heads, -1, -1).contiguous(), num_heads=self.heads,
            num_key_value_heads=self.heads, input_layout="NTD_TND", scale=self.scale, atten_mask=self.mask,
            sparse_mode=3, actual_seq_lengths=ends, actual_seq_lengths_kv=ends,
        )  # fmt: skip
        return out

    def absorbed(
        self,
        q_nope: Tensor,
        q_rope: Tensor,
        k_rope: Tensor,
        latent: Tensor,
        lens: list[int],
        first: list[int],
    ) -> Tensor:
        q = torch_npu.npu_transpose_batchmatmul(
            q_nope.contiguous(), self.up_k.permute(1, 2, 0).contiguous(), perm_x1=(1, 0, 2), perm_y=(1, 0, 2)
        )
        blocks, size = self.pages.shape[:2]
        pages = self.pages.view(blocks, 1, self.latent // 16, size, 16)
        ends = torch.tensor(lens).cumsum(0).tolist()
        total = [f + n for f, n in zip(first, lens, strict=True)]
        out, _ = torch_npu.npu_fused_infer_attention_score_v2(
            q, pages, pages, query_rope=q_rope.contiguous(),
            key_rope=self.rope_pages.view(blocks, 1, self.rope // 16, size, 16), num_query_heads=self.heads,
            num_key_value_heads=1, input_layout="TND_NTD", softmax_scale=self.scale, atten_mask=self.mask,
            sparse_mode=3, actual_seq_qlen=ends, actual_seq_kvlen=total, block_table=self.table,
            block_size=self.block,
        )  # fmt: skip
        return torch.einsum("ntc,cnd->tnd", out, self.up_v)

    def reference(self, x: Tensor) -> Tensor:
        x, count = x.double(), len(x)
        cos, sin = (t.double()[:, None] for t in rotary(torch.arange(count), self.rope))

        def turned(y: Tensor) -> Tensor:
            # Pairs are turned; halves and pairs give the same dot products.
            a, b = y[..., ::2], y[..., 1::2]
            c, s = cos[..., : self.rope // 2], sin[..., : self.rope // 2]
            return torch.cat([a * c - b * s, b * c + a * s], -1)

        q = (x @ self.q.double()).view(count, self.heads, -1)
        down = x @ self.down.double()
        latent, k_rope = down.split([self.latent, self.rope], -1)
        latent = latent * (latent.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.gamma.double()
        k, v = (torch.einsum("tc,cnd->tnd", latent, up.double()) for up in (self.up_k, self.up_v))
        q = torch.cat([q[..., : self.nope], turned(q[..., self.nope :])], -1)
        k = torch.cat([k, turned(k_rope[:, None]).expand(-1, self.heads, -1)], -1)
        return exact(q, k, v, self.scale).reshape(count, -1) @ self.o.double()
