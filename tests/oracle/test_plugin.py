"""The pytest plugin and the assertion behind it."""

from __future__ import annotations

import pytest
import torch

from kvlint.oracle import assert_matches_reference
from kvlint.oracle.errors import OracleError
from kvlint.oracle.kernels import KERNELS
from kvlint.sim import simulate

pytest_plugins = ["pytester"]

V1 = "npu_fused_infer_attention_score"


def call() -> tuple[tuple[torch.Tensor, ...], dict[str, object]]:
    gen = torch.Generator().manual_seed(0)
    x = tuple(torch.randn(2, 4, 9, 32, generator=gen).bfloat16() for _ in range(3))
    return x, {"num_heads": 4, "input_layout": "BNSD", "scale": 0.2, "softmax_lse_flag": True}


def test_assertion() -> None:
    args, kwargs = call()
    out, lse = KERNELS[V1](*args, **kwargs)
    verdict = assert_matches_reference(V1, args, kwargs, (out, lse))
    assert verdict.rows == 2 * 4 * 9 and verdict.lse_error is not None
    assert assert_matches_reference(V1, args, kwargs, out).lse_error is None
    out[1, 2, 3] *= 1.2
    with pytest.raises(AssertionError, match="1 of 72 rows"):
        assert_matches_reference(V1, args, kwargs, out)
    with pytest.raises(OracleError, match="has shape"):
        assert_matches_reference(V1, args, kwargs, out[:1])


def test_assertion_on_positional_arguments() -> None:
    x = torch.randn(1, 9, 128, generator=torch.Generator().manual_seed(0)).half()
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1)
    args = (x, x, x, 2, "BSH", None, None, mask, 0.125)
    out = KERNELS["npu_fusion_attention"](*args)[0]
    assert assert_matches_reference("npu_fusion_attention", args, {}, out).rows == 18
    with pytest.raises(OracleError, match="'scale' twice"):
        assert_matches_reference("npu_fusion_attention", args, {"scale": 1.0}, out)
    with pytest.raises(OracleError, match="at most 24 positional"):
        assert_matches_reference("npu_fusion_attention", args + (None,) * 16, {}, out)


def test_assertion_takes_the_operator_or_its_name() -> None:
    args, kwargs = call()
    out = KERNELS[V1](*args, **kwargs)
    named = (V1, f"torch_npu.{V1}", f"torch.ops.npu.{V1}.out", f"npu::{V1}", KERNELS[V1])
    for operator in named:
        assert_matches_reference(operator, args, kwargs, out)
    with simulate():
        import torch_npu

        packet = getattr(torch.ops.npu, V1)
        for operator in (getattr(torch_npu, V1), packet, packet.default, packet.out):
            assert_matches_reference(
                operator, args, kwargs, operator(*args, **kwargs) if operator is not packet.out else out
            )
        with pytest.raises(OracleError, match="npu_swiglu is not an attention operator"):
            assert_matches_reference(torch_npu.npu_swiglu, args, kwargs, out)
        with pytest.raises(AssertionError, match=f"^{V1} differs"):
            assert_matches_reference(packet, args, kwargs, out[0] * 1.3)
    with pytest.raises(OracleError, match="3 is not an attention operator"):
        assert_matches_reference(3, args, kwargs, out)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "operator", ["npu_fusion_attention", "npu_fusion_attention_v2", "npu_fusion_attention_v3"]
)
def test_assertion_on_all_results_of_a_training_operator(operator: str) -> None:
    x = torch.randn(1, 9, 128, generator=torch.Generator().manual_seed(0)).half()
    args, kwargs = (x, x, x, 2, "BSH"), {"scale": 0.125}
    results = KERNELS[operator](*args, **kwargs)
    assert len(results) > 4
    assert assert_matches_reference(operator, args, kwargs, results).lse_error is None
    assert_matches_reference(operator, args, kwargs, list(results))
    with pytest.raises(AssertionError):
        assert_matches_reference(operator, args, kwargs, (results[0] * 1.3, *results[1:]))


def test_assertion_on_sampled_rows() -> None:
    args, kwargs = call()
    out, _ = KERNELS[V1](*args, **kwargs)
    out[:, :, 5] = 0
    rows = [torch.tensor([0, 4, 8]), torch.tensor([1])]
    assert_matches_reference(V1, args, kwargs, out, rows=rows)
    with pytest.raises(AssertionError):
        assert_matches_reference(V1, args, kwargs, out, rows=[torch.tensor([5]), None])


def test_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_of_an_operator_repository="""
        import pytest
        import torch

        @pytest.mark.oracle_cases(keyword="dit")
        def test_cases(oracle_case, run_oracle_case):
            run_oracle_case(oracle_case)

        @pytest.mark.oracle_cases(names=["tnd-no-mask-bidirectional"])
        def test_one(oracle_case, run_oracle_case):
            run_oracle_case(oracle_case)

        def test_assert(assert_matches_reference):
            x = torch.randn(1, 2, 3, 16)
            out = x.softmax(-1)
            with pytest.raises(AssertionError):
                assert_matches_reference("npu_prompt_flash_attention", (x, x, x), {"num_heads": 2,
                "input_layout": "BNSD"}, out)
        """
    )
    plain = pytester.runpytest_inprocess("-q")
    plain.assert_outcomes(passed=4)
    faulty = pytester.runpytest_inprocess("-q", "--oracle-backend", "sim:uniform-average")
    faulty.assert_outcomes(passed=3, failed=1)
    faulty.stdout.fnmatch_lines(["*why: the numbers are those of: scores are ignored*"])


def test_plugin_refuses_bad_selections(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_of_a_bad_selection="""
        import pytest

        @pytest.mark.oracle_cases(keyword="no-such-case")
        def test_cases(oracle_case):
            pass
        """
    )
    done = pytester.runpytest_inprocess("-q")
    assert done.ret != 0
    done.stdout.fnmatch_lines(["*selection holds no case*"])
