"""Few values for many: what holds of the joint value holds of every one that it stands for."""

from __future__ import annotations

from dataclasses import replace

from support.calls import anything, call, either, named, number, outcome, size, tensor

from kvlint.contract.call import MAX_ALTERNATIVES, Arg
from kvlint.contract.merging import merged
from kvlint.contract.num import Num
from kvlint.contract.rule import Outcome, find_rule
from kvlint.contract.tri import Note
from kvlint.contract.values import Const, Content, Hint, Join, Sequence, Tensor, Unknown, Value

FAULT = Note("it raises")


def one(*values: Value) -> Value:
    found = merged(list(values), 1)
    assert found is not None
    return found[0]


def tensors(*values: Tensor) -> Tensor:
    found = one(*values)
    assert isinstance(found, Tensor)
    return found


class TestTensors:
    def test_what_looks_the_same_is_one(self) -> None:
        a, b = tensor(2, 3, dtype="int32"), tensor(2, 3, dtype="int32")
        (found,) = merged([a, b], 4) or []
        assert isinstance(found, Tensor)
        assert found.shape == a.shape
        assert found.key not in (a.key, b.key)

    def test_few_stay_as_they_are(self) -> None:
        options: list[Value] = [tensor(2), tensor(3), Const(None)]
        assert merged(options, 4) == options

    def test_dtypes_are_joined(self) -> None:
        assert tensors(tensor(2, dtype="int8"), tensor(3, dtype="int32")).dtypes == ("int8", "int32")
        assert tensors(tensor(2, dtype="int8"), tensor(3)).dtypes is None

    def test_sizes_that_differ_are_unknown(self) -> None:
        assert tensors(tensor(2, 3), tensor(2, 4)).shape == (size(2), None)
        assert tensors(tensor(2, 3), tensor(2)).shape is None

    def test_a_fault_of_one_is_no_fault_of_the_others(self) -> None:
        assert merged([tensor(2), replace(tensor(3), fault=FAULT)], 1) is None
        assert merged([tensor(2), replace(tensor(3), misindexed=FAULT)], 1) is None
        assert merged([tensor(2), replace(tensor(3), regrouped=FAULT)], 1) is None
        assert tensors(replace(tensor(2), fault=FAULT), replace(tensor(3), fault=FAULT)).fault is FAULT

    def test_memory(self) -> None:
        whole = replace(tensor(2), contiguous=True, storage="s")
        view = replace(tensor(3), strided=FAULT, storage="s")
        assert tensors(whole, replace(tensor(3), contiguous=True)).contiguous
        assert tensors(whole, view).contiguous is None
        assert tensors(whole, view).strided is None
        assert tensors(view, replace(view, shape=(size(4),))).strided is FAULT
        assert tensors(whole, view).storage == "s"
        assert tensors(whole, replace(view, storage="t")).storage is None
        assert tensors(whole, replace(view, copied=FAULT)).copied is None

    def test_a_permuted_view_counts_with_its_shape(self) -> None:
        turned = replace(tensor(1, 4), strided=FAULT, order=(1, 0))
        assert tensors(turned, replace(turned, key="b", device="npu")).order == (1, 0)
        wider = replace(turned, shape=(size(2), size(4)))
        assert tensors(turned, wider).strided is None

    def test_elements(self) -> None:
        zeros = tensor(2, content=Content(fill=0))
        assert tensors(zeros, tensor(3, content=Content(fill=0))).content.fill == 0
        assert tensors(zeros, tensor(3, content=Content(fill=1))).content == Content()


class TestOthers:
    def test_none_is_never_put_together_with_something(self) -> None:
        assert merged([Const(None), tensor(2)], 1) is None
        assert merged([Const("a"), Const("b")], 1) is None

    def test_integers(self) -> None:
        found = one(Const(1), Const(3))
        assert isinstance(found, Unknown)
        assert found.hint == Hint("int")
        assert found.is_tensor is False

    def test_a_number_that_may_be_a_tensor_has_no_type(self) -> None:
        heads = number(Num.atom("heads", "heads"))
        found = one(heads, Const(3))
        assert isinstance(found, Unknown)
        assert found.hint is None
        assert found.is_tensor is None

    def test_unknown_values(self) -> None:
        a, b = replace(named("a"), is_tensor=True), replace(named("b"), is_tensor=True)
        found = one(a, b)
        assert isinstance(found, Unknown)
        assert found.is_tensor
        assert found.key not in (a.key, b.key)
        assert one(a, named("c")).is_tensor is None  # type: ignore[attr-defined]

    def test_lists(self) -> None:
        pair = Sequence((Const(1), tensor(2, dtype="int8")))
        found = one(pair, Sequence((Const(1), tensor(3, dtype="int8"))))
        assert isinstance(found, Sequence)
        assert found.items is not None
        assert isinstance(found.items[1], Tensor)
        assert found.items[1].dtypes == ("int8",)
        longer = one(pair, Sequence((Const(1), Const(2), Const(3))))
        assert isinstance(longer, Sequence)
        assert longer.items is None
        assert longer.length is None


def chain(values: list[object]) -> Value:
    """A value with many alternatives, each by a test of its own."""
    made: object = values[0]
    for index, value in enumerate(values[1:]):
        made = either(f"c{index}", value, made)
    assert isinstance(made, Value)
    return made


class TestArguments:
    def argument(self, value: object) -> Arg:
        q = tensor(2, 8, 16, 64)
        return call("npu_fused_infer_attention_score", q, q, q, atten_mask=value).arg("mask")

    def test_many_alternatives_keep_what_they_share(self) -> None:
        sizes = range(2 * MAX_ALTERNATIVES)
        mask = self.argument(chain([tensor(n, 2048, dtype="bool") for n in sizes]))
        assert mask.dtype.equals("bool").yes
        assert mask.rank.equals(2).yes
        assert mask.is_none.no
        assert mask.shape.get(None) == (None, size(2048))

    def test_none_among_them_is_not_lost(self) -> None:
        masks: list[object] = [tensor(n, 2048, dtype="bool") for n in range(2 * MAX_ALTERNATIVES)]
        mask = self.argument(chain([*masks, None]))
        assert mask.is_none.unknown
        assert mask.dtype.values is None

    def test_alternatives_that_are_no_alike(self) -> None:
        labels: list[object] = [f"layout{n}" for n in range(2 * MAX_ALTERNATIVES)]
        assert self.argument(chain(labels)).constant.values is None

    def test_an_option_of_many_is_not_what_the_value_becomes(self) -> None:
        rule = find_rule("KV202")
        assert rule is not None
        q, floats = tensor(2, 8, 16, 64), tensor(2048, 2048, dtype="float32")

        def judged(ident: int | None) -> Outcome:
            mask = Join((Const(None), floats), ident)
            made = call(
                "npu_fused_infer_attention_score", q, q, q, num_heads=8, input_layout="BNSD", atten_mask=mask
            )
            return outcome(rule, made)

        assert judged(None) is Outcome.VIOLATED
        assert judged(7) is not Outcome.VIOLATED


def test_values_of_their_own_kind_stay() -> None:
    assert merged([anything(), Const("a"), Const(None)], 3) is not None
    assert merged([Const("a"), Const("b"), Const("c")], 2) is None
