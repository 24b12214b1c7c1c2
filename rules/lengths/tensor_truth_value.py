"""KV311: a tensor used as a condition."""

from __future__ import annotations

import re

from kvlint.contract.call import Arg, Call
from kvlint.contract.paths import Cond
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, RunRule, Severity, Verdict, violated
from kvlint.contract.values import Choice, Join, Sequence, Tensor, Value


class TensorTruthValue(RunRule):
    """Whether an argument is passed hangs on the truth value of a tensor.

    ## What it does
    Reports `lens.tolist() if lens else None` and its like: a test of a value that the same expression then
    treats as a tensor.

    ## Why it is wrong
    A tensor with more than one element has no truth value (RuntimeError), so the line works for one request
    only. With one element a length of 0 counts as "not given".

    ## Use instead
    `lens.tolist() if lens is not None else None`.

    ## Ops and versions
    Every attention operator.

    ## Evidence
    D05, A07: the forms of a length list; semantics of torch.Tensor.__bool__; a fix in dlinfer.
    """

    code = "KV311"
    name = "tensor-truth-value"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("D05", "A07")
    families = ("fia", "pfa", "ifa", "fusion", "sparse", "indexer", "atb")
    bad = {
        "lengths": """
            def run(q, k, v, q_lens):
                lens = None if not q_lens else q_lens.tolist()
                return torch_npu.npu_prompt_flash_attention(
                    q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH",
                    actual_seq_lengths=lens,  # KV311
                )
        """,
        "if statement into a dict": """
            def run(q, k, v, kv_lens):
                opts = dict(num_query_heads=8, softmax_scale=0.1, input_layout="BSH")
                ends = None
                if kv_lens:
                    ends = kv_lens.cpu().tolist()
                return torch.ops.npu.npu_fused_infer_attention_score_v2(
                    q, k, v,
                    actual_seq_kvlen=ends,  # KV311
                    **opts)
        """,
    }
    ok = {
        "compared with None": """
            def run(q, k, v, q_lens):
                lens = None if q_lens is None else q_lens.tolist()
                return torch_npu.npu_prompt_flash_attention(
                    q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH", actual_seq_lengths=lens)
        """,
        "a list may be empty": """
            def run(q, k, v, q_lens):
                lens = list(q_lens) if q_lens else None
                return torch_npu.npu_prompt_flash_attention(
                    q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH", actual_seq_lengths=lens)
        """,
        "another flag": """
            def run(q, k, v, q_lens, varlen):
                lens = q_lens.tolist() if varlen else None
                return torch_npu.npu_prompt_flash_attention(
                    q, k, v, num_heads=8, scale_value=0.1, input_layout="BSH", actual_seq_lengths=lens)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Looks at the tests that choose each argument."""
        for arg in call.args():
            cond = _tested_tensor(arg, arg.value)
            if cond is not None:
                return violated(
                    f"{arg.name} is chosen by the truth value of {cond.label}, a tensor: "
                    "ambiguous for more than one element",
                    arg,
                    fix=f"Test `{cond.label} is not None`.",
                )
        return NOT_APPLICABLE


def _tested_tensor(arg: Arg, value: Value) -> Cond | None:
    """The test of a tensor's truth that chooses the value, or None."""
    if isinstance(value, Join):
        return next((c for option in value.options if (c := _tested_tensor(arg, option))), None)
    if not isinstance(value, Choice):
        return None
    cond = value.cond
    named = cond.kind == "truth" and re.fullmatch(r"[A-Za-z_][\w.]*", cond.label)
    if named and any(_tensor_named(leaf, cond.label) for leaf in _leaves(value.yes)):
        return cond
    return _tested_tensor(arg, value.yes) or _tested_tensor(arg, value.no)


def _leaves(value: Value) -> list[Value]:
    if isinstance(value, Choice):
        return [*_leaves(value.yes), *_leaves(value.no)]
    return [value]


def _tensor_named(value: Value, name: str) -> bool:
    """Whether the value comes from a tensor method of what the name holds."""
    if isinstance(value, Sequence):
        return re.fullmatch(re.escape(name) + r"(\.\w+\([^()]*\))*\.tolist\(\)", value.label) is not None
    return isinstance(value, Tensor) and value.label == name
