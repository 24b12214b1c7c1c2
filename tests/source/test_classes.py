"""What attributes of the class under check hold: constructors, bases, properties, buffers, other methods."""

from __future__ import annotations

from textwrap import dedent

import pytest
from support.probe import OP, only, possible

from kvlint.contract.call import Arg
from kvlint.contract.values import Tensor

USE = f"torch_npu.{OP}(q, k, v, atten_mask=self.mask)"


def attribute(source: str) -> Arg:
    """The facts of ``self.mask`` in a class; ``USE`` stands for the call."""
    return only(dedent(source).replace("USE", USE)).arg("mask")


INT32 = {
    "constructor": """
        class A:
            def __init__(self, mask):
                self.mask = mask.int()
            def run(self, q, k, v):
                USE
    """,
    "annotated assignment": """
        class A:
            def __init__(self, mask):
                self.mask: torch.Tensor = mask.int()
            def run(self, q, k, v):
                USE
    """,
    "several targets": """
        class A:
            def __init__(self, mask):
                self.other = self.mask = mask.int()
            def run(self, q, k, v):
                USE
    """,
    "tuple of targets": """
        class A:
            def __init__(self, mask):
                self.other, self.mask = 1, mask.int()
            def run(self, q, k, v):
                USE
    """,
    "helper method": """
        class A:
            def __init__(self, n):
                self.mask = self._build(n)
            def _build(self, n):
                return torch.zeros(n, n, dtype=torch.int32)
            def run(self, q, k, v):
                USE
    """,
    "static helper": """
        class A:
            def __init__(self, n):
                self.mask = self._build(n)
            @staticmethod
            def _build(n):
                return torch.zeros(n, n, dtype=torch.int32)
            def run(self, q, k, v):
                USE
    """,
    "module function": """
        def build(n):
            return torch.zeros(n, n, dtype=torch.int32)
        class A:
            def __init__(self, n):
                self.mask = build(n)
            def run(self, q, k, v):
                USE
    """,
    "constructor of a base": """
        class Base:
            def __init__(self, mask):
                self.mask = mask.int()
        class A(Base):
            def run(self, q, k, v):
                USE
    """,
    "base constructor called with super": """
        class Base:
            def __init__(self, mask):
                self.mask = mask
        class A(Base):
            def __init__(self, mask):
                super().__init__(mask.int())
            def run(self, q, k, v):
                USE
    """,
    "base constructor called by name": """
        class Base:
            def __init__(self, mask):
                self.mask = mask
        class A(Base):
            def __init__(self, mask):
                Base.__init__(self, mask.int())
            def run(self, q, k, v):
                USE
    """,
    "grandparent": """
        class Top:
            def __init__(self, mask):
                self.mask = mask.int()
        class Middle(Top):
            pass
        class A(Middle):
            def run(self, q, k, v):
                USE
    """,
    "property": """
        class A:
            @property
            def mask(self):
                return torch.zeros(4, dtype=torch.int32)
            def run(self, q, k, v):
                USE
    """,
    "property over an attribute": """
        class A:
            def __init__(self, mask):
                self._mask = mask
            @property
            def mask(self):
                return self._mask.int()
            def run(self, q, k, v):
                USE
    """,
    "cached property": """
        from functools import cached_property
        class A:
            @cached_property
            def mask(self):
                return torch.zeros(4, dtype=torch.int32)
            def run(self, q, k, v):
                USE
    """,
    "class attribute": """
        class A:
            mask = torch.zeros(4, dtype=torch.int32)
            def run(self, q, k, v):
                USE
    """,
    "class attribute of a base": """
        class Base:
            mask = torch.zeros(4, dtype=torch.int32)
        class A(Base):
            def run(self, q, k, v):
                USE
    """,
    "buffer": """
        class A(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.register_buffer("mask", torch.zeros(n, dtype=torch.int32), persistent=False)
            def run(self, q, k, v):
                USE
    """,
    "parameter": """
        class A(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.mask = torch.nn.Parameter(torch.zeros(n, dtype=torch.int32), requires_grad=False)
            def run(self, q, k, v):
                USE
    """,
    "set in the same method": """
        class A:
            def __init__(self, mask):
                self.mask = mask
            def run(self, q, k, v):
                self.mask = self.mask.int()
                USE
    """,
    "set by a method called before": """
        class A:
            def __init__(self, mask):
                self.mask = mask
            def prepare(self):
                self.mask = self.mask.int()
            def run(self, q, k, v):
                self.prepare()
                USE
    """,
    "declared by annotation only": """
        class A:
            mask: torch.Tensor
            def __init__(self, mask):
                self.mask = mask.int()
            def run(self, q, k, v):
                USE
    """,
    "other name for self": """
        class A:
            def __init__(this, mask):
                this.mask = mask.int()
            def run(self, q, k, v):
                USE
    """,
    "setter beside the getter": """
        class A:
            @property
            def mask(self):
                return torch.zeros(4, dtype=torch.int32)
            @mask.setter
            def mask(self, value):
                pass
            def run(self, q, k, v):
                USE
    """,
}


