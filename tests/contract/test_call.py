"""Calls as rules see them: binding to the schema, facts over paths, facts that follow from the layout."""

from __future__ import annotations

import pytest
from support.calls import anything, call, either, named, tensor

from kvlint.contract.call import Arg, Call, Keyword, Target, leaves
from kvlint.contract.num import Num
from kvlint.contract.paths import Cond
from kvlint.contract.values import (
    ABSENT,
    Choice,
    Const,
    Content,
    Join,
    Number,
    Tensor,
    Unknown,
    Value,
)

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
Q = tensor(2, 8, 16, 64)
YES, NO, UNKNOWN = True, False, None


def fia(*positional: object, **keywords: object) -> Call:
    return call(V1, *(positional or (Q, Q, Q)), **keywords)


def argument(value: object, role: str = "mask") -> Arg:
    name = {"mask": "atten_mask", "scale": "scale", "q_lens": "actual_seq_lengths"}[role]
    return fia(**{name: value}).arg(role)


class TestBinding:
    def test_positional_and_keyword_arguments_land_in_the_same_parameters(self) -> None:
        by_place = call("scatter_update_", "c", "i", "u", -2).binding.values
        by_name = call("scatter_update_", data="c", indices="i", updates="u", axis=-2).binding
        assert by_place == call("scatter_update_", "c", "i", updates="u", axis=-2).binding.values
        assert [keyword.name for keyword in by_name.unexpected] == ["data"]

    def test_parameters_that_are_not_passed_are_absent(self) -> None:
        binding = fia().binding
        assert binding.values["atten_mask"] == ABSENT
        assert binding.values["query"] == Q

    def test_unexpected_keywords_are_kept_with_their_value(self) -> None:
        binding = fia(softmax_scale=0.5).binding
        assert binding.unexpected == (Keyword("softmax_scale", True, None, Const(0.5)),)
        assert "softmax_scale" not in binding.values

    def test_a_keyword_passed_on_some_paths_is_not_certain(self) -> None:
        (keyword,) = fia(softmax_scale=either("c", 0.5)).binding.unexpected
        assert not keyword.certain

    def test_a_keyword_passed_on_no_path_is_not_passed(self) -> None:
        assert fia(softmax_scale=ABSENT).binding.unexpected == ()
        assert fia(scale=ABSENT).arg("scale").given.no

    def test_a_parameter_passed_twice(self) -> None:
        binding = fia(Q, Q, Q, key=None).binding
        assert binding.duplicate == ("key",)
        assert binding.values["key"] == Q

    def test_positional_arguments_beyond_the_schema_are_counted(self) -> None:
        assert fia(Q, Q, Q).binding.surplus == 0
        assert fia(Q, Q, Q, None, None).binding.surplus == 2

    def test_the_same_role_has_another_name_in_another_operator(self) -> None:
        assert call(V1, scale=0.5).arg("scale").name == "scale"
        assert call(V2, softmax_scale=0.5).arg("scale").name == "softmax_scale"
        assert call(V2, softmax_scale=0.5).arg("scale").constant.value == 0.5

    def test_a_role_that_the_operator_lacks_is_absent_and_none(self) -> None:
        sink = fia().arg("sink")
        assert not fia().has("sink") and call(V2).has("sink")
        assert sink.given.no and sink.is_none.yes

    def test_args_are_those_that_are_passed_in_schema_order(self) -> None:
        found = [arg.name for arg in fia(Q, Q, Q, scale=1.0, atten_mask=either("c", None)).args()]
        assert found == ["query", "key", "value", "atten_mask", "scale"]


class TestOpaque:
    """Keywords that a caller fills in can hold anything that is not passed here."""

    opaque = fia(opaque=True, sparse_mode=3)

    def test_what_is_not_seen_is_unknown(self) -> None:
        mask = self.opaque.arg("mask")
        for answer in (
            mask.given,
            mask.is_none,
            mask.constant.equals(None),
            self.opaque.layout.equals("BSH"),
        ):
            assert answer.unknown
            assert answer.notes[0].text == "the caller's own keywords are passed on"

    def test_what_is_seen_is_known(self) -> None:
        assert self.opaque.arg("sparse_mode").constant.value == 3


