"""KV650: a cache written in one physical format and read in the other."""

from __future__ import annotations

from collections.abc import Iterable

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import (
    NOT_APPLICABLE,
    PROVED,
    Confidence,
    Rule,
    Severity,
    Verdict,
    undecided,
    violated,
)
from kvlint.contract.tri import Tri

_NZ = frozenset(("PA_NZ", "PA_BLK_NZ"))
_CACHES = ("nope_cache", "rope_cache", "key_cache", "value_cache")


class MixedCacheFormats(Rule):
    """The writer stores NZ blocks and the reader views the cache as ND, or the other way round.

    ## What it does
    Compares the ``cache_mode`` of the writers of a class, and of those that run in the functions it calls,
    with the rank that attention reads the same memory with: a 5-D view is NZ, a 3-D or 4-D one is ND. A mode
    that is fixed while the view depends on an option is reported for the option's other value.

    ## Why it is wrong
    Both formats have the same number of bytes, so either view is accepted. Read in the wrong one, every row
    is made of pieces of other rows and heads.

    ## Use instead
    Derive the mode and the view from the same option: ``"PA_NZ"`` with ``view(Bn, N, D // 16, Bs, 16)``,
    ``"PA"``, ``"PA_BSND"`` or ``"Norm"`` with ``view(Bn, Bs, N * D)``.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache, npu_mla_prolog v1 to v3 and npu_scatter_pa_kv_cache, with FIA.

    ## Evidence
    KR-06, MP-08, PA-08; 1.5 for the ranks.
    """

    code = "KV650"
    name = "mixed-cache-formats"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("KR-06", "MP-08", "PA-08")
    families = ("fia",)
    bad = {
        "cache object": """
            class Cache:
                def __init__(self, blocks, heads, dim):
                    self.heads, self.dim = heads, dim
                    self.k = torch.zeros(blocks, heads * dim // 16, 128, 16, dtype=torch.bfloat16)
                    self.v = torch.zeros(blocks, heads * dim // 16, 128, 16, dtype=torch.bfloat16)

                def save(self, k, v, slots):
                    torch_npu.npu_scatter_pa_kv_cache(k, v, self.k, self.v, slots, cache_mode="PA_NZ")

                def pages(self):
                    shape = (-1, 128, self.heads * self.dim)
                    return self.k.view(shape), self.v.view(shape)

            def prefill(q, k, v, cache: Cache, slots, table, ends, lens, mask):
                cache.save(k, v, slots)
                keys, values = cache.pages()
                return torch_npu.npu_fused_infer_attention_score(
                    q,
                    keys,  # KV650
                    values,  # KV650
                    num_heads=8, num_key_value_heads=cache.heads, scale=0.1,
                    input_layout="TND", sparse_mode=3, atten_mask=mask, block_table=table, block_size=128,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=lens)[0]
        """,
        "fixed mode, optional view": """
            class Latent:
                def __init__(self, blocks, use_nz):
                    self.use_nz = use_nz
                    self.kv = torch.zeros(blocks, 128, 1, 512, dtype=torch.bfloat16, device="npu")
                    self.kr = torch.zeros(blocks, 128, 1, 64, dtype=torch.bfloat16, device="npu")

                def write(self, kv, gamma, cos, sin, slots):
                    torch_npu.npu_kv_rmsnorm_rope_cache(
                        kv, gamma, cos, sin, slots, self.kr, self.kv, epsilon=1e-6, cache_mode="PA_NZ")

                def read(self, q, qr, table, lens):
                    n = self.kv.shape[0]
                    if self.use_nz:
                        kv, kr = self.kv.view(n, 1, 32, 128, 16), self.kr.view(n, 1, 4, 128, 16)
                    else:
                        kv, kr = self.kv.view(n, 128, 512), self.kr.view(n, 128, 64)
                    return torch_npu.npu_fused_infer_attention_score_v2(
                        q,
                        kv,  # KV650
                        kv,  # KV650
                        query_rope=qr,
                        key_rope=kr,  # KV650
                        num_query_heads=16, num_key_value_heads=1, softmax_scale=192 ** -0.5,
                        input_layout="BSND", block_table=table, block_size=128, actual_seq_kvlen=lens)[0]
        """,
    }
    ok = {
        "cache object with an NZ view": """
            class Cache:
                def __init__(self, blocks, heads, dim):
                    self.heads, self.dim = heads, dim
                    self.k = torch.zeros(blocks, heads * dim // 16, 128, 16, dtype=torch.bfloat16)
                    self.v = torch.zeros(blocks, heads * dim // 16, 128, 16, dtype=torch.bfloat16)

                def save(self, k, v, slots):
                    torch_npu.npu_scatter_pa_kv_cache(k, v, self.k, self.v, slots, cache_mode="PA_NZ")

                def pages(self):
                    shape = (-1, self.heads, self.dim // 16, 128, 16)
                    return self.k.view(shape), self.v.view(shape)

            def prefill(q, k, v, cache: Cache, slots, table, ends, lens, mask):
                cache.save(k, v, slots)
                keys, values = cache.pages()
                return torch_npu.npu_fused_infer_attention_score(
                    q, keys, values, num_heads=8, num_key_value_heads=cache.heads, scale=0.1,
                    input_layout="TND", sparse_mode=3, atten_mask=mask, block_table=table, block_size=128,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=lens)[0]
        """,
        "same option": """
            class Latent:
                def __init__(self, blocks, use_nz):
                    self.use_nz = use_nz
                    self.kv = torch.zeros(blocks, 128, 1, 512, dtype=torch.bfloat16, device="npu")
                    self.kr = torch.zeros(blocks, 128, 1, 64, dtype=torch.bfloat16, device="npu")

                def write(self, kv, gamma, cos, sin, slots):
                    torch_npu.npu_kv_rmsnorm_rope_cache(
                        kv, gamma, cos, sin, slots, self.kr, self.kv, epsilon=1e-6,
                        cache_mode="PA_NZ" if self.use_nz else "PA")

                def read(self, q, qr, table, lens):
                    n = self.kv.shape[0]
                    if self.use_nz:
                        kv, kr = self.kv.view(n, 1, 32, 128, 16), self.kr.view(n, 1, 4, 128, 16)
                    else:
                        kv, kr = self.kv.view(n, 128, 512), self.kr.view(n, 128, 64)
                    return torch_npu.npu_fused_infer_attention_score_v2(
                        q, kv, kv, query_rope=qr, key_rope=kr,
                        num_query_heads=16, num_key_value_heads=1, softmax_scale=192 ** -0.5,
                        input_layout="BSND", block_table=table, block_size=128, actual_seq_kvlen=lens)[0]
        """,
        "another cache": """
            class Latent:
                def step(self, kv, gamma, cos, sin, slots, rope_nz, nope_nz, q, qr, table, lens):
                    torch_npu.npu_kv_rmsnorm_rope_cache(
                        kv, gamma, cos, sin, slots, rope_nz, nope_nz, epsilon=1e-6, cache_mode="PA_NZ")
                    return torch_npu.npu_fused_infer_attention_score_v2(
                        q, self.kv.view(-1, 128, 512), self.kv.view(-1, 128, 512), query_rope=qr,
                        key_rope=self.kr.view(-1, 128, 64),
                        num_query_heads=16, num_key_value_heads=1, softmax_scale=192 ** -0.5,
                        input_layout="BSND", block_table=table, block_size=128, actual_seq_kvlen=lens)[0]
        """,
    }

    def check(self, call: Call) -> Iterable[Verdict]:
        """Judges each cache that the call reads against the writers of its class."""
        if call.paged.no or call.scope is None:
            yield NOT_APPLICABLE
            return
        writers = [
            peer.under(call.assumed)
            for peer in (*call.scope.peers, *call.earlier, *call.later)
            if peer.operator.family in ("cache_write", "prolog") and peer.has("cache_mode")
        ]
        for role in ("key", "value", "key_rope"):
            yield self._judge(call.arg(role), writers)

    def _judge(self, arg: Arg, writers: list[Call]) -> Verdict:
        if arg.is_none.yes or not arg.storage.known:
            return NOT_APPLICABLE
        for writer in writers:
            for role in _CACHES:
                cache = writer.arg(role)
                if not (
                    writer.has(role) and cache.storage.known and cache.storage.value == arg.storage.value
                ):
                    continue
                nz = writer.arg("cache_mode").constant.among(_NZ)
                read_nz = arg.rank.equals(5)
                if nz.unknown or read_nz.unknown:
                    return undecided(Tri(None, (*nz.notes, *read_nz.notes)))
                if nz.yes == read_nz.yes:
                    return PROVED
                mode = writer.arg("cache_mode").constant.get("?")
                return violated(
                    f"{arg.name} is read as {'NZ' if read_nz.yes else 'ND'}, but {writer.operator.name} "
                    f"writes "
                    f"it with cache_mode={mode!r}",
                    arg,
                    (*nz.notes, *read_nz.notes),
                    "Derive the mode and the view from the same option.",
                )
        return NOT_APPLICABLE
