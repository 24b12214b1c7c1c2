"""Integer caches: how rows are scaled, packed and read back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kv import pack_int4, unpack_int4
from .base import Indices, KeyArguments
from .contiguous import Contiguous
from .paged import Paged

#: name -> quantisation mode of the operator (contract G12)
MODES = {
    "per-tensor": 0, "per-channel": 0, "per-token": 1, "per-head": 2, "per-token-head": 3,
    "paged-per-token": 4,
    "paged-per-token-head": 5, "int4-per-channel": 0,
}  # fmt: skip


class Scales:
    """Scale (and for per-channel also offset) of key and value of one cache, chosen from the data.

    ``x = (stored + offset) * scale``. Shapes by mode: ``[1]``, ``[N, 1, D]``, ``[B, S]``, ``[N]``, ``[B, N,
    S]``, pages ``[Bn, Bs]`` and ``[Bn, N, Bs]``."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        self.kind, self.dtype = kind, dtype
        self.top = 7.0 if kind.startswith("int4") else 127.0
        self.mode = MODES[kind]

    def of_rows(self, rows: list[Tensor]) -> Tensor:
        """Scale per (request, row, head, channel) with the constant axes kept at size 1, one tensor per
        request stacked lazily: returns a tensor broadcastable to ``[L, N, D]`` for per-cache kinds."""
        data = torch.cat([r.float() for r in rows]).abs()
        if self.kind == "per-tensor":
            level = data.amax().reshape(1, 1, 1)
        elif self.kind == "per-head":
            level = data.amax((0, 2), keepdim=True)
        else:
            level = data.amax(0, keepdim=True)
        return (level / self.top).to(self.dtype)

    def of_tokens(self, rows: Tensor) -> Tensor:
        """Scale of every token, ``[L, 1 or N, 1]`` in float32."""
        axes = (1, 2) if not self.kind.endswith("head") else (2,)
        return rows.float().abs().amax(axes, keepdim=True) / self.top

    @property
    def by_token(self) -> bool:
        return "token" in self.kind


class Dequantising:
    """Readable content of an integer cache in real numbers, for the modes below."""

    def content_rows(self: Any, b: int, storages: dict[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        positions = torch.arange(self.reach(b))
        found = []
        for role in ("key", "value"):
            grid = self.grid(storages[role], role)
            stored = grid[self.where(b, positions)].reshape(len(positions), self.case.kv_heads, -1)
            x = (unpack_int4(stored) if stored.dtype == torch.int32 else stored).double()
            if role in self.offset:
                x = x + self.offset[role].double()
            found.append(x * self.row_factor(b, positions, role).double())
        return found[0], found[1]

    def truth_rows(self: Any, b: int, trusted: bool) -> tuple[Tensor, Tensor]:
        source = {r: t.cpu() for r, t in (self.storages if trusted else self.expected).items()}
        k, v = self.content_rows(b, source)
        return k[: self.case.kv_lens[b]], v[: self.case.kv_lens[b]]

    def coefficients(
        self: Any, b: int
    ) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]] | None:
        at = torch.arange(self.case.kv_lens[b])
        offset = {role: t.double() for role, t in self.offset.items()}
        return (
            (self.row_factor(b, at, "key").double(), offset.get("key")),
            (self.row_factor(b, at, "value").double(), offset.get("value")),
        )


