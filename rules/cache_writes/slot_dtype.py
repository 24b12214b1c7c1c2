"""KV603: indices of a dtype the operator does not read."""

from __future__ import annotations

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require
from kvlint.contract.tri import Tri

from ._common import KV_RMSNORM, ND_UPDATE, PROLOG, QUANT_SCATTER, RESHAPE, SCATTER, SCATTER_PA

_INT32 = ("int32",)
_INT64 = ("int64",)
_EITHER = ("int32", "int64")

# Index parameter and the dtypes it takes, by operator.
INDEX: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(RESHAPE, ("slot_indices", _INT32)),
    **dict.fromkeys(KV_RMSNORM, ("index", _INT64)),
    **dict.fromkeys(PROLOG, ("cache_index", _INT64)),
    **dict.fromkeys(QUANT_SCATTER, ("indices", _INT32)),
    **dict.fromkeys(SCATTER, ("indices", _EITHER)),
    **dict.fromkeys(ND_UPDATE, ("indices", _EITHER)),
    **dict.fromkeys((*SCATTER_PA, "npu_scatter_pa_cache"), ("slot_mapping", _EITHER)),
    "npu_mla_preprocess": ("slotmapping", _INT32),
}


class SlotDtype(Rule):
    """Slots or indices have a dtype that the writer does not read.

    ## What it does
    Checks the dtype of the index argument of each cache writer: int32 for _npu_reshape_and_cache,
    npu_quant_scatter and npu_mla_preprocess, int64 for npu_kv_rmsnorm_rope_cache and npu_mla_prolog, either
    for the scatter operators.

    ## Why it is wrong
    The operators disagree with each other, and slot arithmetic makes int64: `table * block + pos % block`
    promotes as soon as `pos` comes from `torch.arange`. A 64-bit slot in a 32-bit writer is rejected on one
    product and on another makes it read every slot as two, so that rows land in wrong places. The meta
    kernels accept both.

    ## Use instead
    `.to(torch.int32)` or `.to(torch.int64)` on the finished slots, next to the writer.

    ## Ops and versions
    All cache writers. All versions.

    ## Evidence
    RC-01, KR-03, MP-04, MP-14, QS-02, SU-06: ATB operation checks, op-plugin documentation; fixed in
    vllm-ascend and cann-recipes-infer. The meta kernels accept int32 and float (executed).
    """

    code = "KV603"
    name = "slot-dtype"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("RC-01", "KR-03", "MP-04", "MP-14", "QS-02", "SU-06", "PA-03")
    operators = tuple(INDEX)
    bad = {
        "slot arithmetic promotes": """
            def slots(table, starts, steps, block):
                pos = starts.unsqueeze(1) + torch.arange(steps)
                rows = torch.arange(pos.shape[0]).unsqueeze(1)
                blocks = table.to(torch.int32)[rows, pos // block]
                return (blocks * block + pos % block).view(-1)

            def store(k, v, kc, vc, table, starts):
                torch_npu._npu_reshape_and_cache(
                    key=k, value=v, key_cache=kc, value_cache=vc,
                    slot_indices=slots(table, starts, 4, 128))  # KV603
        """,
        "int32 into kv_rmsnorm": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin,
                slots.to(torch.int32),  # KV603
                rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
        "int32 into the prolog": """
            more = {"rmsnorm_epsilon_cq": 1e-6, "rmsnorm_epsilon_ckv": 1e-6}
            more["cache_index"] = slots.int()  # KV603
            torch_npu.npu_mla_prolog_v3(x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache, **more)
        """,
        "float positions": """
            torch_npu.scatter_update_(
                cache,
                torch.zeros(4),  # KV603
                new, 1)
        """,
    }
    ok = {
        "cast at the call": """
            def store(k, v, kc, vc, table, pos):
                slots = table * 128 + pos % 128
                torch_npu._npu_reshape_and_cache(
                    key=k, value=v, key_cache=kc, value_cache=vc, slot_indices=slots.to(torch.int32))
        """,
        "int64": """
            torch_npu.npu_kv_rmsnorm_rope_cache(
                kv, gamma, cos, sin, slots.to(torch.int64), rope, nope, epsilon=1e-6, cache_mode="PA")
        """,
        "unknown": """
            torch_npu._npu_reshape_and_cache(
                key=k, value=v, key_cache=kc, value_cache=vc, slot_indices=meta.slot_mapping)
        """,
        "either is right": """
            torch_npu.scatter_update_(cache, torch.zeros(4, dtype=torch.int32), new, 1)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the dtype of the index argument."""
        name, legal = INDEX[call.operator.name]
        index = call.named(name)
        return require(
            self._legal(index, legal),
            f"{index.name} is {index.dtype.get('of another dtype')}, {call.operator.name} reads "
            f"{' or '.join(legal)}: rejected, or rows go to wrong slots",
            when=index.present,
            at=index,
            fix=f"Convert it with .to(torch.{legal[0]}).",
        )

    @staticmethod
    def _legal(index: Arg, legal: tuple[str, ...]) -> Tri:
        return index.dtype.among(legal)
