"""Values across functions and files: callers, makers of objects, subclasses. Each fault has a twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvlint import options
from kvlint.check import candidates, run
from kvlint.config import Config, Flags

GOOD = "torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1)"
BAD = "torch.tril(torch.ones(2048, 2048, dtype=torch.bool))"
INVERTED = "KV203"


def attention(mask: str, lengths: str = "ends", kv: str = "ends") -> str:
    """A packed attention call with the compressed causal mask."""
    return (
        "torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=8, num_key_value_heads=8, scale=0.1,"
        f' input_layout="TND", sparse_mode=3, atten_mask={mask}, actual_seq_lengths={lengths},'
        f" actual_seq_lengths_kv={kv})[0]"
    )


Check = Callable[..., list[str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Writes files (``a__b`` is a/b.py) and gives ``file:code`` of every finding below the folder."""

    def checked(**files: str) -> list[str]:
        for name, text in files.items():
            path = tmp_path / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("import torch, torch_npu\n" + text)
        monkeypatch.chdir(tmp_path)
        values = {**options.defaults(), "isolated": True, "paths": ["."]}
        config = Config(Flags(values, str(tmp_path)))
        result = run(candidates(values, config, str(tmp_path), []), values, config, str(tmp_path))
        assert not result.problems
        return sorted({f"{Path(f.spot.path).stem}:{f.code}" for f in result.findings})

    return checked


def with_mask(mask: str, files: dict[str, str]) -> dict[str, str]:
    return {name: text.replace("MASK", mask) for name, text in files.items()}


