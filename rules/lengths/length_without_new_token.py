"""KV322: the KV length does not count the token that was just written."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, PROVED, Confidence, RunRule, Severity, Verdict, violated

from ._common import past_offset, writes


class LengthWithoutNewToken(RunRule):
    """The KV length does not count the token that was just written.

    ## What it does
    Reports a call that reads a contiguous cache after `scatter_update_` wrote the new rows at `kv_len`, with
    the same `kv_len` as the length.

    ## Why it is wrong
    Rows 0 to kv_len - 1 are read, the new row is row kv_len. Every token attends to all tokens but itself:
    no error, and the output degrades with every step.

    ## Use instead
    `actual_seq_lengths_kv = kv_len + 1` (or plus the number of new tokens).

    ## Ops and versions
    FIA v1 and v2, npu_incre_flash_attention, with scatter_update_. All versions.

    ## Evidence
    D12, 3.1: the index is where the first new row goes.
    """

    code = "KV322"
    name = "length-without-new-token"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("D12",)
    families = ("fia", "ifa")
    bad = {
        "one tensor for both": """
            class Attention:
                def decode(self, q, k, v, kv_len):
                    torch_npu.scatter_update_(self.k_cache, kv_len, k, 1)
                    torch_npu.scatter_update_(self.v_cache, kv_len, v, 1)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache, self.v_cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                        input_layout="BSH",
                        actual_seq_lengths_kv=kv_len.cpu().tolist(),  # KV322
                    )
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
                    self.cache.append(pos, k, v)
                    return torch_npu.npu_incre_flash_attention(
                        q, self.cache.k, self.cache.v, num_heads=8, num_key_value_heads=8, scale_value=0.1,
                        input_layout="BSH",
                        actual_seq_lengths=pos,  # KV322
                    )
        """,
    }
    ok = {
        "with the new token": """
            class Attention:
                def decode(self, q, k, v, kv_len):
                    torch_npu.scatter_update_(self.k_cache, kv_len, k, 1)
                    torch_npu.scatter_update_(self.v_cache, kv_len, v, 1)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache, self.v_cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                        input_layout="BSH", actual_seq_lengths_kv=(kv_len + 1).cpu())
        """,
        "advanced in between": """
            def decode(q, k, v, cache, kv_len):
                torch_npu.scatter_update_(cache.k, kv_len, k, 1)
                torch_npu.scatter_update_(cache.v, kv_len, v, 1)
                kv_len.add_(1)
                return torch_npu.npu_fused_infer_attention_score(
                    q, cache.k, cache.v, num_heads=8, num_key_value_heads=8, scale=0.1,
                    input_layout="BSH", actual_seq_lengths_kv=kv_len.cpu())
        """,
        "length of what came before": """
            class Attention:
                def decode(self, q, k, v, lens):
                    pos = lens - 1
                    torch_npu.scatter_update_(self.k_cache, pos, k, 1)
                    torch_npu.scatter_update_(self.v_cache, pos, v, 1)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache, self.v_cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                        input_layout="BSH", actual_seq_lengths_kv=lens.cpu())
        """,
        "history merged with the new part": """
            class Attention:
                def extend(self, q, k, v, kv_len):
                    torch_npu.scatter_update_(self.k_cache, kv_len, k, 1)
                    torch_npu.scatter_update_(self.v_cache, kv_len, v, 1)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, self.k_cache, self.v_cache, num_heads=8, num_key_value_heads=8, scale=0.1,
                        input_layout="BSH", actual_seq_lengths_kv=kv_len.cpu(), softmax_lse_flag=True)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the lengths with the offsets of the writes before."""
        key, lengths = call.arg("key"), call.arg("kv_lens")
        if lengths.is_none.yes or call.paged.yes:
            return NOT_APPLICABLE
        reach = [
            past_offset(lengths, writer.arg("indices")) for writer in call.earlier if writes(writer, key)
        ]
        if not reach or None in reach:
            return NOT_APPLICABLE
        history = call.has("lse_flag") and not call.arg("lse_flag").constant.holds(lambda flag: not flag).yes
        if not history and any(rows is not None and rows <= 0 for rows in reach):
            return violated(
                f"{lengths.name} is where the new rows were written, so it does not count them",
                lengths,
                fix=f"Pass {lengths.name} plus the number of new rows.",
            )
        return PROVED if all(rows is not None and rows > 0 for rows in reach) else NOT_APPLICABLE
