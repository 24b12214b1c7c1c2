"""KV702: an output buffer of the caller is rebound instead of filled."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class ReboundOutput(Rule):
    """The caller's output buffer is rebound to the operator's result, so that nothing is written to it.

    ## What it does
    Reports ``output, _ = operator(...)`` where ``output`` is a required parameter and nothing in the
    function writes into it; in a function that returns nothing, also what is made of a result:
    ``attn = self.attend(...)``, ``output = attn.view(...)``.

    ## Why it is wrong
    Assigning to a parameter changes the name, not the tensor. A caller that reads its preallocated buffer
    (graph capture, custom-op wrappers) finds what was there before.

    ## Use instead
    Bind the result to another name and copy it: ``output[:n] = result`` or ``output.copy_(result)``, or
    use the ``.out`` form.

    ## Ops and versions
    All attention operators.

    ## Evidence
    ATB-04 (operators with an ``out`` argument write into it), A13 (captured graphs replay into fixed
    buffers); Python semantics.
    """

    code = "KV702"
    name = "rebound-output"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("ATB-04", "A13")
    events = ("output-rebound",)
    bad = {
        "unpacked into the parameter": """
            def forward(self, q, k, v, output):
                output, _ = torch_npu.npu_fused_infer_attention_score(  # KV702
                    q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1)
                return output
        """,
        "view of a result": """
            class Attention:
                def attend(self, q, k, v):
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1)[0]

                def forward(self, q, k, v, output):
                    attn = self.attend(q, k, v)
                    output = attn.view(q.shape[0], -1)  # KV702
        """,
        "result of a helper": """
            def attend(q, k, v):
                return torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1)

            def forward(q, k, v, out):
                out = attend(q, k, v)[0]  # KV702
        """,
    }
    ok = {
        "view of a result is copied": """
            class Attention:
                def attend(self, q, k, v):
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1)[0]

                def forward(self, q, k, v, output):
                    attn = self.attend(q, k, v)
                    output[: attn.shape[0]].copy_(attn.view(q.shape[0], -1))
        """,
        "returned under the same name": """
            class Attention:
                def attend(self, q, k, v):
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1)[0]

                def project(self, attn, output):
                    output = attn.view(attn.shape[0], -1)
                    return self.o_proj(output)
        """,
        "copied": """
            def forward(self, q, k, v, output):
                result, _ = torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1)
                output[:] = result
                return output
        """,
        "optional buffer": """
            def forward(self, q, k, v, output=None):
                output, _ = torch_npu.npu_fused_infer_attention_score(
                    q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BNSD", scale=0.1)
                return output
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the assignment."""
        name = event.detail["parameter"]
        return violated(
            f"{name} is rebound to the result, so the buffer that the caller passed stays as it was",
            event.place,
            event.notes,
            f"Copy the result into it: {name}[:] = result.",
        )
