"""Misuses committed for real: wrong arguments, wrong writes and wrong rotary embeddings against the
simulator.

Nothing here uses the code that attribution uses to compute its hypotheses: a fault changes what user code
would pass to an operator, and the operator (a simulated kernel) does the rest. Masks are built from the
formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kvlint.oracle.backends import Simulator
from kvlint.oracle.caches import Cache, make_cache
from kvlint.oracle.calling import attention_call, sparse_indices
from kvlint.oracle.cases import FUSION, SPARSE, Case
from kvlint.oracle.kernels import KERNELS
from kvlint.oracle.kernels.rope import npu_interleave_rope, npu_rotary_mul
from kvlint.oracle.runner import split_output
from kvlint.oracle.scenario import Scenario, build

Kwargs = dict[str, Any]
WRITERS = (
    "scatter_update_",
    "npu_scatter_nd_update_",
    "npu_scatter_pa_kv_cache",
    "_npu_reshape_and_cache",
    "npu_kv_rmsnorm_rope_cache",
)


@dataclass
class Fault:
    """Hooks into one program run; a hook that raises :class:`NotHere` says the fault cannot be made in this
    case."""

    feed: Callable[[Scenario], None] | None = None
    call: Callable[[Case, Kwargs], None] | None = None
    write: Callable[[str, list[Any], Kwargs], bool] | None = None
    history: bool = True
    out: Callable[[Case, Tensor], Tensor] | None = None
    replace: dict[str, Callable[..., Any]] = field(default_factory=dict)


class NotHere(Exception):
    """The fault does not apply to this case."""


def run_program(case: Case, fault: Fault) -> tuple[Scenario, Cache, list[Tensor]]:
    """The true scenario, a correctly used cache of it, and the outputs of the faulty program."""
    truth = build(case)
    right = make_cache(truth, Simulator().ops)
    right.fill()
    right.step()

    program = build(case)
    if fault.feed is not None:
        fault.feed(program)
    operators = KERNELS | fault.replace | {case.op: _wrapped(case, fault)}
    backend = Simulator(operators)
    cache = make_cache(program, backend.ops)
    if fault.history:
        cache.fill()
    else:
        need(case.cache != "none" and not case.cache.startswith(("sliding", "offloaded")))
    if fault.write is not None:
        _spoil_writers(backend.ops, fault.write)
    cache.step()
    call = attention_call(program, backend)
    if case.op == SPARSE:
        out, _ = cache.attend(lambda keys: call(keys | {"sparse_indices": sparse_indices(program)}))
    else:
        out, _ = cache.attend(call)
    if fault.out is not None:
        out = fault.out(case, out)
    outs, _, _ = split_output(case, out, None)
    return truth, right, [o.contiguous() for o in outs]


def _wrapped(case: Case, fault: Fault) -> Callable[..., Any]:
    correct = KERNELS[case.op]

    def operator(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        rest = args[3:]
        if case.op == FUSION:
            named |= {"head_num": rest[0], "input_layout": rest[1]}
        if case.op == SPARSE:
            named |= {"sparse_indices": rest[0], "scale_value": rest[1]}
        if fault.call is not None:
            fault.call(case, named)
        return correct(**named)

    return operator


def _spoil_writers(ops: SimpleNamespace, hook: Callable[[str, list[Any], Kwargs], bool]) -> None:
    for name in WRITERS:
        correct = getattr(ops, name)

        def writer(*args: Any, _correct: Any = correct, _name: str = name, **kwargs: Any) -> Any:
            changed = list(args)
            return _correct(*changed, **kwargs) if hook(_name, changed, kwargs) else None

        setattr(ops, name, writer)


# --------------------------------------------------------------------------------------------- small tools


def put(kw: Kwargs, value: Any, *names: str) -> None:
    """Set whichever of the keyword spellings the call uses."""
    for name in names:
        if name in kw:
            kw[name] = value
            return
    raise NotHere


def scale(value: Callable[[Case], float], when: Callable[[Case], bool] = lambda c: True) -> Fault:
    def call(case: Case, kw: Kwargs) -> None:
        need(when(case))
        put(kw, value(case), "scale", "softmax_scale", "scale_value")

    return Fault(call=call)


def lengths(change: Callable[[Case, list[int]], list[int] | None]) -> Fault:
    def call(case: Case, kw: Kwargs) -> None:
        name = "actual_seq_kvlen" if "actual_seq_kvlen" in kw else "actual_seq_lengths_kv"
        if (
            name not in kw
            or case.op == SPARSE
            or case.cache == "kv-parallel-sequence"
            or (case.packed and case.cache == "none")
        ):
            raise NotHere
        new = change(case, list(kw[name]))
        if new is None:
            del kw[name]
        else:
            kw[name] = new

    return Fault(call=call)


def explicit(masking: str, visible: Callable[[Case, int, int, int, int], bool]) -> Fault:
    """sparse_mode 1 with a full mask built position by position: ``visible(case, i, j, rows, keys)``."""

    def call(case: Case, kw: Kwargs) -> None:
        need(case.masking == masking)
        if case.op == SPARSE or case.latent or case.one_token:
            raise NotHere
        rows, keys = max(case.q_lens), max(case.kv_lens)
        lens = kw.get("actual_seq_kvlen", kw.get("actual_seq_lengths_kv"))
        if case.packed and case.cache == "none":
            lens = case.kv_lens
        columns = keys
        if kw.get("block_table") is not None:
            columns = kw["block_table"].shape[1] * case.block_size
        elif not case.packed:
            columns = kw["key"].shape[2 if case.layout.startswith("BNSD") else 1]
        hidden = torch.ones(len(case.q_lens), 1, rows, max(columns, keys), dtype=torch.bool)
        for b, n in enumerate(case.q_lens):
            held = int(lens[b]) if lens is not None else case.kv_lens[b]
            for i in range(n):
                for j in range(held):
                    hidden[b, 0, i, j] = not visible(case, i, j, n, held)
        kw["atten_mask"], kw["sparse_mode"], kw["inner_precise"] = hidden, 1, 2
        kw.pop("pre_tokens", None)
        kw.pop("next_tokens", None)

    return Fault(call=call)


def need(condition: bool) -> None:
    if not condition:
        raise NotHere


def with_mask(case: Case, kw: Kwargs) -> Tensor:
    need(case.masking in ("mask", "all"))
    return kw["atten_mask"]


# --------------------------------------------------------------------------------------------- the faults


def _no_mask(case: Case, kw: Kwargs) -> None:
    need("atten_mask" in kw)
    kw["atten_mask"], kw["sparse_mode"] = None, 0
    kw.pop("pre_tokens", None)
    kw.pop("next_tokens", None)


def _mode(value: int, *kinds: str) -> Fault:
    def call(case: Case, kw: Kwargs) -> None:
        need(case.masking in kinds and not case.one_token and not case.latent and max(case.q_lens) > 1)
        kw["sparse_mode"] = value
        kw["atten_mask"] = torch.triu(torch.ones(2048, 2048), 1).to(torch.int8)
        kw.pop("pre_tokens", None)
        kw.pop("next_tokens", None)

    return Fault(call=call)


def _invert(case: Case, kw: Kwargs) -> None:
    kw["atten_mask"] = ~with_mask(case, kw)
    if not case.one_token:
        # Columns no request has are hidden in a correct mask and must stay hidden.
        for b, n in enumerate(case.kv_lens):
            kw["atten_mask"][b, ..., n:] = True


def _window(offset: int) -> Fault:
    def call(case: Case, kw: Kwargs) -> None:
        need(case.masking == "window" and kw.get("sparse_mode") == 4)
        kw["pre_tokens"] += offset

    return Fault(call=call)


def _first_mask(case: Case, kw: Kwargs) -> None:
    mask = with_mask(case, kw)
    kw["atten_mask"] = mask[:1].expand_as(mask).clone()


def _open_mask(case: Case, kw: Kwargs) -> None:
    mask = with_mask(case, kw).clone()
    need(max(case.kv_lens) > 512)
    mask[..., 512:] = False
    kw["atten_mask"] = mask


def _first_row(case: Case, kw: Kwargs) -> None:
    need(case.one_token and not case.latent and case.op != SPARSE and "sparse_mode" in kw)
    need(not case.cache.startswith("kv-parallel"))
    kw["sparse_mode"], kw["atten_mask"] = 3, torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def _drop_write(name: str, args: list[Any], kw: Kwargs) -> bool:
    return False


def _shift_slots(by: int) -> Callable[[str, list[Any], Kwargs], bool]:
    def hook(name: str, args: list[Any], kw: Kwargs) -> bool:
        if name == "npu_kv_rmsnorm_rope_cache":
            raise NotHere
        at = {"scatter_update_": 1, "npu_scatter_nd_update_": 1, "npu_scatter_pa_kv_cache": 4}.get(name, 4)
        index = args[at]
        if name == "npu_scatter_nd_update_" and index.shape[-1] != 1:
            raise NotHere
        if int((index + by).min()) < 0:
            raise NotHere
        args[at] = index + by
        return True

    return hook


def _roll_batch(name: str) -> Callable[[Case, Kwargs], None]:
    def call(case: Case, kw: Kwargs) -> None:
        need(not case.packed and kw.get("block_table") is None and len(case.kv_lens) > 1 and not case.quant)
        need(not case.rope_dim and case.op != SPARSE and case.layout.startswith("B"))
        kw["key"], kw["value"] = kw["key"].roll(-1, 0), kw["value"].roll(-1, 0)

    return call


def _table(change: Callable[[Tensor], Tensor]) -> Fault:
    def call(case: Case, kw: Kwargs) -> None:
        need(kw.get("block_table") is not None and "paged" in case.cache)
        kw["block_table"] = change(kw["block_table"].clone()).contiguous()

    return Fault(call=call)


def _swap(table: Tensor) -> Tensor:
    table[:, [0, 1]] = table[:, [1, 0]]
    return table


def _double(table: Tensor) -> Tensor:
    odd = torch.arange(1, table.shape[1], 2)
    table[:, odd] = table[:, odd - 1]
    return table


def _late(case: Case, kw: Kwargs) -> None:
    need(kw.get("block_table") is not None and "paged" in case.cache)
    table = kw["block_table"]
    need(max(case.kv_lens) + case.block_size <= table.shape[1] * case.block_size)
    kw["block_table"] = torch.cat([table[:, 1:], table[:, -1:]], 1)


def _reverse(case: Case, kw: Kwargs) -> None:
    need(kw.get("block_table") is not None and "paged" in case.cache)
    table = kw["block_table"].clone()
    for b, n in enumerate(case.kv_lens):
        pages = -(-n // case.block_size)
        table[b, :pages] = table[b, :pages].flip(0)
    kw["block_table"] = table


def _reinterpret(kind: str) -> Callable[[Case, Kwargs], None]:
    def call(case: Case, kw: Kwargs) -> None:
        need(
            kw.get("block_table") is not None and "paged" in case.cache and not case.latent and not case.quant
        )
        need(kw["key"].element_size() == 2)
        # There the kernel takes pre_tokens for a window only with 3-D caches.
        need(not (case.one_token and case.masking == "window"))
        for name in ("key", "value"):
            t = kw[name]
            blocks, size, heads, dim = t.shape[0], case.block_size, case.kv_heads, case.dim
            if kind == "nz-as-nd":
                need(t.dim() == 5)
                kw[name] = t.reshape(blocks, size, heads * dim)
            elif kind == "nd-as-nz":
                need(t.dim() == 3)
                kw[name] = t.reshape(blocks, heads, dim // 16, size, 16)
            else:
                need(t.dim() == 3 and heads > 1)
                as_heads_first = t.reshape(blocks, heads, size, dim)
                kw[name] = as_heads_first.transpose(1, 2).reshape(blocks, size, heads * dim)

    return call


def _heads(pick: Callable[[int, int], list[int]]) -> Fault:
    """Give the operator one KV head per query head, chosen by ``pick(heads, kv_heads)``."""

    def call(case: Case, kw: Kwargs) -> None:
        need(case.kv_heads > 1 and not case.quant and case.op != SPARSE and not case.rope_dim)
        need(not case.cache.startswith("kv-parallel"))
        order = pick(case.heads, case.kv_heads)
        for name in ("key", "value"):
            t, axes = kw[name], case.layout.partition("_")[0]
            if kw.get("block_table") is not None:
                if t.dim() == 3:
                    folded = t.reshape(*t.shape[:2], case.kv_heads, -1)[:, :, order]
                    kw[name] = folded.flatten(2)
                else:
                    kw[name] = t[:, order].contiguous()
            elif axes in ("BSH", "SBH"):
                kw[name] = t.reshape(*t.shape[:2], case.kv_heads, -1)[:, :, order].flatten(2)
            else:
                kw[name] = t.index_select(axes.index("N"), torch.tensor(order))
        if "num_key_value_heads" in kw:
            kw["num_key_value_heads"] = case.heads

    return Fault(call=call)


def _turn(scenario: Scenario, x: Tensor, positions: Tensor, style: str) -> Tensor:
    """Rotary embedding by the simulated operators, [T, N, D]."""
    case = scenario.case
    cut = case.dim if case.rope_dim else 0
    if style == "none":
        return x
    part = x[..., cut:]
    cos, sin = scenario.cos[positions][:, None], scenario.sin[positions][:, None]
    if style == "half":
        turned = npu_rotary_mul(part, cos, sin)
    elif part.shape[-1] == 64:
        turned = npu_interleave_rope(part, cos, sin)
    else:
        halves = torch.cat([part[..., ::2], part[..., 1::2]], -1)
        turned = npu_rotary_mul(halves, cos, sin)
    return torch.cat([x[..., :cut], turned], -1)


def _rope(query: str | None, key: str | None, move: Callable[[int, int], int] | None = None) -> Fault:
    def feed(s: Scenario) -> None:
        case = s.case
        need(case.rope != "none")
        need(key is None or not (case.normed or case.quant))
        other = "interleaved" if case.rope == "half" else "half"
        style_q = case.rope if query is None else other if query == "other" else query
        for b in range(len(case.q_lens)):
            past = case.kv_lens[b] - case.q_lens[b]
            at = [p if move is None else max(0, move(p, past)) for p in range(past, case.kv_lens[b])]
            s.fed[b] = _turn(s, s.q[b], torch.tensor(at, dtype=torch.int64), style_q)
            if key is not None:
                style_k = other if key == "other" else key
                k = _turn(s, s.k[b], torch.arange(case.kv_lens[b]), style_k)
                s.stored[b] = (k, k[..., : case.value_dim] if case.latent else s.v[b])

    return Fault(feed=feed)


def _drop_rope_part(case: Case, kw: Kwargs) -> None:
    need("query_rope" in kw)
    kw["query_rope"] = torch.zeros_like(kw["query_rope"])


def _no_sink(case: Case, kw: Kwargs) -> None:
    need(case.sink)
    del kw["learnable_sink"]


def _two_sinks(case: Case, kw: Kwargs) -> None:
    need(case.sink)
    kw["learnable_sink"] = kw["learnable_sink"].float() + math.log(2)


def _no_bias(case: Case, kw: Kwargs) -> None:
    need(case.bias)
    kw["pse_shift"] = None


def _scaled_bias(case: Case, kw: Kwargs) -> None:
    need(case.bias)
    kw["pse_shift"] = kw["pse_shift"].float() * case.scale


def _zero_query(case: Case, kw: Kwargs) -> None:
    kw["query"] = torch.zeros_like(kw["query"])
    if "query_rope" in kw:
        kw["query_rope"] = torch.zeros_like(kw["query_rope"])
    need(not case.bias)


def _quant(change: Callable[[Kwargs], None]) -> Fault:
    def call(case: Case, kw: Kwargs) -> None:
        need(bool(case.quant))
        # v2 and v1 spell the scales differently; bring both to one form and back.
        names = {"k": "key_antiquant_scale", "v": "value_antiquant_scale"}
        if names["k"] not in kw:
            names = {"k": "dequant_scale_key", "v": "dequant_scale_value"}
        view = {"k": kw[names["k"]].float(), "v": kw[names["v"]].float()}
        change(view)
        kw[names["k"]], kw[names["v"]] = view["k"], view["v"]

    return Fault(call=call)


def _ones(view: Kwargs) -> None:
    view["k"], view["v"] = torch.ones_like(view["k"]), torch.ones_like(view["v"])


def _reciprocal(view: Kwargs) -> None:
    view["k"], view["v"] = 1 / view["k"], 1 / view["v"]


def _same(view: Kwargs) -> None:
    view["v"] = view["k"]


def _no_offset(case: Case, kw: Kwargs) -> None:
    names = [n for n in kw if "offset" in n]
    need(bool(case.quant) and bool(names))
    for n in names:
        kw[n] = None


def _dense_indices(case: Case, kw: Kwargs) -> None:
    need(case.op == SPARSE)
    keys = max(case.kv_lens)
    shape = (*kw["sparse_indices"].shape[:-1], keys)
    kw["sparse_indices"] = torch.arange(keys, dtype=torch.int32).expand(shape).contiguous()


def _next_indices(case: Case, kw: Kwargs) -> None:
    need(case.op == SPARSE)
    index = kw["sparse_indices"]
    kw["sparse_indices"] = torch.where(index < 0, index, index + 1)


def _not_cumulative(case: Case, kw: Kwargs) -> None:
    need(case.packed and case.cache == "none" and case.op != SPARSE and not case.rope_dim)
    name = "actual_seq_kvlen" if "actual_seq_kvlen" in kw else "actual_seq_lengths_kv"
    ends = [max(case.kv_lens[: b + 1]) for b in range(len(case.kv_lens))]
    # What a kernel reads when it takes [37, 50, 21] for running ends: 0..37, 37..50 and nothing.
    kw[name] = ends
    tokens = 0 if case.layout.startswith("T") else 1
    kw["key"] = kw["key"].narrow(tokens, 0, ends[-1])
    kw["value"] = kw["value"].narrow(tokens, 0, ends[-1])
    need(kw.get("sparse_mode") != 4)


def _merge(how: str) -> Fault:
    def update(lse: list[Tensor], outs: list[Tensor], kind: int) -> tuple[Tensor, Tensor]:
        stack = torch.stack([o.float() for o in outs])
        found = {"mean": stack.mean(0), "sum": stack.sum(0), "first": stack[0]}[how]
        return found.to(outs[0].dtype), lse[0]

    def call(case: Case, kw: Kwargs) -> None:
        need(case.cache == "kv-parallel-sequence")

    return Fault(replace={"npu_attention_update": update}, call=call)


def _head_major(case: Case, out: Tensor) -> Tensor:
    layout = case.layout.rpartition("_")[2]
    need(layout in ("TND", "BSND", "BNSD", "NTD") and not case.sampled and not case.dead_rows)
    need(case.packed or (len(set(case.q_lens)) == 1 and max(case.q_lens) > 1))
    if layout in ("TND", "BSND"):  # written as heads first, read as tokens first
        return out.transpose(-3, -2).contiguous().view(out.shape)
    # [N, T, D] data handed over as if it were [T, N, D]
    turned = out.transpose(-3, -2).contiguous()
    tokens_first = out.reshape(*out.shape[:-3], turned.shape[-3], turned.shape[-2], turned.shape[-1])
    return tokens_first.transpose(-3, -2).contiguous()


def _roll_out(case: Case, out: Tensor) -> Tensor:
    need(len(set(case.q_lens)) == 1 and len(case.q_lens) > 1)
    layout = case.layout.rpartition("_")[2]
    if case.packed:
        return out.roll(-case.q_lens[0], 0 if layout == "TND" else 1)
    return out.roll(-1, layout.index("B"))


def _flip_heads(case: Case, out: Tensor) -> Tensor:
    layout = case.layout.rpartition("_")[2]
    if layout in ("BSH", "SBH"):
        return out.reshape(*out.shape[:2], case.heads, -1).flip(2).reshape(out.shape)
    return out.flip(layout.index("N"))


def _exchange(case: Case, kw: Kwargs) -> None:
    need(not case.latent and not case.quant and case.value_dim == case.dim and not case.rope_dim)
    kw["key"], kw["value"] = kw["value"], kw["key"]


def _key_twice(case: Case, kw: Kwargs) -> None:
    need(not case.latent and not case.quant and case.value_dim == case.dim and not case.rope_dim)
    kw["value"] = kw["key"]


def _one_more(case: Case, lens: list[int]) -> list[int]:
    # A sliding cache has no page there when the last one is full.
    need(case.cache != "sliding" or all(n % case.block_size for n in lens))
    return [n + 1 for n in lens]


def _before_step(case: Case, lens: list[int]) -> list[int]:
    past = [k - q for k, q in zip(lens, case.q_lens, strict=True)]
    need(min(past) > 0 and min(case.q_lens) > 1)
    return past


def _new_tokens(case: Case, lens: list[int]) -> list[int]:
    need(all(q < k for q, k in zip(case.q_lens, case.kv_lens, strict=True)))
    return list(case.q_lens)


def _next_lengths(case: Case, lens: list[int]) -> list[int]:
    need(case.cache != "sliding")  # the other length may lie beyond the pages that are kept
    return lens[1:] + lens[:1]


def _no_length(case: Case, lens: list[int]) -> None:
    need(case.cache in ("contiguous", "offloaded", "mla"))


def _rotated(heads: int, kv_heads: int) -> list[int]:
    need(kv_heads > 2)
    group = heads // kv_heads
    return [(h // group + 1) % kv_heads for h in range(heads)]


FAULTS: dict[str, Fault] = {
    "scale-default": scale(lambda c: 1.0),
    "scale-twice": scale(lambda c: c.scale**2),
    "scale-hidden-size": scale(lambda c: 1 / math.sqrt(c.heads * c.dim)),
    "scale-not-root": scale(lambda c: 1 / (c.dim + c.rope_dim), lambda c: c.latent),
    "scale-padded-head": scale(lambda c: c.scale / math.sqrt(2)),
    "scale-absorbed": scale(lambda c: 1 / math.sqrt(576), lambda c: c.latent),
    "scale-nope-only": scale(lambda c: 1 / math.sqrt(128), lambda c: c.rope_dim > 0),
    "mask-missing": Fault(call=_no_mask),
    "causal-top-left": _mode(2, "causal", "window"),
    "causal-bottom-right": _mode(3, "left-up"),
    "mask-inverted": Fault(call=_invert),
    "diagonal-hidden": explicit("causal", lambda c, i, j, r, n: j < i + n - r),
    "causal-on-bidirectional": _mode(3, "full"),
    "causal-top-left-on-bidirectional": _mode(2, "full"),
    "mask-of-first-request": Fault(call=_first_mask),
    "mask-ignored-past-512": Fault(call=_open_mask),
    "window-ignored": _mode(3, "window"),
    "window-plus-one": _window(1),
    "window-minus-one": _window(-1),
    "window-top-left": explicit("window", lambda c, i, j, r, n: i - c.window < j <= i),
    "first-key-only": Fault(call=_first_row),
    "sparse-indices-ignored": Fault(call=_dense_indices),
    "sparse-indices-shifted": Fault(call=_next_indices),
    "kv-len-short": lengths(lambda c, n: [max(0, x - 1) for x in n]),
    "kv-len-long": lengths(_one_more),
    "kv-len-before-step": lengths(_before_step),
    "kv-len-capacity": lengths(_no_length),
    "kv-len-other-request": lengths(_next_lengths),
    "kv-len-new-tokens": lengths(_new_tokens),
    "kv-len-not-cumulative": Fault(call=_not_cumulative),
    "cache-not-written": Fault(write=_drop_write),
    "slot-plus-one": Fault(write=_shift_slots(1)),
    "slot-minus-one": Fault(write=_shift_slots(-1)),
    "history-lost": Fault(history=False),
    "value-is-key": Fault(call=_key_twice),
    "key-value-swapped": Fault(call=_exchange),
    "requests-crossed": Fault(call=_roll_batch("key")),
    "pages-swapped": _table(_swap),
    "page-repeated": _table(lambda t: t[:, :1].expand_as(t)),
    "pages-doubled": _table(_double),
    "pages-shifted": Fault(call=_late),
    "pages-reversed": Fault(call=_reverse),
    "table-rows-rolled": _table(lambda t: t.roll(-1, 0)),
    "nz-read-as-nd": Fault(call=_reinterpret("nz-as-nd")),
    "nd-read-as-nz": Fault(call=_reinterpret("nd-as-nz")),
    "page-axes-exchanged": Fault(call=_reinterpret("axes")),
    "heads-interleaved": _heads(lambda n, k: [h % k for h in range(n)]),
    "kv-head-zero": _heads(lambda n, k: [0] * n),
    "kv-heads-reversed": _heads(lambda n, k: [k - 1 - h // (n // k) for h in range(n)]),
    "kv-heads-rotated": _heads(_rotated),
    "rope-missing": _rope("none", "none"),
    "rope-other-pairing": _rope("other", "other"),
    "rope-query-pairing": _rope("other", None),
    "rope-query-only": _rope(None, "none"),
    "rope-key-only": _rope("none", None),
    "position-minus-one": _rope(None, None, lambda p, past: p - 1),
    "position-plus-one": _rope(None, None, lambda p, past: p + 1),
    "position-from-zero": _rope(None, None, lambda p, past: p - past),
    "rope-part-dropped": Fault(call=_drop_rope_part),
    "sink-ignored": Fault(call=_no_sink),
    "sink-twice": Fault(call=_two_sinks),
    "bias-ignored": Fault(call=_no_bias),
    "bias-before-scale": Fault(call=_scaled_bias),
    "uniform-average": Fault(call=_zero_query),
    "quant-scale-ignored": _quant(_ones),
    "quant-scale-reciprocal": _quant(_reciprocal),
    "quant-offset-ignored": Fault(call=_no_offset),
    "quant-key-scale-for-value": _quant(_same),
    "partials-averaged": _merge("mean"),
    "partials-summed": _merge("sum"),
    "first-rank-only": _merge("first"),
    "output-head-major": Fault(out=_head_major),
    "output-requests-rolled": Fault(out=_roll_out),
    "output-heads-reversed": Fault(out=_flip_heads),
}


def _last_only(name: str, args: list[Any], kw: Kwargs) -> bool:
    """Keep only the newest row of a multi-token write that covers one request."""
    if name == "scatter_update_":
        axis = args[3] % args[0].dim()
        n = args[2].shape[axis]
        args[1], args[2] = args[1] + n - 1, args[2].narrow(axis, n - 1, 1)
        return True
    raise NotHere


FAULTS["last-token-only"] = Fault(write=_last_only)


# ---------------------------------------------------------------------------- faults nobody registered


def _outs(change: Callable[[Tensor, torch.Generator], Tensor]) -> Fault:
    def out(case: Case, x: Tensor) -> Tensor:
        gen = torch.Generator().manual_seed(case.seed)
        return change(x.clone(), gen)

    return Fault(out=out)


def _sparse_noise(x: Tensor, gen: torch.Generator) -> Tensor:
    x[torch.rand(x.shape, generator=gen) < 0.01] *= 2
    return x


def _borrow_head(case: Case, x: Tensor) -> Tensor:
    layout = case.layout.rpartition("_")[2]
    if layout in ("BSH", "SBH"):
        view = x.reshape(*x.shape[:2], case.heads, -1).clone()
        view[:, :, 1] = view[:, :, 2]
        return view.reshape(x.shape)
    at = layout.index("N")
    x = x.clone()
    x.select(at, 1).copy_(x.select(at, 2))
    return x


def _drop_keys(case: Case, kw: Kwargs) -> None:
    need(not case.quant)
    kw["key"] = kw["key"].clone()
    kw["key"].reshape(-1)[:: 7 * 16] = 0


def _half_scale(case: Case, kw: Kwargs) -> None:
    q = kw["query"].clone()
    width = q.shape[-1]
    q[..., : width // 3] *= 1.5
    kw["query"] = q


def _roll_values(case: Case, kw: Kwargs) -> None:
    need(not case.latent and not case.quant)
    kw["value"] = kw["value"].roll(1, -1)


UNLISTED: dict[str, Fault] = {
    "one percent of the elements doubled": _outs(_sparse_noise),
    "five percent noise": _outs(
        lambda x, g: x + (0.05 * torch.randn(x.shape, generator=g) * x.float().std()).to(x)
    ),
    "head 1 copied from head 2": Fault(out=_borrow_head),
    "output times 1.02": _outs(lambda x, g: (x.float() * 1.02).to(x.dtype)),
    "output shifted by a constant": _outs(lambda x, g: x + 0.1),
    "output elements rotated": _outs(lambda x, g: x.roll(1, -1)),
    "sign of some elements": _outs(lambda x, g: torch.where(torch.rand(x.shape, generator=g) < 0.02, -x, x)),
    "2^s in place of e^s": scale(lambda c: c.scale * math.log(2)),
    "scale off by 3 percent": scale(lambda c: c.scale * 1.03),
    "every 112th key element zeroed": Fault(call=_drop_keys),
    "a third of the query scaled": Fault(call=_half_scale),
    "value elements rotated": Fault(call=_roll_values),
    "output rounded to 5 bits": _outs(lambda x, g: (x.float() * 16).round().div(16).to(x.dtype)),
}