class TestDefaults:
    def test_the_default_of_the_schema_counts_as_the_value(self) -> None:
        assert fia().layout.value == "BSH"
        assert fia().arg("scale").constant.value == 1.0
        assert fia().arg("scale").number.value == Num.of(1)
        assert fia().arg("mask").is_none.yes and fia().arg("mask").given.no

    def test_zero_kv_heads_mean_the_query_heads(self) -> None:
        assert fia(num_heads=8).kv_heads.value == Num.of(8)
        assert fia(num_heads=8, num_key_value_heads=2).kv_heads.value == Num.of(2)

    def test_a_required_parameter_has_no_default(self) -> None:
        assert call(V1).arg("query").constant.values is None


class TestNone:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (None, YES),
            (0, NO),
            (tensor(2, 2), NO),
            ([], NO),
            (anything(), UNKNOWN),
            (Unknown("t", "t", "it is a parameter", is_tensor=True), NO),
            (either("c", None, None), YES),
            (either("c", None, tensor(2, 2)), UNKNOWN),
            (either("c", None), YES),
        ],
    )
    def test_is_none(self, value: object, expected: bool | None) -> None:
        mask = argument(value)
        assert mask.is_none.state is expected
        assert mask.present.state is (None if expected is None else not expected)


FLOAT, BOOL = tensor(4, 4, dtype="float16"), tensor(2, 2, dtype="bool")


class TestAlternatives:
    def test_facts_of_a_choice_are_the_facts_of_both_sides(self) -> None:
        mask = argument(either("c", FLOAT, BOOL))
        assert mask.dtype.values == ("float16", "bool")
        assert mask.dtype.among(["float16", "bool"]).yes
        assert mask.dtype.equals("float16").unknown
        assert mask.dtype.equals("int8").no

    def test_an_assumption_picks_a_side(self) -> None:
        choice = fia(atten_mask=either("c", FLOAT, BOOL))
        for holds, dtype in ((True, "float16"), (False, "bool")):
            view = choice.under({Cond("truth", "c"): holds})
            assert view.arg("mask").dtype.value == dtype

    def test_an_unknown_side_makes_a_fact_unknown(self) -> None:
        assert argument(either("c", FLOAT, anything())).dtype.values is None

    def test_a_join_answers_only_what_all_options_agree_on(self) -> None:
        mask = argument(Join((FLOAT, tensor(8, 8, dtype="float16"))))
        assert mask.dtype.value == "float16"
        assert mask.dim(0).values == (Num.of(4), Num.of(8))
        assert mask.rank.value == 2

    def test_an_assumption_does_not_split_a_join(self) -> None:
        both = fia(atten_mask=Join((FLOAT, BOOL))).under({Cond("truth", "c"): True})
        assert not both.arg("mask").dtype.known

    def test_a_choice_in_a_join_is_seen_through(self) -> None:
        mask = argument(Join((either("c", None, FLOAT), BOOL)))
        assert mask.is_none.unknown
        assert len(mask.options) == 3

    def test_impossible_combinations_are_no_alternatives(self) -> None:
        inner = either("c", FLOAT, BOOL)
        mask = argument(either("c", inner, None))
        assert mask.options == (FLOAT, Const(None))

    def test_tests_on_one_value_exclude_each_other(self) -> None:
        one, two = Cond("eq", "n", 1), Cond("eq", "n", 2)
        value = Choice(
            one, Choice(two, Const("never"), Const("one")), Choice(two, Const("two"), Const("rest"))
        )
        found = [leaf.value for _, leaf in leaves(value, {}) if isinstance(leaf, Const)]
        assert found == ["one", "two", "rest"]

    def test_too_many_alternatives_are_unknown(self) -> None:
        value: Value = Const(0)
        for number in range(1, 60):
            value = either(f"c{number}", number, value)
        scale = argument(value, "scale")
        assert len(scale.options) == 1
        assert scale.constant.values is None


