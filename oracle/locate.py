"""Where an output is wrong: the first diverging row, and the pattern over requests, heads and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .judge import RowTable, Status


@dataclass(frozen=True, slots=True)
class Location:
    """``first``: (request, head, token) of the first failing row; ``block``: index of the query page it
    lies in, if paged; ``pattern``: one sentence about what the failing rows have in common; the error lists
    are the worst error (units of u R) per request, head and token position."""

    first: tuple[int, int, int]
    block: int | None
    pattern: str
    by_request: list[float]
    by_head: list[float]
    by_token: list[list[float]]


def locate(
    tables: Sequence[RowTable], *, kv_heads: int, past: Sequence[int], block_size: int = 0
) -> Location | None:
    """The location of the failures in ``tables`` (one per request); None if nothing fails.

    ``past[b]``: cached tokens before request b's first query.
    """
    failing = [t.status == Status.FAIL for t in tables]
    if not any(bool(f.any()) for f in failing):
        return None
    b = next(i for i, f in enumerate(failing) if bool(f.any()))
    row = int(failing[b].any(0).nonzero()[0])
    head = int(failing[b][:, row].nonzero()[0])
    token = int(tables[b].rows[row])
    heads = tables[b].status.shape[0]
    by_head = [max((_top(t.error[h]) for t in tables), default=0.0) for h in range(heads)]
    return Location(
        (b, head, token),
        (past[b] + token) // block_size if block_size else None,
        _pattern(failing, tables, kv_heads, past, block_size),
        [_top(t.error) for t in tables],
        by_head,
        [t.error.amax(0).tolist() if t.error.numel() else [] for t in tables],
    )


def _top(errors: torch.Tensor) -> float:
    return float(errors.max()) if errors.numel() else 0.0


def _pattern(
    failing: Sequence[torch.Tensor],
    tables: Sequence[RowTable],
    kv_heads: int,
    past: Sequence[int],
    block_size: int,
) -> str:
    some = [i for i, f in enumerate(failing) if bool(f.any())]
    used = [i for i, f in enumerate(failing) if f.numel()]
    share = sum(float(f.sum()) for f in failing) / sum(f.numel() for f in failing)
    if share == 1.0:
        return "every row of every request: a factor, a head mapping, a layout or the rotary embedding"
    if len(some) < len(used) and all(bool(failing[i].all()) for i in some):
        if some == used[1:]:
            return "every request after the first: cumulative against per-request lengths"
        return (
            f"requests {some} entirely, the others not at all: their length or their row of the block table"
        )
    heads = torch.stack([f.any(1) for f in failing if f.numel()]).any(0)
    clean = torch.stack([~f.any(1) for f in failing if f.numel()]).all(0)
    if bool(clean.any()):
        names = heads.nonzero().flatten().tolist()
        group = len(heads) // kv_heads
        groups = sorted({h // group for h in names})
        whole = len(names) == len(groups) * group
        return f"only KV head groups {groups}: head mapping" if whole and group > 1 else f"only heads {names}"
    return _token_pattern(failing, tables, past, block_size, share)


def _token_pattern(
    failing: Sequence[torch.Tensor],
    tables: Sequence[RowTable],
    past: Sequence[int],
    block_size: int,
    share: float,
) -> str:
    suffix, last_only, aligned = True, True, bool(block_size)
    for f, t, before in zip(failing, tables, past, strict=True):
        if not f.numel() or not bool(f.any()):
            continue
        bad = f.any(0)
        first = int(bad.nonzero()[0])
        suffix &= bool(bad[first:].all()) and first > 0
        last_only &= first == len(bad) - 1 and len(bad) > 1
        aligned &= block_size > 0 and (before + int(t.rows[first])) % block_size == 0
    if last_only:
        return "only the last token of each request: length or slot of the newest token"
    if suffix:
        return "from one token on" + (
            ", at a page boundary: block table" if aligned else ": mask, window or length"
        )
    return f"{share:.0%} of the rows, in no simple pattern"
