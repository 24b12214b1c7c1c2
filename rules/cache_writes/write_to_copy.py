"""KV602: the write goes to a copy of the cache."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.catalogue import Operator
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require, undecided
from kvlint.contract.tri import NO, YES

from ._common import KV_RMSNORM, result_unused, targets

_RETURNS_TARGET = ("scatter_update_", "npu_scatter_nd_update_", "npu_quant_scatter_", KV_RMSNORM[0])


class WriteToCopy(Rule):
    """An in-place cache write goes to a copy, so the cache never gets it.

    ## What it does
    Reports an in-place write whose target is visibly a copy of another tensor: made by `.contiguous()` of a
    transposed view, `.clone()`, `.to(dtype)`, `.float()`, indexing with a tensor, or `.reshape()` of a view
    that cannot be viewed that way. A copy that is read afterwards (returned, copied back) is left alone.

    ## Why it is wrong
    The operator updates the copy, which is then thrown away. The real cache keeps its old rows and
    attention gives wrong numbers without an error.

    ## Use instead
    Write through something that shares the storage: `.view(...)` (which raises where it would have to
    copy), basic slices, `.unsqueeze`, `.transpose` for scatter_update_. Or keep the pool in the layout the
    writer wants.

    ## Ops and versions
    Every in-place cache writer. All versions.

    ## Evidence
    SU-09, ND-03: PyTorch view semantics; seen in reviews of public repositories (a permuted cache made
    contiguous and never written back, a strided page reshaped before npu_scatter_nd_update_).
    """

    code = "KV602"
    name = "write-to-copy"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("SU-09", "ND-03")
    families = ("cache_write",)
    operators = ("npu_mla_prolog_v3",)
    bad = {
        "contiguous copy of a permuted cache": """
            def store(key, value, key_cache, value_cache, slots):
                k = key_cache.transpose(1, 2).contiguous()
                v = value_cache.transpose(1, 2).contiguous()
                torch_npu.npu_scatter_pa_kv_cache(
                    key, value,
                    k,  # KV602
                    v,  # KV602
                    slots, cache_mode="Norm")
                return key_cache
        """,
        "rows picked by an index tensor": """
            def store(cache, lens, new, active):
                rows = torch.tensor([0, 2, 5])
                torch_npu.scatter_update_(cache.view(8, -1, 512)[rows], lens, new, 1)  # KV602
        """,
        "reshape of a strided page": """
            def write(pool, layer, slots, rows):
                blocks, layers, block, width = pool.shape
                flat = pool[:, layer].reshape(-1, width)
                torch_npu.npu_scatter_nd_update_(flat, slots.view(-1, 1), rows)  # KV602
        """,
        "clone through a held namespace": """
            class Layer:
                def __init__(self):
                    self.ops = torch.ops.npu

                def write(self, rope, nope, kv, gamma, cos, sin, slots):
                    self.ops.npu_kv_rmsnorm_rope_cache(
                        kv, gamma, cos, sin, slots,
                        rope.clone(),  # KV602
                        nope, cache_mode="PA", epsilon=1e-6)
        """,
    }
    ok = {
        "view": """
            def store(cache, lens, new):
                torch_npu.scatter_update_(cache.view(4, -1, 512), lens, new, 1)
        """,
        "slice and transpose share the storage": """
            def store(cache, lens, new, n):
                torch_npu.scatter_update_(cache[:n].transpose(1, 2), lens, new, 1)
        """,
        "copied back": """
            def store(key, value, key_cache, value_cache, slots):
                k = key_cache.transpose(1, 2).contiguous()
                v = value_cache.transpose(1, 2).contiguous()
                torch_npu.npu_scatter_pa_kv_cache(key, value, k, v, slots, cache_mode="Norm")
                key_cache.copy_(k.transpose(1, 2))
                value_cache.copy_(v.transpose(1, 2))
        """,
        "the copy is the result": """
            def store(cache, lens, new):
                return torch_npu.scatter_update_(cache.clone(), lens, new, 1)
        """,
        "reshape of a parameter": """
            def write(pool, slots, rows):
                torch_npu.npu_scatter_nd_update_(pool.reshape(-1, 512), slots.view(-1, 1), rows)
        """,
        "contiguous that may be a no-op": """
            def write(pool, slots, rows):
                torch_npu.npu_scatter_nd_update_(pool.contiguous(), slots.view(-1, 1), rows)
        """,
    }

    def applies_to(self, operator: Operator) -> bool:
        """Whether the operator writes in place."""
        in_place = operator.name in KV_RMSNORM[:2] or any(param.mutated for param in operator.params)
        return in_place and super().applies_to(operator)

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges every tensor that is written."""
        for index, target in enumerate(targets(call)):
            lost = YES
            if call.operator.name in _RETURNS_TARGET:
                lost = result_unused(call, index)
            if lost.unknown:
                yield undecided(lost)
                continue
            made_by = target.copied
            yield require(
                ~made_by if lost.yes else ~NO,
                f"{call.operator.name} writes into a copy of the cache, which never gets the new rows",
                at=target,
                fix="Write through a view that shares the storage, or copy the result back.",
            )
