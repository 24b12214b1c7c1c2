"""KV610: scatter_update_ writes along an axis that is not the sequence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import PROVED, Confidence, Outcome, Rule, Severity, Verdict, undecided, violated
from kvlint.contract.sizes import equal, shown
from kvlint.contract.tri import Note, Tri

from ._common import SCATTER, readers

_HEADS = re.compile(r"(^|[._])(n_?|num_)?(kv_?)?heads?($|_)")
_LENGTH = re.compile(r"(len|seq|length|ctx|context|tokens|block|page|positions?)")
_SEQUENCE = {"BSH": 1, "BSND": 1, "BNSD": 2, "BNSD_BSND": 2}


class ScatterAxis(Rule):
    """scatter_update_ writes along an axis that is not the sequence axis of the cache.

    ## What it does
    Judges the `axis` of scatter_update and scatter_update_ from what is visible: the axis along which the
    cache and the new rows differ in size; the axis that the allocation names after heads; the
    `input_layout` of an attention call in the same class that reads the same tensor (BSH and BSND: 1, BNSD:
    2), and a block table there, which means that axis 0 of the tensor are blocks.

    ## Why it is wrong
    indices[b] is an offset along `axis` in row b of the cache. Along the head axis, or in a paged cache,
    whose rows are blocks and not sequences, the new keys land in other heads or other requests: silent
    wrong numbers. In particular axis -2 of a (blocks, block, heads, dim) cache is the head axis.

    ## Use instead
    axis 1 for BSH and BSND, 2 (-2) for BNSD. A paged cache wants slots: npu_scatter_nd_update_ on the
    flattened view, npu_scatter_pa_kv_cache or _npu_reshape_and_cache.

    ## Ops and versions
    scatter_update, scatter_update_. All versions.

    ## Evidence
    SU-02, SU-07: op-plugin documentation.
    """

    code = "KV610"
    name = "scatter-axis"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("SU-02", "SU-07")
    operators = SCATTER
    bad = {
        "axis of another layout": """
            def step(q, k_cache, v_cache, new_k, new_v, lens, heads):
                torch_npu.scatter_update_(k_cache, lens, new_k, 1)  # KV610
                torch_npu.scatter_update_(v_cache, lens, new_v, 1)  # KV610
                return torch_npu.npu_fused_infer_attention_score(
                    q, k_cache, v_cache, num_heads=heads, scale=0.1, input_layout="BNSD",
                    actual_seq_lengths_kv=[n + 1 for n in lens])
        """,
        "sizes tell": """
            cache = torch.zeros(8, 4096, 1024, dtype=torch.float16)
            torch_npu.scatter_update_(cache, lens, hidden.view(8, 1, 1024), axis=2)  # KV610
        """,
        "the allocation names the axis": """
            class Layer:
                def __init__(self, batch, max_len, kv_heads, dim):
                    self.k = torch.zeros(batch, max_len, kv_heads, dim, dtype=torch.float16)

                def write(self, new, lens):
                    torch_npu.scatter_update_(self.k, lens, new, -2)  # KV610
        """,
        "layout in another method": """
            class Layer:
                def write(self, new, lens):
                    torch_npu.scatter_update_(self.k_cache, lens, new, 1)  # KV610

                def attend(self, q, lens, heads):
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache, self.k_cache, num_heads=heads, scale=0.1, input_layout="BNSD",
                        actual_seq_lengths_kv=lens)
        """,
        "paged cache": """
            def step(q, pool, new, lens, table, heads):
                torch_npu.scatter_update_(pool, lens, new, -2)  # KV610
                return torch_npu.npu_fused_infer_attention_score_v2(
                    q, pool, pool, num_query_heads=heads, softmax_scale=0.1, input_layout="TND",
                    block_table=table.to(torch.int32), block_size=128, actual_seq_qlen=ends,
                    actual_seq_kvlen=lens)
        """,
    }
    ok = {
        "axis of the layout": """
            def step(q, k_cache, v_cache, new_k, new_v, lens, heads):
                torch_npu.scatter_update_(k_cache, lens, new_k, 2)
                torch_npu.scatter_update_(v_cache, lens, new_v, -2)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k_cache, v_cache, num_heads=heads, scale=0.1, input_layout="BNSD",
                    actual_seq_lengths_kv=[n + 1 for n in lens])
        """,
        "sizes fit": """
            cache = torch.zeros(8, 4096, 1024, dtype=torch.float16)
            torch_npu.scatter_update_(cache, lens, hidden.view(8, 1, 1024), axis=1)
        """,
        "negative axis of BSH": """
            def step(q, k_cache, new_k, lens, heads):
                torch_npu.scatter_update_(k_cache, lens, new_k, -2)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k_cache, k_cache, num_heads=heads, scale=0.1, input_layout="BSH",
                    actual_seq_lengths_kv=[n + 1 for n in lens])
        """,
        "unknown": """
            torch_npu.scatter_update_(cache, lens, new, -2)
        """,
        "a view of the paged cache by sequence": """
            def step(q, pool, new, lens, table, heads, batch):
                torch_npu.scatter_update_(pool.view(batch, -1, 1024), lens, new, 1)
                return torch_npu.npu_fused_infer_attention_score_v2(
                    q, pool, pool, num_query_heads=heads, softmax_scale=0.1, input_layout="BSH",
                    block_table=table.to(torch.int32), block_size=128, actual_seq_kvlen=[n + 1 for n in lens])
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges a constant axis."""
        data, updates, axis_arg = call.arg("data"), call.arg("updates"), call.arg("axis")
        number = axis_arg.constant.get(None)
        if not isinstance(number, int):
            yield undecided(axis_arg.constant.equals(number))
            return
        sizes = self._sizes(data, updates, axis_arg, number)
        yield sizes
        named = self._named(data, number)
        if named is not None:
            yield violated(
                f"{axis_arg.name}={number} is the axis of {named} in this cache, not the sequence",
                axis_arg,
                data.shape.notes,
                "Pass the axis of the sequence.",
            )
        else:
            reader = self._reader(call, data, axis_arg, number)
            told = sizes.outcome is Outcome.PROVED and equal(data.dim(number), updates.dim(number)).no
            if reader.outcome is Outcome.UNDECIDED and told:
                # The one axis along which the new rows are shorter than the cache is the sequence.
                reader = PROVED
            yield reader

    @staticmethod
    def _sizes(data: Arg, updates: Arg, axis_arg: Arg, number: int) -> Verdict:
        rank = data.rank.get(None)
        if rank is None or updates.rank.get(None) != rank or not -rank <= number < rank:
            return undecided(Tri(None, data.rank.notes or updates.rank.notes))
        open_: list[Tri] = []
        for other in range(rank):
            if other == number % rank:
                continue
            same = equal(data.dim(other), updates.dim(other))
            if same.unknown:
                open_.append(same)
            if same.no:
                return violated(
                    f"{axis_arg.name}={number}, but the cache and the new rows differ along axis {other} "
                    f"({shown(data.dim(other))} and {shown(updates.dim(other))})",
                    axis_arg,
                    same.notes,
                    f"Pass {axis_arg.name}={other} if that is the sequence axis.",
                )
        return undecided(*open_) if open_ else PROVED

    @staticmethod
    def _named(data: Arg, number: int) -> str | None:
        """What the author calls the axis, where that is a number of heads and another axis is the length."""
        shape = data.shape.get(None)
        if shape is None or not -len(shape) <= number < len(shape):
            return None
        names = ["" if size is None or size.single is None else size.single.label.lower() for size in shape]
        name = names[number % len(shape)]
        others = [other for axis, other in enumerate(names) if axis != number % len(shape)]
        lengthy = any(_LENGTH.search(other) for other in others)
        return name if lengthy and _HEADS.search(name) and not _LENGTH.search(name) else None

    @staticmethod
    def _reader(call: Call, data: Arg, axis_arg: Arg, number: int) -> Verdict:
        for reader, cache in readers(call, data):
            paged = reader.arg("block_table").present
            if paged.yes:
                return violated(
                    f"{reader.operator.name} reads this cache through a block table, so its rows are blocks: "
                    "offsets per sequence write into other requests",
                    axis_arg,
                    paged.notes,
                    "Write by slot: npu_scatter_nd_update_ or npu_scatter_pa_kv_cache.",
                )
            layout = reader.query_layout.get("")
            expected = _SEQUENCE.get(layout)
            if not paged.no or expected is None:
                continue
            rank = 3 if layout == "BSH" else 4
            if cache.rank.get(rank) == rank and number % rank == expected:
                return PROVED
            if cache.rank.get(rank) == rank:
                return violated(
                    f"{axis_arg.name}={number}, but {reader.operator.name} reads the cache as {layout}, "
                    f"whose sequence axis is {expected}",
                    axis_arg,
                    reader.layout.notes,
                    f"Pass {axis_arg.name}={expected}.",
                )
        if not data.identity.known:
            return undecided(data.identity.equals(None))
        return undecided(Note(f"who reads {data.name}, and in which layout, is not visible", data.place))
