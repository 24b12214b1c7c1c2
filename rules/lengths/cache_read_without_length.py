"""KV319: a preallocated cache attended to over its whole size."""

from __future__ import annotations

from collections.abc import Hashable

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require
from kvlint.contract.values import Tensor

from ._common import writes


class CacheReadWithoutLength(RunRule):
    """A preallocated cache is read without key lengths and without a mask.

    ## What it does
    Reports a call whose key is the very tensor that `scatter_update_` or `npu_scatter_nd_update_` writes in
    the same function, while neither key lengths nor a mask nor a block table are passed. For one query token
    so it does with a whole buffer that its class fills at a position it counts up.

    ## Why it is wrong
    Without lengths every row of the cache counts as a key: the zeros behind the current position, or rows
    of an earlier request, take part in the softmax.

    ## Use instead
    Pass the number of valid rows, the token just written included: `actual_seq_lengths_kv=(pos + 1)`; or
    slice the cache: `cache[:, :n]`.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention. All versions.

    ## Evidence
    D11, IFA-06: op-plugin documentation (the default is the size of the axis).
    """

    code = "KV319"
    name = "cache-read-without-length"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("D11", "IFA-06")
    families = ("fia", "ifa")
    bad = {
        "through a cache object": """
            class Cache:
                def __init__(self, shape):
                    self.k = torch.zeros(shape, dtype=torch.float16)
                    self.v = torch.zeros(shape, dtype=torch.float16)

                def update(self, layer, pos, k, v):
                    torch_npu.scatter_update_(self.k[layer], pos, k, 2)
                    torch_npu.scatter_update_(self.v[layer], pos, v, 2)
                    return self.k[layer], self.v[layer]

            class Attention:
                def __init__(self, layer, cache: Cache):
                    self.layer, self.cache = layer, cache

                def decode(self, q, k, v, pos):
                    keys, values = self.cache.update(self.layer, pos, k, v)
                    return torch_npu.npu_fused_infer_attention_score(
                        q,
                        keys,  # KV319
                        values, num_heads=8, scale=0.1, input_layout="BNSD",
                    )
        """,
        "written and read whole": """
            class Attention:
                def decode(self, q, k, v, pos):
                    torch_npu.scatter_update_(self.k_cache, pos, k, 2)
                    torch_npu.scatter_update_(self.v_cache, pos, v, 2)
                    return torch_npu.npu_fused_infer_attention_score(
                        q,
                        self.k_cache,  # KV319
                        self.v_cache, num_heads=8, scale=0.1, input_layout="BNSD",
                    )
        """,
        "rows counted by the cache": """
            class Cache:
                def __init__(self, batch, heads, size, dim):
                    self.k = torch.zeros(batch, heads, size, dim)
                    self.v = torch.zeros(batch, heads, size, dim)
                    self.used = 0

                def append(self, k, v):
                    self.k[:, :, self.used : self.used + 1] = k
                    self.v[:, :, self.used : self.used + 1] = v
                    self.used += 1
                    return self.k, self.v

            class Layer:
                def __init__(self, batch, heads, size, dim):
                    self.cache = Cache(batch, heads, size, dim)

                def decode(self, q, k, v):
                    keys, values = self.cache.append(k, v)
                    return torch_npu.npu_incre_flash_attention(
                        q,
                        keys,  # KV319
                        values, num_heads=8, scale_value=0.1, input_layout="BNSD")
        """,
    }
    ok = {
        "as many rows as are used": """
            class Cache:
                def __init__(self, batch, heads, size, dim):
                    self.k = torch.zeros(batch, heads, size, dim)
                    self.used = 0

                def decode(self, q, k):
                    self.k[:, :, self.used] = k
                    self.used += 1
                    rows = self.k[:, :, : self.used].contiguous()
                    return torch_npu.npu_incre_flash_attention(
                        q, rows, rows, num_heads=8, scale_value=0.1, input_layout="BNSD")
        """,
        "with lengths": """
            class Attention:
                def decode(self, q, k, v, pos):
                    torch_npu.scatter_update_(self.k_cache, pos, k, 2)
                    torch_npu.scatter_update_(self.v_cache, pos, v, 2)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache, self.v_cache, num_heads=8, scale=0.1, input_layout="BNSD",
                        actual_seq_lengths_kv=pos + 1,
                    )
        """,
        "another layer is written": """
            class Attention:
                def decode(self, q, k, v, pos):
                    torch_npu.scatter_update_(self.k[0], pos, k, 2)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.k[1], self.v[1], num_heads=8, scale=0.1, input_layout="BNSD")
        """,
        "sliced": """
            class Attention:
                def decode(self, q, k, v, pos, n):
                    torch_npu.scatter_update_(self.k_cache, pos, k, 2)
                    torch_npu.scatter_update_(self.v_cache, pos, v, 2)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache[:, :, :n].contiguous(), self.v_cache[:, :, :n].contiguous(),
                        num_heads=8, scale=0.1, input_layout="BNSD",
                    )
        """,
        "fresh keys": """
            class Attention:
                def prefill(self, q, k, v, pos):
                    torch_npu.scatter_update_(self.k_cache, pos, k, 2)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, scale=0.1, input_layout="BNSD")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Looks for the write of the same tensor."""
        key, lengths = call.arg("key"), call.arg("kv_lens")
        if call.scope is None or lengths.is_none.no or call.arg("mask").is_none.no or call.paged.yes:
            return NOT_APPLICABLE
        written = any(writes(other, key) for other in (*call.scope.calls, *call.earlier))
        one = call.operator.family == "ifa" or call.single_token.yes
        if not written and not (one and _is_grown(call, key)):
            return NOT_APPLICABLE
        return require(
            ~lengths.is_none,
            f"{key.name} is a cache that is written before, "
            f"and {lengths.name} does not say how many rows are valid",
            when=call.arg("mask").is_none & ~call.paged,
            at=key,
            fix=f"Pass the number of valid rows as {lengths.name}, or slice the cache.",
        )


def _is_grown(call: Call, key: Arg) -> bool:
    """Whether this is the whole of a buffer that is filled row by row."""
    value = key.options[0] if len(key.options) == 1 else None
    if not isinstance(value, Tensor) or value.storage not in call.grown:
        return False
    identity: Hashable = value.key
    while isinstance(identity, tuple) and len(identity) > 1 and identity[0] in ("stored", "changed"):
        # The same tensor before it was written to.
        identity = identity[-1]
    memory = value.storage
    while isinstance(memory, tuple) and len(memory) == 2 and memory[0] in ("kept", "fresh"):
        memory = memory[1]
    return identity == memory
