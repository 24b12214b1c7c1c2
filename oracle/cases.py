"""The case matrix: named, seeded cases, hand-written where they mimic a model or a defect, pairwise
elsewhere."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .errors import CaseSelectionError

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
PFA = "npu_prompt_flash_attention"
IFA = "npu_incre_flash_attention"
FUSION = "npu_fusion_attention"
SPARSE = "npu_sparse_flash_attention"
PAGED_ATB = "_npu_paged_attention"

PHASES = ("prefill", "chunked", "decode", "mtp", "mixed")


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the matrix.

    ``q_lens``/``kv_lens``: new tokens and total keys per request; ``dim``: head dimension without the rope
    part; ``rope_dim``: width of a separate rope part (MLA), 0 otherwise; ``masking``: full, causal,
    left-up, window, mask, all, tree or sparse; ``window``: keys a query sees including itself; ``latent``:
    V is the compressed part of K; ``normed``: the writer norms the compressed part itself; ``quant``: how
    an integer cache is scaled."""

    name: str
    op: str
    phase: str
    layout: str
    cache: str
    dtype: str
    heads: int
    kv_heads: int
    dim: int
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    masking: str = "causal"
    value_dim: int = 0
    rope_dim: int = 0
    rope: str = "half"
    block_size: int = 0
    window: int = 0
    sink: bool = False
    lse: bool = False
    bias: bool = False
    dead_rows: bool = False
    latent: bool = False
    normed: bool = False
    quant: str = ""
    inner_precise: int = 0
    sparse_count: int = 0
    ranks: int = 1
    scale: float = 0.0
    sampled: bool = False
    mimics: str = ""
    covers: str = ""
    quick: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        fill = object.__setattr__
        if not self.value_dim:
            fill(self, "value_dim", self.dim)
        if not self.scale:
            fill(self, "scale", (self.dim + self.rope_dim) ** -0.5)
        if not self.seed:
            # Not hash(): that differs from process to process.
            fill(self, "seed", zlib.crc32(self.name.encode()) & 0x7FFFFFFF)

    @property
    def packed(self) -> bool:
        return "T" in self.layout.partition("_")[0]

    @property
    def one_token(self) -> bool:
        """All requests bring one token and the layout makes that a decode call."""
        return not self.packed and set(self.q_lens) == {1}


