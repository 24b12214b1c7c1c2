"""Suppression comments: which act, on what, and which are reported themselves."""

from __future__ import annotations

import pytest
from support.cli import Kvlint

from kvlint.suppress import Suppressions


def check(kvlint: Kvlint, text: str, *words: str) -> list[str]:
    """``line: code`` of every finding in a module."""
    ran = kvlint("check", "-", "--output-format=concise", *words, stdin="import torch_npu\n" + text)
    assert ran.err == ""
    return [
        item.split(":", 1)[1].rpartition(":")[0].split(":")[0] + item.rpartition(":")[2]
        for item in ran.findings
    ]


CALL = "torch_npu.npu_fusion_attention"


class TestTrailing:
    @pytest.mark.parametrize(
        "comment",
        [
            "# kvlint: ignore[KV101]",
            "#kvlint:ignore[KV101]",
            "# kvlint: ignore[bad-argument] it is meant",
            "# kvlint: ignore[ KV101 , KV102 ]",
            "# kvlint: ignore[kv101]",
            "# type: ignore[attr-defined]  # kvlint: ignore[KV101]",
            "# noqa: E501  # kvlint: ignore[KV101]",
            "# pragma: no cover  # kvlint: ignore[KV101] reason",
            "# noqa",
            "# NOQA",
            "# noqa: KV101",
            "# noqa:KV101",
            "# noqa: kv101",
            "# noqa: E501,KV101",
            "# noqa: E501 KV101",
            "# noqa: KV1",
            "# long prose, then # noqa: KV101",
        ],
    )
    def test_hides(self, kvlint: Kvlint, comment: str) -> None:
        found = check(kvlint, f"{CALL}(q, bad=1)  {comment}\n", "--ignore", "KV901")
        assert found == []

    @pytest.mark.parametrize(
        "comment",
        [
            "# kvlint: ignore[KV102]",
            "# see '# kvlint: ignore[KV101]'",
            "# use `# kvlint: ignore[KV101]` here",
            "# no need for # kvlint: ignore[KV101]",
            "# ignore[KV101]",
            "# kvlint ignore[KV101]",
            "# kvlint: ignore",
            "# kvlint: ignore[]",
            "# kvlint: ignore KV101",
            "# kvlint: ignore[KV101",
            "# kvlint: ignore[KV10]",
            "# noqa: E501",
            "# noqa-this: KV101",
            "# noqaKV101",
        ],
    )
    def test_does_not_hide(self, kvlint: Kvlint, comment: str) -> None:
        found = check(kvlint, f"{CALL}(q, bad=1)  {comment}\n", "--ignore", "KV9")
        assert found == ["2 KV101"]

    def test_only_what_it_names(self, kvlint: Kvlint) -> None:
        assert check(kvlint, f"{CALL}(q, bad=1, worse=1)  # kvlint: ignore[KV101]\n") == ["2 KV102"]

    def test_other_lines_stay(self, kvlint: Kvlint) -> None:
        text = f"{CALL}(q, bad=1)  # kvlint: ignore[KV101]\n{CALL}(q, bad=1)\n"
        assert check(kvlint, text) == ["3 KV101"]


class TestText:
    def test_in_a_string_it_is_text(self, kvlint: Kvlint) -> None:
        assert check(kvlint, f'{CALL}("# kvlint: ignore[KV101] # noqa", bad=1)\n') == ["2 KV101"]

    def test_in_a_docstring_it_is_text(self, kvlint: Kvlint) -> None:
        text = f'def f(q):\n    """\n    # kvlint: ignore-file[KV101]\n    """\n    {CALL}(q, bad=1)\n'
        assert check(kvlint, text) == ["6 KV101"]

    def test_behind_a_string_with_a_hash(self, kvlint: Kvlint) -> None:
        assert check(kvlint, f'{CALL}("#", bad=1)  # kvlint: ignore[KV101]\n') == []

    def test_windows_line_ends(self, kvlint: Kvlint) -> None:
        text = f"{CALL}(q, bad=1)  # kvlint: ignore[KV101]\r\n{CALL}(\r\n    q,\r\n    bad=1,\r\n)\r\n"
        assert check(kvlint, text) == ["5 KV101"]

    def test_old_mac_line_ends(self, kvlint: Kvlint) -> None:
        text = f"{CALL}(q, bad=1)  # kvlint: ignore[KV101]\r{CALL}(q, bad=1)\r"
        assert check(kvlint, text) == ["3 KV101"]

    def test_unicode_before_the_comment(self, kvlint: Kvlint) -> None:
        assert check(kvlint, f'{CALL}("注意 🙂", bad=1)  # kvlint: ignore[KV101] 说明\n') == []

    def test_no_line_end_at_the_end(self, kvlint: Kvlint) -> None:
        assert check(kvlint, f"{CALL}(q, bad=1)  # kvlint: ignore[KV101]") == []


