"""KV113: an argument has a Python type that the schema does not take."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from functools import partial

from kvlint.contract.call import Arg, Call
from kvlint.contract.rule import PROVED, Confidence, Rule, Severity, Verdict, undecided, violated
from kvlint.contract.tri import YES, Note, Tri, tri
from kvlint.contract.values import (
    Absent,
    Choice,
    Const,
    DType,
    Join,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
)


class WrongArgumentType(Rule):
    """An argument has a Python type that the schema does not take.

    ## What it does
    Compares constants, lists, dtypes and tensors with the type in the schema: a float for an int, a string
    for a number, a list for a tensor, one number for a list of lengths, a tensor for a string. A value on one
    of several paths is left alone.

    ## Why it is wrong
    Schema matching raises `RuntimeError: Expected a value of type`. Frequent cases: `hidden / heads` for a
    head count (a float), a Python list for `block_table`, for key or value, or for the lengths of
    npu_sparse_flash_attention, npu_lightning_indexer and npu_fusion_attention_v3, which take tensors, and
    None for a scale.

    ## Use instead
    The type of the schema; `//` for counts, `torch.tensor(..., dtype=torch.int32)` for tables.

    ## Ops and versions
    All operators. A bool or a 0-d tensor is accepted for a number, and a CPU int tensor for a length list.

    ## Evidence
    A06, A07, A08, SP-05: schemas; 15 calls executed on torch_npu 2.13.
    """

    code = "KV113"
    name = "wrong-argument-type"
    severity = Severity.HOST
    confidence = Confidence.HIGH
    contract = ("A06", "A07", "A08")
    families = (
        "fia", "pfa", "ifa", "fusion", "atb", "sparse", "indexer", "merge", "cache_write", "cache_read",
        "prolog", "rotary",
    )  # fmt: skip
    bad = {
        "float head count": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                num_heads=1024 / 128,  # KV113
            )
        """,
        "list for the block table": """
            opts = {"num_query_heads": 8, "num_key_value_heads": 8, "softmax_scale": 0.1, "block_size": 128}
            opts["block_table"] = [[0, 1], [2, 3]]  # KV113
            torch.ops.npu.npu_fused_infer_attention_score_v2(
                q, k, v, input_layout="BSH", actual_seq_kvlen=lens, **opts)
        """,
        "one length instead of a list": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, scale_value=0.1, input_layout="BSH",
                actual_seq_lengths=128,  # KV113
            )
        """,
        "no scale": """
            torch_npu.npu_fusion_attention(
                q, k, v, 8, "BSH",
                scale=None,  # KV113
            )
        """,
        "lists where sparse attention takes tensors": """
            torch_npu.npu_sparse_flash_attention(
                q, cache, cache, picks, scale, block_table=table, layout_query="TND", layout_kv="PA_BSND",
                query_rope=qr, key_rope=kr, sparse_mode=3, attention_mode=2, actual_seq_lengths_query=ends,
                actual_seq_lengths_kv=[128, 256],  # KV113
            )
        """,
        "a length for the list of lengths": """
            longest = int(lens.max()) + 1
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSH", scale_value=0.1,
                actual_seq_lengths=longest)  # KV113
        """,
        "an element for the list of lengths": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSH", scale_value=0.1,
                actual_seq_lengths=lens.max().item())  # KV113
        """,
    }
    ok = {
        "arithmetic that may be a list's": """
            torch_npu.npu_incre_flash_attention(
                q, k, v, num_heads=8, num_key_value_heads=8, input_layout="BSH", scale_value=0.1,
                actual_seq_lengths=past + new)
        """,
        "integers": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=1024 // 128, num_key_value_heads=8, scale=1, input_layout="BSH",
                actual_seq_lengths_kv=[16, 16])
        """,
        "a bool for a number": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                softmax_lse_flag=1)
        """,
        "a tensor for lengths": """
            lens = torch.tensor([16, 16])
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                actual_seq_lengths_kv=lens)
        """,
        "unknown": """
            torch_npu.npu_fused_infer_attention_score(
                q, k, v, num_heads=n, num_key_value_heads=n, scale=s, input_layout=layout,
                actual_seq_lengths_kv=lens)
        """,
        "on one path only": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", scale=0.1 if scaled else None)
        """,
        "None for an optional tensor": """
            torch_npu.npu_fusion_attention(q, k, v, 8, "BSH", None, None, None, 0.1)
        """,
    }

    def check(self, call: Call) -> Iterator[Verdict]:
        """Judges every argument that is passed."""
        for arg in call.args():
            fits = arg.test(partial(_fits, arg))
            if fits.yes:
                yield PROVED
            elif isinstance(arg.value, (Choice, Join)):
                # The branch with the odd value may belong to a configuration that never gets here.
                yield undecided(fits, Note(f"{arg.name} differs between paths", arg.place))
            elif fits.no:
                yield violated(
                    f"{arg.name} is {_kind(arg)}, but the operator takes {_wanted(arg)}, so the call raises",
                    arg,
                    fits.notes,
                    fix=f"Pass {_wanted(arg)}.",
                )
            else:
                yield undecided(fits)


def _fits(arg: Arg, value: Value) -> Tri:
    kind, optional, many = _schema_type(arg)
    note = Note(f"{arg.name} is {_describe(value)}", value.place or arg.place)
    if isinstance(value, Absent):
        return YES
    if isinstance(value, Const) and value.value is None:
        # None for a required tensor passes the schema and becomes an undefined tensor.
        return tri(optional or (kind == "Tensor" and not many), note)
    if isinstance(value, Unknown):
        if value.is_tensor and kind == "str":
            return tri(False, note)
        if _declared_fits(value, kind, optional, many):
            return YES
        return Tri(None, (Note(f"{value.label}: {value.reason}", value.place),))
    if isinstance(value, Number):
        if many and all(_is_measured(atom.key) for atom in value.num.atoms()):
            # Whatever is measured, the result is a single number.
            return tri(False, note)
        # Arithmetic with an unknown operand may be that of a tensor, which is taken for a number too.
        fits = not many and (kind in ("float", "bool") or (kind == "int" and value.whole))
        return YES if fits else Tri(None, (note,))
    if kind not in ("Tensor", "int", "float", "bool", "str"):
        return YES
    if many:
        return _fits_list(kind, value, note)
    if kind == "Tensor":
        return tri(isinstance(value, Tensor), note)
    if isinstance(value, Tensor):
        return tri(kind != "str", note)
    if isinstance(value, (Sequence, DType)):
        # A dtype is an int to the dispatcher.
        return tri(isinstance(value, DType) and kind == "int", note)
    return tri(_constant_fits(kind, value), note)


def _is_measured(key: Hashable) -> bool:
    """Whether a number comes from ``len``, a size, a counter or ``.item()``: no tensor and no list."""
    if not isinstance(key, tuple) or not key:
        return False
    return key[0] in ("dim", "len", "numel", "size", "counter") or (key[0] == "item" and len(key) == 2)


def _declared_fits(value: Unknown, kind: str, optional: bool, many: bool) -> bool:
    """Whether the value has a type that the parameter takes, by its annotation or by what makes it."""
    if value.is_tensor:
        return kind != "str" and (not many or kind == "int")
    hint = value.hint
    if hint is None or (hint.optional and not optional):
        return False
    if many:
        return hint.name in ("list", "tuple") or (hint.name == "Tensor" and kind == "int")
    return hint.name in _TAKEN.get(kind, ())


# What a parameter of each kind takes; a 0-d tensor stands for a number, a dtype for an int.
_TAKEN = {
    "Tensor": ("Tensor",),
    "int": ("int", "bool", "dtype", "Tensor"),
    "float": ("float", "int", "bool", "Tensor"),
    "bool": ("bool", "int", "float", "Tensor"),
    "str": ("str",),
}


def _constant_fits(kind: str, value: Value) -> bool:
    plain = value.value if isinstance(value, Const) else None
    if kind == "str":
        return isinstance(plain, str)
    if kind == "int":
        return isinstance(plain, int)
    return isinstance(plain, (int, float))


def _fits_list(kind: str, value: Value, note: Note) -> Tri:
    if kind == "Tensor":
        return YES if isinstance(value, Sequence) else Tri(None, (note,))
    if isinstance(value, Sequence):
        plain = [item.value for item in value.items or () if isinstance(item, Const)]
        wrong = [item for item in plain if not isinstance(item, int)]
        return tri(False, note) if kind == "int" and wrong else YES
    if isinstance(value, Tensor):
        return YES
    return tri(False, note) if isinstance(value, Const) else Tri(None, (note,))


def _schema_type(arg: Arg) -> tuple[str, bool, bool]:
    """Kind, whether None is taken, and whether it is a list of that kind."""
    text = arg.param.type.replace("SymInt", "int")
    text = re.sub(r"\([a-z]!?\)", "", text)
    optional = text.endswith("?")
    many = "[" in text
    return re.match(r"\w*", text).group(), optional, many  # type: ignore[union-attr]


def _wanted(arg: Arg) -> str:
    kind, _, many = _schema_type(arg)
    if many:
        return f"a list of {kind}s"
    return {"Tensor": "a tensor", "int": "an int", "str": "a string"}.get(kind, f"a {kind}")


def _kind(arg: Arg) -> str:
    return next((_describe(value) for value in arg.options if not isinstance(value, Absent)), "absent")


def _describe(value: Value) -> str:
    if isinstance(value, Const):
        return "None" if value.value is None else f"the {type(value.value).__name__} {value.value!r}"
    if isinstance(value, Sequence):
        return f"a Python {value.kind}"
    if isinstance(value, Tensor):
        return "a tensor"
    return "a dtype" if isinstance(value, DType) else "a number"
