"""KV-parallel: every rank holds part of the cache, and the parts of the answer are put together.

The ranks run one after another in this process; what is checked is the split, the writes of every rank, and
the merge.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layouts import join_heads, layout, split_heads
from .base import AttentionCall, Cache, Indices, KeyArguments, parts_of
from .contiguous import Contiguous


class HeadParallel(Contiguous):
    """Every rank holds ``Nk / ranks`` KV heads of all tokens; outputs are concatenated along the heads."""

    name = "kv-parallel-heads"

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        axes, lay = self.axes, layout(self.case.layout)
        per_kv, per_q = self.case.kv_heads // self.case.ranks, self.case.heads // self.case.ranks
        outs, lses = [], []
        whole = self.key_arguments()
        for rank in range(self.case.ranks):
            heads = slice(rank * per_kv, (rank + 1) * per_kv)
            local = dict(whole)
            for role in ("key", "value"):
                local[role] = join_heads(split_heads(whole[role], axes, self.case.kv_heads)[:, heads], axes)
            local["query_heads"] = slice(rank * per_q, (rank + 1) * per_q)
            local["heads"], local["kv_heads"] = per_q, per_kv
            out, lse = call(local)
            outs.append(split_heads(out, lay.output, per_q))
            lses.append(lse)
        out = join_heads(torch.cat(outs, 1), lay.output)
        return out, torch.cat(lses, 1) if self.case.lse else lses[0]


class SequenceParallel(Cache):
    """Pages are dealt to the ranks in turn (page p to rank p mod R); every rank attends its tokens, the
    partial results are merged by their LSE with npu_attention_update."""

    name = "kv-parallel-sequence"

    def allocate(self) -> None:
        self.size, self.ranks = self.case.block_size, self.case.ranks
        longest = max(self.case.kv_lens) + 2
        pages = -(-longest // self.size)
        self.local_pages = -(-pages // self.ranks)
        batch = self.scenario.batch
        pool = batch * self.local_pages + 1
        # tables[rank][b, i]: pool block of the i-th page that the rank holds of request b
        self.tables = [
            torch.randperm(pool, generator=self.gen)[: batch * self.local_pages].view(batch, -1).int()
            for _ in range(self.ranks)
        ]
        self.pool = pool
        for part in parts_of(self.scenario):
            # One tensor for all ranks; rank r owns blocks r * pool .. (r + 1) * pool.
            shape = (self.ranks * pool, self.size, self.case.kv_heads, part.width)
            self.add_storage(part.role, shape, self.scenario.dtype)

    def grid(self, storage: Tensor, role: str) -> Tensor:
        return storage

    def where(self, b: int, positions: Tensor) -> Indices:
        page = positions // self.size
        rank = page % self.ranks
        tables = torch.stack(self.tables)
        return tables[rank, b, page // self.ranks].long() + rank * self.pool, positions % self.size

    def reach(self, b: int) -> int:
        return self.case.kv_lens[b]

    def local_length(self, b: int, rank: int, total: int) -> int:
        """Tokens of request b that the rank holds when ``total`` are cached."""
        full, rest = divmod(total, self.size)
        own = full // self.ranks + (1 if full % self.ranks > rank else 0)
        return own * self.size + (rest if full % self.ranks == rank else 0)

    def write(self, starts: Sequence[int], stops: Sequence[int]) -> None:
        for role, storage in self.storages.items():
            for rank in range(self.ranks):
                local = storage[rank * self.pool : (rank + 1) * self.pool]
                flat = local.view(-1, *local.shape[2:])
                slots, rows = [], []
                for b, (start, stop) in enumerate(zip(starts, stops, strict=True)):
                    positions = torch.arange(start, stop)
                    mine = positions[(positions // self.size) % self.ranks == rank]
                    table = self.tables[rank][b][mine // self.size // self.ranks].long()
                    slots.append(table * self.size + mine % self.size)
                    rows.append(self.expected_rows(b, mine, role))
                index = torch.cat(slots).to(self.device)
                if len(index):
                    self.ops.npu_scatter_nd_update_(flat, index.view(-1, 1), torch.cat(rows).to(flat.device))

    def key_arguments(self) -> KeyArguments:
        raise NotImplementedError("each rank has its own arguments")

    def rank_arguments(self, rank: int) -> KeyArguments:
        found: KeyArguments = {}
        for role, storage in self.storages.items():
            local = storage[rank * self.pool : (rank + 1) * self.pool]
            heads_first = self.case.layout.startswith("BNSD") and self.case.kv_heads > 1
            found[role] = local.transpose(1, 2).contiguous() if heads_first else local.flatten(2)
        found.setdefault("value", found["key"])
        lens = [self.local_length(b, rank, n) for b, n in enumerate(self.case.kv_lens)]
        return found | {
            "block_table": self.tables[rank].to(self.device), "block_size": self.size, "kv_lens": lens,
            "want_lse": True,
        }  # fmt: skip

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        lay = layout(self.case.layout)
        outs, lses = [], []
        for rank in range(self.ranks):
            out, lse = call(self.rank_arguments(rank))
            # LSE is (B, N, S) whatever the output layout: bring the output to that order first (UPD-02).
            outs.append(split_heads(out, lay.output, self.case.heads).contiguous())
            lses.append(lse)
        shape = outs[0].shape
        merged, lse = self.ops.npu_attention_update(
            [x.reshape(-1) for x in lses], [x.reshape(-1, shape[-1]) for x in outs], 1
        )
        out = join_heads(merged.reshape(shape), lay.output)
        return out, lse.reshape(lses[0].shape) if self.case.lse else lse.new_zeros(0)