class TestManyLines:
    TEXT = f"x = {CALL}(A\n    q,B\n    bad=1,C\n    other=2,D\n)E\n"

    @pytest.mark.parametrize(
        ("where", "hides"), [("A", True), ("B", False), ("C", True), ("D", False), ("E", True)]
    )
    def test_call(self, kvlint: Kvlint, where: str, hides: bool) -> None:
        text = self.TEXT
        for mark in "ABCDE":
            text = text.replace(mark, "  # kvlint: ignore[KV101] why" if mark == where else "")
        assert check(kvlint, text, "--ignore", "KV9") == ([] if hides else ["4 KV101"])

    def test_call_inside_a_longer_statement(self, kvlint: Kvlint) -> None:
        text = f"x = [\n    1,\n    {CALL}(\n        q,\n        bad=1,\n    ),{{}}\n]\n"
        assert check(kvlint, text.format("")) == ["6 KV101"]
        assert check(kvlint, text.format("  # kvlint: ignore[KV101]")) == []

    def test_decorated_function(self, kvlint: Kvlint) -> None:
        text = f"@torch.no_grad()\ndef f(q):\n    return {CALL}(q, bad=1)"
        assert check(kvlint, f"{text}  # kvlint: ignore[KV101]\n") == []
        assert check(kvlint, f"# kvlint: ignore[KV101]\n{text}\n") == ["2 KV901", "5 KV101"]

    def test_finding_in_a_decorator(self) -> None:
        text = "# kvlint: ignore[KV101]\n@register(\n    torch_npu.f(q, bad=1),\n)\ndef f():\n    pass\n"
        found = Suppressions(text)
        assert [item.line for item in found.matching(3, 3)] == [1]
        assert list(found.matching(6, 6)) == []

    def test_header_of_a_block_does_not_cover_its_body(self, kvlint: Kvlint) -> None:
        text = f"if x:  # kvlint: ignore[KV101]\n    {CALL}(q, bad=1)\n"
        assert check(kvlint, text) == ["2 KV901", "3 KV101"]

    def test_backslash(self, kvlint: Kvlint) -> None:
        text = f"x = \\\n    {CALL}(q, bad=1)  # kvlint: ignore[KV101]\n"
        assert check(kvlint, text) == []


class TestOwnLine:
    def test_covers_the_statement_below(self, kvlint: Kvlint) -> None:
        text = f"# kvlint: ignore[KV101] why\nx = {CALL}(\n    q,\n    bad=1,\n)\n{CALL}(q, bad=1)\n"
        assert check(kvlint, text) == ["7 KV101"]

    def test_other_comments_may_stand_between(self, kvlint: Kvlint) -> None:
        text = f"# kvlint: ignore[KV101]\n# prose\n{CALL}(q, bad=1)\n"
        assert check(kvlint, text) == []

    def test_two_of_them(self, kvlint: Kvlint) -> None:
        text = f"# kvlint: ignore[KV101]\n# kvlint: ignore[KV102]\n{CALL}(q, bad=1, worse=1)\n"
        assert check(kvlint, text) == []

    def test_an_empty_line_ends_it(self, kvlint: Kvlint) -> None:
        text = f"# kvlint: ignore[KV101]\n\n{CALL}(q, bad=1)\n"
        assert check(kvlint, text) == ["2 KV901", "4 KV101"]

    def test_between_arguments(self, kvlint: Kvlint) -> None:
        text = f"{CALL}(\n    q,\n    # kvlint: ignore[KV101]\n    bad=1,\n    worse=1,\n)\n"
        assert check(kvlint, text) == ["6 KV102"]

    def test_above_a_call_inside_a_list(self, kvlint: Kvlint) -> None:
        text = (
            f"x = [\n    # kvlint: ignore[KV101]\n    {CALL}(\n        q, bad=1),\n    {CALL}(q, bad=1),\n]\n"
        )
        assert check(kvlint, text) == ["6 KV101"]

    def test_indented(self, kvlint: Kvlint) -> None:
        text = f"def f(q):\n    # kvlint: ignore[KV101]\n    return {CALL}(q, bad=1)\n"
        assert check(kvlint, text) == []

    def test_noqa_does_not_reach_down(self, kvlint: Kvlint) -> None:
        assert check(kvlint, f"# noqa: KV101\n{CALL}(q, bad=1)\n") == ["2 KV901", "3 KV101"]

    def test_at_the_end_of_the_file(self, kvlint: Kvlint) -> None:
        assert check(kvlint, "x = 1\n# kvlint: ignore[KV101]\n") == ["3 KV901"]


