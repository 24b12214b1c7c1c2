"""Which calls are calls of an operator: every way code reaches one, and names that only look alike."""

from __future__ import annotations

from textwrap import dedent

import pytest
from support.examples import calls_of

V1, V2 = "npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"


def called(source: str) -> list[str]:
    """The full names of the operators that a module calls."""
    return [call.operator.full_name for call in calls_of(dedent(source))]


FORMS = {
    "module": f"import torch_npu\ntorch_npu.{V1}(q, k, v)",
    "module alias": f"import torch_npu as tnpu\ntnpu.{V1}(q, k, v)",
    "torch.ops": f"import torch\ntorch.ops.npu.{V1}(q, k, v)",
    "torch.ops overload": f"import torch\ntorch.ops.npu.{V1}.default(q, k, v)",
    "torch alias": f"import torch as t\nt.ops.npu.{V1}(q, k, v)",
    "namespace imported": f"from torch import ops\nops.npu.{V1}(q, k, v)",
    "namespace in a variable": f"import torch\nnpu = torch.ops.npu\nnpu.{V1}(q, k, v)",
    "torchair": f"import torchair\ntorchair.ops.{V1}(q, k, v)",
    "torchair alias": f"import torchair as tng\ntng.ops.{V1}(q, k, v)",
    "torchair namespace": f"from torchair import ops\nops.{V1}(q, k, v)",
    "bare": f"from torch_npu import {V1}\n{V1}(q, k, v)",
    "star": f"from torch_npu import *\n{V1}(q, k, v)",
    "bare renamed": f"from torch_npu import {V1} as attend\nattend(q, k, v)",
    "variable": f"import torch_npu\nattend = torch_npu.{V1}\nattend(q, k, v)",
    "getattr": f"import torch_npu\ngetattr(torch_npu, '{V1}')(q, k, v)",
    "import in the function": f"def f(q):\n    import torch_npu\n    return torch_npu.{V1}(q, q, q)",
    "import under try": f"""
        try:
            import torch_npu
        except ImportError:
            torch_npu = None
        def f(q):
            return torch_npu.{V1}(q, q, q)
    """,
    "either namespace": f"""
        import torch, torchair
        def f(q, graph):
            ops = torchair.ops if graph else torch.ops.npu
            return ops.{V1}(q, q, q)
    """,
    "reassigned under a test": f"""
        import torch, torchair
        def f(q, graph):
            ops = torch.ops.npu
            if graph:
                ops = torchair.ops
            return ops.{V1}(q, q, q)
    """,
    "attribute": f"""
        import torch, torchair
        class A:
            def __init__(self, graph):
                self.fa_ops = torchair.ops if graph else torch.ops.npu
            def run(self, q):
                return self.fa_ops.{V1}(q, q, q)
    """,
    "attribute set by branches": f"""
        import torch, torchair
        class A:
            def __init__(self, graph):
                if graph:
                    self.ops = torchair.ops
                else:
                    self.ops = torch.ops.npu
            def run(self, q):
                return self.ops.{V1}(q, q, q)
    """,
    "attribute of a base class": f"""
        import torch
        class Base:
            def __init__(self):
                self.ops = torch.ops.npu
        class A(Base):
            def run(self, q):
                return self.ops.{V1}(q, q, q)
    """,
    "class attribute": f"""
        import torch
        class A:
            ops = torch.ops.npu
            def run(self, q):
                return self.ops.{V1}(q, q, q)
    """,
    "operator in an attribute": f"""
        import torch_npu
        class A:
            def __init__(self):
                self.attend = torch_npu.{V1}
            def run(self, q):
                return self.attend(q, q, q)
    """,
    "method that returns the namespace": f"""
        import torch, torchair
        class A:
            def _ops_for(self, graph):
                if graph:
                    return torchair.ops
                return torch.ops.npu
            def run(self, q, graph):
                return self._ops_for(graph).{V1}(q, q, q)
    """,
    "property": f"""
        import torch
        class A:
            @property
            def ops(self):
                return torch.ops.npu
            def run(self, q):
                return self.ops.{V1}(q, q, q)
    """,
    "function that returns the operator": f"""
        import torch_npu
        def pick():
            return torch_npu.{V1}
        def f(q):
            return pick()(q, q, q)
    """,
    "argument of a well-known name": f"def f(torch_npu, q):\n    return torch_npu.{V1}(q, q, q)",
    "dict of operators": f"""
        import torch_npu
        TABLE = {{"one": torch_npu.{V1}}}
        def f(q):
            return TABLE["one"](q, q, q)
    """,
}


