"""Values that context managers give, and entries of lists that loops collect."""

from __future__ import annotations

import pytest
from support.probe import only, possible

MANAGERS = {
    "generator": """
        @contextlib.contextmanager
        def masks(x):
            before = x.int()
            yield before
            del before
    """,
    "generator in try": """
        @contextlib.contextmanager
        def masks(x):
            try:
                yield x.int()
            finally:
                x.zero_()
    """,
    "class": """
        class masks:
            def __init__(self, x):
                self.mask = x.int()

            def __enter__(self):
                return self.mask

            def __exit__(self, *error):
                return False
    """,
    "nullcontext": """
        def masks(x):
            return contextlib.nullcontext(x.int())
    """,
}
UNKNOWN = {
    "two yields": """
        @contextlib.contextmanager
        def masks(x):
            if x.sum() > 1:
                yield x.int()
            else:
                yield x.bool()
    """,
    "no context manager": """
        def masks(x):
            yield x.int()
    """,
    "another decorator": """
        @wrapped
        def masks(x):
            yield x.int()
    """,
    "closing": """
        def masks(x):
            return contextlib.closing(x.int())
    """,
}
USE = """
        def attend(q, k, v, x):
            with masks(x) as mask:
                torch_npu.npu_fused_infer_attention_score(q, k, v, atten_mask=mask)
"""


def dtype(source: str) -> set[object] | None:
    return possible(only("        import contextlib\n" + source.strip("\n") + "\n" + USE).arg("mask").dtype)


@pytest.mark.parametrize("manager", MANAGERS)
def test_value_of_a_context_manager(manager: str) -> None:
    assert dtype(MANAGERS[manager]) == {"int32"}


@pytest.mark.parametrize("manager", UNKNOWN)
def test_value_that_is_not_certain(manager: str) -> None:
    assert dtype(UNKNOWN[manager]) is None


@pytest.mark.parametrize("loop", ["for mask in masks:", "for item, mask in zip(x, masks):"])
@pytest.mark.parametrize(("other", "known"), [("", True), ("masks.append(x)", False)])
def test_entries_of_a_list_that_a_loop_collects(loop: str, other: str, known: bool) -> None:
    source = f"""
        def attend(q, k, v, x):
            masks = []
            for item in x:
                masks.append(item.int())
            {other or "pass"}
            {loop}
                torch_npu.npu_fused_infer_attention_score(q, k, v, atten_mask=mask)
    """
    assert possible(only(source).arg("mask").dtype) == ({"int32"} if known else None)
