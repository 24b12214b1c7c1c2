"""KV819: a cache scale with a dtype or shape that its mode does not take."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require, undecided
from kvlint.contract.tri import Fact

from ._common import FLOATS

RANKS = {0: (1, 2, 3, 4), 1: (2, 3), 2: (1,), 3: (3,), 4: (2,), 5: (3,)}
"""Number of axes a scale can have, by mode."""


class KvScaleForm(RunRule):
    """A cache scale with a dtype or shape that its mode does not take.

    ## What it does
    For a constant mode, checks the dtype of the scales (0 and 2: that of query; 1, 3, 4 and 5: float32) and
    their number of axes, and that key and value have the same.

    ## Why it is wrong
    Tiling rejects the call. Mode by mode: 0 (1, N, 1, D), (1, N, D), (1, H) or one element; 1 (B, S) or
    (1, B, S); 2 (N,); 3 (B, N, S); 4 (blocks, block size); 5 (blocks, N, block size).

    ## Use instead
    The form of the mode; cast the scales when the cache is set up.

    ## Ops and versions
    FIA v1 and v2 in decode. Prefill and the NZ cache have forms of their own and are left alone.

    ## Evidence
    G11, G12: decode tiling and checker (CANN 8.5 snapshot).
    """

    code = "KV819"
    name = "kv-scale-form"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("G11", "G12")
    families = ("fia",)
    bad = {
        "per token in half": """
            torch_npu.npu_fused_infer_attention_score(
                x.half().view(4, 1, 1024), k, v, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", actual_seq_lengths_kv=lens, key_antiquant_mode=1, value_antiquant_mode=1,
                key_antiquant_scale=ks.half(),  # KV819
                value_antiquant_scale=vs.half(),  # KV819
            )
        """,
        "per channel in float32": """
            torch_npu.npu_fused_infer_attention_score_v2(
                x.half().view(4, 1, 1024), k, v, num_query_heads=8, num_key_value_heads=8, softmax_scale=0.1,
                input_layout="BSH", actual_seq_kvlen=lens,
                dequant_scale_key=torch.ones(1, 1024, dtype=torch.float32),  # KV819
                dequant_scale_value=torch.ones(1, 1024, dtype=torch.float32),  # KV819
            )
        """,
    }
    ok = {
        "per token": """
            torch_npu.npu_fused_infer_attention_score(
                x.half().view(4, 1, 1024), k, v, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", actual_seq_lengths_kv=lens, key_antiquant_mode=1, value_antiquant_mode=1,
                key_antiquant_scale=ks.float(), value_antiquant_scale=vs.float())
        """,
        "per channel": """
            torch_npu.npu_fused_infer_attention_score(
                x.half().view(4, 1, 1024), k, v, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", actual_seq_lengths_kv=lens, key_antiquant_scale=ks.half(),
                value_antiquant_scale=vs.half())
        """,
        "prefill": """
            torch_npu.npu_fused_infer_attention_score(
                x.bfloat16().view(4, 8, 1024), k, v, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSH", actual_seq_lengths_kv=lens, key_antiquant_mode=1, value_antiquant_mode=1,
                key_antiquant_scale=torch.ones(4, 64, dtype=torch.float32),
                value_antiquant_scale=torch.ones(4, 64, dtype=torch.float32))
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges the scales of key and value."""
        engine = call.single_token
        ranks = call.arg("key").rank
        if engine.no or ranks.equals(5).yes:
            yield NOT_APPLICABLE
            return
        for scale_role, mode_role in (
            ("key_quant_scale", "key_quant_mode"),
            ("value_quant_scale", "value_quant_mode"),
        ):
            scale, mode = call.arg(scale_role), call.arg(mode_role).constant
            if scale.is_none.yes:
                yield NOT_APPLICABLE
            elif not engine.yes or not mode.known or mode.value not in RANKS:
                yield undecided(engine, *mode.notes)
            else:
                yield from _judge(call, scale, mode)


def _judge(call: Call, scale: Arg, mode: Fact[object]) -> Iterator[Verdict]:
    number = mode.value if isinstance(mode.value, int) else 0
    query = call.arg("query").dtype
    wanted = query if number in (0, 2) else Fact.of("float32")
    if wanted.known and (wanted.value in FLOATS or number not in (0, 2)):
        yield require(
            scale.dtype.equals(wanted.value),
            f"{scale.name} is {scale.dtype.get('?')}, mode {number} takes {wanted.value}",
            at=scale,
            fix=f"Convert it to {wanted.value}.",
        )
    else:
        yield undecided(*query.notes)
    rank = scale.rank
    yield require(
        rank.among(RANKS[number]),
        f"{scale.name} has {rank.get('?')} axes, mode {number} takes {' or '.join(map(str, RANKS[number]))}",
        at=scale,
    )
