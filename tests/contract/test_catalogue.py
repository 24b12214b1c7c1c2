"""The catalogue against the contract: names, defaults, histories and roles, written out by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from kvlint.contract.catalogue import (
    REQUIRED,
    V1_TO_V2,
    V2_TO_V1,
    Operator,
    Param,
    find,
    names,
    operators,
    overloads,
    release_ranges,
    releases,
    resolve_release,
    trains,
    variants,
)
from kvlint.contract.data.roles import ENTRIES, FAMILY_ROLES, UNDECLARED_WRITES

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
INT_MAX = 2147483647
INT64_MAX = 9223372036854775807

ROLES = frozenset({
    "query", "key", "value", "query_rope", "key_rope", "scale", "q_heads", "kv_heads", "q_lens",
    "kv_lens", "mask", "sparse_mode", "pre_tokens", "next_tokens", "layout", "layout_q", "layout_kv",
    "block_table", "block_size", "inner_precise", "lse_flag", "pse_shift", "sink", "keep_prob", "out",
    "lse_out", "workspace", "key_cache", "value_cache", "rope_cache", "nope_cache", "slots",
    "cache_mode", "epsilon", "axis", "data", "indices", "updates", "cos", "sin", "is_output_kv",
    "mask_type", "attention_mode", "sparse_indices", "key_quant_scale", "value_quant_scale",
    "key_quant_offset", "value_quant_offset", "key_quant_mode", "value_quant_mode", "query_quant_scale",
    "query_quant_mode", "key_rope_quant_scale", "out_quant_scale", "out_quant_offset", "dequant_scale1",
    "quant_scale1", "dequant_scale2", "merged_quant_scale", "merged_quant_offset", "merged_quant_mode",
    "query_padding", "kv_padding", "key_prefix", "value_prefix", "prefix_len",
})


def known(name: str, overload: str = "", release: str | None = None) -> Operator:
    operator = find(name, overload, release)
    assert operator is not None, name
    return operator


def named(operator: Operator, name: str) -> Param:
    param = operator.param(name)
    assert param is not None, f"{operator.full_name} has no {name}"
    return param


def by_role(operator: Operator, role: str) -> str | None:
    param = operator.by_role(role)
    return None if param is None else param.name


def every_variant() -> Iterator[Operator]:
    for name in sorted(names()):
        for overload in overloads(name):
            yield from variants(name, overload)


# Contract 1.1

OPTIONAL_V1 = {
    "pse_shift": None, "atten_mask": None, "actual_seq_lengths": None, "actual_seq_lengths_kv": None,
    "dequant_scale1": None, "quant_scale1": None, "dequant_scale2": None, "quant_scale2": None,
    "quant_offset2": None, "antiquant_scale": None, "antiquant_offset": None, "key_antiquant_scale": None,
    "key_antiquant_offset": None, "value_antiquant_scale": None, "value_antiquant_offset": None,
    "block_table": None, "query_padding_size": None, "kv_padding_size": None, "key_shared_prefix": None,
    "value_shared_prefix": None, "actual_shared_prefix_len": None, "query_rope": None, "key_rope": None,
    "key_rope_antiquant_scale": None, "num_heads": 1, "scale": 1.0, "pre_tokens": INT_MAX,
    "next_tokens": INT_MAX, "input_layout": "BSH", "num_key_value_heads": 0, "sparse_mode": 0,
    "inner_precise": 0, "block_size": 0, "antiquant_mode": 0, "key_antiquant_mode": 0,
    "value_antiquant_mode": 0, "softmax_lse_flag": False,
}
OPTIONAL_V2 = {
    "query_rope": None, "key_rope": None, "pse_shift": None, "atten_mask": None, "actual_seq_qlen": None,
    "actual_seq_kvlen": None, "block_table": None, "dequant_scale_query": None, "dequant_scale_key": None,
    "dequant_offset_key": None, "dequant_scale_value": None, "dequant_offset_value": None,
    "dequant_scale_key_rope": None, "quant_scale_out": None, "quant_offset_out": None, "quant_scale_p": None,
    "learnable_sink": None, "num_query_heads": 1, "num_key_value_heads": 0, "softmax_scale": 1.0,
    "pre_tokens": INT_MAX, "next_tokens": INT_MAX, "input_layout": "BSH", "sparse_mode": 0, "block_size": 0,
    "query_quant_mode": 0, "key_quant_mode": 0, "value_quant_mode": 0, "inner_precise": 0,
    "return_softmax_lse": False, "query_dtype": None, "key_dtype": None, "value_dtype": None,
    "query_rope_dtype": None, "key_rope_dtype": None, "key_shared_prefix_dtype": None,
    "value_shared_prefix_dtype": None, "dequant_scale_query_dtype": None, "dequant_scale_key_dtype": None,
    "dequant_scale_value_dtype": None, "dequant_scale_key_rope_dtype": None, "out_dtype": None,
}


@pytest.mark.parametrize(("name", "optional"), [(V1, OPTIONAL_V1), (V2, OPTIONAL_V2)])
def test_fia_takes_three_positional_tensors_and_the_rest_by_keyword(
    name: str, optional: dict[str, object]
) -> None:
    operator = known(name)
    assert [p.name for p in operator.params if p.position is not None] == ["query", "key", "value"]
    assert [p.name for p in operator.params if p.required] == ["query", "key", "value"]
    assert {p.name: p.default for p in operator.params if not p.required} == optional
    assert operator.returns == 2


def test_required_is_not_a_default_of_none() -> None:
    operator = known(V2)
    assert named(operator, "query").default is REQUIRED
    assert named(operator, "atten_mask").default is None
    assert isinstance(named(operator, "softmax_scale").default, float)
    assert named(operator, "return_softmax_lse").default is False


def test_fia_out_takes_its_outputs_as_one_list() -> None:
    for name in (V1, V2):
        operator = known(name, "out")
        assert named(operator, "workspace").type == "Tensor?"
        out = named(operator, "out")
        assert (out.type, out.position, out.required, out.mutated, out.role) == (
            "Tensor[]", None, True, True, "out")
        assert operator.param("attention_out") is None


def test_workspace_queries_share_the_keywords_of_their_operator() -> None:
    for name in (V1, V2):
        query = known(f"_{name}_get_max_workspace")
        assert query.params == known(name).params
        assert query.returns == 1
        assert (query.family, query.version) == ("fia", known(name).version)


# Contract 1.2, 2.2-2.4, 3; oracle 1.3

def test_train_order_is_not_number_order() -> None:
    order = releases()
    assert order.index("2.10.0") < order.index("2.7.1.post11")
    assert order.index("2.7.1") < order.index("2.9.0") < order.index("2.8.0.post4")
    assert order[0] == "2.1.0"
    assert len(order) == len(set(order))


def test_op_plugin_branches_map_to_their_releases() -> None:
    branches = {train.op_plugin: train.releases for train in trains() if train.op_plugin}
    assert list(branches) == ["5.0.0", "6.0.rc1", "6.0.rc2", "6.0.rc3", "6.0.0", "7.0.0", "7.1.0", "7.2.0",
                              "7.3.0", "26.0.0", "26.1.0"]
    assert "2.7.1" in branches["7.2.0"]
    assert "2.9.0" in branches["7.3.0"]
    assert "2.10.0" in branches["26.0.0"]


@pytest.mark.parametrize(("name", "overload", "first"), [
    (V1, "", "6.0.rc1"),
    (V1, "out", "7.0.0"),
    (V2, "", "7.2.0"),
    ("npu_fusion_attention_v2", "", "7.1.0"),
    ("npu_fusion_attention_v3", "", "26.0.0"),
    ("npu_attention_update", "", "7.2.0"),
    ("npu_kv_rmsnorm_rope_cache", "", "7.0.0"),
    ("npu_kv_rmsnorm_rope_cache_v2", "", "7.2.0"),
    ("npu_scatter_pa_kv_cache", "", "7.2.0"),
    ("npu_gather_pa_kv_cache", "", "26.0.0"),
    ("npu_mla_prolog", "", "7.0.0"),
    ("npu_mla_prolog_v2", "", "7.1.0"),
    ("npu_mla_prolog_v3", "", "7.3.0"),
    ("npu_sparse_flash_attention", "", "7.3.0"),
    ("npu_lightning_indexer", "", "7.3.0"),
    ("npu_kv_quant_sparse_flash_attention", "", "7.3.0"),
])
def test_operators_appear_with_their_branch(name: str, overload: str, first: str) -> None:
    appeared = variants(name, overload)[0].releases[0]
    assert next(train.op_plugin for train in trains() if appeared in train.releases) == first


@pytest.mark.parametrize(("name", "parameter", "without", "with_it"), [
    (V1, "query_rope", "6.0.0", "7.0.0"),
    (V1, "key_antiquant_scale", "6.0.rc1", "6.0.rc2"),
    (V2, "quant_scale_p", "7.3.0", "26.0.0"),
    (V2, "out_dtype", "7.3.0", "26.0.0"),
    ("npu_fusion_attention", "sink", "7.2.0", "7.3.0"),
    ("npu_fusion_attention", "dropout_mask", "7.3.0", "26.0.0"),
    ("npu_kv_rmsnorm_rope_cache", "v", "7.2.0", "7.3.0"),
    ("npu_kv_rmsnorm_rope_cache_v2", "k_cache_dtype", "7.3.0", "26.0.0"),
    ("npu_scatter_pa_kv_cache", "cache_mode", "7.3.0", "26.0.0"),
    ("npu_rotary_mul", "rotary_mode", "6.0.0", "7.0.0"),
    ("npu_rotary_mul", "rotate", "7.3.0", "26.0.0"),
    ("npu_apply_rotary_pos_emb", "rotary_mode", "7.1.0", "7.2.0"),
    ("npu_mla_prolog_v3", "token_x_dtype", "26.0.0", "26.1.0"),
    ("npu_advance_step_flashattn", "spec_token", "7.1.0", "7.2.0"),
])
def test_parameters_appear_with_their_branch(name: str, parameter: str, without: str, with_it: str) -> None:
    branches = {train.op_plugin: train.releases for train in trains()}
    before = [find(name, release=f"=={release}") for release in branches[without]]
    after = [find(name, release=f"=={release}") for release in branches[with_it]]
    assert not any(operator.param(parameter) for operator in before if operator)
    present = [operator for operator in after if operator]
    assert present
    assert all(operator.param(parameter) for operator in present)


def test_v1_never_changed_in_the_releases_that_carry_v2() -> None:
    carried_by_v2 = {release for variant in variants(V2) for release in variant.releases}
    newest = variants(V1)[-1]
    assert carried_by_v2 <= set(newest.releases)
    assert all(variant.param("scale") for variant in variants(V1))
    assert not any(variant.param("scale_value") for variant in variants(V1))


@pytest.mark.parametrize(("name", "parameter", "old", "new"), [
    ("npu_quant_scatter_", "axis", 0, -2),
    ("npu_quant_scatter_", "quant_axis", 1, -1),
    ("npu_quant_scatter", "axis", 0, -2),
    ("npu_apply_rotary_pos_emb", "layout", "BSH", "BSND"),
    ("npu_prompt_flash_attention", "pre_tokens", 2147473647, INT_MAX),
])
def test_defaults_that_flipped(name: str, parameter: str, old: object, new: object) -> None:
    assert named(known(name, release="==2.7.1"), parameter).default == old
    assert named(known(name, release="2.7.1"), parameter).default == new
    assert named(known(name, release="2.14"), parameter).default == new


@pytest.mark.parametrize(("name", "parameter", "default"), [
    ("npu_prompt_flash_attention", "next_tokens", 0),
    ("npu_incre_flash_attention", "inner_precise", 1),
    ("npu_fusion_attention", "keep_prob", 1.0),
    ("npu_fusion_attention_v2", "pse_type", 1),
    ("npu_scatter_pa_kv_cache", "cache_mode", "PA_NZ"),
    ("npu_kv_rmsnorm_rope_cache", "cache_mode", "Norm"),
    ("npu_kv_rmsnorm_rope_cache", "epsilon", 1e-5),
    ("npu_qkv_rms_norm_rope_cache", "epsilon", 1e-6),
    ("npu_mla_prolog_v3", "cache_mode", "PA_BSND"),
    ("npu_mla_prolog_v3", "rmsnorm_epsilon_cq", 1e-5),
    ("npu_sparse_flash_attention", "attention_mode", 0),
    ("npu_sparse_flash_attention", "pre_tokens", INT64_MAX),
    ("npu_block_sparse_attention", "scale_value", 0.0),
    ("npu_block_sparse_attention", "num_key_value_heads", 1),
    ("_npu_paged_attention_v2", "scale_value", 1.0),
    ("_npu_flash_attention_v2", "mask_type", 2),
    ("_npu_flash_attention_v3", "mask_type", 3),
    ("_npu_paged_attention_splitfuse_v2", "mask_type", 5),
    ("_npu_flash_attention_prefix_v2", "kernel_type", 1),
])
def test_defaults_worth_knowing(name: str, parameter: str, default: object) -> None:
    found = named(known(name), parameter).default
    assert found == default
    assert type(found) is type(default)


@pytest.mark.parametrize(("name", "count"), [
    (V1, 2), ("npu_prompt_flash_attention", 1), ("npu_incre_flash_attention", 1), ("npu_fusion_attention", 7),
    ("npu_fusion_attention_v2", 7), ("npu_fusion_attention_v3", 6), ("npu_sparse_flash_attention", 3),
    ("npu_lightning_indexer", 2), ("npu_quant_lightning_indexer", 1), ("npu_mla_prolog", 4),
    ("npu_mla_prolog_v2", 5), ("npu_mla_prolog_v3", 5), ("npu_kv_rmsnorm_rope_cache", 4),
    ("npu_kv_rmsnorm_rope_cache_v2", 2), ("npu_scatter_pa_kv_cache", 0), ("npu_gather_pa_kv_cache", 0),
    ("npu_attention_update", 2), ("_npu_paged_attention", 0), ("_npu_paged_attention_v2", 1),
    ("npu_ring_mla", 2), ("npu_paged_cache_load", 2), ("scatter_update_", 1),
])
def test_result_counts(name: str, count: int) -> None:
    assert known(name).returns == count


# Contract 2.1: one meaning, many names

@pytest.mark.parametrize(("role", "spelled"), {
    "scale": {V1: "scale", V2: "softmax_scale", "npu_prompt_flash_attention": "scale_value",
              "npu_incre_flash_attention": "scale_value", "npu_fusion_attention": "scale",
              "_npu_paged_attention": "scale_value", "npu_sparse_flash_attention": "scale_value",
              "npu_ring_mla": "qk_scale"},
    "q_heads": {V1: "num_heads", V2: "num_query_heads", "npu_fusion_attention_v3": "head_num",
                "_npu_paged_attention": "num_heads", "npu_multi_head_latent_attention": "q_headnum"},
    "kv_heads": {V1: "num_key_value_heads", V2: "num_key_value_heads", "npu_fusion_attention": None,
                 "_npu_paged_attention": "num_kv_heads", "npu_ring_mla": "kv_head_num",
                 "npu_nsa_select_attention_infer": "key_value_head_num"},
    "q_lens": {V1: "actual_seq_lengths", V2: "actual_seq_qlen", "npu_incre_flash_attention": None,
               "npu_sparse_flash_attention": "actual_seq_lengths_query", "_npu_flash_attention": "seq_len",
               "_npu_paged_attention": None, "npu_ring_attention_update": "actual_seq_qlen"},
    "kv_lens": {V1: "actual_seq_lengths_kv", V2: "actual_seq_kvlen",
                "npu_incre_flash_attention": "actual_seq_lengths", "_npu_paged_attention": "context_lens",
                "npu_lightning_indexer": "actual_seq_lengths_key", "_npu_flash_attention": None},
    "pre_tokens": {V1: "pre_tokens", "npu_fusion_attention": "pre_tockens",
                   "npu_fusion_attention_v2": "pre_tokens", "npu_fusion_attention_v3": "pre_tockens"},
    "mask": {V1: "atten_mask", "_npu_flash_attention": "mask", "npu_scatter_list_": None},
    "layout": {V1: "input_layout", "npu_nsa_select_attention_infer": "layout",
               "npu_sparse_flash_attention": None},
    "layout_kv": {"npu_sparse_flash_attention": "layout_kv", "npu_lightning_indexer": "layout_key"},
    "lse_flag": {V1: "softmax_lse_flag", V2: "return_softmax_lse"},
    "sink": {V1: None, V2: "learnable_sink", "npu_fusion_attention": "sink",
             "npu_sparse_flash_attention": "sinks"},
    "key_quant_scale": {V1: "key_antiquant_scale", V2: "dequant_scale_key"},
    "out_quant_scale": {V1: "quant_scale2", V2: "quant_scale_out"},
    "merged_quant_scale": {V1: "antiquant_scale", V2: None, "npu_incre_flash_attention": "antiquant_scale"},
    "dequant_scale1": {V1: "dequant_scale1", V2: None, "npu_prompt_flash_attention": "deq_scale1"},
    "query_quant_scale": {V1: None, V2: "dequant_scale_query"},
    "rope_cache": {"npu_kv_rmsnorm_rope_cache": "k_cache", "npu_mla_prolog_v3": "kr_cache",
                   "npu_mla_preprocess": "kv_cache_rope"},
    "nope_cache": {"npu_kv_rmsnorm_rope_cache": "ckv_cache", "npu_mla_prolog_v3": "kv_cache",
                   "npu_mla_preprocess": "kv_cache"},
    "slots": {"npu_kv_rmsnorm_rope_cache": "index", "npu_mla_prolog": "cache_index",
              "npu_scatter_pa_kv_cache": "slot_mapping", "_npu_reshape_and_cache": "slot_indices",
              "npu_mla_preprocess": "slotmapping"},
    "data": {"scatter_update_": "input", "npu_scatter_nd_update_": "input"},
    "cos": {"npu_mla_prolog": "rope_cos", "npu_rotary_mul": "r1", "npu_kv_rmsnorm_rope_cache": "cos"},
}.items())
def test_roles(role: str, spelled: dict[str, str | None]) -> None:
    assert {name: by_role(known(name), role) for name in spelled} == spelled


def test_only_agreed_roles_are_used_and_none_twice() -> None:
    for operator in every_variant():
        used = [p.role for p in operator.params if p.role is not None]
        assert set(used) <= ROLES
        assert len(used) == len(set(used)), operator.full_name


def test_atb_takes_kv_heads_before_heads_where_paged() -> None:
    def order(name: str) -> list[str | None]:
        return [p.role for p in known(name).params if p.role in ("q_heads", "kv_heads")]

    for name in ("_npu_paged_attention", "_npu_paged_attention_mla", "_npu_paged_attention_splitfuse",
                 "_npu_paged_attention_splitfuse_v2", "_npu_paged_attention_quant",
                 "_npu_flash_attention_qlens"):
        assert order(name) == ["kv_heads", "q_heads"], name
    for name in ("_npu_flash_attention", "_npu_flash_attention_unpad", "_npu_flash_attention_unpad_v2",
                 "_npu_flash_attention_v3", "npu_ring_mla", "npu_multi_head_latent_attention"):
        assert order(name) == ["q_heads", "kv_heads"], name


def test_rope_cache_comes_first_in_one_writer_and_last_in_the_other() -> None:
    norm, prolog = known("npu_kv_rmsnorm_rope_cache"), known("npu_mla_prolog")
    assert [p.role for p in norm.params if p.role in ("cos", "sin", "rope_cache", "nope_cache")] == [
        "cos", "sin", "rope_cache", "nope_cache"]
    assert [p.role for p in prolog.params if p.role in ("cos", "sin", "rope_cache", "nope_cache")] == [
        "sin", "cos", "nope_cache", "rope_cache"]


def test_mutation_is_what_the_schema_declares() -> None:
    assert named(known("scatter_update_"), "input").mutated
    assert not named(known("scatter_update"), "input").mutated
    assert named(known("npu_kv_rmsnorm_rope_cache_v2"), "k_cache").mutated
    assert not named(known("npu_kv_rmsnorm_rope_cache"), "k_cache").mutated
    assert named(known("npu_scatter_list_"), "input").type == "Tensor(a!)[]"
    assert named(known("npu_scatter_list_"), "input").mutated


def test_undeclared_writes_name_parameters_that_exist() -> None:
    for name, parameters in UNDECLARED_WRITES.items():
        for parameter in parameters:
            assert not named(known(name), parameter).mutated


# Contract 1.3

def test_v1_and_v2_map_onto_each_other() -> None:
    shared = {"query", "key", "value", "workspace", "out"}
    assert set(V1_TO_V2) == set(OPTIONAL_V1) | shared
    assert set(V2_TO_V1) == set(OPTIONAL_V2) | shared
    for old, new in V1_TO_V2.items():
        assert new is None or V2_TO_V1[new] == old
    for new, old in V2_TO_V1.items():
        assert old is None or V1_TO_V2[old] == new
    assert V1_TO_V2["scale"] == "softmax_scale"
    assert V1_TO_V2["antiquant_scale"] is None
    assert V2_TO_V1["learnable_sink"] is None


def test_mapped_parameters_share_role_type_and_default() -> None:
    v1, v2 = known(V1), known(V2)
    for old, new in V1_TO_V2.items():
        if new is None or v1.param(old) is None:
            continue
        before, after = named(v1, old), named(v2, new)
        assert (before.role, before.type, before.default) == (after.role, after.type, after.default)


# Looking up

def test_a_line_means_its_newest_release() -> None:
    assert resolve_release("2.7") == resolve_release("2.7.1") == "2.7.1.post11"
    assert resolve_release("==2.7.1") == "2.7.1"
    assert resolve_release("2.7.1.post2") == "2.7.1.post2"
    assert resolve_release("2.13.0+cpu") == "2.13.0"
    assert resolve_release("2.9") == "2.9.0.post9"
    assert resolve_release("2.1") == "2.1.0.post17"


@pytest.mark.parametrize("text", ["", "2.0", "2.7.1.post1", "==2.7", "3", "latest", "2.7.1.post"])
def test_an_unknown_release_says_which_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"2\.7\.1, 2\.8\.0") as caught:
        resolve_release(text)
    assert "\n" not in str(caught.value)


def test_lookup_by_release() -> None:
    assert find(V2, release="2.5") is None
    assert known(V2, release="2.7.1.post2").param("quant_scale_p") is None
    assert known(V2, release="2.7.1.post4").param("quant_scale_p") is not None
    assert find("no_such_operator") is None
    assert find(V1, "no_such_overload") is None
    assert "2.1.0" not in {r for operator in operators("2.14") for r in operator.releases
                           if operator.name == "npu_mla_prolog_v3"}
    assert {operator.full_name for operator in operators("2.1.0.post17")} < {o.full_name for o in operators()}


def test_a_name_without_default_overload_means_its_only_one() -> None:
    assert known("npu_scatter_pa_cache").full_name == "npu_scatter_pa_cache.value"
    assert known("_npu_paged_attention_v2").full_name == "_npu_paged_attention_v2.out"
    assert known(V1).full_name == V1
    assert known(V1, "default") is known(V1)
    assert known(V1, "out").full_name == f"{V1}.out"


def test_ranges_read_by_line() -> None:
    assert release_ranges(releases()) == "2.1.0 and later"
    assert release_ranges(["2.7.1", "2.7.1.post2"]) == "2.7.1 to 2.7.1.post2"
    assert release_ranges(variants(V2)[-1].releases) == (
        "2.7.1.post4+, 2.8.0.post4+, 2.9.0.post2+, 2.9.1 and later")
    assert release_ranges(["2.9.1"]) == "2.9.1"
    assert release_ranges([]) == ""


# The data

def test_every_kept_operator_is_in_some_release() -> None:
    assert names() == {name for entries in ENTRIES.values() for name in entries}
    assert all(entry.family in FAMILY_ROLES for entries in ENTRIES.values() for entry in entries.values())


def test_every_schema_parses_to_what_it_says() -> None:
    for operator in every_variant():
        assert rebuilt(operator) == operator.schema


def rebuilt(operator: Operator) -> str:
    """The argument list, written again from the parsed parameters, with the results as they were."""
    parts: list[str] = []
    for param in operator.params:
        if param.position is None and "*" not in parts:
            parts.append("*")
        default = "" if param.required else f"={literal(operator, param)}"
        parts.append(f"{param.type} {param.name}{default}")
    return f"{operator.full_name}({', '.join(parts)}){operator.schema[operator.schema.rindex(') -> ') + 1:]}"


def literal(operator: Operator, param: Param) -> str:
    """The default as the schema spells it, checked to have the same value."""
    spelled = operator.schema.split(f" {param.name}=", 1)[1]
    end = spelled.index('"', 1) + 1 if spelled.startswith('"') else min(
        spelled.index(c) for c in ",)" if c in spelled)
    text = spelled[:end]
    written = f'"{param.default}"' if isinstance(param.default, str) else str(param.default)
    assert written == text or float(text) == param.default, f"{operator.full_name} {param.name}"
    return text


def test_every_release_has_at_most_one_schema_of_an_overload() -> None:
    order = releases()
    for name in names():
        for overload in overloads(name):
            carried = [r for variant in variants(name, overload) for r in variant.releases]
            assert len(carried) == len(set(carried)), name
            lasts = [order.index(variant.releases[-1]) for variant in variants(name, overload)]
            assert lasts == sorted(lasts)


# The real thing

@pytest.fixture(scope="module")
def torch() -> Any:
    """torch with a loaded torch_npu of a release that the catalogue has."""
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        import torch
        import torch_npu
    except Exception as error:
        pytest.skip(f"torch_npu cannot be imported: {error}")
    if torch_npu.__version__.split("+")[0] not in releases():
        pytest.skip(f"the catalogue has no torch_npu {torch_npu.__version__}")
    return torch


def test_registered_schemas_are_the_catalogued_ones(torch: Any) -> None:
    import torch_npu

    release = "==" + torch_npu.__version__.split("+")[0]
    compared = 0
    for operator in operators(release):
        packet = getattr(getattr(torch.ops, operator.namespace), operator.name, None)
        if packet is None and operator.namespace == "atb":
            continue  # its library needs the ATB runtime
        assert packet is not None, operator.full_name
        schema = getattr(packet, operator.overload or "default")._schema
        assert str(torch._C.parse_schema(f"{operator.namespace}::{operator.schema}")) == str(schema)
        assert tuple(map(as_param, schema.arguments)) == tuple(map(comparable, operator.params)), schema
        assert len(schema.returns) == operator.returns
        compared += 1
    assert compared >= sum(operator.namespace == "npu" for operator in operators(release))


def as_param(argument: Any) -> tuple[str, bool, bool, object]:
    default = argument.default_value if argument.has_default_value() else REQUIRED
    return (argument.name, argument.kwarg_only, bool(argument.alias_info and argument.alias_info.is_write),
            tuple(default) if isinstance(default, list) else default)


def comparable(param: Param) -> tuple[str, bool, bool, object]:
    listed = param.type == "Tensor[]"  # registered without an alias annotation
    return param.name, param.position is None, param.mutated and not listed, param.default


def test_without_a_release_the_newest_one_counts() -> None:
    newest = releases()[-1]
    for name in names():
        for overload in overloads(name):
            current = find(name, overload, newest)
            if current is not None:
                assert find(name, overload) == current, name
