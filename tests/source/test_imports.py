"""What other files of a project say: relative and absolute imports, re-exports, submodules, cycles."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.probe import OP

from kvlint.contract.call import Call, Target
from kvlint.source.reader import Project

HELPER = """
import torch
MODE = 3
def hidden(n):
    return torch.zeros(n, n, dtype=torch.int32)
def keywords(mode=MODE):
    return {"sparse_mode": mode, "scale": 0.5}
class Masks:
    size = 2048
    def __init__(self, mode):
        self.mode = mode
    def pick(self):
        return hidden(self.size)
"""


class Files:
    """A project below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "pyproject.toml").write_text("")

    def write(self, **files: str) -> Files:
        for name, text in files.items():
            path = self.root / (name.replace("__", "/").replace("INIT", "__init__") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self

    def call(self, name: str, roots: tuple[str, ...] = ()) -> Call:
        """The only operator call of a file."""
        path = self.root / f"{name}.py"
        project = Project([str(self.root / root) for root in roots], Target())
        (scope,) = project.read(str(path), path.read_bytes()).scopes
        (call,) = scope.calls
        return call


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def user(imports: str, mask: str = "hidden(4)", mode: str = "MODE") -> str:
    return (
        f"import torch_npu\n{imports}\n"
        f"def f(q, k, v):\n    torch_npu.{OP}(q, k, v, atten_mask={mask}, sparse_mode={mode})\n"
    )


def check(call: Call) -> None:
    assert call.arg("sparse_mode").constant.get(None) == 3
    assert call.arg("mask").dtype.get(None) == "int32"
    assert call.arg("mask").rank.get(None) == 2


class TestForms:
    @pytest.mark.parametrize(
        ("imports", "mask", "mode"),
        [
            ("from helper import hidden, MODE", "hidden(4)", "MODE"),
            ("from helper import hidden as h, MODE as M", "h(4)", "M"),
            ("import helper", "helper.hidden(4)", "helper.MODE"),
            ("import helper as h", "h.hidden(4)", "h.MODE"),
            ("from helper import *", "hidden(4)", "MODE"),
            ("from helper import Masks", "Masks(3).pick()", "Masks(3).mode"),
            ("import helper\nmasks = helper.Masks(3)", "masks.pick()", "masks.mode"),
        ],
    )
    def test_beside_the_file(self, files: Files, imports: str, mask: str, mode: str) -> None:
        files.write(helper=HELPER, user=user(imports, mask, mode))
        check(files.call("user"))

    @pytest.mark.parametrize(
        ("imports", "mask", "mode"),
        [
            ("from .helper import hidden, MODE", "hidden(4)", "MODE"),
            ("from . import helper", "helper.hidden(4)", "helper.MODE"),
            ("from ..pack.helper import hidden, MODE", "hidden(4)", "MODE"),
            ("from pack.helper import hidden, MODE", "hidden(4)", "MODE"),
            ("import pack.helper", "pack.helper.hidden(4)", "pack.helper.MODE"),
            ("import pack.helper as h", "h.hidden(4)", "h.MODE"),
            ("from pack import helper as h", "h.hidden(4)", "h.MODE"),
        ],
    )
    def test_in_a_package(self, files: Files, imports: str, mask: str, mode: str) -> None:
        files.write(INIT="", pack__INIT="", pack__helper=HELPER, pack__user=user(imports, mask, mode))
        check(files.call("pack/user"))

    def test_exported_again_by_the_package(self, files: Files) -> None:
        files.write(
            pack__INIT="from .helper import hidden, MODE",
            pack__helper=HELPER,
            user=user("from pack import hidden, MODE"),
        )
        check(files.call("user"))

    def test_exported_again_with_a_star(self, files: Files) -> None:
        files.write(
            pack__INIT="from .helper import *",
            pack__helper=HELPER,
            user=user("from pack import hidden, MODE"),
        )
        check(files.call("user"))

    def test_below_a_source_root(self, files: Files) -> None:
        files.write(src__pack__helper=HELPER, app__user=user("from pack.helper import hidden, MODE"))
        check(files.call("app/user", roots=("src",)))

    def test_imported_in_the_function(self, files: Files) -> None:
        text = (
            "import torch_npu\ndef f(q, k, v):\n    from helper import hidden, MODE\n"
            f"    torch_npu.{OP}(q, k, v, atten_mask=hidden(4), sparse_mode=MODE)\n"
        )
        check(files.write(helper=HELPER, user=text).call("user"))

    def test_keywords_made_in_another_file(self, files: Files) -> None:
        text = (
            "import torch_npu\nfrom helper import keywords\n"
            f"def f(q):\n    torch_npu.{OP}(q, q, q, **keywords())\n"
        )
        call = files.write(helper=HELPER, user=text).call("user")
        assert call.arg("sparse_mode").constant.value == 3 and call.opaque is None

    def test_a_base_class_in_another_file(self, files: Files) -> None:
        text = (
            "import torch_npu\nfrom helper import Masks\nclass A(Masks):\n"
            "    def __init__(self):\n        super().__init__(3)\n"
            "    def f(self, q):\n"
            f"        torch_npu.{OP}(q, q, q, atten_mask=self.pick(), sparse_mode=self.mode)\n"
        )
        check(files.write(helper=HELPER, user=text).call("user"))

    def test_a_dataclass_built_in_another_file(self, files: Files) -> None:
        meta = (
            "from dataclasses import dataclass\nfrom helper import hidden\n@dataclass\nclass Meta:\n"
            "    mask: object\n    mode: int = 3\ndef build(n):\n    return Meta(mask=hidden(n))\n"
        )
        text = user("from meta import build\nmeta = build(4)", "meta.mask", "meta.mode")
        check(files.write(helper=HELPER, meta=meta, user=text).call("user"))

    def test_an_annotation_from_another_file(self, files: Files) -> None:
        text = (
            "import torch_npu\nfrom helper import Masks\n"
            f"def f(q, masks: Masks):\n    torch_npu.{OP}(q, q, q, atten_mask=masks.pick(), sparse_mode=3)\n"
        )
        check(files.write(helper=HELPER, user=text).call("user"))

    def test_the_namespace_of_the_operators_from_another_file(self, files: Files) -> None:
        text = f"from ops import npu\ndef f(q):\n    npu.{OP}(q, q, q, sparse_mode=3)\n"
        files.write(ops="import torch\nnpu = torch.ops.npu\n", user=text)
        assert files.call("user").arg("sparse_mode").constant.value == 3


UNREADABLE = {
    "missing": None,
    "syntax error": "def hidden(n:\n",
    "empty": "",
    "not utf-8": "x = '\udcff'",
    "no such name": "def other():\n    return 3\n",
    "imports itself": "from helper import hidden, MODE\n",
}


@pytest.mark.parametrize("form", UNREADABLE)
def test_what_cannot_be_read_is_unknown(files: Files, form: str) -> None:
    text = UNREADABLE[form]
    if text is not None:
        (files.root / "helper.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    call = files.write(user=user("from helper import hidden, MODE")).call("user")
    assert call.arg("sparse_mode").constant.values is None
    assert call.arg("mask").dtype.values is None


def test_files_that_import_each_other(files: Files) -> None:
    files.write(
        one="from two import b\ndef a(n):\n    return b(n)\nMODE = 3\n",
        two="from one import a, MODE\ndef b(n):\n    return a(n)\ndef mode():\n    return MODE\n",
        user=user("from one import a\nfrom two import mode", "a(1)", "mode()"),
    )
    call = files.call("user")
    assert call.arg("sparse_mode").constant.value == 3
    assert call.arg("mask").dtype.values is None


def test_a_chain_of_exports_in_a_circle_ends(files: Files) -> None:
    files.write(one="from two import *\n", two="from one import *\n", user=user("from one import *"))
    assert files.call("user").arg("sparse_mode").constant.values is None


def test_a_package_outside_the_project_is_not_looked_up(files: Files) -> None:
    files.write(math="MODE = 3\n", user=user("from math import MODE", "None"))
    assert files.call("user").arg("sparse_mode").constant.values is None


def test_the_place_of_a_value_is_in_the_file_that_builds_it(files: Files) -> None:
    files.write(helper=HELPER, user=user("from helper import hidden, MODE"))
    notes = [note for note in files.call("user").arg("mask").dtype.notes if note.place is not None]
    assert notes[0].place is not None
    assert Path(notes[0].place.path).resolve() == (files.root / "helper.py").resolve()
    assert notes[0].place.line == 5