HELPER = f"def attend(q, k, v, mask, ends):\n    return {attention('mask')}\n"
MODULE = f"""
class Attention(torch.nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
    def forward(self, q, k, v, mask=None, ends=None):
        return {attention("mask")}
"""
PROJECTS: dict[str, dict[str, str]] = {
    "a function called in another file": {
        "op": HELPER,
        "use": "from op import attend\ndef run(q, k, v, ends):\n    return attend(q, k, v, MASK, ends)\n",
    },
    "a function called by keyword through its module": {
        "op": HELPER,
        "use": "import op\ndef run(q, k, v, ends):\n"
        "    return op.attend(q, k, v, ends=ends, mask=MASK)\n",
    },
    "a method called on an object made elsewhere": {
        "op": "class Op:\n    def attend(self, q, k, v, mask, ends):\n"
        f"        return {attention('mask')}\n",
        "use": "from op import Op\nclass Layer:\n    def __init__(self):\n        self.op = Op()\n"
        "    def run(self, q, k, v, ends):\n        return self.op.attend(q, k, v, MASK, ends)\n",
    },
    "a module's forward in the same file": {
        "model": MODULE
        + """
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention(8)
    def forward(self, q, k, v, ends):
        return self.attn(q, k, v, mask=MASK, ends=ends)
""",
    },
    "a module that is moved and cast where it is made": {
        "model": MODULE
        + """
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention(8).npu().half().eval()
    def forward(self, q, k, v, ends):
        return self.attn(q, k, v, mask=MASK, ends=ends)
""",
    },
    "a module list and three levels": {
        "attention": MODULE,
        "layer": """
from attention import Attention
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention(8)
    def forward(self, q, k, v, mask, ends):
        return self.attn(q, k, v, mask, ends)
class Model(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer() for _ in range(depth)])
    def forward(self, q, k, v, mask, ends):
        for layer in self.layers:
            q = layer(q, k, v, mask, ends)
        return q
""",
        "engine": """
from layer import Model
class Engine:
    def __init__(self):
        self.model = Model(4)
        self.mask = MASK
    def inputs(self, ends):
        return {"mask": self.mask, "ends": ends}
    def step(self, q, k, v, ends):
        return self.model(q, k, v, **self.inputs(ends))
""",
    },
    "a constructor argument": {
        "op": "class Op:\n    def __init__(self, mask):\n        self.mask = mask\n"
        f"    def attend(self, q, k, v, ends):\n        return {attention('self.mask')}\n",
        "use": "from op import Op\ndef make():\n    return Op(MASK)\n",
    },
    "a dataclass built in another file": {
        "meta": "from dataclasses import dataclass\n@dataclass\nclass Meta:\n    mask: torch.Tensor\n"
        "    ends: list[int]\n",
        "builder": "from meta import Meta\nclass Builder:\n    def build(self, ends):\n"
        "        return Meta(mask=MASK, ends=ends)\n",
        "op": f"from meta import Meta\ndef attend(q, k, v, meta: Meta):\n"
        f"    return {attention('meta.mask', 'meta.ends', 'meta.ends')}\n",
    },
    "a dataclass named by an attribute of the builder": {
        "meta": "from dataclasses import dataclass\n@dataclass\nclass Meta:\n    mask: torch.Tensor\n",
        "builder": "from meta import Meta\nclass Builder:\n    made = Meta\n    def build(self):\n"
        "        return self.made(mask=MASK)\n",
        "op": f"from meta import Meta\ndef attend(q, k, v, ends, meta: 'Meta | None'):\n"
        f"    return {attention('meta.mask')}\n",
    },
    "a field set after the object is made": {
        "meta": "from dataclasses import dataclass\n@dataclass\nclass Meta:\n"
        "    mask: 'torch.Tensor | None' = None\n",
        "runner": "from meta import Meta\nclass Runner:\n    def __init__(self):\n        self.meta = None\n"
        "    def prepare(self):\n        self.meta = Meta()\n        self.meta.mask = MASK\n"
        f"    def run(self, q, k, v, ends):\n        return {attention('self.meta.mask')}\n",
    },
    "a context object that a runner fills": {
        "context": "class Context:\n    mask = None\ncontext = Context()\n",
        "op": f"from context import context\ndef attend(q, k, v, ends):\n"
        f"    return {attention('context.mask')}\n",
        "runner": "from context import context\ndef prepare():\n    context.mask = MASK\n",
    },
    "a namespace": {
        "op": f"from types import SimpleNamespace\ndef meta():\n    return SimpleNamespace(mask=MASK)\n"
        f"def attend(q, k, v, ends):\n    return {attention('meta().mask')}\n",
    },
    "a named tuple": {
        "op": "from collections import namedtuple\nMeta = namedtuple('Meta', 'mask ends')\n"
        f"def attend(q, k, v, ends):\n    meta = Meta(MASK, ends)\n"
        f"    return {attention('meta.mask', 'meta.ends', 'meta.ends')}\n",
    },
    "a typed dict": {
        "op": "from typing import TypedDict\nclass Meta(TypedDict):\n    mask: torch.Tensor\n"
        f"def attend(q, k, v, ends):\n    meta = Meta(mask=MASK)\n    return {attention('meta[`mask`]')}\n"
        .replace("`", "'"),
    },
    "dataclasses.replace": {
        "op": "import dataclasses\n@dataclasses.dataclass\nclass Meta:\n"
        "    mask: 'torch.Tensor | None' = None\n"
        "def attend(q, k, v, ends):\n    meta = dataclasses.replace(Meta(), mask=MASK)\n"
        f"    return {attention('meta.mask')}\n",
    },
    "setattr with a literal name": {
        "op": "class Op:\n    def __init__(self):\n        setattr(self, 'mask', MASK)\n"
        f"    def attend(self, q, k, v, ends):\n        return {attention('self.mask')}\n",
    },
    "a hook of a subclass in another file": {
        "base": f"class Base:\n    def mask(self):\n        raise NotImplementedError\n"
        f"    def attend(self, q, k, v, ends):\n        return {attention('self.mask()')}\n",
        "ascend": "from base import Base\nclass Ascend(Base):\n    def mask(self):\n        return MASK\n",
    },
}