class TestFile:
    def test_everywhere(self, kvlint: Kvlint) -> None:
        text = f"{CALL}(q, bad=1)\n{CALL}(q, bad=1, worse=1)\n# kvlint: ignore-file[bad-argument] generated\n"
        assert check(kvlint, text) == ["3 KV102"]

    def test_needs_a_rule(self, kvlint: Kvlint) -> None:
        assert check(kvlint, f"# kvlint: ignore-file\n{CALL}(q, bad=1)\n") == ["2 KV902", "3 KV101"]

    def test_counts_as_suppressed(self, kvlint: Kvlint) -> None:
        ran = kvlint(
            "check", "-", stdin=f"# kvlint: ignore-file[KV101]\nimport torch_npu\n{CALL}(q, bad=1)\n"
        )
        assert (ran.code, ran.out) == (
            0,
            "No problems found: 1 operator call in 1 of 1 file, 1 suppressed.\n",
        )


class TestUnused:
    def test_points_at_the_code(self, kvlint: Kvlint) -> None:
        ran = kvlint("check", "-", stdin="x = 1  # kvlint: ignore[KV101, worse-argument] why\n")
        lines = ran.out.splitlines()
        assert lines[0].startswith("<stdin>:1:25: KV901 [ignored] KV101 hides nothing here")
        assert lines[3].split("|")[1] == " " + " " * 24 + "^^^^^"
        assert "worse-argument hides nothing here" in ran.out
        assert ran.code == 1

    def test_the_used_one_of_two_stays(self, kvlint: Kvlint) -> None:
        assert check(kvlint, f"{CALL}(q, bad=1)  # kvlint: ignore[KV101, KV102]\n") == ["2 KV901"]

    def test_both_comments_that_hide_one_finding_are_used(self, kvlint: Kvlint) -> None:
        text = f"# kvlint: ignore[KV101]\n{CALL}(q, bad=1)  # noqa: KV101\n"
        assert check(kvlint, text) == []

    def test_a_rule_that_did_not_run_is_not_unused(self, kvlint: Kvlint) -> None:
        text = "x = 1  # kvlint: ignore[KV101, whole-call]\n"
        assert check(kvlint, text, "--select", "KV102,KV901") == []
        assert check(kvlint, text, "--select", "KV101,KV901") == ["2 KV901"]

    def test_bare_noqa_is_never_reported(self, kvlint: Kvlint) -> None:
        assert check(kvlint, "x = 1  # noqa\n") == []

    def test_noqa_with_codes_of_others_is_never_reported(self, kvlint: Kvlint) -> None:
        assert check(kvlint, "x = 1  # noqa: E501, KV101\n") == ["2 KV901"]

    def test_can_be_hidden_itself(self, kvlint: Kvlint) -> None:
        assert check(kvlint, "x = 1  # kvlint: ignore[KV101, KV901]\n") == []
        assert (
            check(kvlint, "x = 1  # kvlint: ignore[KV101]\n# kvlint: ignore-file[unused-suppression]\n") == []
        )

    def test_in_a_file_without_operator_names(self, kvlint: Kvlint, tree) -> None:
        tree({"a.py": "x = 1  # kvlint: ignore[KV101]\n", "b.py": "x = 1  # NOQA: KV101\n"})
        ran = kvlint("check", "--output-format=concise")
        assert ran.findings == ["a.py:1:25: KV901", "b.py:1:16: KV901"]


class TestUnknown:
    @pytest.mark.parametrize(
        ("comment", "said"),
        [
            ("# kvlint: ignore[KV999]", 'no rule is called "KV999"'),
            ("# kvlint: ignore[KV1]", 'no rule is called "KV1"'),
            ("# kvlint: ignore[E501]", 'no rule is called "E501"'),
            ("# kvlint: ignore[bad argument]", 'no rule is called "bad argument"'),
            ("# kvlint: ignore", "names no rule"),
            ("# kvlint: ignore: KV101", "names no rule"),
            ("# kvlint: ignore[]", "names no rule"),
            ("# kvlint: ignore[KV101", "names no rule"),
            ("# kvlint: disable=KV101", '"disable" is no directive'),
            ("# kvlint: ignore-next[KV101]", '"ignore-next" is no directive'),
            ("# noqa: KV999", 'no rule is called "KV999"'),
        ],
    )
    def test_reported(self, kvlint: Kvlint, comment: str, said: str) -> None:
        ran = kvlint("check", "-", "--output-format=concise", stdin=f"x = 1  {comment}\n")
        assert [item.rpartition(" ")[2] for item in ran.findings] == ["KV902"]
        assert said in ran.out

    @pytest.mark.parametrize(
        "comment", ["# kvlint: please look at this", "# noqa: ABC123", "# kvlint is a linter"]
    )
    def test_not_reported(self, kvlint: Kvlint, comment: str) -> None:
        assert check(kvlint, f"x = 1  {comment}\n") == []

    def test_can_be_hidden_itself(self, kvlint: Kvlint) -> None:
        assert check(kvlint, "x = 1  # kvlint: ignore[KV999, KV902]\n") == []


class TestPlacesOfFindings:
    def test_whole_call_by_any_of_its_lines(self, kvlint: Kvlint) -> None:
        text = f"{CALL}(\n    q,  # kvlint: ignore[whole-call]\n    whole=1,\n)\n"
        assert check(kvlint, text, "--extend-select", "KV201") == []