def _mimicked() -> Iterator[Case]:
    """Calls of real models, reduced in size."""
    yield Case("qwen3-moe-prefill-tnd-v2", V2, "prefill", "TND", "none", "bf16", 8, 2, 128,
               (37, 50, 21), (37, 50, 21), mimics="Qwen3-MoE")  # fmt: skip
    yield Case("qwen3-moe-decode-tnd-v2", V2, "decode", "TND", "paged-bnbsh", "bf16", 8, 2, 128,
               (1, 1, 1), (37, 150, 300), block_size=128, mimics="Qwen3-MoE")  # fmt: skip
    yield Case("qwen3-moe-prefill-bsh-v1", V1, "prefill", "BSH", "contiguous", "bf16", 8, 2,
               128, (37, 50, 21), (37, 50, 21), mimics="Qwen3-MoE")  # fmt: skip
    yield Case("qwen3-moe-decode-bsh-v1", V1, "decode", "BSH", "contiguous", "bf16", 8, 2, 128,
               (1, 1, 1), (38, 51, 22), mimics="Qwen3-MoE")  # fmt: skip
    yield Case("gpt-oss-full-sink-prefill", V2, "prefill", "TND", "none", "bf16", 8, 2, 64,
               (37, 50, 21), (37, 50, 21), sink=True, mimics="GPT-OSS")  # fmt: skip
    yield Case("gpt-oss-window-sink-prefill", V2, "prefill", "TND", "none", "bf16", 8, 2, 64,
               (37, 150, 21), (37, 150, 21), masking="window", window=24, sink=True,
               mimics="GPT-OSS")  # fmt: skip
    yield Case("gpt-oss-window-sink-decode", V2, "decode", "TND", "paged-bnbsh", "bf16", 8, 2,
               64, (1, 1, 1), (37, 150, 300), masking="window", window=24, sink=True,
               block_size=128, mimics="GPT-OSS")  # fmt: skip
    yield Case("gpt-oss-window-recycled-decode", V2, "decode", "TND", "sliding", "bf16", 8, 2,
               64, (1, 1, 1), (37, 150, 301), masking="window", window=40, sink=True,
               block_size=16, mimics="GPT-OSS")  # fmt: skip
    yield Case("deepseek-r1-prefill-ntd", V1, "prefill", "NTD_TND", "none", "bf16", 8, 8, 128,
               (37, 50, 21), (37, 50, 21), rope_dim=64, rope="interleaved", mimics="DeepSeek-R1")  # fmt: skip
    yield Case("deepseek-r1-decode-mla-nz", V2, "decode", "TND_NTD", "mla-paged-nz", "bf16", 16,
               1, 512, (1, 1, 1), (37, 150, 300), masking="full", rope_dim=64,
               rope="interleaved", latent=True, normed=True, block_size=128, scale=192**-0.5,
               mimics="DeepSeek-R1")  # fmt: skip
    yield Case("deepseek-r1-mtp-mla-nz", V2, "mtp", "TND_NTD", "mla-paged-nz", "bf16", 16, 1,
               512, (2, 2, 2), (37, 150, 300), rope_dim=64, rope="interleaved", latent=True,
               normed=True, block_size=128, scale=192**-0.5, mimics="DeepSeek-R1")  # fmt: skip
    yield Case("deepseek-v3.2-sparse-decode", SPARSE, "decode", "TND", "mla-paged-bsnd", "bf16",
               16, 1, 512, (1, 1, 1), (37, 150, 300), masking="sparse", rope_dim=64,
               rope="interleaved", latent=True, normed=True, block_size=128, sparse_count=32,
               scale=192**-0.5, mimics="DeepSeek-V3.2")  # fmt: skip
    yield Case("deepseek-v3.2-sparse-prefill", SPARSE, "prefill", "BSND", "none", "bf16", 16, 1,
               512, (40,), (40,), masking="sparse", rope_dim=64, rope="interleaved",
               latent=True, sparse_count=16, scale=192**-0.5, mimics="DeepSeek-V3.2",
               covers="indexer selects another key set: 066")  # fmt: skip
    yield Case("kimi-k2-decode-mla-v1", V1, "decode", "BSND", "mla-paged", "bf16", 16, 1, 512,
               (1, 1, 1), (38, 151, 22), masking="full", rope_dim=64, rope="interleaved",
               latent=True, normed=True, block_size=128, scale=192**-0.5, mimics="Kimi-K2")  # fmt: skip
    yield Case("longcat-decode-mla-lse", V1, "decode", "BSND_NBSD", "mla-paged", "bf16", 16, 1,
               512, (1, 1, 1), (37, 150, 300), masking="full", rope_dim=64, rope="interleaved",
               latent=True, normed=True, lse=True, block_size=128, scale=192**-0.5,
               mimics="LongCat")  # fmt: skip
    yield Case("longcat-kvp-decode-mla-lse", V1, "decode", "BSND_NBSD", "kv-parallel-sequence",
               "bf16", 16, 1, 512, (1, 1, 1), (37, 150, 300), masking="full", rope_dim=64,
               rope="interleaved", latent=True, lse=True, block_size=16, ranks=2,
               scale=192**-0.5, mimics="LongCat")  # fmt: skip
    yield Case("dit-full-bnsd", V1, "prefill", "BNSD", "none", "bf16", 6, 6, 64, (96, 96),
               (96, 96), masking="full", rope="none", mimics="DiT")  # fmt: skip
    yield Case("dit-cross-bsnd", V1, "prefill", "BSND", "none", "fp16", 6, 6, 64, (96, 96),
               (77, 51), masking="full", rope="none", mimics="DiT cross attention")  # fmt: skip
    yield Case("vision-tower-fusion-bsnd", FUSION, "prefill", "BSND", "none", "bf16", 6, 6, 80,
               (64, 64), (64, 64), masking="full", rope="half", mimics="ViT",
               covers="015 vision tower must not be causal")  # fmt: skip


