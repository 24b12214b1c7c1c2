"""Which files of a project are searched, and what for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlint.source import corpus
from kvlint.source.corpus import Corpora, Corpus, Searched
from kvlint.source.disk import Disk


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "pyproject.toml": "",
        "a.py": "from b import Meta, build\nmeta = Meta(mask)\n",
        "b.py": "class Meta:\n    pass\nclass Sub(Meta):\n    pass\n"
        "def build(meta: Meta) -> 'Meta':\n    return meta\n",
        "c.py": "from b import (\n    Meta,\n    build,\n)\nx: Meta = build(y)\nx.mask = z\nx.mask == 1\n",
        "d.py": "class D:\n    def f(self):\n        self.mask = 1\nimport b\nb.build = f\n",
        "tests/test_a.py": "Meta(1)\nbuild(2)\n",
        "test_b.py": "Meta(1)\n",
        "env/pyvenv.cfg": "",
        "env/lib/e.py": "Meta(1)\n",
        ".hidden/h.py": "Meta(1)\n",
        "node_modules/n.py": "Meta(1)\n",
        "note.txt": "Meta(1)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def names(paths: list[str]) -> list[str]:
    return [Path(path).name for path in paths]


class TestSearch:
    def test_tests_environments_and_hidden_folders_are_left_out(self, tree: Path) -> None:
        assert names(Corpus(str(tree)).mentioning("Meta")) == ["a.py", "b.py", "c.py"]

    def test_a_name_inside_another_does_not_count(self, tree: Path) -> None:
        assert names(Corpus(str(tree)).mentioning("Met")) == []

    def test_imports_and_annotations_are_no_use(self, tree: Path) -> None:
        assert names(Corpus(str(tree)).using("Meta")) == ["a.py", "b.py"]

    def test_a_dict_that_classes_are_picked_from_is_a_use(self, tree: Path) -> None:
        (tree / "d.py").write_text("import a\nMAKERS = {'meta': a.Meta}\n")
        assert names(Corpus(str(tree)).using("Meta")) == ["a.py", "b.py", "d.py"]

    def test_bases(self, tree: Path) -> None:
        assert names(Corpus(str(tree)).deriving("Meta")) == ["b.py"]

    def test_calls_but_no_definitions(self, tree: Path) -> None:
        assert names(Corpus(str(tree)).calling("build")) == ["c.py"]

    def test_attributes_set_on_other_objects(self, tree: Path) -> None:
        assert names(Corpus(str(tree)).assigning("mask")) == ["c.py"]

    def test_functions_that_are_replaced(self, tree: Path) -> None:
        found = Corpus(str(tree))
        assert found.replaces("build") and not found.replaces("mask_of")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("library.build = mine", True),
            ("if x:\n    a.b.build  =mine", True),
            ("self.build = mine", False),
            ("self.part.build = mine", False),
            ("a.build == mine", False),
            ("x = a.build = mine", False),
        ],
    )
    def test_what_counts_as_a_replacement(self, tmp_path: Path, text: str, expected: bool) -> None:
        (tmp_path / "a.py").write_text(text)
        assert Corpus(str(tmp_path)).replaces("build") is expected

    @pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_FOLDERS", "MAX_BYTES"])
    def test_a_tree_that_is_too_large_is_not_searched(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch, limit: str
    ) -> None:
        monkeypatch.setattr(corpus, limit, 0)
        found = Corpus(str(tree))
        assert found.mentioning("Meta") == [] and not found.complete


class TestTop:
    def test_the_folder_that_is_marked(self, tree: Path) -> None:
        (tree / "pack").mkdir()
        found = Corpora().of(str(tree / "pack" / "x.py"))
        assert found is not None and found.top == str(tree)

    def test_the_outermost_folder_that_was_named(self, tmp_path: Path) -> None:
        inner = tmp_path / "a" / "b"
        inner.mkdir(parents=True)
        found = Corpora([str(tmp_path / "a"), str(inner)]).of(str(inner / "x.py"))
        assert found is not None and found.top == str(tmp_path / "a")

    def test_the_parent_of_a_package(self, tmp_path: Path) -> None:
        pack = tmp_path / "pack" / "inner"
        pack.mkdir(parents=True)
        for folder in (pack, pack.parent):
            (folder / "__init__.py").write_text("")
        found = Corpora().of(str(pack / "x.py"))
        assert found is not None and found.top == str(tmp_path)

    def test_a_file_by_itself(self, tmp_path: Path) -> None:
        assert Corpora().of(str(tmp_path / "x.py")) is None

    def test_each_tree_is_read_once(self, tree: Path) -> None:
        corpora = Corpora()
        assert corpora.of(str(tree / "a.py")) is corpora.of(str(tree / "b.py"))


QUESTIONS = [
    *((kind, name) for kind in ("mentioning", "using", "deriving") for name in ("Meta", "build", "Sub")),
    *(("calling", name) for name in ("Meta", "build")),
    *((kind, name) for kind in ("assigning", "replacing") for name in ("mask", "build")),
    ("using", "Meta", "Sub"),
]
CHANGES = {
    "a file that had the name": {"c.py": "x = 1\n"},
    "a file that has it now": {
        "b.py": "y.mask = Meta(1)\nclass Last(a.Meta[int]):\n    build()\nb.build = 1\n"
    },
    "a new file in between": {"aa.py": "from b import Meta\nMeta(1)\nbuild(1)\nx.mask = 2\n"},
    "a deleted file": {"b.py": None},
    "a file that matters to nobody": {"note.txt": "Meta"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_earlier_answers_are_brought_up_to_date(tree: Path, change: str) -> None:
    before = Corpus(str(tree), Disk({}))
    earlier = Searched(before.digests(), {question: before.ask(question) for question in QUESTIONS})
    for name, text in CHANGES[change].items():
        if text is None:
            (tree / name).unlink()
        else:
            (tree / name).write_text(text)
    fresh, resumed = Corpus(str(tree)), Corpus(str(tree), Disk({}), lambda top: earlier)
    for question in QUESTIONS:
        assert resumed.ask(question) == fresh.ask(question)
    assert resumed.news == (change != "a file that matters to nobody")
    assert resumed.answers.keys() == set(QUESTIONS)