@pytest.mark.parametrize("form", FORMS)
def test_form_is_recognised(form: str) -> None:
    assert called(FORMS[form]) == [V1]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (f"torch_npu.{V1}.out(q, k, v, out=[o, l])", f"{V1}.out"),
        (f"torch.ops.npu.{V2}.out(q, k, v, out=[o, l])", f"{V2}.out"),
        (f"torch_npu._{V1}_get_max_workspace(q, k, v)", f"_{V1}_get_max_workspace"),
        ("torch.ops.atb._npu_paged_attention(q, k)", "_npu_paged_attention"),
        ("torch_npu.atb._npu_paged_attention_v2.out(q, k)", "_npu_paged_attention_v2.out"),
        ("torch_npu.scatter_update_(c, i, u, -2)", "scatter_update_"),
    ],
)
def test_overloads_and_other_namespaces(written: str, found: str) -> None:
    assert called(f"import torch, torch_npu\n{written}") == [found]


@pytest.mark.parametrize(
    "imported",
    ["import functools\nbound = functools.partial", "from functools import partial as bound"],
)
def test_a_partial_is_a_call_of_which_not_all_is_seen_and_then_a_whole_one(imported: str) -> None:
    partial, call = calls_of(
        f"import torch_npu\n{imported}\nf = bound(torch_npu.{V1}, 'q', scale=0.5, sparse_mode=3)\n"
        "f('k', 'v', scale=0.25)\n"
    )
    assert partial.opaque is not None and partial.arg("sparse_mode").constant.value == 3
    assert call.opaque is None
    assert [call.named(n).constant.value for n in ("query", "key", "value")] == ["q", "k", "v"]
    assert call.arg("scale").constant.value == 0.25
    assert call.arg("sparse_mode").constant.value == 3


NAMESAKES = {
    "local function": f"def {V1}(q):\n    return q\n{V1}(q)",
    "other module": f"from mindspeed.ops.fusion import {V1}\n{V1}(q, k, v)",
    "other object": f"DeviceOperator.{V1}(q, k, v)",
    "other namespace": f"import torch\ntorch.ops.custom.{V1}(q, k, v)",
    "own method": f"""
        class A:
            def {V1}(self, q):
                return q
            def run(self, q):
                return self.{V1}(q)
    """,
    "adaptor": f"def f(adaptor, q):\n    return adaptor.{V1}(q, q, q)",
    "shadowed by a parameter": f"from torch_npu import {V1}\ndef f({V1}, q):\n    return {V1}(q)",
    "shadowed by an assignment": f"import torch_npu\ntorch_npu = object()\ntorch_npu.{V1}(q)",
    "name in a string": f"TABLE = {{'{V1}': 1}}\nTABLE['{V1}']",
    "reference only": f"import torch_npu\nregister(torch_npu.{V1})",
    "definition": f"def {V1}(q):\n    return q",
    "attribute assignment": f"import torch_npu\ntorch_npu.{V1} = replacement",
    "probe": f"import torch_npu\nhasattr(torch_npu, '{V1}')",
    "unknown operator": "import torch_npu\ntorch_npu.npu_no_such_operator(q)",
    "comment": f"# torch_npu.{V1}(q, k, v)\n",
    "docstring": f'"""torch_npu.{V1}(q, k, v)"""\n',
}


@pytest.mark.parametrize("form", NAMESAKES)
def test_namesake_is_no_call(form: str) -> None:
    assert called(NAMESAKES[form]) == []


def test_calls_come_in_source_order() -> None:
    source = f"""
        import torch_npu
        def f(q, c):
            if c:
                return torch_npu.{V2}(q, q, q)
            for i in range(3):
                torch_npu.{V1}(q, q, q)
            return [torch_npu.{V2}(t, t, t) for t in q]
        class A:
            def run(self, q):
                return torch_npu.{V1}(q, q, q)
    """
    assert called(source) == [V2, V1, V2, V1]


def test_a_call_in_another_file_is_not_reported_here(tmp_path) -> None:  # type: ignore[no-untyped-def]
    helper = f"import torch_npu\ndef attend(q):\n    return torch_npu.{V1}(q, q, q)\n"
    (tmp_path / "helper.py").write_text(helper)
    source = "from helper import attend\ndef f(q):\n    return attend(q)\n"
    assert calls_of(source, path=str(tmp_path / "user.py")) == []
