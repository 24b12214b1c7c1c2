"""KV817: a quantised output with arguments that exclude it."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, require

from ._common import decode_engine, whole


class Int8OutputConflict(RunRule):
    """A quantised output with arguments that exclude it.

    ## What it does
    With `quant_scale2` / `quant_scale_out`, reports the `_NBSD` layouts, in prefill a head dim that is no
    multiple of 32, a per-channel scale with left padding or a requested log-sum-exp, and a negative band.

    ## Why it is wrong
    Tiling rejects the call.

    ## Use instead
    Quantise the output outside the operator.

    ## Ops and versions
    FIA v1 and v2. All versions.

    ## Evidence
    B10, G22, G24: prefill tiling (CANN 8.5 snapshot), op-plugin documentation.
    """

    code = "KV817"
    name = "int8-output-conflict"
    severity = Severity.HOST
    confidence = Confidence.MEDIUM
    contract = ("B10", "G22", "G24")
    families = ("fia",)
    bad = {
        "head dim": """
            q = x.view(2, 16, 8, 80)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSND",
                quant_scale2=torch.ones(1),  # KV817
            )
        """,
        "negative band": """
            torch_npu.npu_fused_infer_attention_score(
                x.view(2, 16, 8, 128), k, v, num_heads=8, num_key_value_heads=8, scale=0.1,
                input_layout="BSND", sparse_mode=4, atten_mask=mask, pre_tokens=64, next_tokens=-8,
                quant_scale2=torch.ones(1),  # KV817
            )
        """,
    }
    ok = {
        "fits": """
            q = x.view(2, 16, 8, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSND",
                quant_scale2=torch.ones(1))
        """,
        "float output": """
            q = x.view(2, 16, 8, 80)
            torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSND")
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges each conflict."""
        scale = call.arg("out_quant_scale")
        if scale.is_none.yes:
            yield NOT_APPLICABLE
            return
        given = scale.present
        prefill = given & ~decode_engine(call)
        layout = call.layout
        yield require(
            ~layout.among(("BSH_NBSD", "BSND_NBSD", "BNSD_NBSD")),
            f"{layout.get('this layout')} does not serve a quantised output",
            when=given,
            at=scale,
        )
        size = whole(call.head_dim)
        if size is not None:
            yield require(
                call.head_dim.holds(lambda dim: dim.integer is not None and dim.integer % 32 == 0),
                f"a quantised output needs a head dim that is a multiple of 32, not {size}",
                when=prefill,
                at=scale,
            )
        several = scale.shape.holds(_per_channel)
        for what, holds in (
            ("left padding", call.arg("query_padding").present | call.arg("kv_padding").present),
            ("a requested log-sum-exp", call.arg("lse_flag").constant.holds(bool)),
        ):
            if several.yes:
                yield require(
                    ~holds,
                    f"a quantised output per channel does not go with {what}",
                    when=prefill,
                    at=scale,
                )
        for role in ("pre_tokens", "next_tokens"):
            tokens = call.arg(role)
            yield require(
                tokens.constant.holds(lambda value: not isinstance(value, int) or value >= 0),
                f"a quantised output does not go with a negative {tokens.name}",
                when=prefill & call.arg("sparse_mode").constant.among((0, 4)),
                at=scale,
            )


def _per_channel(shape: tuple[Num | None, ...]) -> bool:
    return len(shape) > 1 or (len(shape) == 1 and shape[0] is not None and shape[0].const != 1)