def _defects() -> Iterator[Case]:
    """Cases that exist because an operator or a caller got them wrong in public."""
    yield Case("decode-mask-limits-length", V1, "decode", "BNSD", "contiguous", "bf16", 8, 2,
               128, (1, 1), (900, 640), masking="mask",
               covers="026 mask ignored beyond KV position 512")  # fmt: skip
    yield Case("decode-paged-mask-limits-length", V1, "decode", "BNSD", "paged-bnnbsd", "fp16",
               8, 2, 128, (1, 1), (900, 640), masking="mask", block_size=128,
               covers="026 paged form")  # fmt: skip
    yield Case("tnd-no-mask-bidirectional", V2, "prefill", "TND", "none", "bf16", 8, 8, 64,
               (60, 33), (60, 33), masking="full", rope="none",
               covers="uniform average for TND, mode 0, no mask")  # fmt: skip
    yield Case("tnd-paged-block-16", V2, "chunked", "TND", "paged-bnbsh", "bf16", 8, 2, 128,
               (9, 17), (57, 130), block_size=16, covers="corrupted output at block size 16")  # fmt: skip
    yield Case("bsh-decode-block-16", V1, "decode", "BSH", "paged-bnbsh", "fp16", 8, 2, 128,
               (1, 1), (57, 130), block_size=16, covers="corrupted output at block size 16")  # fmt: skip
    yield Case("prefix-prefill-tnd", V1, "chunked", "TND", "paged-bnbsh", "bf16", 8, 2, 128,
               (20, 33), (84, 161), block_size=128, covers="079 chunk must stay causal")  # fmt: skip
    yield Case("fully-masked-rows-corrected", V1, "prefill", "BNSD", "none", "fp16", 8, 2, 64,
               (30, 30), (30, 30), masking="all", dead_rows=True, inner_precise=2,
               covers="024 dead rows with inner_precise 2")  # fmt: skip
    yield Case("fully-masked-rows-open", V1, "prefill", "BNSD", "none", "bf16", 8, 2, 64,
               (30, 30), (30, 30), masking="all", dead_rows=True,
               covers="024 dead rows without correction are undefined")  # fmt: skip
    yield Case("more-queries-than-keys", V1, "prefill", "BNSD", "none", "bf16", 8, 2, 64,
               (40, 40), (24, 33), covers="dead rows by geometry are zero")  # fmt: skip
    yield Case("fp16-high-performance", V1, "prefill", "BNSD", "none", "fp16", 8, 2, 64, (120,),
               (120,), inner_precise=1, covers="low precision tier")  # fmt: skip
    yield Case("bsh-decode-pre-tokens-window", V1, "decode", "BSH", "paged-bnbsh", "bf16", 8, 2,
               128, (1, 1), (57, 130), masking="window", window=40, block_size=16,
               covers="H16 pre_tokens is the window here")  # fmt: skip
    yield Case("workspace-reused-shorter", PAGED_ATB, "decode", "TND", "paged-atb", "fp16", 8,
               2, 128, (1, 1, 1), (30, 600, 17), block_size=128, masking="full",
               covers="088 workspace of other lengths")  # fmt: skip


def _boundaries() -> Iterator[Case]:
    """Lengths at which indices, pages and tiles change."""
    for name, q, kv in (
        ("one", (1, 1), (1, 1)),
        ("block-edges", (15, 16, 17), (15, 16, 17)),
        ("over-512", (5, 3), (513, 700)),
        ("over-2048", (4, 2), (2050, 2177)),
        ("zero-keys", (1, 1, 1), (0, 33, 16)),
    ):
        for dtype in ("bf16", "fp16"):
            if name == "zero-keys":
                yield Case(f"boundary-{name}-bnsd-{dtype}", V1, "decode", "BNSD", "none", dtype,
                           8, 2, 64, q, kv, lse=True, masking="full")  # fmt: skip
                continue
            yield Case(f"boundary-{name}-tnd-paged-{dtype}", V2, "chunked", "TND",
                       "paged-bnbsh", dtype, 8, 2, 64, q, kv, block_size=16, lse=True)  # fmt: skip
            yield Case(f"boundary-{name}-window-{dtype}", V2, "chunked", "TND", "paged-nz",
                       dtype, 8, 2, 64, q, kv, block_size=16, masking="window", window=9)  # fmt: skip
    yield Case("boundary-prefill-2100-bnsd", V1, "prefill", "BNSD", "none", "bf16", 2, 1, 64,
               (2100,), (2100,), sampled=True)  # fmt: skip
    yield Case("long-prefill-8k-sampled", V2, "prefill", "TND", "none", "bf16", 2, 1, 128,
               (8192,), (8192,), sampled=True, quick=False)  # fmt: skip


