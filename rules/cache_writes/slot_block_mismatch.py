"""KV618: slots are computed with another block size than the cache has."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require, undecided
from kvlint.contract.sizes import constant, equal, shown
from kvlint.contract.tri import Fact, Tri

from ._common import KV_RMSNORM, PROLOG, RESHAPE, SCATTER_PA


class SlotBlockMismatch(Rule):
    """The slots are computed with a block size that is not the cache's.

    ## What it does
    Compares the block size in slot arithmetic (`table * block + position % block`) with the block axis of
    the cache that is written.

    ## Why it is wrong
    A slot is block id times the block size of the cache plus an offset. With another number rows of
    different requests are mixed, or the write runs past the pool. Nothing checks it.

    ## Use instead
    `block = cache.shape[1]` in the slot formula, and the same number as `block_size` of the reader.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache, npu_mla_prolog, npu_scatter_pa_kv_cache, _npu_reshape_and_cache. All
    versions.

    ## Evidence
    KR-07: op-plugin documentation, meaning of a slot.
    """

    code = "KV618"
    name = "slot-block-mismatch"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("KR-07", "PA-03", "RC-05")
    operators = (*KV_RMSNORM, *PROLOG, *SCATTER_PA, *RESHAPE)
    bad = {
        "another constant": """
            class Store:
                def __init__(self, blocks):
                    self.k = torch.zeros(blocks, 128, 8, 64, dtype=torch.float16)

                def write(self, key, value, table, first):
                    pos = first + torch.arange(key.shape[0], dtype=torch.int32)
                    slots = table[pos // 256] * 256 + pos % 256
                    torch_npu._npu_reshape_and_cache(
                        key=key, value=value, key_cache=self.k, value_cache=self.k,
                        slot_indices=slots.to(torch.int32))  # KV618
        """,
    }
    ok = {
        "the same": """
            class Store:
                def __init__(self, blocks):
                    self.k = torch.zeros(blocks, 128, 8, 64, dtype=torch.float16)

                def write(self, key, value, table, first):
                    pos = first + torch.arange(key.shape[0], dtype=torch.int32)
                    slots = table[pos // 128] * 128 + pos % 128
                    torch_npu._npu_reshape_and_cache(
                        key=key, value=value, key_cache=self.k, value_cache=self.k,
                        slot_indices=slots.to(torch.int32))
        """,
        "names that may be equal": """
            class Store:
                def __init__(self, blocks, block):
                    self.block = block
                    self.k = torch.zeros(blocks, 128, 8, 64, dtype=torch.float16)

                def write(self, key, value, table, first):
                    pos = first + torch.arange(key.shape[0], dtype=torch.int32)
                    slots = table[pos // self.block] * self.block + pos % self.block
                    torch_npu._npu_reshape_and_cache(
                        key=key, value=value, key_cache=self.k, value_cache=self.k,
                        slot_indices=slots.to(torch.int32))
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the block size of the slots."""
        slots = call.arg("slots")
        cache = call.arg("key_cache") if call.has("key_cache") else call.arg("nope_cache")
        block = slots.content.get(None)
        size = None if block is None else block.slot_block
        if size is None or cache.rank.get(0) not in (4, 5):
            return undecided(slots.content.holds(lambda _: True), Tri(None, cache.rank.notes))
        axis = 1
        if cache.rank.value == 5:
            axis = 3
        elif constant(cache.dim(3)).among((16, 32)).yes and call.has("value_cache"):
            axis = 2  # NZ: (blocks, width // 16, block, 16)
        same = equal(Fact.of(size, *slots.content.notes), cache.dim(axis))
        return require(
            same,
            f"{slots.name} is computed with blocks of {size.label}, the blocks of {cache.name} hold "
            f"{shown(cache.dim(axis))}: rows go to wrong places",
            at=slots,
            fix="Use the block size of the cache in the slot formula.",
        )