class TestValues:
    def test_constants_and_symbols_are_numbers(self) -> None:
        assert argument(0.5, "scale").number.value == Num.of(0.5)
        heads = argument(named("heads"), "scale").number.value
        assert heads.label == "heads" and heads.declared
        assert argument(Number(Num.of(3)), "scale").constant.value == 3

    @pytest.mark.parametrize("value", [None, "text", float("nan"), tensor(2, dtype="int32")])
    def test_other_things_are_no_numbers(self, value: object) -> None:
        assert argument(value, "scale").number.values is None

    def test_shapes(self) -> None:
        mask = argument(tensor(2, "s", None, 4))
        assert mask.rank.value == 4
        assert mask.dim(0).value == mask.dim(-4).value == Num.of(2)
        assert mask.dim(1).value.label == "s"
        assert mask.dim(2).values is None
        assert mask.dim(4).values is None

    def test_lists(self) -> None:
        lens = argument([1, 2, 3], "q_lens")
        assert lens.integers.value == (1, 2, 3)
        assert lens.length.value == Num.of(3)
        assert lens.is_sequence.yes and lens.is_tensor.no
        assert argument([1, named("n")], "q_lens").integers.values is None
        assert argument([1, True], "q_lens").integers.values is None

    def test_fields_of_the_content_that_are_not_known_are_unknown(self) -> None:
        mask = argument(tensor(2, 2, content=Content(fill=True)))
        assert mask.fill.value is True
        assert mask.triangle.values is None and mask.polarity.values is None

    def test_same_as_is_never_no(self) -> None:
        shared, other = anything(), anything()
        both = fia(shared, shared, other)
        assert both.arg("query").same_as(both.arg("key")).yes
        assert both.arg("query").same_as(both.arg("value")).unknown

    def test_memory_order_depends_on_which_axes_have_one_element(self) -> None:
        def turned(*shape: int | str) -> Arg:
            view = tensor(*shape, strided=True)
            return argument(Tensor(view.key, shape=view.shape, strided=view.strided, order=(0, 2, 1)))

        assert turned(2, 3, 4).strided.yes
        assert not turned(2, 1, 4).strided.yes
        assert not turned(2, 3, 1).strided.yes
        assert turned(1, 3, 4).strided.yes


class TestLayout:
    SIZES = {
        "BSH": (("B", "S", "H"), ("B", "S", None)),
        "BSND": (("B", "S", "N", "D"), ("B", "S", "N")),
        "BNSD": (("B", "N", "S", "D"), ("B", "S", "N")),
        "BNSD_BSND": (("B", "N", "S", "D"), ("B", "S", "N")),
        "TND": (("T", "N", "D"), (None, "T", "N")),
        "NTD_TND": (("N", "T", "D"), (None, "T", "N")),
        "TND_NTD": (("T", "N", "D"), (None, "T", "N")),
        "NSD": (("N", "S", "D"), (None, "S", "N")),
    }

    @pytest.mark.parametrize("layout", SIZES)
    def test_axes_are_where_the_layout_says(self, layout: str) -> None:
        shape, (batch, length, heads) = self.SIZES[layout]
        query = tensor(*shape)
        judged = fia(query, query, query, input_layout=layout)

        def label(fact: object) -> str | None:
            found = fact.get(None)  # type: ignore[attr-defined]
            return found.label if found is not None else None

        assert label(judged.batch) == batch
        assert label(judged.query_length) == label(judged.key_length) == length
        assert label(judged.query_heads_axis) == label(judged.key_heads_axis) == heads

    def test_head_dim_of_a_merged_axis_is_divided_by_the_head_count(self) -> None:
        query = tensor(2, 16, 1024)
        assert fia(query, query, query, num_heads=8).head_dim.value == Num.of(128)
        assert fia(Q, Q, Q, input_layout="BNSD", num_heads=8).head_dim.value == Num.of(64)

    def test_an_unknown_layout_has_no_axes(self) -> None:
        judged = fia(Q, Q, Q, input_layout=anything("layout"))
        for fact in (judged.batch, judged.query_length, judged.head_dim):
            assert fact.values is None
        assert judged.packed.unknown

    @pytest.mark.parametrize(
        ("layout", "expected"), [("TND", YES), ("NTD_TND", YES), ("TND_NTD", YES), ("BSH", NO), ("NSD", NO)]
    )
    def test_packed(self, layout: str, expected: bool) -> None:
        assert fia(input_layout=layout).packed.state is expected