@pytest.mark.parametrize("form", INT32)
def test_attribute_is_followed(form: str) -> None:
    found = attribute(INT32[form]).dtype
    assert possible(found) == {"int32"}, found.notes  # type: ignore[arg-type]


OPEN = {
    "placeholder set by another method": """
        class A:
            def __init__(self):
                self.mask = None
            def setup(self, mask):
                self.mask = mask.int()
            def run(self, q, k, v):
                USE
    """,
    "never set": """
        class A:
            def run(self, q, k, v):
                USE
    """,
    "set from outside": """
        class A:
            def __init__(self):
                self.mask = torch.zeros(4, dtype=torch.int32)
            def run(self, q, k, v):
                USE
        def load(a, mask):
            a.mask = mask
    """,
    "set by two methods": """
        class A:
            def __init__(self, n):
                self.mask = torch.zeros(n, dtype=torch.int32)
            def load(self, mask):
                self.mask = mask
            def run(self, q, k, v):
                USE
    """,
    "computed names": """
        class A:
            def __init__(self, options):
                self.mask = torch.zeros(4, dtype=torch.int32)
                for name, value in options.items():
                    setattr(self, name, value)
            def run(self, q, k, v):
                USE
    """,
    "unknown base": """
        from elsewhere import Base
        class A(Base):
            def run(self, q, k, v):
                USE
    """,
    "deleted": """
        class A:
            def __init__(self):
                self.mask = torch.zeros(4, dtype=torch.int32)
                del self.mask
                self.mask = load()
            def run(self, q, k, v):
                USE
    """,
}


@pytest.mark.parametrize("form", OPEN)
def test_attribute_that_may_be_something_else_is_unknown(form: str) -> None:
    assert attribute(OPEN[form]).dtype.values is None


def test_a_subclass_overrides_what_its_base_says() -> None:
    found = attribute("""
        class Base:
            mask = torch.zeros(4, dtype=torch.int32)
        class A(Base):
            mask = torch.zeros(4, dtype=torch.int8)
            def run(self, q, k, v):
                USE
    """)
    assert possible(found.dtype) == {"int8"}  # type: ignore[arg-type]


def test_a_none_that_another_method_replaces_is_no_certain_none() -> None:
    mask = attribute("""
        class A:
            def __init__(self):
                self.mask = None
            def setup(self, mask):
                self.mask = mask
            def run(self, q, k, v):
                USE
    """)
    assert mask.is_none.unknown


def test_a_placeholder_filled_on_demand_is_known_on_that_path() -> None:
    mask = attribute("""
        class A:
            def __init__(self):
                self.mask = None
            def run(self, q, k, v):
                if self.mask is None:
                    self.mask = torch.zeros(4, dtype=torch.int32)
                USE
    """)
    assert any(isinstance(option, Tensor) and option.dtypes == ("int32",) for option in mask.options)


def test_a_none_in_the_constructor_may_be_replaced_from_outside() -> None:
    mask = attribute("""
        class A:
            def __init__(self):
                self.mask = None
            def run(self, q, k, v):
                USE
    """)
    assert mask.is_none.unknown


