"""KV102: a keyword that the operator does not have."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from kvlint.contract.call import Call, Keyword, leaves
from kvlint.contract.data.roles import FAMILY_ROLES
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, undecided, violated
from kvlint.contract.tri import Note
from kvlint.contract.values import Absent, Choice, Sequence, Tensor, Unknown, Value

from ._common import schemas

ONLY_ELSEWHERE = {
    ("fia", "learnable_sink"): "only v2 takes it",
    ("fia", "dequant_scale_query"): "only v2 takes it",
    ("fia", "query_padding_size"): "only v1 takes it",
    ("fia", "kv_padding_size"): "only v1 takes it",
    ("fia", "antiquant_scale"): "v2 takes dequant_scale_key and dequant_scale_value",
    ("pfa", "block_table"): "it has no paged cache, npu_fused_infer_attention_score has",
    ("pfa", "inner_precise"): "npu_fused_infer_attention_score takes it",
    ("ifa", "sparse_mode"): "npu_fused_infer_attention_score takes it",
}


class UnknownKeyword(Rule):
    """A keyword that the operator does not have.

    ## What it does
    Reports a keyword that is not in the operator's schema, and names the one that means the same there.
    Keywords of a dict built in the same function are seen.

    ## Why it is wrong
    The call raises `RuntimeError: Unknown keyword argument` in eager mode, under torch.ops.npu and with fake
    tensors. It is loud, not silent: the silent case is a name that a wrapper filters out, so that the default
    is used. The operators name the same thing differently: scale / softmax_scale / scale_value, num_heads /
    num_query_heads / head_num, actual_seq_lengths_kv / actual_seq_kvlen / (npu_incre_flash_attention)
    actual_seq_lengths, pre_tokens / pre_tockens.

    ## Use instead
    The name of this operator and version, which the message gives where there is one.

    ## Ops and versions
    All operators, for the configured torch_npu release or the newest one.

    ## Evidence
    A01, FUS-01, PFA-01, IFA-02, KR-14: schemas of every release; 18 calls executed on torch_npu 2.13.
    """

    code = "KV102"
    name = "unknown-keyword"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("A01", "FUS-01", "PFA-01", "IFA-02", "KR-14", "1.3", "2.1")
    families = (
        "fia", "pfa", "ifa", "fusion", "atb", "sparse", "indexer", "merge", "cache_write", "cache_read",
        "prolog", "rotary", "misc",
    )  # fmt: skip
    bad = {
        "v1 names in v2": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, input_layout="BSH", num_key_value_heads=8, softmax_scale=0.1, num_query_heads=8,
                actual_seq_lengths_kv=lens,  # KV102
            )
        """,
        "v1 name in a dict for v2": """
            opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BSH"}
            opts["actual_seq_lengths_kv"] = lens  # KV102
            torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
        "window spelling of fusion attention": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSH", scale=0.1,
                pre_tokens=128,  # KV102
            )
        """,
        "paging in prompt attention": """
            torch.ops.npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                block_table=table,  # KV102
            )
        """,
        "option of a constructor": """
            class Attention:
                def __init__(self, heads, window=None):
                    self.heads, self.options = heads, {"sparse_mode": 3}
                    if window is not None:
                        self.options = {"sparse_mode": 4, "pre_tokens": window}

                def forward(self, q, k, v, mask):
                    return torch_npu.npu_fusion_attention(
                        q, k, v, self.heads, "BSND", scale=0.1, atten_mask=mask,
                        **self.options)  # KV102
        """,
    }
    ok = {
        "not on this path": """
            def attend(q, k, v, sink=None):
                options = {}
                if sink is not None:
                    options["learnable_sink"] = sink
                if not options:
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, scale=0.1, **options)
                return torch_npu.npu_fused_infer_attention_score_v2(
                    q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="TND",
                    actual_seq_qlen=[4], actual_seq_kvlen=[4], **options)
        """,
        "names for each operator": """
            class Attention:
                def __init__(self, heads, second):
                    self.heads, self.second = heads, second
                    self.options = {"softmax_scale": 0.1} if second else {"scale": 0.1}

                def forward(self, q, k, v):
                    if self.second:
                        return torch_npu.npu_fused_infer_attention_score_v2(
                            q, k, v, num_query_heads=self.heads, **self.options)
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=self.heads, **self.options)
        """,
        "v2 names in v2": """
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, input_layout="BSH", num_key_value_heads=8, softmax_scale=0.1, num_query_heads=8,
                actual_seq_kvlen=lens)
        """,
        "incremental attention calls KV lengths actual_seq_lengths": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=lens)
        """,
        "another function of the same name": """
            def npu_fusion_attention(q, k, v, scores=None):
                return q
            npu_fusion_attention(q, k, v, scores=1)
        """,
        "keys that are not visible": """
            def attend(q, k, v, **kwargs):
                return torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=8, **kwargs)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges every keyword that met no parameter."""
        for keyword in call.binding.unexpected:
            yield _judge(call, keyword)


def _judge(call: Call, keyword: Keyword) -> Verdict:
    passed = [not isinstance(value, Absent) for _, value in leaves(keyword.value, call.assumed)]
    if passed and not any(passed):
        return NOT_APPLICABLE
    if not keyword.certain and not all(passed) and not _goes_with_itself(call, keyword.value):
        return undecided(Note(f"{keyword.name} is passed on some paths only", keyword.place))
    operator = call.operator
    elsewhere = [schema for schema in schemas(call) if schema.param(keyword.name) is not None]
    if elsewhere:
        return undecided(Note(f"{keyword.name} exists up to torch_npu {elsewhere[-1].releases[-1]} only"))
    why = ONLY_ELSEWHERE.get((operator.family, keyword.name), "")
    here = "" if why else _same_meaning(call, keyword.name)
    return violated(
        f"{operator.name} has no argument {keyword.name}, so the call raises"
        + (f"; {why}" if why else f"; here it is {here}" if here else ""),
        keyword.place or call.place,
        fix=f"Pass {here} instead." if here else f"Remove {keyword.name}.",
    )


def _goes_with_itself(call: Call, value: Value) -> bool:
    """Whether an option is passed whenever it is there: the test is about the very value.

    Which operator is called does not depend on that, so the keyword is meant for this one. Another test on
    the way to the call may exclude the option, by a rule that is not visible here.
    """
    if not isinstance(value, Choice) or call.assumed or call.path:
        return False
    cond, holds = value.cond, True
    while len(cond.parts) == 1:
        cond, part = cond.parts[0]
        holds = holds == part
    given = (cond.kind == "truth") == holds
    there, gone = (value.yes, value.no) if given else (value.no, value.yes)
    if cond.kind not in ("none", "truth") or not isinstance(gone, Absent):
        return False
    return isinstance(there, (Unknown, Tensor, Sequence)) and there.key == cond.key


def _same_meaning(call: Call, name: str) -> str:
    """The parameter of this operator that means what ``name`` means elsewhere."""
    for roles in (FAMILY_ROLES.get(call.operator.family, {}), *FAMILY_ROLES.values()):
        role = roles.get(name)
        param = call.operator.by_role(role) if role else None
        if param is not None and call.binding.places.get(param.name) is None:
            return param.name
    free = [param.name for param in call.operator.params if param.name not in call.binding.places]
    return next(iter(get_close_matches(name, free, 1, 0.6)), "")
