"""A call as it was made, as a problem that misuses can be tried on.

The cases of the matrix know what was intended. A captured call says only what the operator was told; that is
taken as the intent, and an output that is not its answer is explained by what else the operator, or what
stood around it, may have done. What needs the intent (rotary embedding, the content of slots before a write,
integer caches) is out of reach here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .attribution import Attribution, attribute_world
from .calls import Call, normalise
from .cases import Case
from .errors import OracleError
from .judge import Judgement
from .locate import Location, locate
from .reference import Answer, _queries, key_sources, query_spans, visibility
from .sampling import sample_rows
from .scenario import Scenario
from .visibility import Hidden, Visibility, matrix
from .world import Lane, See, World

#: Elements of keys and values up to which unread cache positions are looked at too.
CAPACITY_BUDGET = 32 << 20
#: Elements of the score matrix from which only sampled rows are explained.
ROWS_BUDGET = 16 << 20
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_CACHES = {
    "BnBsH": "paged-bnbsh", "BnNBsD": "paged-bnnbsd", "NZ": "paged-nz", "PA_BSND": "paged-bsnd",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a captured output is wrong, and which misuse gives its numbers; ``note``: why there is none."""

    location: Location | None
    attribution: Attribution | None
    note: str = ""


def explain_call(
    op: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor, verdict: Judgement, found: Answer
) -> Explanation:
    """Explains an output that :func:`~.assertions.check_call` found wrong; its results are passed on."""
    call = normalise(op, args, kwargs)
    past = [max(0, s.keys - count) for (_, _, count), s in zip(found.spans, found.sequences, strict=True)]
    where = locate(verdict.tables, kv_heads=call.kv_heads, past=past, block_size=_page_size(call))
    if call.key_quant is not None or call.query_scale is not None or call.out_scale is not None:
        return Explanation(where, None, "quantised calls are not explained")
    try:
        world = world_of_call(call, out.dtype, found)
    except OracleError as error:
        return Explanation(where, None, str(error))
    unpacked = found.unpack(out.to("cpu"))
    outs = [unpacked[b, :, first : first + count] for b, first, count in found.spans]
    rows = _rows(world, outs)
    outs = [o if r is None else o[:, r] for o, r in zip(outs, rows, strict=True)]
    return Explanation(where, attribute_world(world, outs, rows=rows))


def _rows(world: World, outs: Sequence[Tensor]) -> list[Tensor | None]:
    """Sampled rows of a problem that is large to solve some fifty times."""
    work = sum(o.shape[0] * o.shape[1] * lane.length for o, lane in zip(outs, world.lanes, strict=True))
    if work <= ROWS_BUDGET:
        return [None] * len(outs)
    case = world.case
    return [
        sample_rows(o.shape[1], block_size=case.block_size, window=case.window, seed=case.seed) for o in outs
    ]


def world_of_call(call: Call, dtype: torch.dtype, found: Answer) -> World:
    """What the operator was told, as a :class:`~.world.World`; ``dtype`` is that of its output."""
    spans = query_spans(call)
    queries = _queries(call, spans)
    stored = _capacity(call, len(spans))
    sees = [visibility(call, b, count, s.keys)[0] for b, ((_, _, count), s) in
            enumerate(zip(spans, found.sequences, strict=True))]  # fmt: skip
    case = _case(call, dtype, spans, [s.keys for s in found.sequences])
    mask = _matrix(sees, case) if case.masking == "mask" else None
    lanes, fed = [], []
    for b, ((_, _, count), sequence) in enumerate(zip(spans, found.sequences, strict=True)):
        k, v = stored[b]
        q = queries[b].transpose(0, 1)
        fed.append(q)
        lanes.append(
            Lane(q, k, v, sequence.keys, max(0, sequence.keys - count), _see(call, b, sees[b]),
                 _bias_rows(call, b, len(k)), None)
        )  # fmt: skip
    scenario = Scenario(
        case, dtype, call.scale, fed, [lane.k for lane in lanes], [lane.v for lane in lanes],
        torch.zeros(0), torch.zeros(0), None, call.sink, mask,
        None if call.bias is None else call.bias, _chosen(sees) if case.masking == "sparse" else None,
        [(lane.k, lane.v) for lane in lanes], fed,
    )  # fmt: skip
    undefined = tuple(s.undefined for s in found.sequences)
    return World(scenario, tuple(lanes), call.scale, call.sink, undefined=undefined)


