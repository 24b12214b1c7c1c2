"""What people and agents read about rules and operators: ``kvlint rule``, ``op`` and ``--version``."""

from __future__ import annotations

import json

import pytest
from support.cli import Kvlint

from kvlint import __version__
from kvlint.contract.catalogue import find
from kvlint.contract.rule import DOC_HEADINGS, all_rules


class TestRule:
    @pytest.mark.parametrize("word", ["KV101", "kv101", "missing-scale", "Missing-Scale"])
    def test_by_code_or_name(self, kvlint: Kvlint, word: str) -> None:
        ran = kvlint("rule", word)
        assert ran.code == 0
        assert ran.out.startswith("KV101 missing-scale (silent, ")
        for heading in DOC_HEADINGS:
            assert f"\n{heading}\n" in ran.out

    def test_shows_the_examples(self, kvlint: Kvlint) -> None:
        rule = all_rules()[0]
        out = kvlint("rule", rule.code).out
        for name in rule.bad:
            assert f"\nWrong: {name}\n" in out
        for name in rule.ok:
            assert f"\nRight: {name}\n" in out

    def test_json(self, kvlint: Kvlint) -> None:
        data = json.loads(kvlint("rule", "KV901", "--output-format", "json").out)
        assert (data["code"], data["name"], data["severity"]) == ("KV901", "unused-suppression", "ignored")
        assert list(data["doc"]) == list(DOC_HEADINGS) and data["bad"] and data["ok"]

    def test_markdown(self, kvlint: Kvlint) -> None:
        out = kvlint("rule", "KV902", "--output-format=markdown").out
        assert out.startswith("# unknown-suppression (KV902)\n")
        assert "## Evidence" in out and "```python" in out

    def test_all(self, kvlint: Kvlint) -> None:
        data = json.loads(kvlint("rule", "--all", "--output-format=json").out)
        assert [item["code"] for item in data] == [rule.code for rule in all_rules()]
        assert kvlint("rule", "--all").out.count("\nWhat it does\n") == len(data)

    def test_without_a_name_lists_them(self, kvlint: Kvlint) -> None:
        lines = kvlint("rule").out.splitlines()
        assert [line.split()[:2] for line in lines] == [[rule.code, rule.name] for rule in all_rules()]

    def test_unknown(self, kvlint: Kvlint) -> None:
        ran = kvlint("rule", "missing-scal")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == 'kvlint: error: no rule is called "missing-scal", did you mean "missing-scale"?\n'


class TestOp:
    def test_text_names_every_parameter(self, kvlint: Kvlint) -> None:
        name = "npu_fused_infer_attention_score"
        ran = kvlint("op", name)
        operator = find(name)
        assert operator is not None and ran.code == 0
        assert [param.name for param in operator.params if param.name not in ran.out] == []

    def test_json(self, kvlint: Kvlint) -> None:
        ran = kvlint("op", "torch_npu.npu_fused_infer_attention_score_v2", "--output-format=json")
        assert json.loads(ran.out)["name"] == "npu_fused_infer_attention_score_v2"
        assert ran.out.endswith("}\n")

    def test_list(self, kvlint: Kvlint) -> None:
        assert "npu_fusion_attention" in kvlint("op", "--list").out
        assert len(json.loads(kvlint("op", "--list", "--output-format=json").out)) > 50

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["npu_fusd_infer_attention_score"], "did you mean npu_fused_infer_attention_score"),
            (["npu_fusion_attention", "--torch-npu", "1.0"], "no torch_npu release '1.0'"),
            ([], "op: name an operator or give --list"),
        ],
    )
    def test_refused_in_one_line(self, kvlint: Kvlint, words: list[str], said: str) -> None:
        ran = kvlint("op", *words)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("kvlint: error: ") and said in ran.err and ran.err.count("\n") == 1


class TestVersion:
    @pytest.mark.parametrize("words", [["--version"], ["--version", "check"]])
    def test_prints_it(self, kvlint: Kvlint, words: list[str]) -> None:
        ran = kvlint(*words)
        assert (ran.code, ran.out) == (0, f"kvlint {__version__}\n")


class TestTop:
    def test_help_names_the_commands(self, kvlint: Kvlint) -> None:
        ran = kvlint("--help")
        assert ran.code == 0
        for command in ("check", "rule", "op"):
            assert f"\n  {command} " in ran.out

    def test_without_words_shows_the_help(self, kvlint: Kvlint) -> None:
        ran = kvlint()
        assert "Usage: kvlint" in ran.out + ran.err

    def test_unknown_command(self, kvlint: Kvlint) -> None:
        ran = kvlint("chek")
        assert ran.code == 2 and "No such command" in ran.err


def test_doctor_names_what_is_missing(kvlint: Kvlint, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    hidden = {"torch", "numpy"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in hidden else found(name))
    ran = kvlint("doctor")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines] == ["sim", "sdpa", "npu"]
    assert all("torch and numpy not installed" in line for line in lines)
