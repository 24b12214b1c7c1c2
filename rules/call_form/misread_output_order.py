"""KV151: an output with the heads before the tokens is viewed as if tokens came first."""

from __future__ import annotations

from kvlint.contract.call import Call, View
from kvlint.contract.num import Num
from kvlint.contract.rule import NOT_APPLICABLE, PROVED, Confidence, RunRule, Severity, Verdict, violated
from kvlint.contract.sizes import constant

from ._common import head_dim

_TURNING = ("transpose", "permute", "swapaxes", "movedim", "swapdims")


class MisreadOutputOrder(RunRule):
    """An output with the heads before the tokens is viewed as if tokens came first.

    ## What it does
    Reports a `view` or `reshape` of the output of TND_NTD, NTD and the `_NBSD` layouts to
    (..., heads, head_dim) or (..., heads * head_dim), with nothing that moves the head axis before. So it
    does for a BNSD output of a call without a cache that becomes (batch, tokens, ...).

    ## Why it is wrong
    What stands after the underscore is the layout of the output: (N,T,D) or (N,B,S,D). The view has the same
    number of elements, so it goes through, and every row is made of pieces of several tokens and heads.

    ## Use instead
    `out.transpose(0, 1).reshape(tokens, heads * head_dim)`, or a layout without NTD or NBSD. For BNSD
    `out.transpose(1, 2).reshape(batch, tokens, heads * head_dim)`, or BNSD_BSND.

    ## Ops and versions
    FIA v1 and v2; for BNSD also npu_prompt_flash_attention and npu_fusion_attention. All versions.

    ## Evidence
    1.4, B20: output shapes of the wrapper and the meta kernel (executed on torch_npu 2.13).
    """

    code = "KV151"
    name = "misread-output-order"
    severity = Severity.SILENT
    confidence = Confidence.HIGH
    contract = ("1.4", "B20")
    families = ("fia", "pfa", "fusion")
    bad = {
        "heads in the middle": """
            def attend(q, kv, qr, kr, heads, table, ends, lens):
                out, _ = torch_npu.npu_fused_infer_attention_score(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_heads=heads, num_key_value_heads=1,
                    input_layout="TND_NTD", scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=lens)
                return out.view(-1, heads, 512)  # KV151
        """,
        "heads folded, in a helper": """
            class Attention:
                def project(self, x):
                    return self.o_proj(x.reshape(-1, self.heads * 512))  # KV151

                def forward(self, q, kv, qr, kr, table, lens):
                    out, _ = torch_npu.npu_fused_infer_attention_score_v2(
                        q, kv, kv, query_rope=qr, key_rope=kr, num_query_heads=self.heads,
                        num_key_value_heads=1, input_layout="BSND_NBSD", softmax_scale=192**-0.5,
                        block_table=table, block_size=128, actual_seq_kvlen=lens)
                    return self.project(out)
        """,
        "BNSD read as BSND": """
            class Attention:
                def forward(self, x, heads, dim):
                    b, s, _ = x.shape
                    q = x.view(b, s, heads, dim).transpose(1, 2).contiguous()
                    out = torch_npu.npu_prompt_flash_attention(
                        q, q, q, num_heads=heads, num_key_value_heads=heads, scale_value=dim**-0.5,
                        input_layout="BNSD")
                    return out.reshape(b, s, heads * dim)  # KV151
        """,
    }
    ok = {
        "batch and heads on one axis": """
            class Attention:
                def forward(self, x, heads, dim):
                    b, s, _ = x.shape
                    q = x.view(b, s, heads, dim).transpose(1, 2).contiguous()
                    out = torch_npu.npu_prompt_flash_attention(
                        q, q, q, num_heads=heads, num_key_value_heads=heads, scale_value=dim**-0.5,
                        input_layout="BNSD")
                    return torch.bmm(out.reshape(b * heads, s, dim), self.weight)
        """,
        "BNSD turned first": """
            class Attention:
                def forward(self, x, heads, dim):
                    b, s, _ = x.shape
                    q = x.view(b, s, heads, dim).transpose(1, 2).contiguous()
                    out = torch_npu.npu_prompt_flash_attention(
                        q, q, q, num_heads=heads, num_key_value_heads=heads, scale_value=dim**-0.5,
                        input_layout="BNSD")
                    return out.transpose(1, 2).reshape(b, s, heads * dim)
        """,
        "one token of a cache": """
            def decode(x, k_cache, v_cache, lens, heads, dim):
                b, s, _ = x.shape
                q = x.view(b, s, heads, dim).transpose(1, 2)
                out, _ = torch_npu.npu_fused_infer_attention_score(
                    q, k_cache, v_cache, num_heads=heads, num_key_value_heads=1, scale=dim**-0.5,
                    input_layout="BNSD", actual_seq_lengths_kv=lens)
                return out.reshape(b, s, heads * dim)
        """,
        "turned first": """
            def attend(q, kv, qr, kr, heads, table, ends, lens):
                out, _ = torch_npu.npu_fused_infer_attention_score(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_heads=heads, num_key_value_heads=1,
                    input_layout="TND_NTD", scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=lens)
                return out.transpose(0, 1).reshape(-1, heads * 512)
        """,
        "heads first": """
            def attend(q, kv, qr, kr, heads, weight, table, ends, lens):
                out, _ = torch_npu.npu_fused_infer_attention_score(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_heads=heads, num_key_value_heads=1,
                    input_layout="TND_NTD", scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=lens)
                return torch.bmm(out.view(heads, -1, 512), weight)
        """,
        "rows of all heads": """
            def attend(q, kv, qr, kr, table, ends, lens):
                out, _ = torch_npu.npu_fused_infer_attention_score(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_heads=16, num_key_value_heads=1,
                    input_layout="TND_NTD", scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=lens)
                return out.view(-1, 512)
        """,
        "tokens come first": """
            def attend(q, kv, qr, kr, heads, table, ends, lens):
                out, _ = torch_npu.npu_fused_infer_attention_score(
                    q, kv, kv, query_rope=qr, key_rope=kr, num_heads=heads, num_key_value_heads=1,
                    input_layout="TND", scale=192**-0.5, block_table=table, block_size=128,
                    actual_seq_lengths=ends, actual_seq_lengths_kv=lens)
                return out.view(-1, heads, 512)
        """,
    }

    def check(self, call: Call) -> Verdict:
        """Judges how the output is viewed."""
        views = [view for view in call.use.views if view.index == 0]
        layout = call.layout
        if not views or not layout.known or not call.heads.known:
            return NOT_APPLICABLE
        heads = call.heads.value
        if heads.integer == 1:
            return NOT_APPLICABLE
        if layout.value.rpartition("_")[2] == "BNSD":
            return _batched(call, views, heads)
        if layout.value.rpartition("_")[2] not in ("NTD", "NBSD") or _one_token(call):
            return NOT_APPLICABLE
        for view in views:
            if _tokens_first(call, view, heads):
                return violated(
                    f"the output of {layout.value} has the heads first, but this view takes them for the "
                    "last axes: rows mix tokens and heads",
                    view.place,
                    layout.notes,
                    "Move the head axis first: out.transpose(0, 1).reshape(tokens, heads * head_dim).",
                )
        turned = all(view.method in _TURNING or _heads_first(view, heads) for view in views)
        return PROVED if turned else NOT_APPLICABLE


