"""KV109: an MLA scale that is computed from the absorbed or from the nope part."""

from __future__ import annotations

import re

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, undecided, violated
from kvlint.contract.tri import YES, Fact, Note, Tri

from ._common import inverse_square, rope, whole
from .scale_not_head_dim import close

ABSORBED = ("npu_sparse_flash_attention", "_npu_paged_attention_mla", "npu_multi_head_latent_attention")
"""Operators that only exist for the absorbed form."""
FIX = "Use the head before absorption: (qk_nope_head_dim + qk_rope_head_dim) ** -0.5."
JOINT = "the width of the absorbed query with its rope part"


class AbsorbedScale(RunRule):
    """An MLA scale that is computed from the absorbed or from the nope part.

    ## What it does
    For a call with separate rope parts, or an operator for absorbed MLA, reports a scale that is
    1/sqrt(query's own last axis), and for the absorbed form (also known by key and value being one tensor)
    1/sqrt(512 + 64) or the same with the widths by name. A size that is called nope or kv_lora_rank tells the
    part by itself.

    ## Why it is wrong
    The scale belongs to the head the model was trained with: nope and rope part before absorption, 128 + 64 =
    192 for DeepSeek, 192 + 64 = 256 for GLM-5. Query's last axis is 512 once the projection is absorbed, and
    leaves the rope part out otherwise. The examples in the operator documentation use 576 and 128. Nothing
    checks it. Factors such as mscale squared are not reported.

    ## Use instead
    `(qk_nope_head_dim + qk_rope_head_dim) ** -0.5`, times mscale squared for YaRN models.

    ## Ops and versions
    FIA v1 and v2 with query_rope and key_rope, npu_sparse_flash_attention, _npu_paged_attention_mla,
    npu_multi_head_latent_attention. All versions.

    ## Evidence
    A04, SP-11, X19: model code of cann-recipes-infer (DeepSeek, GLM-5) against the documentation examples.
    """

    code = "KV109"
    name = "absorbed-scale"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("A04", "SP-11")
    families = ("fia",)
    operators = ABSORBED
    bad = {
        "absorbed plus rope": """
            q = x.view(4, 1, 16, 512)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, query_rope=qr, key_rope=kr, num_heads=16, num_key_value_heads=1,
                input_layout="BSND", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                scale=1 / math.sqrt(512 + 64),  # KV109
            )
        """,
        "without the rope part": """
            def attend(x, k, v, qr, kr, ends, mask, heads, nope):
                q = x.view(-1, heads, nope)
                opts = {"num_query_heads": heads, "num_key_value_heads": heads, "input_layout": "TND",
                        "sparse_mode": 3, "atten_mask": mask}
                opts["softmax_scale"] = nope ** -0.5  # KV109
                return torch_npu.npu_fused_infer_attention_score_v2(
                    q, k, v, query_rope=qr, key_rope=kr, actual_seq_qlen=ends, actual_seq_kvlen=ends, **opts)
        """,
        "sparse attention": """
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picks,
                576 ** -0.5,  # KV109
                block_table=table, actual_seq_lengths_query=ends, actual_seq_lengths_kv=lens, query_rope=qr,
                key_rope=kr, layout_query="TND", layout_kv="PA_BSND", sparse_mode=3, attention_mode=2)
        """,
        "widths by name": """
            class Decode:
                def __init__(self, config):
                    self.width = config.kv_lora_rank + config.qk_rope_head_dim
                    self.heads, self.scale = config.heads, self.width ** -0.5

                def forward(self, q, latent, qr, kr, table, ends, lens):
                    return torch_npu.npu_fused_infer_attention_score(
                        q, latent, latent, query_rope=qr, key_rope=kr, num_heads=self.heads,
                        num_key_value_heads=1, input_layout="TND", block_table=table, block_size=128,
                        actual_seq_lengths=ends, actual_seq_lengths_kv=lens,
                        scale=self.scale,  # KV109
                    )
        """,
        "nope part by name": """
            def decode(q, latent, qr, kr, table, ends, lens, config):
                return torch_npu.npu_fused_infer_attention_score(
                    q, latent, latent, query_rope=qr, key_rope=kr, num_heads=16, num_key_value_heads=1,
                    input_layout="TND", block_table=table, block_size=128, actual_seq_lengths=ends,
                    actual_seq_lengths_kv=lens,
                    scale=config.qk_nope_head_dim ** -0.5,  # KV109
                )
        """,
    }
    ok = {
        "both parts by name": """
            def decode(q, latent, qr, kr, table, ends, lens, config):
                width = config.qk_nope_head_dim + config.qk_rope_head_dim
                return torch_npu.npu_fused_infer_attention_score(
                    q, latent, latent, query_rope=qr, key_rope=kr, num_heads=16, num_key_value_heads=1,
                    input_layout="TND", block_table=table, block_size=128, actual_seq_lengths=ends,
                    actual_seq_lengths_kv=lens, scale=width ** -0.5)
        """,
        "head of the model": """
            q = x.view(4, 1, 16, 512)
            torch_npu.npu_fused_infer_attention_score(
                q, cache, cache, query_rope=qr, key_rope=kr, num_heads=16, num_key_value_heads=1,
                input_layout="BSND", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                scale=192 ** -0.5)
        """,
        "times mscale squared": """
            def attend(x, k, v, qr, kr, ends, mask, heads, nope, rope, mscale):
                q = x.view(-1, heads, nope)
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, query_rope=qr, key_rope=kr, num_heads=heads, num_key_value_heads=heads,
                    input_layout="TND", sparse_mode=3, atten_mask=mask, actual_seq_lengths=ends,
                    actual_seq_lengths_kv=ends, scale=(nope + rope) ** -0.5 * mscale * mscale)
        """,
        "no rope parts": """
            q = x.view(4, 16, 1, 128)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=16, num_key_value_heads=16, input_layout="BNSD", scale=128 ** -0.5)
        """,
        "unknown scale": """
            class Decode:
                def forward(self, q, cache, qr, kr, table, lens):
                    return torch_npu.npu_fused_infer_attention_score(
                        q, cache, cache, query_rope=qr, key_rope=kr, num_heads=16, num_key_value_heads=1,
                        input_layout="BSND", block_table=table, block_size=128, actual_seq_lengths_kv=lens,
                        scale=self.scale)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Compares the scale with the wrong forms."""
        scale = call.arg("scale")
        always = call.operator.name.split(".")[0] in ABSORBED
        split = YES if always else rope(call)
        if split.no or scale.given.no:
            return NOT_APPLICABLE
        factor = scale.number
        dim = call.arg("query").dim(-1) if always else call.head_dim
        if split.unknown or not factor.known:
            return undecided(split, *factor.notes)
        latent = call.arg("key")
        shared = (
            call.operator.family == "fia"
            and latent.same_as(call.arg("value")).yes
            and whole(dim) in (None, 512)
            and whole(latent.dim(-1)) in (None, 512)
        )
        absorbed = always or shared or whole(dim) == 512
        forms = _wrong_forms(dim, call.arg("query_rope").dim(-1), absorbed)
        if shared:
            forms += _latent_forms(call)
        named = _named_part(factor.value)
        if named:
            return violated(
                f"{scale.name} is 1/sqrt({inverse_square(factor.value).label}), {named}",
                scale,
                factor.notes,
                fix=FIX,
            )
        for wrong, what in forms:
            if close(factor.value, wrong.power(-0.5)):
                return violated(
                    f"{scale.name} is 1/sqrt({wrong.label}), {what}",
                    scale,
                    (*factor.notes, *dim.notes),
                    fix=FIX,
                )
        return undecided(Tri(None, (*dim.notes, Note("the head dim of the model is not visible here"))))


def _latent_forms(call: Call) -> list[tuple[Num, str]]:
    """The widths of the absorbed query by those of the cache that it meets."""
    key, rotary = call.arg("key"), call.arg("key_rope").dim(-1)
    single = whole(call.kv_heads) == 1 and key.rank.known and key.rank.value in (3, 4)
    width = key.dim(-1)
    if not (single and width.known):
        return []
    found = [(width.value, "the width of the absorbed query")]
    if rotary.known:
        found.append((width.value + rotary.value, JOINT))
    return found


def _named_part(factor: Num) -> str:
    """What a scale leaves out or adds, when its size is called by the name of one part of the head."""
    base = inverse_square(factor)
    parts = [monomial[0][0] for monomial in base.terms if len(monomial) == 1 and monomial[0][1] == 1]
    if len(parts) != len(base.terms) or any(value != 1 for value in base.terms.values()):
        return ""
    names = [part.label.rsplit(".", 1)[-1] for part in parts]
    if len(names) == 1 and _NOPE.search(names[0]) and "rope" not in names[0]:
        return "the nope part alone, which leaves out the rope part"
    if "kv_lora_rank" in names and all(name == "kv_lora_rank" or "rope" in name for name in names):
        return JOINT if len(names) > 1 else "the width of the absorbed query"
    return ""


_NOPE = re.compile(r"(?:^|_)nope(?:_head)?(?:_dim|_size)?$")


def _wrong_forms(dim: Fact[Num], rotary: Fact[Num], absorbed: bool) -> list[tuple[Num, str]]:
    found: list[tuple[Num, str]] = []
    if absorbed:
        found += [(Num.of(576), JOINT), (Num.of(512), "the width of the absorbed query")]
        if dim.known and rotary.known:
            found.append((dim.value + rotary.value, JOINT))
    if dim.known:
        found.append((dim.value, "query's own last axis, which leaves out the rope part or is absorbed"))
    return found
