"""Results of torch functions and NPU operators whose elements nobody asks about: shape and dtype."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvlint.contract.num import Num
from kvlint.contract.values import Const, Content, DType, Number, Sequence, Tensor, Unknown, Value

from .torchlib import (
    FLOATING,
    Args,
    Shape,
    arithmetic,
    as_tensor,
    broadcast,
    derived,
    dtypes_of,
    fresh,
    full_shape,
    integer_of,
    key_of,
    number_of,
)

_HALVES = ("float16", "bfloat16")
Handler = Callable[[Tensor, list[Value], Mapping[str, Value], Any], Value | None]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Same shape; same dtype when that is a floating one, the default dtype of integers otherwise.
_FLOAT_MAPS = _words("""
    softmax log_softmax silu gelu relu6 elu selu sigmoid logsigmoid tanh exp expm1 log log2 log10 log1p
    sqrt rsqrt sin cos tan softplus mish hardswish leaky_relu erf reciprocal dropout npu_fast_gelu npu_gelu
""")
# Same shape; the dtype depends on the weights too.
_NORMS = _words("layer_norm rms_norm normalize")
# Same shape and dtype.
_MAPS = _words("""
    relu neg floor ceil round trunc square sign nan_to_num roll flip index_copy index_fill index_add scatter
    scatter_add masked_scatter
""")
# One tensor, about which nothing else is known here.
ONE_TENSOR = _words("""
    addmm addbmm baddbmm mv dot outer kron tensordot cdist bincount histc bucketize searchsorted
    count_nonzero cumprod logcumsumexp diag diagonal eye linspace logspace
    randint randperm bernoulli normal poisson isnan isinf isfinite isin masked_select
    take take_along_dim tile rot90 vstack hstack dstack column_stack row_stack movedim moveaxis
    ravel complex polar view_as_real view_as_complex mean prod norm logsumexp any all sum amax amin
    nansum floor_divide remainder fmod true_divide div divide pow atan2 hypot lerp addcmul addcdiv
    bitwise_xor bitwise_or bitwise_and bitwise_left_shift bitwise_right_shift logical_xor maximum
    minimum fmax fmin quantize_per_tensor dequantize from_file frombuffer from_dlpack
    nn.functional.embedding nn.functional.one_hot nn.functional.conv1d nn.functional.conv2d
    nn.functional.scaled_dot_product_attention nn.functional.interpolate nn.functional.unfold
    nn.functional.cross_entropy nn.functional.glu nn.functional.batch_norm nn.functional.group_norm
    npu_quantize npu_quant_matmul npu_weight_quant_batchmatmul npu_transpose_batchmatmul npu_linear
    npu_convert_weight_to_int4pack npu_dtype_cast npu_transpose npu_broadcast npu_anti_quant
    npu_swiglu npu_moe_finalize_routing npu_moe_token_unpermute npu_mm_all_reduce_base
    npu_scaled_masked_softmax npu_trans_quant_param
