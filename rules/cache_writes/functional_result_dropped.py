"""KV601: the result of a functional cache writer is thrown away."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.catalogue import Operator
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require

from ._common import result_unused

# The in-place form of each functional writer.
IN_PLACE = {
    "scatter_update": "scatter_update_",
    "npu_scatter_nd_update": "npu_scatter_nd_update_",
    "npu_quant_scatter": "npu_quant_scatter_",
    "npu_scatter_list": "npu_scatter_list_",
    "npu_scatter_pa_kv_cache_functional": "npu_scatter_pa_kv_cache",
    "npu_kv_rmsnorm_rope_cache_v2_functional": "npu_kv_rmsnorm_rope_cache_v2",
    "npu_qkv_rms_norm_rope_cache_functional": "npu_qkv_rms_norm_rope_cache",
    "npu_mla_prolog_v3_functional": "npu_mla_prolog_v3",
    "npu_gather_pa_kv_cache_functional": "npu_gather_pa_kv_cache",
}


class FunctionalResultDropped(Rule):
    """A functional cache writer is called and its result is never used.

    ## What it does
    Reports a call of a functional writer (`scatter_update`, `npu_scatter_nd_update`, `npu_quant_scatter`,
    `*_functional`) whose result is dropped or bound to a name that is never read.

    ## Why it is wrong
    The functional form returns a new tensor and leaves its input alone: the cache keeps its old content,
    and attention reads zeros or stale rows without any error. Its name differs from the in-place form by
    one underscore.

    ## Use instead
    The in-place form (`scatter_update_`), or assign the result back.

    ## Ops and versions
    All functional forms of cache writers and readers. All versions.

    ## Evidence
    SU-04, ND-04: schema without a mutated argument; that the functional form returns a new tensor was
    executed on torch_npu 2.13.
    """

    code = "KV601"
    name = "functional-result-dropped"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("SU-04", "ND-04")
    operators = tuple(IN_PLACE)
    bad = {
        "missing underscore": """
            torch_npu.scatter_update(cache, lens, new, 1)  # KV601
        """,
        "through torch.ops": """
            def write(pool, slots, rows):
                torch.ops.npu.npu_scatter_nd_update(pool.view(-1, 512), slots.view(-1, 1), rows)  # KV601
                return pool
        """,
        "bound and never read": """
            def write(pool, slots, rows):
                flat = torch_npu.npu_scatter_nd_update(pool, slots.view(-1, 1), rows)  # KV601
                return pool
        """,
        "functional quantising form": """
            torch_npu.npu_quant_scatter(cache, where.int(), new, factors, axis=-2, quant_axis=-1)  # KV601
        """,
    }
    ok = {
        "in place": """
            torch_npu.scatter_update_(cache, lens, new, 1)
        """,
        "assigned back": """
            def write(self, lens, new):
                self.cache = torch_npu.scatter_update(self.cache, lens, new, 1)
        """,
        "returned": """
            def write(cache, lens, new):
                cache = torch_npu.scatter_update(cache, lens, new, 1)
                return cache
        """,
        "returned at once": """
            def write(cache, lens, new):
                return torch_npu.scatter_update(cache, lens, new, 1)
        """,
        "kept in a list": """
            def write(caches, lens, new):
                out = []
                for cache in caches:
                    out.append(torch_npu.scatter_update(cache, lens, new, 1))
                return out
        """,
    }

    def applies_to(self, operator: Operator) -> bool:
        """Whether the operator is a functional form."""
        return operator.name in IN_PLACE

    def check(self, call: Call) -> Verdict:
        """Judges what happens to the result."""
        name = call.operator.name
        return require(
            ~result_unused(call),
            f"{name} returns the updated tensor and leaves its input unchanged, but the result is never used",
            at=call.place,
            fix=f"Call {IN_PLACE[name]}, or assign the result to the cache.",
        )
