"""KV604: one slot per token in a mode that wants one entry per block."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, require, undecided

from ._common import KV_RMSNORM, PROLOG


class TokenSlotsInBlockMode(Rule):
    """One slot per token is passed to a PA_BLK cache mode, which reads one entry per block.

    ## What it does
    Reports `cache_mode="PA_BLK_..."` with an index that the source builds as `table * block + position %
    block`, that is one slot per token.

    ## Why it is wrong
    In the PA_BLK modes npu_kv_rmsnorm_rope_cache reads one start offset per block and writes the block
    contiguously; npu_mla_prolog_v3 reads block ids. Token slots make it write whole blocks at token
    positions: output is unreadable, without an error.

    ## Use instead
    `PA`, `PA_BNSD` or `PA_NZ` (`PA_BSND`, `PA_NZ` in the prolog) for token slots.

    ## Ops and versions
    npu_kv_rmsnorm_rope_cache, `_v2` and its functional form; npu_mla_prolog_v3. All versions.

    ## Evidence
    KR-04, KR-05, MP-04: op-plugin documentation; fixed in vllm-ascend, where PA_BLK_NZ met token slots.
    """

    code = "KV604"
    name = "token-slots-in-block-mode"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("KR-04", "KR-05", "MP-04")
    operators = (*KV_RMSNORM, *PROLOG)
    bad = {
        "mode by option": """
            class Writer:
                def __init__(self, norm, use_nz):
                    self.norm, self.use_nz = norm, use_nz

                def write(self, latent, cos, sin, row, first, rope, nope):
                    pos = first + torch.arange(latent.shape[0])
                    slots = row[pos // 128] * 128 + pos % 128
                    mode = "PA_BLK_NZ" if self.use_nz else "PA"
                    torch_npu.npu_kv_rmsnorm_rope_cache(
                        latent, self.norm.weight, cos, sin,
                        slots.to(torch.int64),  # KV604
                        rope, nope, epsilon=self.norm.eps, cache_mode=mode)
        """,
        "in the prolog": """
            pos = first + torch.arange(tokens)
            slots = (table[rows, pos // 128] * 128 + pos % 128).long()
            torch_npu.npu_mla_prolog_v3(
                x, dq, uq, uk, dkv, g1, g2, sin, cos, kv_cache, kr_cache,
                cache_index=slots,  # KV604
                cache_mode="PA_BLK_BSND", actual_seq_len=ends,
                rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6)
        """,
    }
    ok = {
        "token mode": """
            pos = first + torch.arange(latent.shape[0])
            slots = row[pos // 128] * 128 + pos % 128
            torch_npu.npu_kv_rmsnorm_rope_cache(
                latent, gamma, cos, sin, slots.to(torch.int64), rope, nope, epsilon=1e-6, cache_mode="PA_NZ")
        """,
        "start of each block": """
            starts = row.to(torch.int64) * 128
            torch_npu.npu_kv_rmsnorm_rope_cache(
                latent, gamma, cos, sin, starts, rope, nope, epsilon=1e-6, cache_mode="PA_BLK_NZ")
        """,
        "mode and slots by the same option": """
            pos = first + torch.arange(latent.shape[0])
            index = row[pos // 128] * 128 + pos % 128 if per_token else row.to(torch.int64) * 128
            torch_npu.npu_kv_rmsnorm_rope_cache(
                latent, gamma, cos, sin, index.to(torch.int64), rope, nope, epsilon=1e-6,
                cache_mode="PA_NZ" if per_token else "PA_BLK_NZ")
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the index of a block mode."""
        mode, index = call.arg("cache_mode"), call.arg("slots")
        by_block = mode.constant.holds(lambda value: str(value).startswith("PA_BLK"))
        if by_block.no:
            return NOT_APPLICABLE
        per_token = index.content.holds(lambda content: content.slots == "token")
        if not per_token.yes:
            return undecided(by_block, per_token)
        return require(
            ~per_token,
            f"{mode.name}={mode.constant.get('')!r} reads one entry per block, {index.name} holds one slot "
            "per token: rows go to wrong places",
            when=by_block,
            at=index,
            fix="Use PA or PA_NZ for token slots.",
        )
