"""What a correct operator returns for a given call: the reference (contract 1.4-1.7, 2, oracle.md 3).

``reference(op, *args, **kwargs)`` takes the operator's own arguments and returns an :class:`Answer` in
float64 (or float32), together with the rows for which the call itself leaves the result undefined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .attention import Request, attend
from .calls import Call, Quant, normalise
from .errors import OracleError
from .kv import Concat, Dense, Dequantised, Paged, Prefixed, Rows
from .layouts import join_heads, split_heads
from .visibility import Band, Both, Columns, Either, Hidden, Listed, Tail, Visibility, everything

COMPRESSED = 2048


@dataclass(frozen=True, slots=True)
class SequenceAnswer:
    """Rows of one request: ``rows`` ``[R]`` token indices inside the request, ``out`` ``[N, R, Dv]``,
    ``lse``, ``dead`` and ``spread`` ``[N, R]`` (see :class:`~.attention.Result`), ``undefined`` ``[R]``
    (the call leaves the row open); ``value_peak`` and ``value_rms`` describe the request's values."""

    rows: Tensor
    out: Tensor
    lse: Tensor
    dead: Tensor
    spread: Tensor
    undefined: Tensor
    keys: int
    value_peak: float
    value_rms: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Reference answer of a call; ``spans[b]`` is where request b's tokens lie: (batch row, first token,
    count), the batch row being 0 for packed layouts."""

    call: Call
    sequences: list[SequenceAnswer]
    spans: list[tuple[int, int, int]]
    notes: list[str] = field(default_factory=list)

    @property
    def value_dim(self) -> int:
        return value_dim(self.call)

    def pack(self) -> tuple[Tensor, Tensor]:
        """(out, lse) with the operator's shapes; rows of no request are 0 and +inf. Not for sampled
        answers."""
        call = self.call
        batch, heads, tokens = _query_extent(call)
        dtype = self.sequences[0].out.dtype if self.sequences else torch.float64
        out = torch.zeros(batch, heads, tokens, self.value_dim, dtype=dtype)
        lse = torch.full((batch, heads, tokens), torch.inf, dtype=dtype)
        for (b, first, count), seq in zip(self.spans, self.sequences, strict=True):
            if len(seq.rows) != count:
                raise OracleError("a sampled answer has no packed form")
            out[b, :, first : first + count] = seq.out
            lse[b, :, first : first + count] = seq.lse
        if call.layout.packed:
            return join_heads(out[0], call.layout.output), lse[0].T.unsqueeze(-1).contiguous()
        return join_heads(out, call.layout.output), lse.unsqueeze(-1)

    def unpack(self, out: Tensor) -> Tensor:
        """An operator output of this call as ``[B, N, S, Dv]`` (B = 1 for packed layouts)."""
        axes = self.call.layout.output
        heads = split_heads(out, axes, self.call.heads, "attention_out")
        return heads.unsqueeze(0) if self.call.layout.packed else heads

    def unpack_lse(self, lse: Tensor) -> Tensor:
        """An operator LSE of this call as ``[B, N, S]``."""
        if self.call.layout.packed:
            return lse.squeeze(-1).T.unsqueeze(0)
        return lse.squeeze(-1)


def value_dim(call: Call) -> int:
    """Head dimension of the output, from value (contract 1.4)."""
    v = call.value
    factor = 8 if v.dtype == torch.int32 else 1
    if call.block_table is not None:
        if call.page_layout == "BnBsH":
            return v.shape[2] // call.kv_heads * factor
        return (v.shape[2] * v.shape[4] if call.page_layout == "NZ" else v.shape[3]) * factor
    if call.layout.inputs in ("BSH", "SBH"):
        return v.shape[2] // call.kv_heads * factor
    return v.shape[-1] * factor


def output_shape(call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of (attention_out, softmax_lse) by contract 1.4."""
    batch, heads, tokens = _query_extent(call)
    sizes = {"B": batch, "N": heads, "S": tokens, "T": tokens, "D": value_dim(call)}
    sizes["H"] = heads * sizes["D"]
    lse = (tokens, heads, 1) if call.layout.packed else (batch, heads, tokens, 1)
    return tuple(sizes[a] for a in call.layout.output), lse if call.want_lse else (0,)


