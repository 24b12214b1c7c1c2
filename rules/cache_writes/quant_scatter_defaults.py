"""KV614: npu_quant_scatter relies on defaults that changed."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, require

from ._common import QUANT_SCATTER


class QuantScatterDefaults(Rule):
    """npu_quant_scatter relies on axis defaults that changed between releases.

    ## What it does
    Reports npu_quant_scatter and npu_quant_scatter_ without an explicit `axis` or `quant_axis`.

    ## Why it is wrong
    op-plugin 26.0.0 changed the defaults: `axis` from 0 to -2, `quant_axis` from 1 to -1. The same call
    writes along another axis and scales along another one, depending on the installed wheel, without an
    error.

    ## Use instead
    Pass both: `axis=-2, quant_axis=-1` for a (blocks, block, dim) cache.

    ## Ops and versions
    npu_quant_scatter, npu_quant_scatter_. The change is between the 7.x and the 26.x wheels.

    ## Evidence
    QS-01: schemas of the released torch_npu wheels.
    """

    code = "KV614"
    name = "quant-scatter-defaults"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("QS-01",)
    operators = QUANT_SCATTER
    bad = {
        "both omitted": """
            torch_npu.npu_quant_scatter_(cache, where.int(), new, factors)  # KV614
        """,
        "one omitted": """
            torch_npu.npu_quant_scatter_(cache, where.int(), new, factors, axis=-2)  # KV614
        """,
    }
    ok = {
        "both given": """
            torch_npu.npu_quant_scatter_(cache, where.int(), new, factors, axis=-2, quant_axis=-1)
        """,
        "positional": """
            torch_npu.npu_quant_scatter_(cache, where.int(), new, factors, None, -2, -1)
        """,
        "in a dict that is not visible": """
            def write(cache, where, new, factors, **axes):
                torch_npu.npu_quant_scatter_(cache, where.int(), new, factors, **axes)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges whether both axes are passed."""
        axes = call.named("axis"), call.named("quant_axis")
        missing = " and ".join(arg.name for arg in axes if arg.given.no)
        return require(
            axes[0].given & axes[1].given,
            f"{missing} is left at a default that changed in op-plugin 26.0.0",
            at=call.place,
            fix="Pass axis and quant_axis explicitly.",
        )