def _keeps_batch(call: Call, sizes: tuple[Num | None, ...], heads: Num) -> bool:
    """Whether the first of three sizes is the batch alone, or the last one holds all heads."""
    batch, dim = call.arg("query").dim(0), call.head_dim
    if batch.known and sizes[0] == batch.value:
        return True
    return dim.known and sizes[2] == heads * dim.value


def _batched(call: Call, views: list[View], heads: Num) -> Verdict:
    """Judges the views of (batch, heads, tokens, dim)."""
    tokens, keys = call.query_length, call.key_length
    cached = not call.paged.no or not call.arg("kv_lens").is_none.yes
    if cached or not (tokens.known and keys.known) or tokens.value.integer == 1:
        return NOT_APPLICABLE
    if keys.value != tokens.value and keys.value.single is None:
        # Keys that were put behind earlier ones: the query may be one token.
        return NOT_APPLICABLE
    for view in views:
        sizes = view.sizes
        if view.method not in ("view", "reshape") or sizes is None or len(sizes) not in (3, 4):
            continue
        if len(sizes) == 3 and not _keeps_batch(call, sizes, heads):
            # (batch * heads, tokens, dim) is in order.
            continue
        if sizes[1] == tokens.value != heads and (len(sizes) == 3 or sizes[2] == heads):
            return violated(
                f"the output of {call.layout.value} has the heads before the tokens, but this view takes "
                "them for the last axes: rows mix tokens and heads",
                view.place,
                call.layout.notes,
                "Move the head axis first: out.transpose(1, 2).reshape(batch, tokens, heads * head_dim).",
            )
    return NOT_APPLICABLE


def _one_token(call: Call) -> bool:
    """With a single row of tokens the order makes no difference."""
    rows = constant(call.query_length).equals(1)
    return rows.yes and (call.packed.yes or constant(call.batch).equals(1).yes)


def _heads_first(view: View, heads: Num) -> bool:
    return view.method in ("view", "reshape") and bool(view.sizes) and view.sizes[0] == heads  # type: ignore[index]


def _tokens_first(call: Call, view: View, heads: Num) -> bool:
    sizes = view.sizes
    if view.method not in ("view", "reshape") or sizes is None or len(sizes) < 2 or sizes[0] == heads:
        return False
    if len(sizes) > 2 and sizes[-2] == heads:
        return True
    last = sizes[-1]
    if last is None:
        return False
    if heads.const is None:
        each = last.divide(heads)
        return each is not None and (each.integer is not None or each.single is not None)
    width = head_dim(call, call.arg("value"))
    return width.known and last == heads * width.value