# Contract 1.6: layout, query length, head dim, rope, sparse mode, rank of the paged key -> decode engine.
ENGINES = [
    ("BNSD", 1, 128, False, 0, 4, YES),
    ("BNSD", 2, 128, False, 0, 4, NO),
    ("BNSD", 16, 128, False, 0, 5, YES),
    ("BNSD", 17, 128, False, 0, 5, NO),
    ("BSND", 1, 64, False, 0, 3, YES),
    ("BSND", 16, 512, True, 0, 3, YES),
    ("BSND", 17, 512, True, 0, 3, NO),
    ("BSND", 17, 512, True, 4, 3, YES),
    ("BSND", 16, 512, False, 0, 3, NO),
    ("BSND", 16, 128, True, 0, 3, NO),
    ("BSND_NBSD", 1, 512, True, 0, 3, YES),
    ("BNSD_NBSD", 1, 128, False, 0, 3, YES),
    ("BNSD_BSND", 1, 128, False, 0, 3, NO),
    ("BSND_BNSD", 1, 128, False, 0, 3, NO),
    ("NSD", 1, 128, False, 0, 3, NO),
    ("TND", 1, 128, False, 0, 3, NO),
    ("TND", 40, 512, True, 0, 3, YES),
    ("TND_NTD", 40, 512, True, 0, 3, YES),
    ("TND_NTD", 1, 128, False, 0, 3, NO),
    ("NTD_TND", 1, 512, True, 0, 3, NO),
    ("BNSD", "s", 128, False, 0, 4, UNKNOWN),
    ("BSND", "s", 512, True, 4, 3, YES),
    ("BNSD", 8, "d", True, 0, 4, UNKNOWN),
]


def sized(layout: str, length: int | str, dim: int | str) -> Tensor:
    letters = {"B": 2, "N": 8, "S": length, "T": length, "D": dim}
    return tensor(*(letters[letter] for letter in layout.split("_")[0]))


@pytest.mark.parametrize(("layout", "length", "dim", "rope", "mode", "rank", "expected"), ENGINES)
def test_which_engine_serves_a_call(
    layout: str, length: int | str, dim: int | str, rope: bool, mode: int, rank: int, expected: bool | None
) -> None:
    cache = tensor(*range(2, 2 + rank))
    extra = {"query_rope": tensor(), "key_rope": tensor()} if rope else {}
    judged = fia(
        sized(layout, length, dim),
        cache,
        cache,
        input_layout=layout,
        num_heads=8,
        sparse_mode=mode,
        block_table=tensor(2, 4, dtype="int32"),
        **extra,
    )
    assert judged.decode_engine.state is expected
    assert judged.prefill_engine.state is (None if expected is None else not expected)


def test_a_paged_int8_cache_with_a_merged_scale_takes_packed_tokens_to_the_decode_engine() -> None:
    cache, scale = tensor(9, 128, 512, dtype="int8"), tensor(2, 512, dtype="float32")
    packed = {"input_layout": "TND", "block_table": tensor(2, 4, dtype="int32"), "antiquant_scale": scale}
    query = sized("TND", 7, 128)
    assert fia(query, cache, cache, **packed, antiquant_offset=scale).decode_engine.yes
    assert fia(query, cache, cache, **packed).decode_engine.no


class TestTarget:
    @pytest.mark.parametrize(
        ("mine", "asked", "expected"),
        [
            ("8.2.RC1", "8.1.RC1", YES),
            ("8.1.RC1", "8.2.RC1", NO),
            ("8.2.RC1", "8.2.0", NO),
            ("8.2.0", "8.2.RC1", YES),
            ("8.5.0", "8.5.0", YES),
            ("8.10.0", "8.9.0", YES),
            ("8.5", "8.5.0", YES),
            ("8.5", "8.5.1", NO),
            ("8.1.RC1", "8.1.RC1.alpha002", YES),
            ("8.1.RC1.alpha002", "8.1.RC1", NO),
            (None, "8.0.0", UNKNOWN),
        ],
    )
    def test_cann_versions(self, mine: str | None, asked: str, expected: bool | None) -> None:
        assert Target(cann=mine).cann_at_least(asked).state is expected

    def test_product(self) -> None:
        assert Target(soc="A2").soc_in("A2", "A3").yes
        assert Target(soc="310P").soc_in("A2", "A3").no
        assert Target().soc_in("A2").unknown
