"""A call that a test expects to fail is not reported; the same call elsewhere is."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest
from support.examples import findings

from kvlint.contract.rule import all_rules

RULES = [rule for rule in all_rules() if rule.default]
HEAD = "import unittest, pytest, contextlib, torch, torch_npu\n"
WRONG = 'torch_npu.npu_fused_infer_attention_score(q, q, q, num_heads=8, input_layout="BSH", scale=0.1, {})'
CALL = WRONG.format("sparse_mode=3")

EXPECTED = {
    "with raises": """
        def test(q):
            with pytest.raises(RuntimeError, match="mask"):
                CALL
    """,
    "several contexts": """
        def test(q):
            with torch.no_grad(), pytest.raises(RuntimeError) as info:
                CALL
            assert "mask" in str(info.value)
    """,
    "unittest": """
        class Cases(unittest.TestCase):
            def test(self):
                q = torch.zeros(2, 16, 1024)
                with self.assertRaisesRegex(RuntimeError, "mask"):
                    CALL
    """,
    "lambda": """
        class Cases(unittest.TestCase):
            def test(self, q):
                self.assertRaises(RuntimeError, lambda: CALL)
    """,
    "xfail": """
        @pytest.mark.xfail(raises=RuntimeError)
        def test(q):
            CALL
    """,
    "expected failure": """
        class Cases(unittest.TestCase):
            @unittest.expectedFailure
            def test(self, q):
                CALL
    """,
    "try, else fails": """
        def test(q):
            try:
                CALL
            except RuntimeError:
                pass
            else:
                pytest.fail("accepted")
    """,
    "try, what follows fails": """
        def test(q):
            try:
                CALL
            except RuntimeError as error:
                assert "mask" in str(error)
                return
            raise AssertionError("accepted")
    """,
    "try, fails after the call": """
        def test(q):
            try:
                CALL
                assert False, "accepted"
            except RuntimeError:
                pass
    """,
    "context chosen before": """
        def test(q, ok):
            context = contextlib.nullcontext() if ok else pytest.raises(RuntimeError)
            with context:
                CALL
    """,
    "context is a parameter": """
        @pytest.mark.parametrize("expectation", [pytest.raises(RuntimeError)])
        def test(q, expectation):
            with expectation:
                CALL
    """,
    "own context manager": """
        @contextlib.contextmanager
        def rejected():
            with pytest.raises(RuntimeError):
                yield

        def test(q):
            with rejected():
                CALL
    """,
    "own runner": """
        def rejects(function):
            with pytest.raises(RuntimeError):
                function()

        def test(q):
            rejects(lambda: CALL)
    """,
    "helper": """
        def without_mask(q):
            return CALL

        def twice(q):
            return without_mask(q)

        def test(q):
            with pytest.raises(RuntimeError):
                twice(q)
    """,
    "function inside the test": """
        def test(q):
            def wrong():
                CALL
            pytest.raises(RuntimeError, wrong)
    """,
    "argument of a helper": """
        def attend(q, mode):
            return torch_npu.npu_fused_infer_attention_score(
                q, q, q, num_heads=8, input_layout="BSH", scale=0.1, sparse_mode=mode)

        def test(q):
            attend(q, 0)
            with pytest.raises(RuntimeError):
                attend(q, 3)
    """,
}

REPORTED = {
    "beside raises": """
        def test(q):
            with pytest.raises(RuntimeError):
                torch.zeros(2)
            CALL
    """,
    "plain try": """
        def attend(q):
            try:
                return CALL
            except RuntimeError:
                return None
    """,
    "failing handler": """
        def test(q):
            try:
                CALL
            except RuntimeError:
                pytest.fail("raised")
    """,
    "try and more work": """
        def attend(q):
            try:
                out = CALL
            except RuntimeError:
                return None
            return out[0] + 1
    """,
    "helper that is used": """
        def attend(q):
            return CALL

        def test(q):
            attend(q)
            with pytest.raises(RuntimeError):
                attend(None)
    """,
    "other context": """
        def test(q):
            with torch.no_grad():
                CALL
    """,
    "suppressed in product code": """
        def attend(q):
            with contextlib.suppress(RuntimeError):
                CALL
    """,
}


def source(text: str) -> str:
    return HEAD + dedent(text).replace("CALL", CALL)


@pytest.mark.parametrize("name", EXPECTED)
def test_expected_failure_is_not_reported(name: str) -> None:
    assert findings(source(EXPECTED[name]), RULES) == {}


@pytest.mark.parametrize("name", REPORTED)
def test_anything_else_is_reported(name: str) -> None:
    assert {code for _, code in findings(source(REPORTED[name]), RULES)} >= {"KV201"}


def test_the_call_is_wrong() -> None:
    text = HEAD + "def attend(q):\n" + indent(CALL, "    ")
    assert {code for _, code in findings(text, RULES)} >= {"KV201"}
