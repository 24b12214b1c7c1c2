"""KV323: attention reads a row of the cache that is written only afterwards."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, PROVED, Confidence, RunRule, Severity, Verdict, violated
from kvlint.contract.tri import Note

from ._common import past_offset, writes


class CacheReadBeforeWrite(RunRule):
    """Attention reads a row of the cache that is written only afterwards.

    ## What it does
    Reports a call whose KV length counts the new rows of a contiguous cache (`pos + 1`), while the
    `scatter_update_` that writes them at `pos` runs after the call.

    ## Why it is wrong
    The new token's row still holds zeros, or what an earlier request left there. Every token attends to
    that row instead of to itself, without an error.

    ## Use instead
    Write first, then attend.

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention, with scatter_update_. All versions.

    ## Evidence
    D12: the write must precede the read.
    """

    code = "KV323"
    name = "cache-read-before-write"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("D12",)
    families = ("fia", "ifa")
    bad = {
        "written at the end": """
            class Attention:
                def decode(self, q, k, v, pos):
                    out = torch_npu.npu_fused_infer_attention_score(
                        q,
                        self.k_cache,  # KV323
                        self.v_cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                        input_layout="BSH", actual_seq_lengths_kv=(pos + 1).tolist())
                    torch_npu.scatter_update_(self.k_cache, pos, k, 1)
                    torch_npu.scatter_update_(self.v_cache, pos, v, 1)
                    return out
        """,
        "in a cache object": """
            class Cache:
                def append(self, pos, k, v):
                    torch_npu.scatter_update_(self.k, pos, k, 1)
                    torch_npu.scatter_update_(self.v, pos, v, 1)

            class Attention:
                def __init__(self):
                    self.cache = Cache()

                def decode(self, q, k, v, pos):
                    lens = pos + 1
                    out = torch_npu.npu_incre_flash_attention(
                        q,
                        self.cache.k,  # KV323
                        self.cache.v, num_heads=8, num_key_value_heads=8, scale_value=0.1,
                        input_layout="BSH", actual_seq_lengths=lens)
                    self.cache.append(pos, k, v)
                    return out
        """,
    }
    ok = {
        "written first": """
            class Attention:
                def decode(self, q, k, v, pos):
                    torch_npu.scatter_update_(self.k_cache, pos, k, 1)
                    torch_npu.scatter_update_(self.v_cache, pos, v, 1)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache, self.v_cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                        input_layout="BSH", actual_seq_lengths_kv=(pos + 1).tolist())
        """,
        "only the history is read": """
            class Attention:
                def decode(self, q, k, v, pos):
                    out = torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache, self.v_cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                        input_layout="BSH", actual_seq_lengths_kv=pos.tolist())
                    torch_npu.scatter_update_(self.k_cache, pos, k, 1)
                    torch_npu.scatter_update_(self.v_cache, pos, v, 1)
                    return out
        """,
        "written before and after": """
            class Attention:
                def decode(self, q, k, v, pos):
                    torch_npu.scatter_update_(self.k_cache, pos, k, 1)
                    torch_npu.scatter_update_(self.v_cache, pos, v, 1)
                    out = torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache, self.v_cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                        input_layout="BSH", actual_seq_lengths_kv=(pos + 1).tolist())
                    torch_npu.scatter_update_(self.k_cache, pos, k.detach(), 1)
                    return out
        """,
        "another cache is written": """
            class Attention:
                def decode(self, q, k, v, pos):
                    out = torch_npu.npu_fused_infer_attention_score(
                        q, self.shared_k, self.shared_v, num_heads=8, num_key_value_heads=8, scale=0.1,
                        input_layout="BSH", actual_seq_lengths_kv=(pos + 1).tolist())
                    torch_npu.scatter_update_(self.k_cache, pos, k, 1)
                    return out
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Looks for the write of the last rows."""
        key, lengths = call.arg("key"), call.arg("kv_lens")
        if lengths.is_none.yes or call.paged.yes:
            return NOT_APPLICABLE
        if any(writes(writer, key) for writer in call.earlier):
            return PROVED
        for writer in call.later:
            rows = past_offset(lengths, writer.arg("indices")) if writes(writer, key) else None
            if rows is not None and rows > 0:
                notes = () if writer.place is None else (Note("the new rows are written here", writer.place),)
                return violated(
                    f"{lengths.name} counts the new rows, but {writer.operator.name} writes them afterwards",
                    key,
                    notes,
                    "Write the new rows first.",
                )
        return NOT_APPLICABLE
