"""KV653: query or key is used as un-rotated after npu_apply_rotary_pos_emb has rotated it in place."""

from __future__ import annotations

from collections.abc import Iterator

from kvlint.contract.call import Call
from kvlint.contract.rule import NOT_APPLICABLE, Confidence, Rule, Severity, Verdict, violated
from kvlint.contract.tri import Note


class RotatedInputReused(Rule):
    """Query or key is used as un-rotated after npu_apply_rotary_pos_emb has rotated it in place.

    ## What it does
    Reports a call whose result goes on under another name while the tensor that was passed in is used again.

    ## Why it is wrong
    The schema looks functional, but the wrapper runs the kernel on query and key themselves and returns these
    tensors. What is meant to be the state before the rotation is rotated, too.

    ## Use instead
    Pass `query.clone()`, or keep a clone for the use without positions.

    ## Ops and versions
    npu_apply_rotary_pos_emb. All versions.

    ## Evidence
    3.9: wrapper source of op-plugin.
    """

    code = "KV653"
    name = "rotated-input-reused"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("3.9",)
    operators = ("npu_apply_rotary_pos_emb",)
    bad = {
        "score without positions": """
            def attend(q, k, cos, sin):
                q_rot, k_rot = torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")  # KV653
                content = torch.einsum("bshd,bthd->bhst", q, k)
                return content + torch.einsum("bshd,bthd->bhst", q_rot, k_rot)
        """,
        "another name of the same tensor": """
            def attend(q, k, cos, sin):
                plain = q
                q_rot, k = torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")  # KV653
                return torch.cat([plain, q_rot], dim=-1), k
        """,
    }
    ok = {
        "made contiguous by a copy": """
            def attend(x, k, cos, sin):
                q = x.view(2, 4, 8, 128).transpose(1, 2)
                q_rot, k_rot = torch_npu.npu_apply_rotary_pos_emb(q.contiguous(), k, cos, sin, layout="BNSD")
                return torch.matmul(q, q_rot), k_rot
        """,
        "for its dtype": """
            def attend(q, k, cos, sin):
                q_rot, k_rot = torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")
                return torch.matmul(q_rot, k_rot).to(q).view_as(q)
        """,
        "as a buffer": """
            def attend(q, k, cos, sin):
                q_rot, k_rot = torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")
                score = torch.matmul(q_rot, k_rot)
                torch.mul(score, 2, out=q)
                k.copy_(score)
                return q + k
        """,
        "a clone is kept": """
            def attend(q, k, cos, sin):
                plain = q.clone()
                q_rot, k_rot = torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")
                return torch.matmul(plain, q_rot), k_rot
        """,
        "under the same name": """
            def attend(q, k, cos, sin):
                q, k = torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")
                return torch.matmul(q, k)
        """,
        "for the rotation in place": """
            def attend(q, k, cos, sin):
                torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")
                return torch.matmul(q, k)
        """,
        "only its shape": """
            def attend(q, k, cos, sin):
                q_rot, k_rot = torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="BSND")
                return torch.matmul(q_rot, k_rot).view(q.shape[0], q.size(1), -1)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges query and key."""
        touched = call.use.touched
        for index, name in enumerate(("query", "key")):
            # What happens to the tensor that is passed in counts from -1 downwards.
            again = touched.get(-1 - index)
            if index not in touched or again is None:
                yield NOT_APPLICABLE
                continue
            yield violated(
                f"{name} is used again as if it were not rotated, but the operator works in place",
                call.named(name),
                [Note("it is used again here", again)],
                f"Pass {name}.clone(), or keep a clone.",
            )
