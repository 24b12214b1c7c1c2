"""KV204: the compressed mask has another shape than 2048 x 2048."""

from __future__ import annotations

from kvlint.contract.call import Call
from kvlint.contract.num import Num
from kvlint.contract.rule import PROVED, Confidence, RunRule, Severity, Verdict, require, undecided, violated
from kvlint.contract.tri import Tri

from ._common import COMPRESSED, SIDE, follows_query, mode_among, sparse_mode


class MaskNot2048(RunRule):
    """The mask of sparse mode 2, 3 or 4 is not the compressed 2048 x 2048 one.

    ## What it does
    Compares the shape of `atten_mask` with (2048, 2048), (1, 2048, 2048) and (1, 1, 2048, 2048) when
    `sparse_mode` is 2, 3 or 4. Reports constants that differ, and a mask sized by the query and key of the
    call.

    ## Why it is wrong
    In these modes the operator reads one fixed triangle and shifts it by the lengths; it does not read a
    mask of the sequence length. Tiling rejects any other shape. The meta kernel accepts it. A mask made for
    the sequence length works only while that length happens to be 2048.

    ## Use instead
    Build `torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)` once and pass it whatever the
    lengths are. A full mask goes with `sparse_mode` 0 or 1.

    ## Ops and versions
    FIA v1 and v2, npu_prompt_flash_attention, the npu_fusion_attention family. All versions. A decode call
    with mode 2 and a row mask per request is another case (rule `decode-mask-rows`).

    ## Evidence
    C04, C13, C19, C22, FUS-05: prefill and decode tiling of ops-transformer (CANN 8.5 snapshot), op-plugin
    documentation; accepted by the meta kernel of torch_npu 2.13 (executed).
    """

    code = "KV204"
    name = "mask-not-2048"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("C04", "C13", "C19", "C22", "FUS-05")
    families = ("fia", "pfa", "fusion")
    bad = {
        "another constant": """
            hidden = torch.triu(torch.ones(4096, 4096, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3,
                atten_mask=hidden,  # KV204
            )
        """,
        "sized by the query": """
            def run(q, k, v):
                n = q.shape[1]
                opts = {"num_query_heads": 8, "softmax_scale": 0.1, "input_layout": "BSND", "sparse_mode": 3}
                opts["atten_mask"] = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)  # KV204
                torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **opts)
        """,
        "query length by key length": """
            hidden = torch.ones(q_len, kv_len, dtype=torch.bool).triu(kv_len - q_len + 1)
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BNSD", scale=0.1, sparse_mode=2,
                atten_mask=hidden,  # KV204, KV212
            )
        """,
        "one mask per request": """
            hidden = torch.zeros(4, 2048, 2048, dtype=torch.bool)
            hidden[:, 0] = pad
            torch.ops.npu.npu_prompt_flash_attention(
                q, k, v, num_heads=8, scale_value=0.1, input_layout="BSND", sparse_mode=3,
                atten_mask=hidden,  # KV204
            )
        """,
    }
    ok = {
        "compressed": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=hidden,
            )
        """,
        "compressed with leading ones": """
            hidden = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="BSND", sparse_mode=3,
                atten_mask=hidden[None],
            )
        """,
        "size chosen elsewhere": """
            class Masks:
                def __init__(self, side):
                    self.hidden = torch.triu(torch.ones(side, side, dtype=torch.bool), diagonal=1)

                def run(self, q, k, v, ends):
                    return torch_npu.npu_fused_infer_attention_score(
                        q, k, v, num_heads=8, scale=0.1, input_layout="TND", actual_seq_lengths=ends,
                        actual_seq_lengths_kv=ends, sparse_mode=3, atten_mask=self.hidden,
                    )
        """,
        "full mask in mode 1": """
            n = q.shape[1]
            hidden = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
            torch_npu.npu_fused_infer_attention_score_v2(
                q, k, v, num_query_heads=8, softmax_scale=0.1, input_layout="BSND", sparse_mode=1,
                atten_mask=hidden,
            )
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges the shape of the mask."""
        mask = call.arg("mask")
        when = mask.present & mode_among(call, *COMPRESSED)
        if mode_among(call, 2).yes and call.operator.family == "fia":
            when = when & call.prefill_engine
        shapes = mask.shape
        if when.no or shapes.values is None:
            return require(Tri(None, shapes.notes), "", when=when)
        states = {_compressed(call, shape) for shape in shapes.values}
        if states == {True}:
            return PROVED if when.yes else undecided(when)
        if states != {False} or not when.yes:
            return undecided(Tri(None, shapes.notes), *(() if when.yes else (when,)))
        shape = ", ".join("?" if size is None else size.label for size in shapes.values[0])
        return violated(
            f"sparse_mode={sparse_mode(call)} reads the compressed {SIDE} x {SIDE} mask, "
            f"{mask.name} has shape ({shape})",
            mask,
            shapes.notes,
            f"Pass torch.triu(torch.ones({SIDE}, {SIDE}, dtype=torch.bool), diagonal=1), "
            "or use sparse_mode 0 or 1 with a full mask.",
        )


def _compressed(call: Call, shape: tuple[Num | None, ...]) -> bool | None:
    """Whether the shape is a compressed mask's; None when that cannot be told."""
    if not 2 <= len(shape) <= 4:
        return False
    leading = [size.integer if size is not None else None for size in shape[:-2]]
    if any(size is not None and size != 1 for size in leading):
        return False
    rows, columns = shape[-2:]
    if rows is not None and rows.integer == 1 and not (call.packed | call.prefill_engine).yes:
        return None  # one row per request: a decode mask, which the prefill modes do not reach
    open_sizes = [size for size in (rows, columns) if size is None or size.integer is None]
    for size in (rows, columns):
        if size is not None and size.integer is not None and size.integer != SIDE:
            return False
        if size is not None and size.integer is None and follows_query(call, size):
            return False
    if len(open_sizes) == 2 and rows is not None and columns is not None and (rows - columns).const != 0:
        return False
    if open_sizes or None in leading:
        return None
    return True