def _other_modes() -> Iterator[Case]:
    """Cache modes and operators that the pairwise product does not reach."""
    for quant in ("per-tensor", "per-channel", "per-token", "per-head", "per-token-head"):
        yield Case(f"int8-{quant}-decode", V1, "decode", "BNSD", "quantised",
                   "bf16" if "token" not in quant else "fp16", 8, 2, 64, (1, 1, 1),
                   (37, 50, 21), masking="full", quant=quant)  # fmt: skip
    yield Case("int8-v2-per-channel-bsh-decode", V2, "decode", "BSH", "quantised", "bf16", 8, 2,
               64, (1, 1), (37, 50), masking="full", quant="per-channel")  # fmt: skip
    yield Case("int4-per-channel-decode", V1, "decode", "BNSD", "quantised", "fp16", 8, 2, 64,
               (1, 1, 1), (37, 50, 21), masking="full", quant="int4-per-channel")  # fmt: skip
    for quant in ("paged-per-token", "paged-per-token-head"):
        yield Case(f"int8-{quant}-decode", V1, "decode", "BSH", "quantised-paged", "fp16", 8, 2,
                   64, (1, 1), (57, 130), masking="full", quant=quant, block_size=32)  # fmt: skip
    yield Case("kvp-heads-prefill", V2, "prefill", "BSND", "kv-parallel-heads", "bf16", 8, 4,
               64, (37, 50), (37, 50), ranks=2)  # fmt: skip
    yield Case("kvp-heads-decode", V2, "decode", "BNSD", "kv-parallel-heads", "fp16", 8, 4, 64,
               (1, 1), (37, 50), ranks=4)  # fmt: skip
    yield Case("kvp-sequence-decode", V2, "decode", "BNSD", "kv-parallel-sequence", "bf16", 8,
               2, 64, (1, 1, 1), (37, 150, 3), block_size=16, ranks=4, lse=True)  # fmt: skip
    yield Case("offloaded-decode", V1, "decode", "BNSD", "offloaded", "bf16", 8, 2, 64, (1, 1),
               (37, 50))  # fmt: skip
    yield Case("offloaded-mtp-tnd", V2, "mtp", "TND", "offloaded-paged", "bf16", 8, 2, 64,
               (2, 2), (37, 50), block_size=16)  # fmt: skip
    yield Case("pfa-prefill-bnsd", PFA, "prefill", "BNSD", "none", "fp16", 8, 2, 64, (37, 50),
               (37, 50))  # fmt: skip
    yield Case("pfa-prefill-bsh-mask", PFA, "prefill", "BSH", "none", "bf16", 8, 8, 64,
               (40, 40), (40, 40), masking="all")  # fmt: skip
    yield Case("ifa-decode-bsh", IFA, "decode", "BSH", "contiguous", "fp16", 8, 2, 64, (1, 1),
               (37, 50), inner_precise=1)  # fmt: skip
    yield Case("ifa-decode-paged-bnsd", IFA, "decode", "BNSD", "paged-bnnbsd", "bf16", 8, 2, 64,
               (1, 1), (57, 130), block_size=16, inner_precise=1)  # fmt: skip
    yield Case("fusion-causal-bnsd", FUSION, "prefill", "BNSD", "none", "bf16", 8, 2, 64,
               (50, 50), (50, 50))  # fmt: skip
    yield Case("fusion-tnd-causal-fp32", FUSION, "prefill", "TND", "none", "fp32", 8, 2, 64,
               (37, 50), (37, 50))  # fmt: skip
    yield Case("fusion-sbh-left-up", FUSION, "prefill", "SBH", "none", "fp16", 8, 8, 64,
               (50, 50), (50, 50), masking="left-up")  # fmt: skip
    yield Case("fusion-left-up-unequal", FUSION, "chunked", "BNSD", "none", "bf16", 8, 2, 64,
               (30, 30), (50, 50), masking="left-up")  # fmt: skip
    yield Case("pse-bnsd-prefill", V1, "prefill", "BNSD", "none", "bf16", 8, 2, 64, (37, 50),
               (37, 50), bias=True)  # fmt: skip
    yield Case("pse-bsh-decode", V1, "decode", "BSH", "contiguous", "fp16", 8, 2, 64, (1, 1),
               (37, 50), bias=True)  # fmt: skip
    yield Case("mla-contiguous-norm-decode", V1, "decode", "BNSD", "mla", "bf16", 16, 1, 512,
               (1, 1), (37, 50), masking="full", rope_dim=64, rope="interleaved", latent=True,
               normed=True, scale=192**-0.5)  # fmt: skip
    yield Case("mla-tree-mtp", V2, "mtp", "BSND", "mla-paged", "bf16", 16, 1, 512, (4, 4),
               (37, 50), masking="tree", rope_dim=64, rope="interleaved", latent=True,
               normed=True, block_size=128, scale=192**-0.5)  # fmt: skip
    yield Case("mla-explicit-128-ntd", V2, "prefill", "NTD", "none", "fp16", 8, 8, 128,
               (37, 50), (37, 50), rope_dim=64, rope="interleaved")  # fmt: skip


