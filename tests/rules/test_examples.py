"""Every rule finds exactly what its examples say, and carries the text that users read."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path

import pytest
from support.examples import expected, findings, reported, text_of

from kvlint.contract.rule import DOC_HEADINGS, Rule, all_rules

RULES = all_rules()
HUNDREDS = {
    "call_form": 1,
    "mask": 2,
    "lengths": 3,
    "paged": 4,
    "mla": 5,
    "cache_writes": 6,
    "lifecycle": 7,
    "quant": 8,
    "noisy": 9,
}
CONTRACT_ID = re.compile(r"[A-Z]{1,4}-?\d{2}|[0-4]\.\d{1,2}")


def examples(kind: str) -> list[object]:
    return [
        pytest.param(rule, source, id=f"{rule.code}-{kind}[{name}]")
        for rule in RULES
        for name, source in getattr(rule, kind).items()
    ]


def rules_with(rule: Rule) -> list[Rule]:
    """The rules that are on by default, and the rule itself."""
    return [other for other in RULES if other.default or other is rule]


def found_in(text: str, rule: Rule) -> dict[tuple[int, str], str]:
    """What is found in an example; rules about comments only see what is left after suppressions."""
    about_comments = rule.code.startswith("KV9")
    return (reported if about_comments else findings)(text, rules_with(rule))


@pytest.mark.parametrize(("rule", "source"), examples("bad"))
def test_bad_example_is_found_where_marked(rule: Rule, source: str) -> None:
    text = text_of(source)
    marked = expected(text)
    assert any(code == rule.code for _, code in marked), f"no line is marked with {rule.code}"
    found = found_in(text, rule)
    assert set(found) == marked, f"messages: {found}"


@pytest.mark.parametrize(("rule", "source"), examples("ok"))
def test_ok_example_is_clean(rule: Rule, source: str) -> None:
    text = text_of(source)
    assert not expected(text)
    assert found_in(text, rule) == {}


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.code) for rule in RULES])
class TestForm:
    def test_documentation_has_every_heading(self, rule: Rule) -> None:
        sections = rule.doc()
        assert [heading for heading in sections if heading] == list(DOC_HEADINGS)
        assert sections[""].endswith("."), "the summary is one sentence"
        assert "\n" not in sections[""]
        for heading in DOC_HEADINGS:
            assert sections[heading], f"nothing under {heading}"

    def test_file_is_named_after_the_rule(self, rule: Rule) -> None:
        path = Path(inspect.getfile(type(rule)))
        assert path.stem == rule.name.replace("-", "_")
        assert type(rule).__name__.lower() == rule.name.replace("-", "")

    def test_code_belongs_to_the_folder(self, rule: Rule) -> None:
        assert re.fullmatch(r"KV[1-9]\d\d", rule.code)
        folder = Path(inspect.getfile(type(rule))).parent.name
        assert int(rule.code[2]) == HUNDREDS[folder]

    def test_name_reads_well(self, rule: Rule) -> None:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)

    def test_has_a_bad_and_an_ok_example(self, rule: Rule) -> None:
        assert rule.bad and rule.ok

    def test_contract_ids(self, rule: Rule) -> None:
        assert rule.contract
        assert [text for text in rule.contract if not CONTRACT_ID.fullmatch(text)] == []

    def test_names_its_operators(self, rule: Rule) -> None:
        assert rule.families or rule.operators or rule.events


def test_codes_and_names_are_unique() -> None:
    assert [code for code, count in Counter(rule.code for rule in RULES).items() if count > 1] == []
    assert [name for name, count in Counter(rule.name for rule in RULES).items() if count > 1] == []
