"""What ``kvlint op`` says about an operator."""

from __future__ import annotations

import builtins
import json
from typing import Any

import pytest

from kvlint.contract.catalogue import names
from kvlint.opinfo import UnknownOperator, describe, list_operators

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"


def line(text: str, start: str) -> str:
    return next(row.strip() for row in text.splitlines() if row.strip().startswith(start))


def data(name: str, release: str | None = None) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(describe(name, release, "json"))
    return content


def parameter(content: dict[str, Any], name: str) -> dict[str, Any]:
    return next(p for p in content["parameters"] if p["name"] == name)


def test_a_parameter_line_has_type_default_role_and_notes() -> None:
    text = describe(V2, None, "text")
    assert text.startswith(f"npu::{V2} (fia v2), 2 results\n")
    assert " ".join(line(text, "softmax_scale").split()) == "softmax_scale: float = 1.0 scale v1: scale"
    assert line(text, "quant_scale_p").endswith(
        "v1: no equivalent; in 2.7.1.post4+, 2.8.0.post4+, 2.9.0.post2+, 2.9.1 and later")
    rows = [row.strip() for row in text.splitlines()]
    assert rows.index("*, keyword-only from here") == next(
        i for i, row in enumerate(rows) if row.startswith("value:")) + 1


def test_a_release_shows_its_own_schema() -> None:
    text = describe(V2, "2.7.1.post2", "text")
    assert "as in torch_npu 2.7.1.post2" in text
    assert "quant_scale_p: " not in text
    assert parameter(data("npu_quant_scatter_", "==2.7.1"), "axis")["default"] == 0
    assert parameter(data("npu_quant_scatter_"), "axis")["default"] == -2


def test_history_names_what_changed() -> None:
    changes = [change["changes"] for change in data("npu_quant_scatter_")["history"]]
    assert changes == [
        ["first schema"],
        ["self is called input"],
        ["adds dst_type, round_mode", "axis defaults to -2, was 0", "quant_axis defaults to -1, was 1"],
    ]
    assert data("npu_sparse_flash_attention")["history"][-1]["changes"] == [
        "adds sinks", "value is Tensor?, was Tensor"]


def test_mutation_is_told_even_where_the_schema_hides_it() -> None:
    assert line(describe("scatter_update_", None, "text"), "input").endswith("written in place")
    hidden = line(describe("npu_kv_rmsnorm_rope_cache", None, "text"), "ckv_cache")
    assert hidden.endswith("written in place, although the schema does not say so")
    assert parameter(data("npu_apply_rotary_pos_emb"), "query")["written"] is True
    assert parameter(data("scatter_update"), "input")["written"] is False
    assert "list of the outputs" in line(describe(f"{V1}.out", None, "text"), "out:")


@pytest.mark.parametrize("written", [
    V1, f"torch_npu.{V1}", f"torch.ops.npu.{V1}", f"torch.ops.npu.{V1}.default", f"torchair.ops.{V1}",
])
def test_a_name_may_be_written_as_in_a_call(written: str) -> None:
    assert data(written)["name"] == V1


def test_overloads_refer_to_each_other() -> None:
    assert data(V1)["overloads"] == [f"{V1}.out"]
    assert data(f"torch.ops.npu.{V1}.out")["overloads"] == [V1]
    assert data("torch_npu.atb._npu_paged_attention_v2")["name"] == "_npu_paged_attention_v2.out"


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownOperator, match=f"did you mean {V1}"):
        describe("npu_fused_infer_attention_scor", None, "text")
    with pytest.raises(UnknownOperator, match=r"no operator is called 'matmul'$"):
        describe("matmul", None, "text")
    with pytest.raises(UnknownOperator, match="it has default, out"):
        describe(f"{V1}.tensor", None, "text")


def test_a_release_without_the_operator_says_where_it_is() -> None:
    with pytest.raises(ValueError, match=r"2\.5\.1\.post1 has no .*_v2; it is in 2\.1\.0\.post17, 2\.6\.0"):
        describe(V2, "2.5", "text")
    with pytest.raises(ValueError, match="no torch_npu release '9'"):
        describe(V2, "9", "text")


def test_rules_are_listed_when_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"code": "KV101", "name": "missing-scale"} in data(V1)["rules"]
    real = builtins.__import__

    def without_rules(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "kvlint.contract.rule":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_rules)
    assert data(V1)["rules"] == []


def test_the_list_has_every_operator_under_its_family() -> None:
    rows = list_operators("text").splitlines()
    families = [row for row in rows if row and not row.startswith(" ")]
    assert families == sorted(set(families))
    assert {row.split()[0].partition(".")[0] for row in rows if row.startswith(" ")} == names()
    listed = json.loads(list_operators("json"))
    assert {entry["name"].partition(".")[0] for entry in listed} == names()
    assert all(entry["releases"] for entry in listed)


@pytest.mark.parametrize("name", sorted(names()))
def test_every_operator_can_be_described(name: str) -> None:
    assert name in describe(name, None, "text")
    assert data(name)["schema"].startswith(name)