def _capacity(call: Call, batch: int) -> list[tuple[Tensor, Tensor]]:
    """Per request (k, v) ``[positions, Nk, D]``, positions that the call does not read included."""
    sources = key_sources(call, batch)
    told = max((k.length for k, _ in sources), default=0)
    whole: Call | None = None
    room = 0
    if call.block_table is not None:
        room = call.block_table.shape[1] * _page_size(call)
        whole = dataclasses.replace(call, kv_lens=(room,) * batch)
    elif not call.layout.packed and call.kv_padding is None and call.prefix_key is None:
        room = call.key.shape[call.layout.inputs.index("S")]
        whole = dataclasses.replace(call, kv_lens=None)
    width = sum(k.heads * k.dim + v.heads * v.dim for k, v in sources[:1])
    if (
        whole is not None
        and any(k.length < room for k, _ in sources)
        and batch * room * width <= CAPACITY_BUDGET
    ):
        # Entries of the block table beyond the length need not be block ids.
        with contextlib.suppress(OracleError):
            sources = key_sources(whole, batch)
    if batch * told * width > 8 * CAPACITY_BUDGET:
        raise OracleError("the call is too large to be explained")
    return [
        (
            k.read(0, k.length, torch.float32).transpose(0, 1),
            v.read(0, v.length, torch.float32).transpose(0, 1),
        )
        for k, v in sources
    ]


def _page_size(call: Call) -> int:
    return call.key.shape[{"BnNBsD": 2, "NZ": 3}.get(call.page_layout, 1)] if call.page_layout else 0


def _see(call: Call, b: int, told: Visibility) -> See:
    def see(rows: int, keys: int) -> Visibility:
        if keys == told.keys:
            return told
        if call.sparse_indices is None and (call.mask is None or call.sparse_mode in (2, 3, 4)):
            return visibility(call, b, rows, keys)[0]
        # A mask or a selection says nothing of further keys: they stay hidden.
        hidden = ~matrix(told, rows)
        more = max(0, keys - hidden.shape[1])
        return Hidden(keys, torch.nn.functional.pad(hidden, (0, more), value=True)[:, :keys])

    return see


def _bias_rows(call: Call, b: int, keys: int) -> Tensor | None:
    """``[N, rows, >= keys]``, nothing being added to keys that the call does not read."""
    if call.bias is None:
        return None
    bias = call.bias[b if call.bias.shape[0] > 1 else 0].float()
    bias = torch.nn.functional.pad(bias, (0, max(0, keys - bias.shape[-1])))
    return bias * call.scale if call.bias_is_scaled else bias


def _matrix(sees: Sequence[Visibility], case: Case) -> Tensor:
    """Bool ``[B, rows, keys]``, True hides."""
    rows, keys = max(case.q_lens, default=0), max(case.kv_lens, default=0)
    hidden = torch.ones(len(sees), rows, keys, dtype=torch.bool)
    for b, (see, count) in enumerate(zip(sees, case.q_lens, strict=True)):
        hidden[b, :count, : see.keys] = ~matrix(see, count)
    return hidden


def _chosen(sees: Sequence[Visibility]) -> list[Tensor] | None:
    found = [
        s.chosen if hasattr(s, "chosen") else getattr(getattr(s, "a", None), "chosen", None) for s in sees
    ]
    return None if any(c is None for c in found) else found


def _case(call: Call, dtype: torch.dtype, spans: Sequence[tuple[int, int, int]], keys: Sequence[int]) -> Case:
    rope_dim = 0 if call.query_rope is None else call.query_rope.shape[-1] // (
        call.heads if call.layout.inputs in ("BSH", "SBH") else 1
    )  # fmt: skip
    dim = call.head_dim
    masking, window = _masking(call, spans)
    if call.page_layout:
        cache = _CACHES[call.page_layout]
    else:
        cache = "none" if call.layout.packed or call.kv_lens is None else "contiguous"
    return Case(
        f"captured {call.op}", call.op, "captured", call.layout.name, cache, _DTYPES.get(dtype, "fp32"),
        call.heads, call.kv_heads, dim, tuple(count for _, _, count in spans), tuple(keys), masking=masking,
        window=window, rope_dim=rope_dim, rope="none", block_size=_page_size(call),
        latent=call.value is call.key or call.value.data_ptr() == call.key.data_ptr(),
        inner_precise=call.inner_precise, scale=call.scale or 1e-30, sink=call.sink is not None,
        bias=call.bias is not None,
    )  # fmt: skip


def _masking(call: Call, spans: Sequence[tuple[int, int, int]]) -> tuple[str, int]:
    """(masking as a case names it, window)."""
    if call.sparse_indices is not None:
        return "sparse", 0
    one = call.engine == "decode" and call.query_rope is None and all(n == 1 for _, _, n in spans)
    if call.mask is None:
        return "full", 0
    if one or call.sparse_mode in (0, 1, 9):
        return "mask", 0
    if call.sparse_mode == 4:
        return ("window", call.pre_tokens + 1) if call.next_tokens == 0 else ("band", 0)
    return {2: "left-up", 3: "causal"}.get(call.sparse_mode, "band"), 0
