"""KV319: a preallocated cache attended to over its whole size."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import writes


class CacheReadWithoutLength(RunRule):
    """A preallocated cache is read without key lengths and without a mask.

    ## What it does
    Reports a call whose key is the very tensor that `scatter_update_` or `npu_scatter_nd_update_` writes in
    the same function, while neither key lengths nor a mask nor a block table are passed.

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
    }
    ok = {
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
        if not any(writes(other, key) for other in (*call.scope.calls, *call.earlier)):
            return NOT_APPLICABLE
        return require(
            ~lengths.is_none,
            f"{key.name} is a cache that is written before, "
            f"and {lengths.name} does not say how many rows are valid",
            when=call.arg("mask").is_none & ~call.paged,
            at=key,
            fix=f"Pass the number of valid rows as {lengths.name}, or slice the cache.",
        )