# ------------------------------------------------------------------------------------------- pairwise product

_CACHES = (
    "none",
    "contiguous",
    "paged-bnbsh",
    "paged-bnnbsd",
    "paged-nz",
    "paged-scatter",
    "sliding",
    "offloaded",
)
_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "BSH_BNSD",
"BSND_BNSD", "TND",
            "NTD", "NTD_TND")  # fmt: skip
_HEADS = ((8, 8), (8, 2), (4, 1), (12, 4))
_MASKINGS = ("causal", "full", "window", "mask", "all", "left-up")
_LENGTHS = ("edge", "unequal", "over-512")
_PARAMETERS: dict[str, tuple[object, ...]] = {
    "cache": _CACHES,
    "phase": PHASES,
    "layout": _LAYOUTS,
    "masking": _MASKINGS,
    "dtype": ("bf16", "fp16"),
    "heads": _HEADS,
    "lengths": _LENGTHS,
    "op": (V1, V2),
    "extra": ("plain", "lse", "sink"),
    "dim": (64, 128),
}


def _valid(v: dict[str, object]) -> bool:
    """Whether FIA accepts this combination (contract 1.5, 1.6, 1.8)."""
    cache, phase, layout, masking = str(v["cache"]), v["phase"], str(v["layout"]), v["masking"]
    left = layout.partition("_")[0]
    packed = left in ("TND", "NTD")
    paged = cache.startswith(("paged", "sliding"))
    decode = phase == "decode" and not packed
    checks = (
        not (paged and cache == "paged-bnnbsd" and left in ("BSH", "BSND")),
        not (cache == "paged-nz" and not packed),
        not (cache == "sliding" and not (layout == "TND" and masking == "window")),
        not (cache == "none" and phase in ("decode", "mtp", "mixed", "chunked") and not packed),
        not (packed and cache in ("contiguous", "offloaded")),
        not (layout == "BNSD_BSND" and phase == "decode"),
        # *_NBSD outputs exist only in the decode engine, BSH_BNSD and BSND_BNSD only in the prefill engine.
        not (layout.endswith("_NBSD") and phase != "decode"),
        not (layout in ("BSH_BNSD", "BSND_BNSD") and phase == "decode"),
        not (packed and masking in ("mask", "all", "left-up")),
        not (decode and masking in ("window", "all", "left-up")),
        not (masking == "left-up" and phase != "prefill"),
        # Bidirectional layers have no cache that grows, and no chunks.
        not (masking == "full" and phase in ("chunked", "mtp", "mixed")),
        not (phase == "mixed" and not packed),
        not (v["extra"] == "sink" and not (v["op"] == V2 and layout in ("TND", "NTD_TND"))),
        not (left == "NTD" and paged),
    )
    return all(checks)


def _pairs(values: dict[str, object]) -> set[tuple[object, ...]]:
    return {(a, values[a], b, values[b]) for a, b in itertools.combinations(sorted(values), 2)}


@functools.cache
def _candidates() -> tuple[dict[str, object], ...]:
    """A fixed sample of valid combinations, large enough to hold every valid pair."""
    rng = random.Random(20240229)
    names = list(_PARAMETERS)
    found = []
    for core in itertools.product(*(_PARAMETERS[n] for n in ("cache", "phase", "layout", "masking"))):
        fixed: dict[str, object] = dict(zip(("cache", "phase", "layout", "masking"), core, strict=True))
        for _ in range(4):
            values = {n: fixed[n] if n in fixed else rng.choice(_PARAMETERS[n]) for n in names}
            if _valid(values):
                found.append(values)
    return tuple(found)


def _pairwise() -> list[dict[str, object]]:
    """Greedy cover: every pair of parameter values that any candidate holds appears in some chosen case."""
    pool = [(c, _pairs(c)) for c in _candidates()]
    missing = set().union(*(p for _, p in pool))
    chosen = []
    while missing:
        best = max(pool, key=lambda item: len(item[1] & missing))
        gained = best[1] & missing
        chosen.append(best[0])
        missing -= gained
        pool = [item for item in pool if item[1] & missing]
    return chosen