@pytest.mark.parametrize("name", PROJECTS)
class TestFaultAndTwin:
    def test_the_fault_is_reported_at_the_call(self, check: Check, name: str) -> None:
        found = check(**with_mask(BAD, PROJECTS[name]))
        at = next(f for f, text in PROJECTS[name].items() if "npu_fused" in text)
        assert f"{at}:{INVERTED}" in found

    def test_the_twin_is_silent(self, check: Check, name: str) -> None:
        assert check(**with_mask(GOOD, PROJECTS[name])) == []


class TestNoProof:
    """What other code may set is no fact."""

    @pytest.mark.parametrize(
        "files",
        [
            pytest.param(
                {
                    "op": f"class Op:\n    mask = None\n    def attend(self, q, k, v, ends):\n"
                    f"        return {attention('self.mask')}\n",
                    "use": f"from op import Op\ndef load(op: Op):\n    op.mask = {GOOD}\n",
                },
                id="a class attribute set on the object",
            ),
            pytest.param(
                {
                    "op": f"MASK = None\ndef attend(q, k, v, ends):\n    return {attention('MASK')}\n",
                    "use": f"import op\ndef load():\n    op.MASK = {GOOD}\n",
                },
                id="a module variable set by another file",
            ),
            pytest.param(
                {
                    "base": f"class Base:\n    mask = None\n    def attend(self, q, k, v, ends):\n"
                    f"        return {attention('self.mask')}\n",
                    "sub": f"from base import Base\nclass Sub(Base):\n    mask = {GOOD}\n",
                },
                id="a class attribute of a subclass",
            ),
            pytest.param(
                {
                    "base": f"class Base:\n    def mask(self):\n        return None\n"
                    f"    def attend(self, q, k, v, ends):\n        return {attention('self.mask()')}\n",
                    "sub": f"from base import Base\nclass Sub(Base):\n    def mask(self):\n"
                    f"        return {GOOD}\n",
                },
                id="a hook that a subclass overrides",
            ),
            pytest.param(
                {
                    "op": f"def mask():\n    return None\ndef attend(q, k, v, ends):\n"
                    f"    return {attention('mask()')}\n",
                    "patch": f"import op\ndef ascend_mask():\n    return {GOOD}\nop.mask = ascend_mask\n",
                },
                id="a function that other code replaces",
            ),
            pytest.param(
                {
                    "op": "class Meta:\n    def __init__(self, mask, mode):\n"
                    "        self.mask, self.mode = mask, mode\n"
                    f"def attend(q, k, v, ends, meta: Meta):\n    if meta.mode == 3:\n"
                    f"        return {attention('meta.mask')}\n"
                    f"def encoder():\n    return Meta({BAD}, 0)\n"
                    f"def decoder():\n    return Meta({GOOD}, 3)\n",
                },
                id="objects of two makers",
            ),
            pytest.param(
                {
                    "op": f"class Op:\n    def __init__(self, mask):\n        self.mask = mask\n"
                    f"    def attend(self, q, k, v, ends):\n        return {attention('self.mask')}\n",
                    "use": f"from op import Op\ndef keep():\n    return Op({BAD})\n"
                    "REGISTRY = {'npu': Op}\n",
                },
                id="a class that is handed on",
            ),
            pytest.param(
                {
                    "op": HELPER,
                    "other": "def attend(q, k, v, mask, ends):\n    return q\n",
                    "use": f"from other import attend\ndef run(q, k, v, ends):\n"
                    f"    return attend(q, k, v, {BAD}, ends)\n",
                },
                id="a function of the same name",
            ),
        ],
    )
    def test_silent(self, check: Check, files: dict[str, str]) -> None:
        assert check(**files) == []


class TestTests:
    def test_callers_in_tests_do_not_count(self, check: Check) -> None:
        use = f"from op import attend\ndef test_it(q, k, v, ends):\n    return attend(q, k, v, {BAD}, ends)\n"
        assert check(op=HELPER, tests__test_op=use) == []