class Quantised(Dequantising, Contiguous):
    """int8 (or packed int4) ``[B, ..., S, D]`` cache with scales beside it; scatter_update_ writes the
    integers."""

    name = "quantised"
    tolerance = 1

    def allocate(self) -> None:
        self.scales = Scales(self.case.quant, self.scenario.dtype)
        self.factor: dict[str, Tensor] = {}
        self.offset: dict[str, Tensor] = {}
        batch, heads, capacity = self.scenario.batch, self.case.kv_heads, self.capacity
        for at, role in enumerate(("key", "value")):
            rows = [s[at] for s in self.scenario.stored]
            if self.scales.by_token:
                table = torch.ones(batch, capacity, heads if self.scales.mode == 3 else 1)
                for b, r in enumerate(rows):
                    table[b, : len(r)] = self.scales.of_tokens(r)[..., 0]
                self.factor[role] = table
            else:
                self.factor[role] = self.scales.of_rows(rows)
                if self.case.quant == "per-channel":
                    noise = torch.randint(-3, 4, self.factor[role].shape, generator=self.gen)
                    self.offset[role] = noise.to(self.scenario.dtype)
            shape: tuple[int, ...] = (batch, heads, capacity, self.case.dim // (8 if self.int4 else 1))
            if self.axes == "BSH":
                shape = (batch, capacity, heads * shape[3])
            elif self.axes == "BSND":
                shape = (batch, capacity, heads, shape[3])
            self.add_storage(role, shape, torch.int32 if self.int4 else torch.int8)

    @property
    def int4(self) -> bool:
        return self.case.quant.startswith("int4")

    def row_factor(self, b: int, positions: Tensor, role: str) -> Tensor:
        """Scale broadcastable to ``[n, N, D]``."""
        f = self.factor[role]
        return f[b, positions].unsqueeze(-1).float() if self.scales.by_token else f.float()

    def expected_rows(self, b: int, positions: Tensor, role: str) -> Tensor:
        rows = self.scenario.stored[b][0 if role == "key" else 1][positions].double()
        scaled = rows / self.row_factor(b, positions, role).double()
        if role in self.offset:
            scaled = scaled - self.offset[role].double()
        limit = 8 if self.int4 else 128
        whole = scaled.round().clamp(-limit, limit - 1).to(torch.int8)
        return pack_int4(whole) if self.int4 else whole

    def key_arguments(self) -> KeyArguments:
        found = super().key_arguments()
        for role in ("key", "value"):
            found[f"{role}_scale"] = self.operand(self.factor[role]).to(self.device)
            found[f"{role}_mode"] = self.scales.mode
            if role in self.offset:
                found[f"{role}_offset"] = self.operand(self.offset[role]).to(self.device)
        return found

    def operand(self, t: Tensor) -> Tensor:
        """The scale in the shape the operator wants for this mode."""
        kind = self.case.quant
        if kind == "per-tensor" or kind == "per-head":
            return t.reshape(-1)
        if kind == "per-token":
            return t[..., 0].contiguous()
        if kind == "per-token-head":
            return t.transpose(1, 2).contiguous()
        if self.axes == "BSH":
            return t.reshape(1, -1)
        return t[0].unsqueeze(1) if self.axes == "BNSD" else t[0]


class QuantisedPaged(Dequantising, Paged):
    """int8 BnBsH pages with one scale per token (and head) in pages of their own."""

    name = "quantised-paged"
    tolerance = 1

    def storage_dtype(self, role: str) -> torch.dtype:
        return torch.int8

    def allocate(self) -> None:
        super().allocate()
        self.scales = Scales(self.case.quant, torch.float32)
        self.offset: dict[str, Tensor] = {}
        blocks = len(self.storages["key"])
        width = self.case.kv_heads if self.scales.mode == 5 else 1
        self.factor = {role: torch.ones(blocks, self.size, width) for role in ("key", "value")}
        for b in range(self.scenario.batch):
            at: Indices = self.where(b, torch.arange(self.case.kv_lens[b]))
            for index, role in enumerate(("key", "value")):
                self.factor[role][at] = self.scales.of_tokens(self.scenario.stored[b][index])[..., 0]

    def row_factor(self, b: int, positions: Tensor, role: str) -> Tensor:
        return self.factor[role][self.where(b, positions)].unsqueeze(-1)

    def expected_rows(self, b: int, positions: Tensor, role: str) -> Tensor:
        rows = self.scenario.stored[b][0 if role == "key" else 1][positions].double()
        scaled = rows / self.row_factor(b, positions, role).double()
        return scaled.round().clamp(-128, 127).to(torch.int8)

    def key_arguments(self) -> KeyArguments:
        found = super().key_arguments()
        for role in ("key", "value"):
            table = self.factor[role]
            operand = table[..., 0] if self.scales.mode == 4 else table.transpose(1, 2)
            found[f"{role}_scale"] = operand.contiguous().to(self.device)
            found[f"{role}_mode"] = self.scales.mode
        return found