def _query_extent(call: Call) -> tuple[int, int, int]:
    q = split_heads(call.query, call.layout.inputs, call.heads, "query")
    return (1, q.shape[0], q.shape[1]) if call.layout.packed else (q.shape[0], q.shape[1], q.shape[2])


def reference(
    op: str | Callable[..., Any],
    *args: Any,
    rows: Sequence[Tensor | None] | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Answer:
    """The reference answer of ``op(*args, **kwargs)``.

    ``rows``: per request, the token indices to compute (None = all), for long prefills; ``dtype``: float64 or
    float32; ``device``: where the reference runs.
    """
    return answer(normalise(op, args, kwargs), rows=rows, dtype=dtype, device=device)


def answer(
    call: Call,
    *,
    rows: Sequence[Tensor | None] | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Answer:
    """The reference answer of a normalised call."""
    notes: list[str] = []
    spans = query_spans(call)
    sources = key_sources(call, len(spans))
    queries = _queries(call, spans)
    requests: list[Request] = []
    undefined: list[Tensor] = []
    for b, ((_, _, count), (k, v)) in enumerate(zip(spans, sources, strict=True)):
        visible, bad = visibility(call, b, count, k.length, notes)
        chosen = None if rows is None else rows[b]
        undefined.append(bad if chosen is None else bad[chosen])
        requests.append(Request(queries[b], k, v, visible, chosen, _bias(call, b, count, k.length)))
    found = attend(requests, call.scale, sink=call.sink, dtype=dtype, device=device)
    sequences = [
        SequenceAnswer(
            r.rows,
            r.out.cpu(),
            r.lse.cpu(),
            r.dead.cpu(),
            r.spread.cpu(),
            bad,
            req.k.length,
            *value_scale(req.v),
        )
        for r, bad, req in zip(found, undefined, requests, strict=True)
    ]
    return Answer(call, sequences, spans, list(dict.fromkeys(notes)))


def value_scale(v: Rows) -> tuple[float, float]:
    """(max |v|, rms of v) over the rows of one request, read in chunks."""
    top, squares = 0.0, 0.0
    for start in range(0, v.length, 8192):
        part = v.read(start, min(v.length, start + 8192), torch.float32)
        top = max(top, float(part.abs().max()))
        squares += float(part.square().mean()) * part.shape[1]
    return top, (squares / max(1, v.length)) ** 0.5


# ---------------------------------------------------------------------------------------------- lengths


def query_spans(call: Call) -> list[tuple[int, int, int]]:
    """(batch row, first token, token count) of every request."""
    batch, _, tokens = _query_extent(call)
    lens = call.q_lens
    if call.layout.packed:
        if lens is None:
            raise OracleError(f"layout {call.layout.name} needs cumulative query lengths (D01)")
        ends = [0, *lens]
        if any(b < a for a, b in pairwise(ends)) or ends[-1] > tokens:
            raise OracleError(f"query lengths {list(lens)} are not cumulative within T={tokens} (D02)")
        return [(0, a, b - a) for a, b in pairwise(ends)]
    # D06: one-token decode ignores query lengths.
    if lens is None or (tokens == 1 and call.engine == "decode"):
        return [(b, 0, tokens) for b in range(batch)]
    each = _per_batch(lens, batch, "query")
    if any(not 0 <= n <= tokens for n in each):
        raise OracleError(f"query lengths {each} do not lie within S1={tokens} (D05)")
    if call.q_padding is not None:
        return [(b, max(0, tokens - call.q_padding - n), n) for b, n in enumerate(each)]
    return [(b, 0, n) for b, n in enumerate(each)]


def _per_batch(lens: Sequence[int], batch: int, what: str) -> list[int]:
    """Length 1 broadcasts, a longer list than the batch is cut (D05)."""
    if len(lens) == 1:
        return [lens[0]] * batch
    if len(lens) < batch:
        raise OracleError(f"{len(lens)} {what} lengths for a batch of {batch} (D05)")
    return list(lens[:batch])


def _queries(call: Call, spans: list[tuple[int, int, int]]) -> list[Tensor]:
    q = split_heads(call.query, call.layout.inputs, call.heads, "query")
    q = q.unsqueeze(0) if call.layout.packed else q
    if call.query_scale is not None:
        q = q.double() * _query_scale(call, q)
    if call.query_rope is not None:
        r = split_heads(call.query_rope, call.layout.inputs, call.heads, "query_rope")
        q = torch.cat([q, (r.unsqueeze(0) if call.layout.packed else r).to(q.dtype)], -1)
    return [q[b, :, first : first + count] for b, first, count in spans]


def _query_scale(call: Call, q: Tensor) -> Tensor:
    assert call.query_scale is not None
    s = call.query_scale.double()
    axes = call.layout.inputs
    order = {"BSH": "BSN", "BSND": "BSN", "BNSD": "BNS", "TND": "TN", "NTD": "NT"}.get(axes)
    if order is None:
        raise OracleError(f"dequant_scale_query has no form for layout {axes}")
    if order in ("BSN", "TN"):
        s = s.transpose(-1, -2)
    return (s.unsqueeze(0) if call.layout.packed else s).unsqueeze(-1).expand(*q.shape[:-1], 1)


# ---------------------------------------------------------------------------------------------- keys


def key_sources(call: Call, batch: int) -> list[tuple[Rows, Rows]]:
    """(keys, values) of every request: lengths, pages, rope part, dequantisation and prefix applied."""
    sources = []
    for b in range(batch):
        k, v, start = _stored(call, b, batch)
        if call.key_rope is not None:
            if call.query_rope is None:
                raise OracleError("key_rope without query_rope (F01)")
            rope, _, _ = _stored(call, b, batch, rope=True)
            # The rope part is stored in a float format also when the nope part is int8.
            k = _dequantise(call, call.key_quant, k, b, start)
            k = Concat(k, rope)
        else:
            if call.query_rope is not None:
                raise OracleError("query_rope without key_rope (F01)")
            k = _dequantise(call, call.key_quant, k, b, start)
        v = _dequantise(call, call.value_quant, v, b, start)
        if call.prefix_key is not None and call.prefix_value is not None:
            n = call.prefix_len
            pre_k = split_heads(call.prefix_key, call.layout.inputs, call.kv_heads, "key_shared_prefix")[0]
            pre_v = split_heads(call.prefix_value, call.layout.inputs, call.kv_heads, "value_shared_prefix")[
                0
            ]
            n = pre_k.shape[1] if n is None else n
            k, v = Prefixed(Dense(pre_k[:, :n]), k), Prefixed(Dense(pre_v[:, :n]), v)
        sources.append((k, v))
    return sources


def _stored(call: Call, b: int, batch: int, rope: bool = False) -> tuple[Rows, Rows, int]:
    """Stored rows of request b and the position of its first row on the stored sequence axis."""
    assert not rope or call.key_rope is not None
    key = call.key_rope if rope else call.key
    value = call.key_rope if rope else call.value
    assert key is not None and value is not None
    if call.block_table is not None:
        length = _paged_length(call, b, batch)
        pages = call.block_table[b].long().cpu()
        paged = [Paged(t, pages, length, call.kv_heads, call.page_layout) for t in (key, value)]
        return paged[0], paged[1], 0
    axes = call.layout.inputs
    k = split_heads(key, axes, call.kv_heads, "key")
    v = split_heads(value, axes, call.kv_heads, "value")
    lens = call.kv_lens
    if call.layout.packed:
        if lens is None or len(lens) != batch:
            raise OracleError(f"layout {call.layout.name} needs {batch} cumulative key lengths (D01, D03)")
        first, last = (0, *lens)[b], lens[b]
        if not 0 <= first <= last <= k.shape[1]:
            raise OracleError(f"key lengths {list(lens)} are not cumulative within T={k.shape[1]} (D03)")
        return Dense(k[:, first:last]), Dense(v[:, first:last]), first
    total = k.shape[2]
    n = total if lens is None else _per_batch(lens, batch, "key")[b]
    if not 0 <= n <= total:
        raise OracleError(f"key length {n} of request {b} does not lie within S2={total} (D05)")
    start = 0
    if call.kv_padding is not None:
        start = total - call.kv_padding - n
        if start < 0:
            n, start = 0, 0  # H15: zeros are returned
    return Dense(k[b, :, start : start + n]), Dense(v[b, :, start : start + n]), start


def _paged_length(call: Call, b: int, batch: int) -> int:
    if call.kv_lens is None:
        raise OracleError("block_table without key lengths (D10)")
    assert call.block_table is not None
    if call.block_table.dim() != 2:
        raise OracleError(f"block_table must have 2 axes, got shape {tuple(call.block_table.shape)} (PG02)")
    if call.block_table.shape[0] < batch:
        raise OracleError(f"block_table has {call.block_table.shape[0]} rows for {batch} requests (D14)")
    return _per_batch(call.kv_lens, batch, "key")[b]


def _dequantise(call: Call, quant: Quant | None, rows: Rows, b: int, start: int) -> Rows:
    if quant is None:
        return rows
    source = call.key if quant is call.key_quant else call.value
    packed = source.dtype == torch.int32
    pages = None if call.block_table is None else call.block_table[b].long().cpu()
    dim = rows.dim * (8 if packed else 1)

    def coefficient(t: Tensor) -> Any:
        def at(lo: int, hi: int, dtype: torch.dtype) -> Tensor:
            return _coefficient(t.to(dtype), quant.mode, b, pages, start, lo, hi, call.kv_heads, dim)

        return at

    offset = None if quant.offset is None else coefficient(quant.offset)
    return Dequantised(rows, coefficient(quant.scale), offset, packed)


def _coefficient(
    t: Tensor, mode: int, b: int, pages: Tensor | None, start: int, lo: int, hi: int, heads: int, dim: int
) -> Tensor:
    """Scale or offset of rows lo..hi, broadcastable to [heads, hi - lo, dim] (contract G11, G12)."""
    if mode == 0:  # per tensor or per channel
        return t.reshape(1, 1, 1) if t.numel() == 1 else t.reshape(heads, 1, dim)
    if mode == 2:  # per tensor and head
        return t.reshape(heads, 1, 1)
    if mode == 1:  # per token, [.., B, S]
        return t.reshape(-1, t.shape[-1])[b, start + lo : start + hi].view(1, -1, 1)
    if mode == 3:  # per token and head, [B, N, S]
        return t.reshape(-1, heads, t.shape[-1])[b, :, start + lo : start + hi].unsqueeze(-1)
    if mode in (4, 5) and pages is not None:  # per token in pages, [Bn, Bs] or [Bn, N, Bs]
        size = t.shape[-1]
        first = lo // size
        found = t[pages[first : -(-hi // size)]]
        flat = found.reshape(1, -1) if mode == 4 else found.transpose(0, 1).reshape(heads, -1)
        return flat[:, lo - first * size : hi - first * size].unsqueeze(-1)
    raise OracleError(f"quantisation mode {mode} is unknown or needs a block_table (G11)")


# ---------------------------------------------------------------------------------------------- bias


def _bias(call: Call, b: int, rows: int, keys: int) -> Tensor | None:
    if call.bias is None:
        return None
    if call.bias.dim() != 4:
        raise OracleError(f"pse must have 4 axes, got shape {tuple(call.bias.shape)} (H10)")
    part = call.bias[b if call.bias.shape[0] > 1 else 0]
    if part.shape[1] < rows or part.shape[2] < keys:
        raise OracleError(f"pse {tuple(call.bias.shape)} does not cover {rows} queries and {keys} keys (H10)")
    return part * call.scale if call.bias_is_scaled else part


# ---------------------------------------------------------------------------------------------- masks


def visibility(
    call: Call, b: int, rows: int, keys: int, notes: list[str] | None = None
) -> tuple[Visibility, Tensor]:
    """Who sees what in request b, and which rows the call leaves undefined (bool ``[rows]``)."""
    notes = [] if notes is None else notes
    fine = torch.zeros(rows, dtype=torch.bool)
    if call.sparse_indices is not None:
        return _listed(call, b, rows, keys), fine
    shift = keys - rows
    one_token = (
        call.engine == "decode" and call.query_rope is None and call.layout.inputs in ("BSH", "BSND", "BNSD")
    )
    if one_token and rows == 1:
        return _decode_visibility(call, b, keys, notes), fine
    mode = call.sparse_mode
    if mode == 0 and call.mask is None:
        return everything(keys), fine
    if mode in (0, 1):
        if call.mask is None:
            raise OracleError("sparse_mode 1 needs an atten_mask (C03)")
        return _full_mask(call, b, rows, keys, notes)
    if call.mask is None:
        if call.op.startswith("npu_fusion"):
            return everything(keys), fine  # FUS-05: without a mask the mode is inert
        raise OracleError(f"sparse_mode {mode} needs an atten_mask (C03)")
    if mode in (2, 3, 4):
        _check_compressed(call.mask, notes)
        if mode == 2:
            return Band(keys, high=0), fine
        if mode == 3:
            return Band(keys, high=shift), fine
        return Band(keys, shift - call.pre_tokens, shift + call.next_tokens), fine
    if mode == 9:
        return _tree(call, b, rows, keys), fine
    if mode in (5, 6) and call.op.startswith("npu_fusion"):
        if len(call.prefix_lens) <= b:
            raise OracleError(f"sparse_mode {mode} needs a prefix length per request")
        return Either(Band(keys, high=shift), Columns(keys, call.prefix_lens[b])), fine
    raise OracleError(f"sparse_mode {mode} is not supported by {call.op} (C06)")


def _check_compressed(mask: Tensor, notes: list[str]) -> None:
    side = mask.reshape(-1, *mask.shape[-2:])[0]
    if tuple(side.shape) != (COMPRESSED, COMPRESSED):
        raise OracleError(
            f"sparse_mode 2, 3 and 4 take a {COMPRESSED}x{COMPRESSED} mask, got {tuple(mask.shape)} (C04)"
        )
    # The kernel reads the mask only where a tile crosses the diagonal: another content gives
    # results that depend on the tile size, so there is nothing to compare with.
    if not torch.equal(side.cpu().bool(), _canonical()):
        notes.append(
            "C05: the compressed mask is not triu(ones, 1); the result depends on the kernel's tile size"
        )


_CANONICAL: list[Tensor] = []


def _canonical() -> Tensor:
    if not _CANONICAL:
        _CANONICAL.append(torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool).triu(1))
    return _CANONICAL[0]


def _mask_of(call: Call, b: int) -> Tensor:
    """The user's mask of request b as a matrix."""
    assert call.mask is not None
    mask = call.mask
    if mask.dtype.is_floating_point:
        raise OracleError(f"atten_mask must be bool, int8 or uint8, got {mask.dtype} (C01)")
    if mask.dim() == 2:
        return mask
    flat = mask.reshape(-1, *mask.shape[-2:]) if mask.dim() in (3, 4) else None
    if flat is None:
        raise OracleError(
            f"atten_mask of shape {tuple(mask.shape)} has no meaning for sparse_mode {call.sparse_mode}"
        )
    return flat[b if flat.shape[0] > 1 else 0]


def _full_mask(call: Call, b: int, rows: int, keys: int, notes: list[str]) -> tuple[Visibility, Tensor]:
    mask = _mask_of(call, b)
    if mask.shape[0] < rows or mask.shape[1] < keys:
        raise OracleError(
            f"atten_mask {tuple(mask.shape)} does not cover {rows} queries and {keys} keys (C07)"
        )
    seen = Hidden(keys, mask)
    undefined = torch.zeros(rows, dtype=torch.bool)
    row_ids = torch.arange(rows)
    shown = seen.tile(row_ids, 0, keys) if keys else torch.zeros(rows, 0, dtype=torch.bool)
    banded = call.sparse_mode == 0 and (call.pre_tokens < keys or call.next_tokens < keys)
    visible: Visibility = seen
    if banded:
        band = Band(keys, -call.pre_tokens, call.next_tokens)
        inside = band.tile(row_ids, 0, keys)
        # The operator only drops whole key ranges per query block: what the mask shows outside the
        # band is kept or dropped depending on the block (C12).
        leaks = (shown & ~inside).any(1)
        if bool(leaks.any()):
            notes.append(
                "C12: the mask shows keys outside pre_tokens/next_tokens; those rows depend on the tiling"
            )
        undefined |= leaks & inside.any(1)
        visible = Both(seen, band)
        shown = shown & inside
        hidden_rows = ~shown.any(1) & inside.any(1)
    else:
        hidden_rows = ~shown.any(1)
    if (
        keys
        and bool(hidden_rows.any())
        and not call.inner_precise & 2
        and not call.op.startswith("npu_fusion")
    ):
        notes.append("H03: fully masked rows without inner_precise 2 or 3 are not defined")
        undefined |= hidden_rows
    return visible, undefined


def _decode_visibility(call: Call, b: int, keys: int, notes: list[str]) -> Visibility:
    """One-token decode without rope: only length and a plain mask count (contract C13-C15, H16, H17)."""
    window = 0
    sliding = (
        call.layout.name == "BSH" and call.block_table is not None and call.value.dim() == 3
        and 0 < call.pre_tokens < keys and call.value.dtype == call.query.dtype and call.out_scale is None
        and call.fused_inference
    )  # fmt: skip
    if sliding:
        notes.append("H16: pre_tokens acts as a KV window in one-token BSH paged decode")
        window = keys - call.pre_tokens
    columns = torch.arange(keys) - window
    if call.mask is None:
        return Band(keys, low=window)
    if call.sparse_mode in (3, 4):
        notes.append(
            "C13: one-token decode reads row 0 of the compressed mask; only the first key stays visible"
        )
        hidden = (columns % COMPRESSED) > (columns // COMPRESSED)
    else:
        flat = call.mask.reshape(call.mask.shape[0], -1)
        row = flat[b if flat.shape[0] > 1 else 0]
        if row.shape[0] < keys - window:
            raise OracleError(f"atten_mask {tuple(call.mask.shape)} does not cover {keys} keys (C15)")
        hidden = row[columns.clamp_min(0)].bool().cpu()
    return Hidden(keys, (hidden | (columns < 0)).unsqueeze(0))


def _tree(call: Call, b: int, rows: int, keys: int) -> Visibility:
    assert call.mask is not None
    if keys < rows:
        raise OracleError(f"sparse_mode 9 needs at least as many keys ({keys}) as queries ({rows}) (C25)")
    if call.mask.dim() == 1:
        counts = [n for _, _, n in query_spans(call)]
        first = sum(n * n for n in counts[:b])
        part = call.mask[first : first + rows * rows].reshape(rows, rows)
    else:
        part = call.mask.reshape(-1, *call.mask.shape[-2:])[b][:rows, :rows]
    return Tail(keys, keys - rows, part)


def _listed(call: Call, b: int, rows: int, keys: int) -> Visibility:
    """sparse_flash_attention: each token sees the key blocks its indices name, and mode 3 on top (SP-08)."""
    assert call.sparse_indices is not None
    row, first, _ = query_spans(call)[b]
    indices = call.sparse_indices.squeeze(-2)
    own = indices[first : first + rows] if call.layout.packed else indices[row, first : first + rows]
    size = call.sparse_block
    tokens = own.long().unsqueeze(-1) * size + torch.arange(size)
    tokens = torch.where(own.unsqueeze(-1) < 0, -1, tokens).flatten(-2)
    tokens = torch.where(tokens < keys, tokens, -1)
    listed = Listed(keys, tokens)
    return Both(listed, Band(keys, high=keys - rows)) if call.sparse_mode == 3 else listed