class TestChains:
    def test_values_are_followed_through_callers_of_callers(self, check: Check) -> None:
        first = "from op import attend\ndef f0(q, k, v, m, e):\n    attend(q, k, v, m, e)\n"
        files = {"op": HELPER, "m0": first}
        for level in range(1, 4):
            files[f"m{level}"] = (
                f"from m{level - 1} import f{level - 1}\n"
                f"def f{level}(q, k, v, m, e):\n    f{level - 1}(q, k, v, m, e)\n"
            )
        top = f"from m3 import f3\ndef run(q, k, v, e):\n    f3(q, k, v, {BAD}, e)\n"
        assert check(**files, top=top) == [f"op:{INVERTED}"]
        assert check(**files, top=top.replace(BAD, GOOD)) == []

    def test_cycles_end(self, check: Check) -> None:
        a = "from b import g\ndef f(q, k, v, m, e):\n    g(q, k, v, m, e)\n"
        b = "from a import f\ndef g(q, k, v, mask, ends):\n    f(q, k, v, mask, ends)\n"
        b += f"    {attention('mask')}\n"
        assert check(a=a, b=b) == []

    def test_a_web_of_callers_and_makers_ends(self, check: Check) -> None:
        count = 24
        files = {"op": HELPER}
        for i in range(count):
            others = [(i * 5 + k) % count for k in range(1, 6)]
            lines = ["from op import attend"]
            lines += [f"from m{j} import f{j}, C{j}" for j in others]
            lines += [f"class C{i}:", "    def __init__(self, mask):", "        self.mask = mask"]
            lines += ["    def forward(self, q, k, v, m, e):"]
            lines += [f"        C{j}(self.mask).forward(q, k, v, C{j}(m).mask, e)" for j in others]
            lines += [f"def f{i}(q, k, v, m, e):", "    attend(q, k, v, m, e)"]
            lines += [f"    f{j}(q, k, v, C{j}(m).mask, e)" for j in others]
            files[f"m{i}"] = "\n".join(lines) + "\n"
        assert check(**files) == []


class TestProofs:
    """An obligation is proved when it holds for every caller, as far as they are all visible."""

    @pytest.fixture
    def proved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
        """How many of the mask obligations are proved, when a file with some text is beside a good caller."""

        def counted(other: str) -> int:
            good = f"from op import attend\ndef good(q, k, v, e):\n    return attend(q, k, v, {GOOD}, e)\n"
            for name, text in {"op": HELPER, "good": good, "other": other}.items():
                (tmp_path / f"{name}.py").write_text("import torch, torch_npu\n" + text)
            monkeypatch.chdir(tmp_path)
            values = {**options.defaults(), "isolated": True, "paths": ["."], "coverage": True}
            config = Config(Flags(values, str(tmp_path)))
            result = run(candidates(values, config, str(tmp_path), []), values, config, str(tmp_path))
            return result.tallies[INVERTED].proved

        return counted

    def test_all_callers_are_visible(self, proved: Callable[[str], int]) -> None:
        assert proved("") == 1
        assert proved(f"import op\ndef f(q, k, v, e):\n    return op.attend(q, k, v, {GOOD}, e)\n") == 1

    @pytest.mark.parametrize(
        "other",
        [
            "from op import attend\ndef f(q, k, v, m, e):\n    return attend(q, k, v, m, e)\n",
            "from op import attend\ndef f(q, k, v, m, e):\n    def g():\n"
            "        return attend(q, k, v, m, e)\n    return g()\n",
            "from op import attend\nf = lambda q, k, v, m, e: attend(q, k, v, m, e)\n",
            "from op import attend\ndef f(run):\n    return run(attend)\n",
            "from op import attend\nTABLE = {'npu': attend}\n",
            "from op import attend as a\ndef f(q, k, v, m, e):\n    return a(q, k, v, m, e)\n",
            "import op\ndef f(run):\n    h = op.attend\n    return run(h)\n",
            "import functools, op\nf = functools.partial(op.attend, 1)\n",
            "from op import attend\nclass C:\n    x = attend(1, 2, 3, 4, 5)\n",
        ],
    )
    def test_a_caller_may_be_anybody(self, proved: Callable[[str], int], other: str) -> None:
        assert proved(other) == 0