def _lengths(values: dict[str, object]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    kind, phase = values["lengths"], values["phase"]
    keys = {"edge": (31, 32, 33), "unequal": (37, 50, 21), "over-512": (530, 700)}[str(kind)]
    if phase == "prefill":
        keys = (130, 514) if kind == "over-512" else keys
        return keys, keys
    if phase == "decode":
        return (1,) * len(keys), keys
    if phase == "mtp":
        return (3,) * len(keys), keys
    if phase == "mixed":
        return tuple((1, 9, 3)[i % 3] for i in range(len(keys))), keys
    return tuple((7, 16, 11)[i % 3] for i in range(len(keys))), keys


def _from_values(v: dict[str, object], quick: bool) -> Case:
    text = {name: str(value) for name, value in v.items()}
    q, kv = _lengths(v)
    heads, kv_heads = next(pair for pair in _HEADS if pair == v["heads"])
    cache, masking = text["cache"], text["masking"]
    version = {V1: "v1", V2: "v2"}[text["op"]]
    words = [text["phase"], text["layout"], cache, masking, text["dtype"], f"{heads}h{kv_heads}"]
    words += [f"d{text['dim']}", text["lengths"], text["extra"], version]
    return Case(
        "-".join(words).lower(),
        text["op"],
        text["phase"],
        text["layout"],
        cache,
        text["dtype"],
        heads,
        kv_heads,
        int(text["dim"]),
        q,
        kv,
        masking=masking,
        block_size=16 if cache.startswith(("paged", "sliding")) else 0,
        window=23 if masking == "window" else 0,
        sink=text["extra"] == "sink",
        lse=text["extra"] == "lse",
        rope="none" if masking in ("full", "mask", "all") else "half",
        quick=quick,
    )


@functools.cache
def matrix(full: bool = False) -> tuple[Case, ...]:
    """All cases: hand-written ones and the pairwise product; ``full`` adds every valid combination of cache,
    phase, layout and masking."""
    cases = [*_mimicked(), *_defects(), *_boundaries(), *_other_modes()]
    quick = [_from_values(v, True) for v in _pairwise()]
    known = {c.name for c in quick}
    cases += quick
    if full:
        seen: set[tuple[object, ...]] = set()
        for values in _candidates():
            core = tuple(values[n] for n in ("cache", "phase", "layout", "masking", "extra"))
            case = _from_values(values, False)
            if core not in seen and case.name not in known:
                seen.add(core)
                cases.append(case)
    else:
        cases = [c for c in cases if c.quick]
    return tuple(cases)


def select(
    *,
    full: bool = False,
    names: Sequence[str] = (),
    keyword: str = "",
    modes: Sequence[str] = (),
) -> list[Case]:
    """Cases of the matrix by exact name or glob (``names``), by ``keyword`` expression and by cache mode.

    ``keyword``: words that must all occur in the name; ``not word`` must not. Raises
    :class:`CaseSelectionError` when a name or mode matches nothing.
    """
    pool: Iterable[Case] = matrix(full or bool(names))
    chosen = list(pool)
    if names:
        for name in names:
            if not any(fnmatch.fnmatchcase(c.name, name) for c in chosen):
                raise CaseSelectionError(f"no case is called {name!r}; `kvlint oracle list` shows them")
        chosen = [c for c in chosen if any(fnmatch.fnmatchcase(c.name, n) for n in names)]
    if modes:
        known = sorted({c.cache for c in matrix(True)})
        for mode in modes:
            if not any(k == mode or k.startswith(mode) for k in known):
                raise CaseSelectionError(f"no cache mode {mode!r}; modes: {', '.join(known)}")
        chosen = [c for c in chosen if any(c.cache == m or c.cache.startswith(m) for m in modes)]
    if keyword:
        chosen = [c for c in chosen if _matches(keyword, c)]
    if not chosen:
        raise CaseSelectionError("the selection holds no case")
    return chosen


def _matches(keyword: str, case: Case) -> bool:
    text = f"{case.name} {case.op} {case.cache} {case.mimics}".lower()
    words = keyword.lower().replace(" and ", " ").split()
    negate = False
    for word in words:
        if word == "not":
            negate = True
            continue
        if (word in text) == negate:
            return False
        negate = False
    return True


def with_seed(case: Case, seed: int) -> Case:
    """The same case with other numbers."""
    return replace(case, seed=seed)