""")


def _map(name: str, keeps: bool | None) -> Handler:
    """``keeps``: whether every dtype stays, None when none is sure to."""

    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        dtypes = tensor.dtypes
        given = kwargs.get("dtype", next((a for a in args if isinstance(a, DType)), None))
        if given is not None:
            dtypes = dtypes_of(given)
        elif keeps is None or (not keeps and not (dtypes is not None and all(d in FLOATING for d in dtypes))):
            dtypes = None
        key = (name, *(key_of(a) for a in args), *((k, key_of(v)) for k, v in kwargs.items()))
        label = f"{name}({tensor.label})"
        shape = full_shape(tensor)
        return derived(tensor, key, site, dtypes=dtypes, shape=shape, content=Content(), label=label)

    return handler


def product(left: Value, right: Value, site: Any) -> Value | None:
    """``left @ right``."""
    a, b = as_tensor(left), as_tensor(right)
    if a is None or b is None:
        return None
    dtypes = _of_both(a, b)
    shape = _product_shape(full_shape(a), full_shape(b))
    device = a.device if a.device == b.device else None
    return fresh(("@", a.key, b.key), f"{a.label} @ {b.label}", site, dtypes, shape, device=device)


def _of_both(a: Tensor, b: Tensor) -> tuple[str, ...] | None:
    """The dtype of a product: its factors have the same."""
    if a.dtypes is None or b.dtypes is None:
        known = a.dtypes or b.dtypes
        # Under autocast it has the dtype that is configured, whatever the factors have.
        return _HALVES if known is not None and all(name in _HALVES for name in known) else None
    common = tuple(name for name in a.dtypes if name in b.dtypes)
    return common or None


def _product_shape(a: tuple[Num, ...] | None, b: tuple[Num, ...] | None) -> Shape | None:
    if a is None or b is None or not a or not b:
        return None
    if len(a) == 1 or len(b) == 1:
        return (*a[:-1], *b[:-2], *b[-1:]) if len(a) == 1 and len(b) > 1 else a[:-1] if len(b) == 1 else None
    outer = broadcast(Tensor("a", shape=a[:-2]), Tensor("a"), Tensor("b", shape=b[:-2]), Tensor("b"))
    return (*outer, a[-2], b[-1]) if outer is not None else None


def _matmul(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    other = Args("other", args, kwargs).get("other", "mat2")
    return product(tensor, other, site) if other is not None else None


def _linear(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    weight = Args("weight", args, kwargs).get("weight")
    matrix = as_tensor(weight) if weight is not None else None
    own = full_shape(tensor)
    shape: Shape | None = None
    if own:
        rows = full_shape(matrix) if matrix is not None else None
        shape = (*own[:-1], rows[0] if rows is not None and len(rows) == 2 else None)
    dtypes = _of_both(tensor, matrix) if matrix is not None else None
    key = ("linear", key_of(weight) if weight is not None else None)
    return derived(tensor, key, site, dtypes=dtypes, shape=shape, content=Content(), label="linear(...)")


def _einsum(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    spec = args[0].value if args and isinstance(args[0], Const) else None
    operands = [as_tensor(a) for a in args[1:]]
    known = [operand for operand in operands if operand is not None]
    if len(known) != len(operands) or not known:
        return None
    shape = _einsum_shape(spec, known) if isinstance(spec, str) else None
    dtypes = known[0].dtypes if all(o.dtypes == known[0].dtypes for o in known) else None
    key = ("einsum", spec, *(operand.key for operand in known))
    return fresh(key, "torch.einsum(...)", site, dtypes, shape)


def _einsum_shape(spec: str, operands: list[Tensor]) -> Shape | None:
    """The sizes that a specification without an ellipsis gives."""
    left, arrow, result = spec.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in spec or len(terms) != len(operands):
        return None
    sizes: dict[str, Num] = {}
    for term, operand in zip(terms, operands, strict=True):
        own = full_shape(operand)
        if own is not None and len(own) == len(term):
            for letter, size in zip(term, own, strict=True):
                # An axis of one element fits any size.
                if size.integer != 1 or letter not in sizes:
                    sizes[letter] = size
    return tuple(sizes.get(letter) for letter in result)


def _divided(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    """``torch.div``, whose rounding keeps integers."""
    other = Args("other", args, kwargs).get("other")
    rounding = kwargs.get("rounding_mode", Const(None))
    if other is None or not isinstance(rounding, Const):
        return None
    return arithmetic(tensor, "/" if rounding.value is None else "//", other, site)


def _indices(name: str, same_shape: bool) -> Handler:
    """Positions in another tensor: int64, whatever that one holds."""

    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        if "as_tuple" in kwargs:
            return None
        key = (name, *(key_of(a) for a in args), *((k, key_of(v)) for k, v in kwargs.items()))
        shape = full_shape(tensor) if same_shape else None
        label = f"{name}({tensor.label})"
        return derived(tensor, key, site, dtypes=("int64",), shape=shape, content=Content(), label=label)

    return handler


def _ordered(name: str) -> Handler:
    """Values with their positions, as ``topk`` and ``sort`` give them."""

    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        bound = Args("k dim" if name == "topk" else "dim", args, kwargs)
        shape = full_shape(tensor)
        if name == "topk" and shape is not None:
            axis, count = integer_of(bound.get("dim") or Const(-1)), bound.get("k")
            size = number_of(count) if count is not None else None
            if axis is None or not -len(shape) <= axis < len(shape) or size is None:
                shape = None
            else:
                axis %= len(shape)
                shape = (*shape[:axis], size, *shape[axis + 1 :])
        key = (name, *(key_of(a) for a in args), *((k, key_of(v)) for k, v in kwargs.items()))
        label = f"{name}({tensor.label})"
        values = derived(tensor, (*key, 0), site, shape=shape, content=Content(), label=label)
        places = derived(
            tensor,
            (*key, 1),
            site,
            dtypes=("int64",),
            shape=shape,
            content=Content(),
            label=f"{label}.indices",
        )
        return Sequence((values, places), "tuple", Num.of(2), names=("values", "indices"), place=site)

    return handler


def _paired(symbol: str) -> Handler:
    def handler(tensor: Tensor, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        other = Args("other", args, kwargs).get("other")
        return arithmetic(tensor, symbol, other, site) if other is not None else None

    return handler


METHODS: dict[str, Handler] = {
    "div": _divided,
    "divide": _divided,
    "true_divide": _paired("/"),
    "floor_divide": _paired("//"),
    "remainder": _paired("%"),
    "maximum": _paired("maximum"),
    "minimum": _paired("minimum"),
    **{name: _map(name, False) for name in _FLOAT_MAPS},
    **{name: _map(name, None) for name in _NORMS},
    **{name: _map(name, True) for name in _MAPS},
    "topk": _ordered("topk"),
    "sort": _ordered("sort"),
    "argsort": _indices("argsort", True),
    "argmax": _indices("argmax", False),
    "argmin": _indices("argmin", False),
    "nonzero": _indices("nonzero", False),
    "multinomial": _indices("multinomial", False),
    "matmul": _matmul,
    "bmm": _matmul,
    "mm": _matmul,
}
AS_METHOD = frozenset(METHODS)


def _first(handler: Handler) -> Callable[..., Value | None]:
    def function(args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
        rest = dict(kwargs)
        first = args[0] if args else rest.pop("input", None)
        tensor = as_tensor(first) if first is not None else None
        return handler(tensor, args[1:], rest, site) if tensor is not None else None

    return function


FUNCTIONS: dict[str, Callable[..., Value | None]] = {
    **{f"nn.functional.{name}": _first(METHODS[name]) for name in _FLOAT_MAPS | _NORMS | _MAPS},
    "nn.functional.linear": _first(_linear),
    "einsum": _einsum,
}


@dataclass(frozen=True)
class Form:
    """What is known of one result; a size without a dtype where only the rank is known.

    ``memory``: the tensor that the result is a view of, or the tensor itself.
    """

    shape: Shape | None = None
    dtypes: tuple[str, ...] | None = None
    memory: Tensor | None = None


class Given:
    """The arguments of an operator by name, where they have no alternatives.

    ``hidden``: some more may be passed that are not visible.
    """

    def __init__(self, values: Mapping[str, Value], hidden: bool = False) -> None:
        self.values = values
        self.hidden = hidden

    def tensor(self, name: str) -> Tensor | None:
        value = self.values.get(name)
        return value if isinstance(value, Tensor) else None

    def passed(self, *names: str) -> bool:
        """Whether one of them is passed and may be something."""
        return any(self.hidden if n not in self.values else not _is_none(self.values[n]) for n in names)

    def constant(self, name: str, default: object) -> object:
        """The constant that an argument is; None when it is not visible."""
        if name not in self.values:
            return None if self.hidden else default
        value = self.values[name]
        return value.value if isinstance(value, Const) else None

    def number(self, *names: str) -> Num | None:
        for name in names:
            if name in self.values:
                return number_of(self.values[name])
        return None


def _is_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


# What an operator computes in: with other dtypes it does not run.
_ROTATED = (*_HALVES, "float32")
_HIDDEN = Tensor("hidden")


def _alike(
    *names: str, dtypes: tuple[str, ...] | None = None, in_place: bool = False
) -> Callable[[Given], list[Form]]:
    """Results that look like the arguments of these names, which have one of the ``dtypes``."""

    def form(given: Given, name: str) -> Form:
        tensor = given.tensor(name)
        if tensor is None:
            value = as_tensor(given.values[name]) if name in given.values else _HIDDEN
            return Form(None, dtypes, value if in_place else None)
        return Form(full_shape(tensor), tensor.dtypes or dtypes, tensor if in_place else None)

    return lambda given: [form(given, name) for name in names]


_HEADS = ("num_heads", "num_query_heads")
_OUTPUT = {
    "BSH": "BSH",
    "BSND": "BSND",
    "BNSD": "BNSD",
    "BNSD_BSND": "BSND",
    "BSND_BNSD": "BNSD",
    "BSND_NBSD": "NBSD",
    "BNSD_NBSD": "NBSD",
    "TND": "TND",
    "TND_NTD": "NTD",
    "NTD": "NTD",
    "NTD_TND": "TND",
}


def _attention(given: Given) -> list[Form]:
    """The output of inference attention (contract 1.4)."""
    layout = given.values.get("input_layout", Const("BSH"))
    text = layout.value if isinstance(layout, Const) and isinstance(layout.value, str) else ""
    query, value = given.tensor("query"), given.tensor("value")
    own = full_shape(query) if query is not None else None
    out = _OUTPUT.get(text)
    axes = text.partition("_")[0]
    shape: Shape | None = None
    sizes: dict[str, Num | None] = {}
    if out is not None and (own is None or len(own) == len(axes)):
        heads = given.number(*_HEADS)
        sizes = {"N": heads} if own is None else dict(zip(axes, own, strict=True))
        sizes.setdefault("N", heads)
        width = _value_width(given, value, text)
        if "H" in out:
            sizes["H"] = heads * width if heads is not None and width is not None else None
        else:
            sizes["D"] = width
        shape = tuple(sizes.get(axis) for axis in out)
    dtypes = query.dtypes if query is not None else None
    plain = dtypes is not None and all(name in ("float16", "bfloat16") for name in dtypes)
    quantised = given.passed("quant_scale2", "quant_scale_out", "dequant_scale1", "out_dtype")
    return [Form(shape, dtypes if plain and not quantised else None), _log_sums(given, text, sizes)]


def _log_sums(given: Given, layout: str, sizes: Mapping[str, Num | None]) -> Form:
    """The log-sum-exp of every row, when it is asked for (contract 1.4)."""
    asked = any(given.constant(name, False) is True for name in ("softmax_lse_flag", "return_softmax_lse"))
    if not asked or not sizes:
        return Form()
    axes = "TN" if "T" in layout else "BNS"
    return Form((*(sizes.get(axis) for axis in axes), Num.of(1)), ("float32",))


def _value_width(given: Given, value: Tensor | None, layout: str) -> Num | None:
    """The head dim of the output, which is that of the values."""
    own = full_shape(value) if value is not None else None
    if own is None or value is None or value.dtypes is None or "int32" in value.dtypes:
        return None
    table = given.values.get("block_table", Const(None))
    certain = isinstance(table, (Const, Tensor)) or (isinstance(table, Unknown) and table.is_tensor is True)
    if len(own) == 3 and not certain and not layout.startswith("BSH"):
        # Without a table the last axis is one head, with it all of them.
        return None
    if given.passed("block_table") and len(own) == 5:
        return own[2] * own[4]
    heads = given.number("num_key_value_heads")
    if heads is None or heads.integer == 0:
        heads = given.number(*_HEADS) if not given.passed("num_key_value_heads") else None
    if len(own) == 3 and (given.passed("block_table") or layout.startswith("BSH")):
        return own[2].divide(heads) if heads is not None else None
    return own[-1]


def _row_norm(given: Given) -> list[Form]:
    x = given.tensor("self") or given.tensor("x")
    own = full_shape(x) if x is not None else None
    rows: Shape | None = (*own[:-1], Num.of(1)) if own else None
    gamma = given.tensor("gamma")
    same = x is not None and gamma is not None and x.dtypes == gamma.dtypes
    return [Form(own, x.dtypes if x is not None and same else None), Form(rows, ("float32",))]


def _added_norm(given: Given) -> list[Form]:
    x = given.tensor("x1")
    own = full_shape(x) if x is not None else None
    return [Form(own), Form(), Form(own)]


def _dynamic_quant(given: Given) -> list[Form]:
    x = given.tensor("input")
    own = full_shape(x) if x is not None else None
    packed = given.passed("dst_type")
    shape = own if not packed else None
    return [Form(shape, ("int8",) if not packed else None), Form(own[:-1] if own else None, ("float32",))]


def _latent_rows(given: Given) -> list[Form]:
    """Rows of the rotary and of the latent part (contract KR)."""
    kv, gamma = given.tensor("kv"), given.tensor("gamma")
    own = full_shape(kv) if kv is not None else None
    rows: Shape = own[:3] if own is not None and len(own) == 4 else (None, Num.of(1), None)
    dtypes = kv.dtypes if kv is not None and kv.dtypes is not None else _HALVES
    if given.passed("v"):
        return [Form((*rows, None), dtypes), Form((*rows, None), dtypes)]
    latent = full_shape(gamma) if gamma is not None else None
    width = latent[0] if latent is not None and len(latent) == 1 else Num.of(512)
    rope = own[3] - width if own is not None and len(own) == 4 and latent is not None else Num.of(64)
    return [Form((*rows, rope), dtypes), Form((*rows, width), dtypes)]


def _latent_cache(given: Given) -> list[Form]:
    """The caches, then the rows."""
    return [*_alike("k_cache", "ckv_cache")(given), *_latent_rows(given)]


def _interleaved(given: Given) -> list[Form]:
    """A rotated part: four axes, 64 wide (contract 3.9)."""
    x = given.tensor("x")
    own = full_shape(x) if x is not None else None
    shape: Shape = own if own is not None else (None, None, None, Num.of(64))
    return [Form(shape, x.dtypes if x is not None and x.dtypes is not None else _HALVES)]


def _prolog(given: Given) -> list[Form]:
    """The absorbed query and its rotary part (contract 3.8): the axes of the tokens, heads, 512 and 64."""
    token, weight = given.tensor("token_x"), given.tensor("weight_uk")
    own = full_shape(token) if token is not None else None
    heads = full_shape(weight) if weight is not None else None
    rows: Shape | None = None
    if own is not None and len(own) in (2, 3):
        rows = (*own[:-1], heads[0] if heads is not None and len(heads) == 3 else None)
    parts = [(*rows, Num.of(size)) if rows is not None else None for size in (512, 64)]
    return [Form(parts[0]), Form(parts[1], ("bfloat16",))]


def _prolog_v3(given: Given) -> list[Form]:
    """Where the query is not quantised, it has the dtype of the rotary part."""
    query, rope = _prolog(given)
    plain = given.constant("query_quant_mode", 0) == 0
    return [Form(query.shape, ("bfloat16",) if plain else None), rope]


_OPERATORS: dict[str, Callable[[Given], list[Form]]] = {
    "npu_fused_infer_attention_score": _attention,
    "npu_fused_infer_attention_score_v2": _attention,
    "npu_prompt_flash_attention": _attention,
    "npu_incre_flash_attention": _attention,
    "npu_apply_rotary_pos_emb": _alike("query", "key", dtypes=_ROTATED, in_place=True),
    "npu_rotary_mul": _alike("input", dtypes=_ROTATED),
    "npu_interleave_rope": _interleaved,
    "npu_mla_prolog": _prolog,
    "npu_mla_prolog_v2": _prolog,
    "npu_mla_prolog_v3": _prolog_v3,
    "npu_scatter_nd_update": _alike("input"),
    "npu_scatter": _alike("input"),
    "npu_quant_scatter": _alike("input"),
    "scatter_update": _alike("input"),
    "npu_kv_rmsnorm_rope_cache": _latent_cache,
    "npu_kv_rmsnorm_rope_cache_v2": _latent_rows,
}
# The arguments that the form of a result hangs on: each of their alternatives gives one of its own.
DEPENDS: dict[str, tuple[str, ...]] = {
    "npu_apply_rotary_pos_emb": ("query", "key"),
    "npu_rotary_mul": ("input",),
    "npu_interleave_rope": ("x",),
    "npu_kv_rmsnorm_rope_cache": ("kv", "k_cache", "ckv_cache"),
    "npu_kv_rmsnorm_rope_cache_v2": ("kv",),
    "npu_mla_prolog_v3": ("token_x",),
    "npu_mla_prolog_v2": ("token_x",),
    "npu_mla_prolog": ("token_x",),
}
# Operators outside the catalogue: names of the first parameters, number of results, their forms.
_OTHERS: dict[str, tuple[str, int, Callable[[Given], list[Form]]]] = {
    "npu_rms_norm": ("self gamma epsilon", 2, _row_norm),
    "npu_dynamic_quant": ("input", 2, _dynamic_quant),
    "npu_add_rms_norm": (
        "x1 x2 gamma epsilon",
        3,
        lambda given: [*_alike("x1")(given), Form(), *_alike("x1")(given)],
    ),
}


def _result(form: Form, key: Hashable, label: str, name: str, site: Any) -> Value:
    reason = f"it is a result of {name}"
    if form.shape is None and form.dtypes is None:
        return Unknown(key, label, reason, is_tensor=True, place=site)
    made = replace(fresh(key, label, site, form.dtypes, form.shape), reason=reason)
    own = form.memory
    if own is None:
        return made
    return replace(
        made,
        contiguous=own.contiguous,
        strided=own.strided,
        order=own.order,
        gaps=own.gaps,
        storage=own.storage,
    )


def operator_results(
    name: str,
    kinds: list[str],
    values: Mapping[str, Value],
    key: tuple[Hashable, ...],
    site: Any,
    hidden: bool = False,
) -> list[Value]:
    """The results of a catalogue operator; ``kinds`` are the types its schema gives them.

    ``hidden``: arguments may be passed that are not among the ``values``.
    """
    maker = _OPERATORS.get(name)
    forms = maker(Given(values, hidden)) if maker is not None else []
    found: list[Value] = []
    for index, kind in enumerate(kinds):
        own: Hashable = (*key, index) if len(kinds) > 1 else key
        label = f"{name}(...)[{index}]" if len(kinds) > 1 else f"{name}(...)"
        if kind == "int":
            found.append(Number(Num.atom(own, label), True, place=site))
        elif kind == "Tensor[]":
            found.append(Unknown(own, label, f"it is a result of {name}", is_tensor=False, place=site))
        else:
            form = forms[index] if index < len(forms) else Form()
            found.append(_result(form, own, label, name, site))
    return found


def result_kinds(schema: str) -> list[str]:
    """The types of an operator's results: ``Tensor``, ``int``, ``Tensor[]``."""
    text = schema.rpartition("->")[2].strip()
    parts = text.strip("()").split(",") if not text.startswith("Tensor(") else [text]
    return [
        "Tensor" if part.strip().startswith("Tensor(") else part.strip() for part in parts if part.strip()
    ]


def other_operator(name: str, args: list[Value], kwargs: Mapping[str, Value], site: Any) -> Value | None:
    """The results of an NPU operator that the catalogue does not have."""
    known = _OTHERS.get(name)
    if known is None:
        return None
    names, count, maker = known
    values = Args(names, args, kwargs).values
    forms = maker(Given(values))
    key = (name, *(key_of(a) for a in args), *((k, key_of(v)) for k, v in kwargs.items()))
    items = tuple(
        _result(forms[i] if i < len(forms) else Form(), (*key, i), f"{name}(...)[{i}]", name, site)
        for i in range(count)
    )
    return Sequence(items, "tuple", Num.of(count), place=site)