class TestObjects:
    def test_fields_of_a_dataclass_passed_in(self) -> None:
        call = only(f"""
            from dataclasses import dataclass
            @dataclass
            class Meta:
                mask: torch.Tensor
                mode: int = 3
            def build(n):
                return Meta(mask=torch.zeros(n, dtype=torch.int32))
            def run(q, k, v, n):
                meta = build(n)
                torch_npu.{OP}(q, k, v, atten_mask=meta.mask, sparse_mode=meta.mode)
        """)
        assert possible(call.arg("mask").dtype) == {"int32"}  # type: ignore[arg-type]
        assert call.arg("sparse_mode").constant.value == 3

    def test_an_object_of_a_known_class_as_annotated_argument(self) -> None:
        call = only(f"""
            class Meta:
                def __init__(self, n):
                    self.mask = torch.zeros(n, dtype=torch.int32)
            def run(q, k, v, meta: Meta):
                torch_npu.{OP}(q, k, v, atten_mask=meta.mask)
        """)
        assert possible(call.arg("mask").dtype) == {"int32"}  # type: ignore[arg-type]

    def test_an_object_kept_in_an_attribute(self) -> None:
        call = only(f"""
            class Masks:
                def pick(self, n):
                    return torch.zeros(n, dtype=torch.int32)
            class A:
                def __init__(self):
                    self.masks = Masks()
                def run(self, q, k, v, n):
                    torch_npu.{OP}(q, k, v, atten_mask=self.masks.pick(n))
        """)
        assert possible(call.arg("mask").dtype) == {"int32"}  # type: ignore[arg-type]

    def test_constructor_arguments_reach_the_attributes(self) -> None:
        call = only(f"""
            class Options:
                def __init__(self, mode, heads=8):
                    self.mode, self.heads = mode, heads
            def run(q, k, v):
                options = Options(3)
                torch_npu.{OP}(q, k, v, sparse_mode=options.mode, num_heads=options.heads)
        """)
        assert call.arg("sparse_mode").constant.value == 3
        assert call.arg("q_heads").constant.value == 8

    def test_two_objects_of_one_class_are_kept_apart(self) -> None:
        call = only(f"""
            class Options:
                def __init__(self, mode):
                    self.mode = mode
            def run(q, k, v):
                one, two = Options(3), Options(4)
                torch_npu.{OP}(q, k, v, sparse_mode=one.mode, inner_precise=two.mode)
        """)
        assert call.arg("sparse_mode").constant.value == 3
        assert call.arg("inner_precise").constant.value == 4

    def test_named_tuple(self) -> None:
        call = only(f"""
            from typing import NamedTuple
            class Meta(NamedTuple):
                mode: int
                heads: int = 8
            def run(q, k, v):
                meta = Meta(3)
                torch_npu.{OP}(q, k, v, sparse_mode=meta.mode)
        """)
        assert call.arg("sparse_mode").constant.value == 3

    def test_enum_members(self) -> None:
        call = only(f"""
            from enum import IntEnum
            class Mode(IntEnum):
                CAUSAL = 3
            def run(q, k, v):
                torch_npu.{OP}(q, k, v, sparse_mode=Mode.CAUSAL)
        """)
        assert call.arg("sparse_mode").constant.value == 3


class TestFunctions:
    @pytest.mark.parametrize(
        "definition",
        [
            "def mode(n):\n    return 3",
            "def mode(n):\n    return n + 2",
            "def mode(n=1):\n    return 4 - n",
            "def mode(*n):\n    return 3",
            "def mode(n, /, *, m=2):\n    return n + m",
            "mode = lambda n: n + 2",
            "def mode(n):\n    def inner(m):\n        return m + n\n    return inner(2)",
            "def mode(n):\n    if n == 1:\n        return 3\n    return 0",
            "import functools\n@functools.lru_cache\ndef mode(n):\n    return 3",
            "def mode(n):\n    try:\n        return 3\n    finally:\n        pass",
        ],
    )
    def test_results_of_functions(self, definition: str) -> None:
        call = only(f"{definition}\ndef run(q, k, v):\n    torch_npu.{OP}(q, k, v, sparse_mode=mode(1))")
        assert call.arg("sparse_mode").constant.value == 3

    @pytest.mark.parametrize(
        "definition",
        [
            "@wrapped\ndef mode(n):\n    return 3",
            "def mode(n):\n    yield 3",
            "def mode(n):\n    return mode(n)",
            "from elsewhere import mode",
            "mode = pick()",
            "def mode(n):\n    return 3\ndef mode(n):\n    return n",
        ],
    )
    def test_results_that_are_not_visible(self, definition: str) -> None:
        call = only(f"{definition}\ndef run(q, k, v, n):\n    torch_npu.{OP}(q, k, v, sparse_mode=mode(n))")
        assert call.arg("sparse_mode").constant.values is None

    def test_a_result_differs_by_the_tests_in_the_function(self) -> None:
        call = only(f"""
            def mode(causal):
                if causal:
                    return 3
                return 0
            def run(q, k, v, causal):
                torch_npu.{OP}(q, k, v, sparse_mode=mode(causal))
        """)
        assert set(call.arg("sparse_mode").constant.values or ()) == {0, 3}

    def test_tuples_are_unpacked(self) -> None:
        call = only(f"""
            def pick(n):
                return torch.zeros(n, dtype=torch.int32), 3
            def run(q, k, v, n):
                mask, mode = pick(n)
                torch_npu.{OP}(q, k, v, sparse_mode=mode, atten_mask=mask)
        """)
        assert call.arg("sparse_mode").constant.value == 3
        assert possible(call.arg("mask").dtype) == {"int32"}  # type: ignore[arg-type]

    def test_module_constants_and_what_rebinds_them(self) -> None:
        def mode(before: str) -> object:
            call = only(f"{before}\ndef run(q, k, v):\n    torch_npu.{OP}(q, k, v, sparse_mode=MODE)")
            return call.arg("sparse_mode").constant.get(None)

        assert mode("MODE = 3") == 3
        assert mode("MODE = 0\nMODE = 3") in (3, None)
        assert mode("MODE = 3\ndef set_mode(m):\n    global MODE\n    MODE = m") is None
        assert mode("MODE = 3\nif something():\n    MODE = 0") is None
